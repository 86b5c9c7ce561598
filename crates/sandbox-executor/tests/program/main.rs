//! The real program, as a plain process, through both carriers.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

mod files;
mod harness;
mod hiding;
mod jobs;
mod life;
mod outward;
mod ports;
mod single;
mod speed;
mod user;
