//! Safe computers for AI agents: the centre, and the doors through which it is reached.
//!
//! `main` is thin; everything that can be tested lives here. `app` does the wiring, `sandboxes` is the centre,
//! `agent` works on tasks, `commands` gives advice before they run, `inward` brings people to web servers inside, `mcp`
//! and `cli` are the doors, `config` says what the operator wants.

#![forbid(unsafe_code)]

pub mod agent;
pub mod app;
pub mod cli;
pub mod commands;
pub mod config;
pub mod inward;
pub mod mcp;
pub mod sandboxes;
