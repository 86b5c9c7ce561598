//! What the operator wants. Two steps: [`typed`] holds what was said and where; [`Settings`] is what it means.
//!
//! One TOML file, overridden by the environment, then by flags. Nothing here makes a sandbox.

mod ask;
mod ceiling;
mod engines;
mod images;
mod keys;
mod mirrors;
mod model;
mod paths;
mod policies;
mod secrets;
mod settings;
mod state;
mod templates;
mod typed;
mod warm;
mod words;

pub use ask::Ask;
pub use ceiling::NotAllowed;
pub use engines::EngineImages;
pub use images::NamePattern;
pub use keys::{KEYS, Key, markdown};
pub use mirrors::Mirrors;
pub use model::{ModelApi, ModelSetting, Price};
pub use paths::config_file;
pub(crate) use secrets::TRUSTING;
pub use secrets::{SecretSetting, SecretSource, ServiceSetting};
pub use settings::{Settings, nearest};
pub use state::prepare as prepare_state;
pub use templates::Template;
pub use typed::{Flags, Source, Typed};

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// The operator said something that cannot be followed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Nobody knows this key.
    #[error("{source_} has an unknown setting `{key}`{hint}. Known settings: {known}", hint = did_you_mean(nearest))]
    UnknownKey {
        /// Where it was said.
        source_: Source,
        /// The key as typed.
        key: String,
        /// The known key that it is most like.
        nearest: Option<&'static str>,
        /// All known keys.
        known: String,
    },
    /// The key is known, but not with such a value.
    #[error("{source_}: `{key}` is {value}, but must be {expected}")]
    BadValue {
        /// Where it was said.
        source_: Source,
        /// The key.
        key: &'static str,
        /// The value as typed.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// A table of the file cannot be followed.
    #[error("{source_}: `[{key}]`: {why}")]
    BadTable {
        /// Where it was said.
        source_: Source,
        /// The table.
        key: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// No policy has this name.
    #[error("there is no policy `{name}`{hint}. Policies: {known}", hint = did_you_mean(&nearest.as_deref()))]
    UnknownPolicy {
        /// The name as typed.
        name: String,
        /// The known one that it is most like.
        nearest: Option<String>,
        /// All names.
        known: String,
    },
    /// No template has this name.
    #[error("there is no template `{name}`{hint}. Templates: {known}", hint = did_you_mean(&nearest.as_deref()))]
    UnknownTemplate {
        /// The name as typed.
        name: String,
        /// The known one that it is most like.
        nearest: Option<String>,
        /// All names.
        known: String,
    },
    /// A name of the policy table that no sandbox can have.
    #[error(
        "the policy `{name}` is not for sandboxes: it is for servers that ship with this program and run outside. Policies: {known}"
    )]
    NotForSandboxes {
        /// The name as typed.
        name: String,
        /// All names that sandboxes can have.
        known: String,
    },
    /// A setting names a policy that cannot be used.
    #[error("{source_}: `{key}` cannot be followed: {why}")]
    PolicyInSetting {
        /// Where it was said.
        source_: Source,
        /// The setting.
        key: &'static str,
        /// What is wrong with that policy.
        why: Box<ConfigError>,
    },
    /// A policy of the operator's own says what cannot be followed.
    #[error("the policy {file} cannot be used: {why}. Correct the file")]
    Policy {
        /// Its file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Sandboxes must not be made from this folder.
    #[error("the folder {folder} cannot be an image: {why}. Correct allowed_images or default_image")]
    Image {
        /// Which folder.
        folder: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Models get the default policy when they ask for none, so they must be allowed to.
    #[error(
        "the default policy `{name}` is not in allowed_policies ({allowed}): add it, or set default_policy to one of them"
    )]
    DefaultNotAllowed {
        /// The default policy.
        name: String,
        /// All that are allowed.
        allowed: String,
    },
    /// The file is not TOML.
    #[error("{file} cannot be understood: {why}. Correct it, or try another with --config")]
    NotToml {
        /// Which file.
        file: PathBuf,
        /// What the parser said.
        why: String,
    },
    /// The file cannot be read.
    #[error("{file} cannot be read: {source}. Check the path after --config, and who may read it")]
    Unreadable {
        /// Which file.
        file: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// There is no way to know where things belong.
    #[error("neither {variable} nor HOME is set: set one of them, or name the {what} with {flag}")]
    NoHome {
        /// What would have been looked at first.
        variable: &'static str,
        /// What has no place.
        what: &'static str,
        /// How to say it.
        flag: &'static str,
    },
    /// The state folder cannot be trusted or used.
    #[error("the state folder {folder} cannot be used: {why}. {fix}")]
    State {
        /// Which folder.
        folder: PathBuf,
        /// What is wrong.
        why: String,
        /// What to do.
        fix: String,
    },
}

impl Settings {
    /// From the file, the environment and the flags, in this order.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let mut typed = Typed::default();
        match &flags.config {
            Some(file) => typed.add_file(file, &read(file)?)?,
            None => {
                if let Some(file) = config_file() {
                    match read(&file) {
                        // Only a file that was named must be there.
                        Err(ConfigError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => {}
                        text => typed.add_file(&file, &text?)?,
                    }
                }
            }
        }
        typed.add_environment(std::env::vars_os())?;
        typed.add_flags(flags)?;
        Self::from_typed(typed)
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file).map_err(|source| ConfigError::Unreadable { file: file.to_owned(), source })
}

fn did_you_mean(nearest: &Option<&str>) -> String {
    nearest.map(|name| format!(" (did you mean `{name}`?)")).unwrap_or_default()
}
