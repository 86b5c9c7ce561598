//! What is left of a sandbox that has ended without its server: facts and files, nothing that runs.

use std::{
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use async_trait::async_trait;
use sandbox_core::{Channel, Door, Error, Facts, Result, Sandbox, Usage};

/// A sandbox that has ended. Its folder is removed by whoever removes it.
pub(super) struct Remains {
    facts: Facts,
    folder: PathBuf,
    why: String,
}

impl Remains {
    pub fn new(facts: Facts, folder: PathBuf, why: String) -> Self {
        Self { facts, folder, why }
    }
}

#[async_trait]
impl Sandbox for Remains {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    async fn connect(&self) -> Result<Channel> {
        Err(Error::Ended { id: self.facts.spec.id.clone(), why: self.why.clone() })
    }

    async fn usage(&self) -> Result<Usage> {
        Ok(Usage::default())
    }

    async fn doors(&self) -> Result<Vec<(Door, OwnedFd)>> {
        Ok(Vec::new())
    }

    async fn ended(&self) -> String {
        self.why.clone()
    }

    /// Engines keep containers and volumes of what has ended, with the files in them.
    async fn destroy(&self) -> Result<()> {
        match self.facts.backend == sandbox_docker::BACKEND && self.folder.exists() {
            true => sandbox_docker::bury(&self.folder).await,
            false => Ok(()),
        }
    }
}

/// Takes a sandbox's folder out of sight at once and deletes it in the background. What this user may not delete (files
/// of other ids inside) is left in the trash for the next launcher, which may.
pub(super) fn discard(folder: &Path) -> std::io::Result<()> {
    let (Some(state), Some(name)) = (folder.parent().and_then(Path::parent), folder.file_name()) else { return Ok(()) };
    let trash = state.join("trash");
    std::fs::create_dir_all(&trash)?;
    // A name of its own, or a launcher would take it for a folder that can be used again.
    let rest = trash.join(format!("deleted-{}", name.to_string_lossy()));
    match std::fs::rename(folder, &rest) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            let delete = move || drop(std::fs::remove_dir_all(rest));
            match tokio::runtime::Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn_blocking(delete)),
                Err(_) => delete(),
            }
            Ok(())
        }
    }
}
