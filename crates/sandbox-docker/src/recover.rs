//! What an earlier server left at the engine: what is alive is adopted, what nobody owns is removed.
//!
//! A sandbox's folder is made and locked before anything else of it, and removed after everything else. So a container or
//! volume of ours whose folder is not there, or is not locked and says nothing, belongs to nobody.

use std::{collections::BTreeSet, fs, io, path::Path};

use bollard::{
    Docker,
    models::ContainerSummaryStateEnum,
    query_parameters::{ListContainersOptionsBuilder, ListVolumesOptionsBuilder},
};
use sandbox_core::{Error, Recovered, Result, SessionId};
use sandbox_linux::folder::{self, Lock};

use crate::{
    BACKEND, DockerBackend, failure, labels,
    record::{Line, Record},
    removal,
    sandbox::{self, DockerSandbox},
};

/// One of our containers.
struct Found {
    name: String,
    session: String,
    running: bool,
}

/// Looks through it. Where there is no engine, there is nothing that could be looked at.
pub async fn recover(backend: &DockerBackend) -> Result<Recovered> {
    let mut recovered = Recovered::default();
    let ours = folders(&backend.state().join("sandboxes"));
    let engine = match backend.engine().await {
        Ok(engine) => engine,
        // Nobody asked for an engine, and nothing is known to be there.
        Err(_) if ours.is_empty() => return Ok(recovered),
        Err(error) => return Err(error),
    };
    let docker = &engine.docker;
    let containers = containers(docker, backend.state_id()).await?;
    let mut owned = BTreeSet::new();
    for found in &containers {
        let folder = backend.state().join("sandboxes").join(&found.session);
        match adopt(&folder, found) {
            Fate::Anothers => {}
            Fate::Alive(sandbox) => recovered.alive.push(sandbox::shared((*sandbox).with_engine(engine.clone()))),
            Fate::Ended(id) => recovered.ended.push(id),
            Fate::Nobodys => {
                removal::container(docker, &found.name).await?;
                *recovered.removed.entry("container".into()).or_default() += 1;
                continue;
            }
        }
        owned.insert(found.session.clone());
    }
    for (name, session) in volumes(docker, backend.state_id()).await? {
        let folder = backend.state().join("sandboxes").join(&session);
        if !owned.contains(&session) && is_nobodys(&folder) {
            removal::volume(docker, &name).await?;
            *recovered.removed.entry("volume".into()).or_default() += 1;
        }
    }
    for folder in unsaid(&backend.state().join("sandboxes")) {
        removal::folder(backend.state(), &folder)?;
        *recovered.removed.entry("folder".into()).or_default() += 1;
    }
    for (id, folder) in ours {
        // Its container was removed, or never made: nothing of it is kept anywhere.
        if !owned.contains(id.as_str()) && is_here(&folder, &engine.nature.address) && is_nobodys(&folder) {
            removal::folder(backend.state(), &folder)?;
            *recovered.removed.entry("folder".into()).or_default() += 1;
        }
    }
    Ok(recovered)
}

/// What becomes of a container.
enum Fate {
    /// Somebody looks after it.
    Anothers,
    Alive(Box<DockerSandbox>),
    Ended(SessionId),
    Nobodys,
}

fn adopt(folder: &Path, found: &Found) -> Fate {
    let Ok(id) = found.session.parse::<SessionId>() else { return Fate::Nobodys };
    if !folder.is_dir() {
        return Fate::Nobodys;
    }
    let lock = match Lock::take(folder) {
        Ok(Some(lock)) => lock,
        Ok(None) => return Fate::Anothers,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Fate::Nobodys,
        // What cannot be looked at now may be somebody's.
        Err(_) => return Fate::Anothers,
    };
    let record = match folder::facts(folder).and_then(|_| Record::read(folder)) {
        Ok(record) => record,
        // Killed before it was ready: nobody was ever told of it, and its executor ended with that server.
        Err(error) if is_unsaid(&error) => return Fate::Nobodys,
        Err(_) => return Fate::Anothers,
    };
    if !found.running {
        return Fate::Ended(id);
    }
    match DockerSandbox::open(folder, Some(lock)) {
        Ok(sandbox) => Fate::Alive(Box::new(sandbox)),
        Err(_) if matches!(record.line, Line::Socket { pid: 0, .. }) => Fate::Nobodys,
        // Somebody started it again, and nobody has a line to it. Its files are its user's.
        Err(_) => Fate::Ended(id),
    }
}

/// Not written down, or not to its end.
fn is_unsaid(error: &Error) -> bool {
    use io::ErrorKind::{InvalidData, NotFound, UnexpectedEof};
    matches!(error, Error::Io { source, .. } if matches!(source.kind(), NotFound | InvalidData | UnexpectedEof))
}

/// Not there, or there and not locked.
fn is_nobodys(folder: &Path) -> bool {
    !folder.is_dir() || matches!(Lock::take(folder), Ok(Some(_)))
}

/// Whether the container of a folder would be at this engine.
fn is_here(folder: &Path, address: &str) -> bool {
    Record::read(folder).map_or(true, |record| record.address == address)
}

/// Folders of sandboxes that are containers.
fn folders(sandboxes: &Path) -> Vec<(SessionId, std::path::PathBuf)> {
    let entries = fs::read_dir(sandboxes).into_iter().flatten().flatten();
    let ours = entries.filter_map(|entry| {
        let id = entry.file_name().to_str()?.parse::<SessionId>().ok()?;
        let facts = folder::facts(&entry.path()).ok()?;
        (facts.backend == BACKEND).then(|| (id, entry.path()))
    });
    ours.collect()
}

/// Folders whose server was killed before it had said what they are. Nothing was ever kept in them.
fn unsaid(sandboxes: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(sandboxes).into_iter().flatten().flatten();
    let named =
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.parse::<SessionId>().is_ok()));
    let unsaid = |folder: &std::path::PathBuf| {
        // The lock first: whoever has it may be just saying it.
        matches!(Lock::take(folder), Ok(Some(_lock)) if folder::facts(folder).is_err())
    };
    named.map(|entry| entry.path()).filter(unsaid).collect()
}

fn of_state(state: &str) -> std::collections::HashMap<String, Vec<String>> {
    [("label".to_owned(), vec![format!("{}={state}", labels::STATE)])].into()
}

async fn containers(docker: &Docker, state: &str) -> Result<Vec<Found>> {
    let options = ListContainersOptionsBuilder::default().all(true).filters(&of_state(state)).build();
    let listed = docker.list_containers(Some(options)).await.map_err(listing())?;
    let found = listed.into_iter().filter_map(|container| {
        let labels = container.labels.unwrap_or_default();
        // Filters are not to be relied on where something is removed.
        if labels.get(labels::STATE).map(String::as_str) != Some(state) {
            return None;
        }
        Some(Found {
            name: container.id?,
            session: labels.get(labels::SESSION)?.clone(),
            running: matches!(
                container.state,
                Some(ContainerSummaryStateEnum::RUNNING | ContainerSummaryStateEnum::PAUSED)
            ),
        })
    });
    Ok(found.collect())
}

async fn volumes(docker: &Docker, state: &str) -> Result<Vec<(String, String)>> {
    let options = ListVolumesOptionsBuilder::default().filters(&of_state(state)).build();
    let listed = docker.list_volumes(Some(options)).await.map_err(listing())?;
    let found = listed.volumes.into_iter().flatten().filter_map(|volume| {
        let ours = volume.labels.get(labels::STATE).map(String::as_str) == Some(state);
        Some((volume.name, volume.labels.get(labels::SESSION)?.clone())).filter(|_| ours)
    });
    Ok(found.collect())
}

fn listing() -> impl FnOnce(bollard::errors::Error) -> Error {
    failure::step("looking for what an earlier server left")
}
