//! The record's schema.

pub mod migrate;
