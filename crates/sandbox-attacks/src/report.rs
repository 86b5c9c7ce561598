//! What came of the attacks.

use sandbox_core::Held;
use serde::{Deserialize, Serialize};

use crate::{Expected, Group, Wall};

/// What came of one attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It worked, with proof.
    BrokeThrough,
    /// It did not.
    Held,
    /// It makes no sense here.
    NotApplicable,
    /// It could not be tried, so nothing is known.
    Failed,
}

/// An outcome with its detail.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    pub outcome: Outcome,
    pub detail: String,
}

impl Finding {
    pub fn broke(detail: impl Into<String>) -> Self {
        Self { outcome: Outcome::BrokeThrough, detail: detail.into() }
    }

    pub fn held(detail: impl Into<String>) -> Self {
        Self { outcome: Outcome::Held, detail: detail.into() }
    }

    pub fn not_applicable(detail: impl Into<String>) -> Self {
        Self { outcome: Outcome::NotApplicable, detail: detail.into() }
    }

    pub fn failed(detail: impl Into<String>) -> Self {
        Self { outcome: Outcome::Failed, detail: detail.into() }
    }

    /// Several things, none of which may have worked.
    pub fn of_list(what: &str, broken: Vec<String>) -> Self {
        match broken.is_empty() {
            true => Self::held(format!("{what}: none")),
            false => Self::broke(format!("{what}: {}", broken.join(", "))),
        }
    }
}

/// One attack on one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// Its name.
    pub attack: String,
    /// What kind of harm it would do.
    pub group: Group,
    /// The policy's name.
    pub policy: String,
    /// What came of it.
    pub outcome: Outcome,
    /// What should have.
    pub expected: Expected,
    /// In words. It may hold text from inside.
    pub detail: String,
    /// What it tried.
    pub tries: String,
    /// What stands in its way.
    pub walls: Vec<Wall>,
    /// How long it took.
    pub milliseconds: u64,
}

impl Record {
    /// A wall that should hold did not, or nobody can say.
    pub fn is_breach(&self) -> bool {
        match self.outcome {
            Outcome::BrokeThrough => self.expected == Expected::Held,
            Outcome::Failed => true,
            Outcome::Held | Outcome::NotApplicable => false,
        }
    }
}

/// All attacks on one policy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PolicyReport {
    /// The backend's name.
    pub backend: String,
    /// The policy's name.
    pub policy: String,
    /// What the sandboxes started from.
    pub image: String,
    /// Why nothing was tried, if nothing was.
    pub skipped: Option<String>,
    /// Nothing was tried though a sandbox was made, so nothing is known.
    pub failed: bool,
    /// How memory is held: some attacks depend on it.
    pub memory_held: Option<Held>,
    /// Each attack.
    pub records: Vec<Record>,
    /// How another sandbox fared meanwhile.
    pub bystander: Option<Bystander>,
    /// How long all of it took.
    pub milliseconds: u64,
}

impl PolicyReport {
    /// Those that must not be.
    pub fn breaches(&self) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(|record| record.is_breach())
    }
}

/// How long commands took in a sandbox that had nothing to do with the attacks, in milliseconds (the 95th of 100).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bystander {
    /// Before.
    pub before: f64,
    /// While other sandboxes were being exhausted.
    pub during: f64,
}
