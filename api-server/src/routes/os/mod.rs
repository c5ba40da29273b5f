//! The server itself.

pub mod config;
pub mod docs;
pub mod health;
pub mod info;
pub mod landing;
