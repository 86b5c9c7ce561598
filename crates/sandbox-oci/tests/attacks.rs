//! The attack suite on an OCI runtime.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

fn main() {
    let Some(stage) = support::begin("SECRET_OF_THE_SERVER") else { return };
    stage.end(0)
}
