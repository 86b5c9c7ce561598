//! Brings a program into a sandbox: sandboxes that are made for a task have it from the beginning, mounted where nobody
//! inside can change it. Into others it is copied once.

use std::{fs::File, io::Read, path::Path};

use sandbox_core::exec::{Exec, Exit};
use sandbox_executor::protocol::NewFile;

use super::{Installed, Kind};
use crate::{
    agent::{Progress, WorkError, Worker},
    sandboxes::patience,
};

/// Where copies are, inside.
pub(super) const COPIES: &str = "/home/sandbox/.sandbox-mcp/agents";
/// A program is copied in pieces of this size.
const PIECE: u64 = 1 << 20;

/// Where the program is, inside.
pub(super) async fn place(kind: &Kind, installed: &Installed, worker: &Worker<'_>) -> Result<String, WorkError> {
    let mounted = kind.program_inside();
    // Mounted by us, or a part of the image.
    if is_mounted(kind, worker) || is_there(worker, &mounted).await? {
        return Ok(mounted);
    }
    let copy = format!("{COPIES}/{}-{}", kind.name, installed.version);
    let source = installed.folder.join(kind.program);
    let size = std::fs::metadata(&source).map_err(|error| gone(kind, &error.to_string()))?.len();
    let there = worker.stat(&copy).await.is_ok_and(|found| found.size == size);
    if !there {
        worker.say(&format!("Putting {} into the sandbox", kind.name)).await;
        write(&source, &copy, worker).await.map_err(|why| gone(kind, &why))?;
    }
    Ok(copy)
}

/// Whether nobody has to look: an engine may be on another machine, where there is nothing to mount.
fn is_mounted(kind: &Kind, worker: &Worker<'_>) -> bool {
    let facts = worker.session().facts();
    let has_it = facts.spec.tools.iter().any(|tool| tool.target == kind.folder_inside());
    has_it && facts.backend == sandbox_linux::BACKEND
}

/// Whether it is there and may be started. Starting it would take longer than all else.
async fn is_there(worker: &Worker<'_>, program: &str) -> Result<bool, WorkError> {
    let mut command = worker.start(Exec::shell(format!("[ -x {program} ]"))).await?;
    loop {
        if let Progress::Ended { exit, .. } = command.next().await? {
            return Ok(exit == Exit::Code(0));
        }
    }
}

/// To another name first: a half-written program is not to be started.
async fn write(source: &Path, target: &str, worker: &Worker<'_>) -> Result<(), String> {
    let client = worker.session().client().await.map_err(|error| error.to_string())?;
    let part = format!("{target}.part");
    let mut file = File::open(source).map_err(|error| error.to_string())?;
    let mut writer = patience::soon(client.write()).await.map_err(|error| error.to_string())?;
    let new = NewFile { path: part.as_str().into(), mode: Some(0o755) };
    patience::soon(writer.begin(&new)).await.map_err(|error| error.to_string())?;
    loop {
        let mut piece = Vec::with_capacity(PIECE as usize);
        let read = file.by_ref().take(PIECE).read_to_end(&mut piece).map_err(|error| error.to_string())?;
        if read == 0 {
            break;
        }
        patience::in_time(writer.data(&piece)).await.map_err(|error| error.to_string())?;
    }
    patience::in_time(writer.finish()).await.map_err(|error| error.to_string())?;
    let renamed = worker.run_keeping(Exec::argv(["mv", "-f", &part, target]), 1000).await;
    match renamed.map_err(|error| error.to_string())? {
        ran if ran.exit == Exit::Code(0) => Ok(()),
        ran => Err(ran.output),
    }
}

fn gone(kind: &Kind, why: &str) -> WorkError {
    WorkError::Agent(format!("{} could not be put into the sandbox: {why}", kind.name))
}
