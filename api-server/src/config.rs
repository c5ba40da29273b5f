//! What the server is told: flags and environment.
