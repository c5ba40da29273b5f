//! The worker port: router and authentication.
