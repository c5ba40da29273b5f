//! The worker's link.
