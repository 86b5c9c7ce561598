//! The places where sandboxes run, by name, and the one that is meant where none is named.

use std::{collections::BTreeMap, sync::Arc};

use sandbox_core::{Backend, Error, Recovered};

/// All that this program has.
#[derive(Clone)]
pub struct Backends {
    default: String,
    all: BTreeMap<String, Arc<dyn Backend>>,
}

impl Backends {
    /// None yet; this one will be meant where none is named.
    pub fn new(default: &str) -> Self {
        Self { default: default.to_owned(), all: BTreeMap::new() }
    }

    /// With one more.
    pub fn with(mut self, name: &str, backend: Arc<dyn Backend>) -> Self {
        self.all.insert(name.to_owned(), backend);
        self
    }

    /// The one that is meant.
    pub fn named(&self, name: Option<&str>) -> Result<&Arc<dyn Backend>, Error> {
        let name = name.unwrap_or(&self.default);
        self.all.get(name).ok_or_else(|| Error::Invalid {
            what: format!("there is no backend `{name}`"),
            fix: format!("Use one of: {}", self.names().collect::<Vec<_>>().join(", ")),
        })
    }

    /// The name of the one that is meant where none is named.
    pub fn default(&self) -> &str {
        &self.default
    }

    /// All names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.all.keys().map(String::as_str)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn Backend>)> {
        self.all.iter().map(|(name, backend)| (name.as_str(), backend))
    }

    /// What an earlier server left in any of them, and what went wrong; one that fails keeps no other from its own.
    pub(super) async fn recover(&self) -> (Recovered, Option<String>) {
        let (mut sum, mut failed) = (Recovered::default(), Vec::new());
        for (name, backend) in self.iter() {
            match backend.recover().await {
                Err(error) => failed.push(format!("{name}: {error}")),
                Ok(found) => {
                    sum.alive.extend(found.alive);
                    sum.ended.extend(found.ended);
                    found.removed.into_iter().for_each(|(kind, count)| *sum.removed.entry(kind).or_default() += count);
                }
            }
        }
        (sum, (!failed.is_empty()).then(|| failed.join("; ")))
    }
}
