//! Containers of other servers of this user.

use std::{path::Path, sync::Arc};

use sandbox_core::{Result, Sandbox};

use crate::{
    engine::Engine,
    record::Record,
    removal,
    sandbox::{self, DockerSandbox},
};

/// A sandbox of another server of this user, by its folder. Must be called inside a tokio runtime.
pub fn attach(folder: &Path) -> Result<Arc<dyn Sandbox>> {
    Ok(sandbox::shared(DockerSandbox::open(folder, None)?))
}

/// Removes what an engine still has of a sandbox that has ended. Its folder is the caller's to remove.
pub async fn bury(folder: &Path) -> Result<()> {
    let record = Record::read(folder)?;
    let docker = Engine::find(Some(&record.address)).await?.docker;
    removal::container(&docker, &record.container).await?;
    for volume in &record.volumes {
        removal::volume(&docker, volume).await?;
    }
    Ok(())
}

/// The container of a sandbox, by its folder.
pub fn container(folder: &Path) -> Option<String> {
    Record::read(folder).ok().map(|record| record.container)
}
