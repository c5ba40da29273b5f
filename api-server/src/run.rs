//! The wiring: parts, listeners, shutdown.
