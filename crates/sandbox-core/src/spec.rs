//! What a caller asks for when it asks for a sandbox.

use std::{collections::BTreeMap, fmt, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{Policy, Reference, SessionId, UserId, reference::InvalidReference};

/// A sandbox to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SandboxSpec {
    /// Its handle.
    pub id: SessionId,
    /// Whose it is.
    pub owner: UserId,
    /// What its root file system starts from.
    pub image: Image,
    /// What it may do.
    pub policy: Policy,
    /// Lives on when no server looks after it.
    pub persistent: bool,
    /// Variables that every command in it starts with.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Certificates, in PEM form, that programs inside trust beside those of this machine.
    #[serde(default)]
    pub certificates: Option<String>,
    /// Programs from outside that can be used inside. Never said by a model.
    #[serde(default)]
    pub tools: Vec<Tool>,
}

impl SandboxSpec {
    /// Whether something inside reaches something outside: what the policy allows, or a model that a tool asks.
    pub fn has_way_out(&self) -> bool {
        self.policy.reaches_something() || !self.tools.is_empty()
    }
}

/// A folder of this machine that is seen inside, where nobody can change it. What is in it must be readable by everybody.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tool {
    /// The folder, outside.
    pub source: PathBuf,
    /// Where it is inside: `/opt/agents/NAME`.
    pub target: String,
}

/// What a root file system starts from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Image {
    /// A read-only view of this machine's own programs.
    Host,
    /// A folder that holds a root file system.
    Folder(PathBuf),
    /// An OCI image, by its name in a registry.
    Reference(Reference),
}

/// The text names no image.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0}. Use `host` for this machine's own programs, the absolute path of a folder that holds a root file system, or the \
     name of an image, such as `python:3.12-slim`"
)]
pub struct InvalidImage(InvalidReference);

impl FromStr for Image {
    type Err = InvalidImage;

    fn from_str(text: &str) -> Result<Self, InvalidImage> {
        match text {
            "host" => Ok(Self::Host),
            path if path.starts_with('/') && !path.contains('\0') => Ok(Self::Folder(path.into())),
            name => name.parse().map(Self::Reference).map_err(InvalidImage),
        }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Folder(path) => path.display().fmt(f),
            Self::Reference(reference) => reference.fmt(f),
        }
    }
}

impl From<Image> for String {
    fn from(image: Image) -> Self {
        image.to_string()
    }
}

impl TryFrom<String> for Image {
    type Error = InvalidImage;

    fn try_from(text: String) -> Result<Self, InvalidImage> {
        text.parse()
    }
}
