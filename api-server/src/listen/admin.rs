//! Health and metrics.
