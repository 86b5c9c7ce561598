//! How a sandbox stands, as callers are told.

use std::{path::PathBuf, time::Duration};

use sandbox_core::{Enforcement, Image, SessionId, Usage, UserId, exec::Job};
use serde::Serialize;

use super::access::ActiveGrant;

/// Whether it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// It runs and a server looks after it.
    Running,
    /// Every process of it was stopped for good, and it reaches nothing. Its files can be taken.
    Frozen {
        /// Why.
        why: String,
    },
    /// No server looks after it: it has ended, or waits for one. Its files are kept until clean-up.
    Unattended,
    /// It has ended. Its files are kept until clean-up.
    Ended {
        /// Why.
        why: String,
    },
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Its handle.
    pub session_id: SessionId,
    /// Whose it is.
    pub owner: UserId,
    /// Whether it runs.
    #[serde(flatten)]
    pub state: State,
    /// What it was made from.
    pub image: Image,
    /// The name of its policy.
    pub policy: String,
    /// Whether it is kept when nobody uses it.
    pub persistent: bool,
    /// Since it was made.
    #[serde(serialize_with = "seconds", rename = "age_seconds")]
    pub age: Duration,
    /// Since it was last used.
    #[serde(serialize_with = "seconds", rename = "idle_seconds")]
    pub idle: Duration,
    /// Until it is cleaned up if nobody uses it; never, if not said.
    #[serde(serialize_with = "maybe_seconds", rename = "expires_in_seconds")]
    pub expires_in: Option<Duration>,
}

/// Everything about one sandbox.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Status {
    /// What a list says.
    #[serde(flatten)]
    pub summary: Summary,
    /// Where it runs.
    pub backend: String,
    /// What it uses, where that can be told.
    pub usage: Option<Usage>,
    /// Its jobs, ended ones too.
    pub jobs: Vec<Job>,
    /// How each of its limits and walls is held.
    pub enforcement: Enforcement,
    /// What a person has granted to it.
    pub grants: Vec<ActiveGrant>,
    /// Where its files lie on this machine.
    pub workspace: PathBuf,
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((duration.as_secs_f64() * 1000.0).round() / 1000.0)
}

fn maybe_seconds<S: serde::Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    match duration {
        Some(duration) => seconds(duration, serializer),
        None => serializer.serialize_none(),
    }
}
