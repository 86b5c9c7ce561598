//! What can go wrong with images, by what the reader can do about it.

use std::io;

use sandbox_core::Error;
use serde::{Deserialize, Serialize};

/// Something about an image did not happen.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The registry knows no such image.
    #[error("{registry} has no image {image}")]
    Unknown {
        /// What was asked for.
        image: String,
        /// Who was asked.
        registry: String,
    },
    /// The registry wants somebody else.
    #[error("{registry} does not give {image} to {who}: {why}")]
    Unauthorized {
        /// What was asked for.
        image: String,
        /// Who was asked.
        registry: String,
        /// As whom.
        who: String,
        /// Its answer.
        why: String,
    },
    /// No answer that could be used.
    #[error("{registry} cannot be reached: {why}")]
    Unreachable {
        /// Who was asked.
        registry: String,
        /// What happened.
        why: String,
    },
    /// An answer, but not one that helps.
    #[error("{registry} answered {why}")]
    Answer {
        /// Who was asked.
        registry: String,
        /// What it said.
        why: String,
    },
    /// What an image consists of is broken, too large or meant to do harm.
    #[error("{0}")]
    Malformed(Malformed),
    /// There is no such image here.
    #[error("there is no image {0} on this machine")]
    Missing(String),
    /// Sandboxes stand on it.
    #[error("{image} is used by {users}")]
    InUse {
        /// What was to be removed.
        image: String,
        /// Sandboxes, or how many.
        users: String,
    },
    /// It calls itself so, and nobody else does.
    #[error("the image in it calls itself {name}, but {why}")]
    NotItsName {
        /// What it calls itself.
        name: String,
        /// Why it is not called so.
        why: String,
    },
    /// Neither name nor file nor folder.
    #[error("{0}")]
    NoSource(String),
    /// The operating system said no.
    #[error("{doing}: {source}")]
    Io {
        /// What was being done.
        doing: String,
        /// Its answer.
        source: io::Error,
    },
}

/// Why an image is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Malformed {
    /// What is wrong with it.
    pub what: String,
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the image is refused: {}", self.what)
    }
}

impl ImageError {
    /// The image is at fault.
    pub fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(Malformed { what: what.into() })
    }

    /// An I/O error with what was being done.
    pub fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let doing = doing.into();
        move |source| Self::Io { doing, source }
    }

    /// What can be done about it.
    fn fix(&self) -> String {
        match self {
            Self::Unknown { .. } => "Check its name and tag".into(),
            Self::Unauthorized { registry, .. } => format!(
                "Log in with `docker login {registry}` or `podman login {registry}` (their files are read), or check its name"
            ),
            Self::Unreachable { registry, .. } => format!(
                "Check the network, name a mirror of {} in the setting `registry_mirrors`, or bring the image as a \
                 file: `docker save IMAGE -o image.tar` elsewhere, then `sandbox-mcp pull image.tar`",
                // What people call it is not where it answers.
                if registry == "registry-1.docker.io" { "docker.io" } else { registry }
            ),
            Self::Answer { .. } => {
                "Try again later, or bring the image as a file (`sandbox-mcp pull image.tar`)".into()
            }
            Self::Malformed(_) => "Nothing of it was kept. Use another image, or ask whoever made it".into(),
            Self::Missing(name) if name.starts_with("localhost/") => format!(
                "No registry is asked for names that begin with `localhost/`: make it on this machine, then `sandbox-mcp pull \
                 image.tar --name {name}`"
            ),
            Self::Missing(name) => {
                format!(
                    "Get it with `sandbox-mcp pull {name}`; `sandbox-mcp images` shows the names of those that are here"
                )
            }
            Self::InUse { .. } => "End those first: `sandbox-mcp rm SESSION_ID`".into(),
            Self::NotItsName { name, .. } => {
                format!("If you know where it comes from, say the name yourself: `--name {name}`; or give it another")
            }
            Self::NoSource(_) => {
                "Name an image (`python:3.12-slim`), an archive (`./image.tar`) or the folder of an OCI layout".into()
            }
            Self::Io { .. } => "Check the state folder and its disk".into(),
        }
    }

    /// In words for whoever asked, with what to do about it.
    pub fn advice(&self) -> String {
        format!("{self}. {}", self.fix())
    }
}

impl From<ImageError> for Error {
    fn from(error: ImageError) -> Self {
        let fix = error.fix();
        match error {
            ImageError::Unreachable { ref registry, ref why } => Error::Unavailable {
                what: format!("images from {registry}"),
                why: format!("it cannot be reached: {why}"),
                fix,
            },
            ImageError::Io { doing, source } => Error::Io { doing, source },
            other => Error::Invalid { what: other.to_string(), fix },
        }
    }
}

/// Shorter ways to say what was being done.
pub(crate) trait Doing<T> {
    /// With what was being done.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, ImageError>;
}

impl<T> Doing<T> for io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, ImageError> {
        self.map_err(|source| ImageError::Io { doing: doing(), source })
    }
}

impl<T> Doing<T> for rustix::io::Result<T> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, ImageError> {
        self.map_err(|source| ImageError::Io { doing: doing(), source: source.into() })
    }
}
