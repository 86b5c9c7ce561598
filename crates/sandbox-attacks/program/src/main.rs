//! Runs inside a sandbox and tries one thing that must not work there: `sandbox-attack NAME [KEY=VALUE]…`.
//!
//! It prints one JSON line with what came of it and ends. It says that it broke through only on proof: a byte that was
//! read, an effect that was seen. `list` prints all names; `canary` is the other role, on the host's side, where it
//! holds what must not be seen or reached from inside.
//!
//! Only the attacks live here. What each one means, and whether a policy grants it, the library knows that carries
//! this program.

#![deny(unsafe_code)]

mod arguments;
mod canary;
mod disguise;
mod escape;
mod exhaustion;
mod host_check;
mod leakage;
mod network;
mod outcome;
mod plant;
#[allow(unsafe_code, reason = "raw system calls; each site says why it is sound")]
mod sys;

use std::{io::Write, process::ExitCode};

use arguments::Arguments;
use outcome::Outcome;

/// One thing to try.
type Attack = fn(&Arguments) -> Outcome;

fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let name = words.next().unwrap_or_default();
    let arguments = Arguments::parse(words);
    match name.as_str() {
        "list" => return list(),
        "canary" => return canary::hold(&arguments),
        _ => {}
    }
    let Some((_, attack)) = attacks().find(|(known, _)| *known == name) else {
        let _ = writeln!(std::io::stderr(), "there is no attack `{name}`: `sandbox-attack list` shows all");
        return ExitCode::from(2);
    };
    let _ = writeln!(std::io::stdout(), "{}", attack(&arguments).json());
    ExitCode::SUCCESS
}

fn list() -> ExitCode {
    for (name, _) in attacks() {
        let _ = writeln!(std::io::stdout(), "{name}");
    }
    ExitCode::SUCCESS
}

fn attacks() -> impl Iterator<Item = (&'static str, Attack)> {
    let groups = [
        escape::attacks(),
        exhaustion::attacks(),
        vec![leakage::ATTACKS, disguise::ATTACKS, network::ATTACKS, host_check::ATTACKS, plant::ATTACKS],
    ];
    groups.into_iter().flatten().flatten().copied()
}
