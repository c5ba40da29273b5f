//! The user port: router and middleware.
