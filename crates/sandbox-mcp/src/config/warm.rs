//! Which sandboxes are kept ready: a number of the default kind, or a list of kinds.

use sandbox_core::Image;
use serde::Deserialize;

use super::Settings;
use crate::sandboxes::Warm;

/// What the setting may be.
pub const EXPECTED: &str =
    "a whole number up to 64, or a list of kinds: [{ policy = \"yolo-3\", image = \"host\", count = 2 }]";
/// So many are kept ready at most, of each kind.
const MOST: usize = 64;

/// What was said.
pub enum Said {
    /// So many of what is made when nothing else is said.
    Default(usize),
    /// These.
    Kinds(Vec<Kind>),
}

/// One kind.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    backend: Option<String>,
    image: Option<Image>,
    policy: Option<String>,
    count: usize,
}

/// Reads it; the environment has only texts.
pub fn read(said: &toml::Value) -> Option<Said> {
    match said {
        toml::Value::Integer(count) => usize::try_from(*count).ok().map(Said::Default),
        toml::Value::String(text) => text.trim().parse().ok().map(Said::Default),
        toml::Value::Array(_) => said.clone().try_into().ok().map(Said::Kinds),
        _ => None,
    }
    .filter(|said| match said {
        Said::Default(count) => *count <= MOST,
        Said::Kinds(kinds) => kinds.iter().all(|kind| kind.count <= MOST),
    })
}

impl Said {
    /// What it comes to with these settings.
    pub fn mean(self, settings: &Settings) -> Result<Vec<Warm>, String> {
        let kinds = match self {
            Self::Default(count) => vec![Kind { backend: None, image: None, policy: None, count }],
            Self::Kinds(kinds) => kinds,
        };
        let mean = |kind: Kind| {
            let mut policy = match &kind.policy {
                Some(name) => settings.policy(name).map_err(|error| error.to_string())?,
                None => settings.default_policy.clone(),
            };
            settings.bound(&mut policy);
            let image = kind.image.unwrap_or_else(|| settings.default_image.clone());
            Ok(Warm { backend: kind.backend, image, policy, count: kind.count })
        };
        kinds.into_iter().filter(|kind| kind.count > 0).map(mean).collect()
    }
}
