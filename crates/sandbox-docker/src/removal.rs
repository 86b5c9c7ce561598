//! Ending containers and removing what belongs to them. Every step may be repeated.

use std::{fs, io, path::Path, time::Duration};

use bollard::{
    Docker,
    query_parameters::{RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder},
};
use sandbox_core::{Error, Result};

use crate::{failure, fault};

/// Tries, because an engine may be just doing it.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);

/// Ends a container and removes it with what was made for it alone, so not with volumes that have a name; fine where there is
/// none.
pub async fn container(docker: &Docker, name: &str) -> Result<()> {
    remove(docker, name).await?;
    fault::point("container_removed");
    Ok(())
}

async fn remove(docker: &Docker, name: &str) -> Result<()> {
    let mut tried = 0;
    loop {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match docker.remove_container(name, Some(options)).await {
            Ok(()) => return Ok(()),
            Err(error) if failure::is_missing(&error) => return Ok(()),
            Err(error) if tried < TRIES && failure::is_underway(&error) => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(failure::step(format!("removing the container {name}"))(error)),
        }
        tried += 1;
    }
}

/// Removes a volume; fine where there is none.
pub async fn volume(docker: &Docker, name: &str) -> Result<()> {
    let mut tried = 0;
    loop {
        let options = RemoveVolumeOptionsBuilder::default().force(true).build();
        match docker.remove_volume(name, Some(options)).await {
            Ok(()) => return Ok(()),
            Err(error) if failure::is_missing(&error) => return Ok(()),
            Err(error) if tried < TRIES && failure::is_underway(&error) => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(failure::step(format!("removing the volume {name}"))(error)),
        }
        tried += 1;
    }
}

/// Removes a sandbox's folder: to the trash, which is emptied in the background.
pub fn folder(state: &Path, folder: &Path) -> Result<()> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let trash = state.join("trash").join(format!("deleted-{name}"));
    match fs::rename(folder, trash) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(format!("removing {}", folder.display()))(error))
        }
        _ => Ok(()),
    }
}
