//! The attack suite: harmless probes that are run only inside sandboxes which a backend makes for them, to prove that
//! its walls hold.
//!
//! [`all`] is the table of attacks, [`run`] tries them on a backend with a policy and an image, and the [`Report`] says
//! what came of each. An attack says that it broke through only on proof. Most run inside, as the program that this
//! library carries (`program/`); some are driven from outside, through the executor's file interface or with two
//! sandboxes; on the host's side the suite holds a canary that must not be seen from inside.

#![forbid(unsafe_code)]

mod attack;
mod canary;
mod expectation;
mod judge;
mod outside;
mod program;
mod report;
mod runner;
mod table;
mod workbench;

pub use attack::{Attack, Expected, Group, Wall};
pub use program::{on_host, unpack};
pub use report::{Bystander, Outcome, PolicyReport, Record};
pub use runner::{AttackError, Progress, Subject, run};
pub use table::all;
