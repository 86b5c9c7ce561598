//! Ending containers and removing what belongs to them. Every step may be repeated.

use std::{fs, io, os::fd::OwnedFd, path::Path, pin::pin, time::Duration};

use bollard::{
    Docker,
    query_parameters::{InspectContainerOptions, RemoveContainerOptionsBuilder, RemoveVolumeOptionsBuilder},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_core::{Error, Result};

use crate::{engine::Engine, failure, fault};

/// Tries, because an engine may be just doing it.
const TRIES: u32 = 50;
const PAUSE: Duration = Duration::from_millis(100);
/// An engine ends what listens to it sooner than this.
const LONG: Duration = Duration::from_secs(5);

/// Ends a container and removes it with what was made for it alone, so not with volumes that have a name; fine where there is
/// none.
pub async fn container(docker: &Docker, name: &str) -> Result<()> {
    remove(docker, name).await?;
    fault::point("container_removed");
    Ok(())
}

/// The same of one with a kernel of its own, which may be too busy to be ended by its engine: a fork bomb kept gVisor from
/// hearing of it for minutes. After a while its process is killed, where that is on this machine.
pub async fn container_with_kernel(engine: &Engine, name: &str) -> Result<()> {
    let kernel = if engine.nature.here { first_process(&engine.docker, name).await } else { None };
    let mut removing = pin!(container(&engine.docker, name));
    if let Ok(removed) = tokio::time::timeout(LONG, &mut removing).await {
        return removed;
    }
    if let Some(kernel) = kernel {
        let _ = pidfd_send_signal(&kernel, Signal::KILL);
    }
    removing.await
}

/// By a descriptor, and only if the container has the same one after that was opened: numbers are used again.
async fn first_process(docker: &Docker, name: &str) -> Option<OwnedFd> {
    let number = async || {
        let found = docker.inspect_container(name, None::<InspectContainerOptions>).await.ok()?;
        Pid::from_raw(found.state?.pid.and_then(|pid| i32::try_from(pid).ok())?)
    };
    let before = number().await?;
    let process = pidfd_open(before, PidfdFlags::empty()).ok()?;
    (number().await == Some(before)).then_some(process)
}

async fn remove(docker: &Docker, name: &str) -> Result<()> {
    let mut tried = 0;
    loop {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match docker.remove_container(name, Some(options)).await {
            Ok(()) => return Ok(()),
            Err(error) if failure::is_missing(&error) => return Ok(()),
            Err(error) if tried < TRIES && failure::is_underway(&error) => tokio::time::sleep(PAUSE).await,
            Err(error) => return Err(failure::removing(&format!("the container {name}"))(error)),
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
            Err(error) => return Err(failure::removing(&format!("the volume {name}"))(error)),
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
