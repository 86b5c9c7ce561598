//! Fetches a program for this user, and keeps it where sandboxes are given it from.

use std::io;

use sandbox_core::{Fetching, Progress};
use sandbox_egress::OutwardError;

use super::{Installed, Kind, Store, registry::Registry, unpack};
use crate::config::{NpmRegistry, Settings, prepare_state};

/// Why a program is not there now.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum InstallError {
    #[error("there is no {0} for this kind of processor")]
    Platform(&'static str),
    #[error("{0}")]
    Settings(String),
    #[error("`{0}` is no version: write one such as 1.2.3, or latest")]
    Version(String),
    #[error("{0}. npm's settings say which registry is asked: `npm config get registry`")]
    Unreachable(#[from] OutwardError),
    #[error("the registry has no {0}")]
    NotThere(String),
    #[error("the registry wants a token, or does not like the one in npm's settings (status {0}): `npm login`")]
    Refused(u16),
    #[error("the registry {host} did not answer as it should: {why}")]
    Registry { host: String, why: String },
    #[error(
        "what came for {name} {version} is not what the registry described: its SHA-512 is another. Nothing was kept"
    )]
    Hash { name: String, version: String },
    #[error("the package could not be kept: {0}")]
    Writing(io::Error),
    #[error("the package does not hold the program `{0}`")]
    NoProgram(&'static str),
    #[error(transparent)]
    State(#[from] crate::config::ConfigError),
}

impl InstallError {
    pub(super) fn writing(error: io::Error) -> Self {
        Self::Writing(error)
    }
}

/// Fetches a program: this version, the one that the settings name, or the latest.
pub async fn install(
    settings: &Settings,
    kind: &'static Kind,
    version: Option<&str>,
    progress: Progress<'_>,
) -> Result<Installed, InstallError> {
    let version = version.unwrap_or_else(|| settings.agent_version(kind.name));
    if version != LATEST && !super::store::is_version(version) {
        return Err(InstallError::Version(version.chars().take(60).collect()));
    }
    let name = kind.package().ok_or(InstallError::Platform(kind.name))?;
    prepare_state(&settings.state)?;
    let registry = Registry::new(NpmRegistry::find().map_err(InstallError::Settings)?, settings.trust())?;
    progress(Fetching { step: format!("Asking for {name}"), done: 0, total: None });
    let package = registry.look_up(&name, version).await?;
    let store = Store::of(&settings.state);
    if let Some(there) = store.find(kind).filter(|there| there.version == package.version) {
        return Ok(there);
    }
    let draft = store.draft(kind).map_err(InstallError::Writing)?;
    let made = async {
        let (packed, folder) = (draft.join("package.tgz"), draft.join("folder"));
        let file = std::fs::File::options().write(true).create_new(true).open(&packed);
        registry.download(&package, file.map_err(InstallError::Writing)?, progress).await?;
        progress(Fetching { step: format!("Unpacking {name}"), done: 0, total: None });
        let unpacked = folder.clone();
        let unpacking = move || std::fs::create_dir(&unpacked).and_then(|()| unpack::unpack(&packed, &unpacked));
        let unpacked = tokio::task::spawn_blocking(unpacking).await.map_err(io::Error::other);
        unpacked.and_then(|unpacked| unpacked).map_err(InstallError::Writing)?;
        if !is_program(&folder.join(kind.program)) {
            return Err(InstallError::NoProgram(kind.program));
        }
        store.adopt(kind, &folder, &package.version).map_err(InstallError::Writing)
    };
    let made = made.await;
    let _ = std::fs::remove_dir_all(&draft);
    made
}

/// Whatever is newest.
pub const LATEST: &str = "latest";

fn is_program(file: &std::path::Path) -> bool {
    use std::io::Read;
    let mut head = [0; 4];
    std::fs::File::open(file).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *b"\x7fELF"
}
