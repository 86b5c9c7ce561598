//! Secrets on real connections: real TLS, real requests, a far end that writes down what arrived.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that fails should say where")]

mod behaviour;
mod coming_back;
mod far;
mod leaving;
mod put_in;
mod real_clients;
mod services;
#[path = "../support/mod.rs"]
mod support;
