//! Sessions: the conversations that runs belong to.

pub mod create;
pub mod delete;
pub mod delete_many;
pub mod find;
pub mod fork;
pub mod get;
pub mod list;
pub mod rename;
pub mod run;
pub mod run_previews;
pub mod runs;
pub mod select;
pub mod update;
pub mod values;
