//! The program inside every sandbox: it starts commands, keeps their output and moves files.
//!
//! It is PID 1 there. It has one thread and never makes another, so that commands which use up every process that the
//! sandbox may have cannot take from it what it needs to end them.

#![deny(unsafe_code)]

mod program;

fn main() {
    program::main();
}
