//! Tests through the real door: the real binary, real lines, real sandboxes.
//!
//! Each test is a few lines; `harness` does the rest. They run as root and as an ordinary user.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../support/disguise.rs"]
mod disguise;
mod harness;
mod model;
mod person;
mod schema;
mod visitor;

mod agents;
mod arguments;
mod asking;
mod budget;
mod commands;
mod denials;
mod disguises;
mod doctor;
mod engines;
mod examples;
mod files;
mod happy;
mod hostile;
mod images;
mod inside;
mod installing;
mod jobs;
mod lifetime;
mod limits;
mod neighbours;
mod network;
mod ports;
mod programs;
mod programs_in_trouble;
mod protocol;
mod real_client;
mod receipts;
mod small_model;
mod tasks;
mod tasks_at_terminal;
mod templates;
mod terminal;
mod trust;
mod warm;
mod way_out_limits;
