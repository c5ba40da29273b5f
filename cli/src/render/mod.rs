//! What people see. Pure: events and rows in, text out. Everything that models, tools and servers wrote passes
//! through [`clean`] (security rule 22). Must not do IO, but for [`terminal`].

pub mod clean;
pub mod events;
pub mod numbers;
pub mod pause;
pub mod style;
pub mod table;
pub mod terminal;
