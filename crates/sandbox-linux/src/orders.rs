//! What a server and its launcher say to each other.

use sandbox_core::{Door, Usage};
use serde::{Deserialize, Serialize};

use crate::{host::Host, plan::Plan};

/// What a server can ask.
#[derive(Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Order {
    Create {
        ticket: u64,
        plan: Box<Plan>,
    },
    /// Ends a sandbox if it runs, and removes its folder and cgroup.
    Destroy {
        ticket: u64,
        name: String,
    },
    Usage {
        ticket: u64,
        name: String,
    },
}

/// What a server is told.
#[derive(Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Report {
    /// The first one: what this machine offers.
    Ready(Box<Host>),
    /// It cannot work at all.
    Unusable(String),
    /// A sandbox's executor answers; its pidfd, a connection to it, and the doors of its way out come along.
    Created {
        ticket: u64,
        pid: i32,
        doors: Vec<Door>,
    },
    Failed {
        ticket: u64,
        why: String,
    },
    Destroyed {
        ticket: u64,
    },
    Used {
        ticket: u64,
        usage: Usage,
    },
    Ended {
        name: String,
    },
}
