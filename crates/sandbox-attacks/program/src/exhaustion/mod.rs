//! Using up what is everybody's. Each attack is told its sandbox's limit and goes a bounded way beyond it, so that even
//! without the wall the machine is not hurt.

mod disk;
mod memory;
mod objects;
mod processes;
mod shares;

use std::{
    io::Write,
    time::{Duration, Instant},
};

use crate::{Attack, outcome::Outcome};

pub fn attacks() -> Vec<&'static [(&'static str, Attack)]> {
    vec![disk::ATTACKS, memory::ATTACKS, objects::ATTACKS, processes::ATTACKS, shares::ATTACKS]
}

/// Says what is held, and holds it until the suite has looked around and ends us.
pub fn hold<T>(detail: String, kept: T) -> Outcome {
    say(&Outcome::Seen(detail));
    std::thread::sleep(Duration::from_secs(30));
    drop(kept);
    Outcome::Held("nobody ended it".to_owned())
}

/// Says that a limit was passed, and goes on holding what passed it.
fn hold_breach<T>(detail: String, kept: T) -> Outcome {
    say(&Outcome::BrokeThrough(detail));
    std::thread::sleep(Duration::from_secs(30));
    drop(kept);
    Outcome::Held("nobody ended it".to_owned())
}

fn say(outcome: &Outcome) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{}", outcome.json());
    let _ = out.flush();
}

/// Time for whoever watches a limit to notice.
fn wait_for_watchers(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}

/// A busy machine must not turn an attack into a failure: whoever has not reached the limit by then holds what it has.
struct Deadline(Instant);

impl Deadline {
    fn start() -> Self {
        Self(Instant::now() + Duration::from_secs(12))
    }

    fn is_over(&self) -> bool {
        Instant::now() > self.0
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
