//! `cadre dev` with real workers, real exec-servers and the real command line.

mod failures;
mod quickstart;
mod reload;
mod support;
