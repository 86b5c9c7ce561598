//! What is kept outside for a sandbox, as it is said before it is checked.

use std::{collections::BTreeMap, fmt, sync::Arc};

use super::{Budget, Follower, Secret, Service, Spent, Trust};

/// What is kept outside for a sandbox, and who is told what becomes of it.
pub struct Vault {
    /// The secrets.
    pub secrets: Vec<Secret>,
    /// Placeholders that a sandbox holds from before, by the names of their secrets; the others are made anew.
    pub placeholders: BTreeMap<String, String>,
    /// What is reached by a loopback address, with a secret.
    pub services: Vec<Service>,
    /// Who is believed to be who it says.
    pub trust: Trust,
    /// Told when a placeholder was on its way to somebody else. Must not wait.
    pub on_leak: OnLeak,
    /// Told what answers of services cost. Must not wait.
    pub on_spent: OnSpent,
    /// Asked before each request to a service.
    pub budget: Budget,
    /// Told of every request to a service.
    pub follower: Option<Arc<dyn Follower>>,
}

/// Whoever wants to know of leaks.
pub type OnLeak = Box<dyn Fn(&Leak) + Send + Sync>;
/// Whoever counts what is spent.
pub type OnSpent = Box<dyn Fn(&Spent) + Send + Sync>;

/// A placeholder that was stopped on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leak {
    /// The secret that it stands for.
    pub secret: String,
    /// Where it was sent.
    pub target: String,
}

impl Vault {
    /// An empty one, of which nobody is told anything.
    pub fn new(trust: Trust) -> Self {
        Self {
            secrets: Vec::new(),
            placeholders: BTreeMap::new(),
            services: Vec::new(),
            trust,
            on_leak: Box::new(|_| {}),
            on_spent: Box::new(|_| {}),
            budget: Budget::endless(),
            follower: None,
        }
    }
}

impl fmt::Debug for Vault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secrets, services, trust, .. } = self;
        f.debug_struct("Vault")
            .field("secrets", secrets)
            .field("services", services)
            .field("trust", trust)
            .finish_non_exhaustive()
    }
}
