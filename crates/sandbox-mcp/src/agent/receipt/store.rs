//! Where receipts are kept: `STATE/tasks/TASK_ID/`. The newest are kept, the others go.

use std::{
    fs::{self, File, TryLockError},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use sandbox_executor::protocol::FileKind;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Product, html};
use crate::{
    agent::{Change, TaskId, TaskStatus},
    sandboxes::{ChangedFile, Piece, Session, patience},
};

/// Receipts that are kept.
const KEPT: usize = 2000;
/// After so many tasks somebody looks whether there are too many.
const OFTEN: u32 = 50;
/// Bytes of all files together that are read to tell their hashes.
const READ: u64 = 256 << 20;
/// Files whose hashes are told.
const HASHED: usize = 2000;

const RECEIPT: &str = "receipt.json";
const PAGE: &str = "receipt.html";
pub(super) const STEPS: &str = "steps.jsonl";
const LOCK: &str = "lock";

/// A task in a list.
pub struct Listed {
    /// Its receipt.
    pub receipt: Value,
    /// Where it is.
    pub folder: PathBuf,
}

/// A folder for a new task, and the lock that says that it goes on.
pub(super) fn open(state: &Path, id: &TaskId) -> io::Result<(PathBuf, File)> {
    let folder = state.join("tasks").join(id.as_str());
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    let lock = File::create(folder.join(LOCK))?;
    lock.try_lock().map_err(io::Error::other)?;
    static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    if COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % OFTEN == OFTEN - 1 {
        prune(state);
    }
    Ok((folder, lock))
}

/// Writes both forms, each at once.
pub(super) fn write(folder: &Path, receipt: &Value) -> io::Result<()> {
    put(folder, RECEIPT, &serde_json::to_vec_pretty(receipt)?)?;
    if receipt["status"] == TaskStatus::Running.as_str() {
        return Ok(());
    }
    let _ = fs::remove_file(folder.join(STEPS));
    put(folder, PAGE, html::page(receipt).as_bytes())
}

fn put(folder: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let part = folder.join(format!("{name}.part"));
    fs::write(&part, content)?;
    fs::rename(part, folder.join(name))
}

/// One task.
pub fn find(state: &Path, id: &TaskId) -> Option<Listed> {
    let folder = state.join("tasks").join(id.as_str());
    read_now(&folder).map(|receipt| Listed { receipt, folder })
}

/// All tasks, newest first, at most so many.
pub fn list(state: &Path, most: usize) -> Vec<Listed> {
    let mut folders = folders(state);
    folders.truncate(most);
    folders.into_iter().filter_map(|(_, folder)| Some(Listed { receipt: read_now(&folder)?, folder })).collect()
}

/// Tasks whose program was killed: they are reported as interrupted, with all steps that are known. Tells which.
pub fn recover(state: &Path) -> Vec<Value> {
    folders(state).into_iter().filter_map(|(_, folder)| interrupted(&folder)).collect()
}

/// The same for one task.
pub fn recover_one(state: &Path, id: &TaskId) -> Option<Value> {
    interrupted(&state.join("tasks").join(id.as_str()))
}

/// The receipt of a task whose program was killed, if nobody has reported it as that before.
fn interrupted(folder: &Path) -> Option<Value> {
    let running = || read(folder).filter(|receipt| receipt["status"] == TaskStatus::Running.as_str());
    running()?;
    // Whoever works on it holds the lock.
    let lock = File::open(folder.join(LOCK)).ok()?;
    if matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
        return None;
    }
    // It may have ended between the look and the lock.
    let mut receipt = running()?;
    receipt["status"] = json!(TaskStatus::Interrupted.as_str());
    receipt["error"] = json!(INTERRUPTED);
    take_up_steps(&mut receipt, folder);
    receipt["duration_seconds"] =
        receipt["steps"].as_array().and_then(|steps| steps.last()?.get("at").cloned()).unwrap_or(json!(0));
    write(folder, &receipt).is_ok().then_some(receipt)
}

/// Whether some program works on it right now.
pub fn goes_on(state: &Path, id: &TaskId) -> bool {
    let folder = state.join("tasks").join(id.as_str());
    let is_running = read(&folder).is_some_and(|receipt| receipt["status"] == TaskStatus::Running.as_str());
    is_running
        && File::open(folder.join(LOCK)).is_ok_and(|lock| matches!(lock.try_lock(), Err(TryLockError::WouldBlock)))
}

/// Notes where the results of a task were put.
pub fn note_results(receipt: &Path, results: &Path) -> io::Result<()> {
    let Some(folder) = receipt.parent() else { return Ok(()) };
    let Some(mut receipt) = read(folder) else { return Ok(()) };
    receipt["results"] = json!(std::path::absolute(results)?.to_string_lossy());
    write(folder, &receipt)
}

/// Tells whoever works on a task to stop.
pub fn ask_to_stop(folder: &Path) -> io::Result<()> {
    fs::write(folder.join(STOP), "")
}

/// Returns when somebody wants the task of this folder to stop; never, if it has none.
pub async fn stop_asked(folder: Option<PathBuf>) {
    let Some(folder) = folder else { return std::future::pending().await };
    loop {
        tokio::time::sleep(LOOK).await;
        if folder.join(STOP).exists() {
            return;
        }
    }
}

const STOP: &str = "stop";
/// Between two looks at whether a task is to stop.
const LOOK: std::time::Duration = std::time::Duration::from_millis(200);

pub(super) const INTERRUPTED: &str = "the program that worked on it was ended in the middle. Within a minute, give the task again in the \
same sandbox (`session_id`, at a terminal --session) and it goes on. After that the sandbox has ended: the files that it had \
made are kept until it is cleaned up, and whoever asks for it is told where";

fn read(folder: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(folder.join(RECEIPT)).ok()?).ok()
}

/// One that may go on: with what it has done so far.
fn read_now(folder: &Path) -> Option<Value> {
    let mut receipt = read(folder)?;
    if receipt["status"] == TaskStatus::Running.as_str() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let elapsed = now.saturating_sub(receipt["began"].as_u64().unwrap_or(now));
        receipt["duration_seconds"] = json!(elapsed as f64 / 1000.0);
        take_up_steps(&mut receipt, folder);
    }
    Some(receipt)
}

/// What was done so far, what it cost, and which files are known to be new or different.
fn take_up_steps(receipt: &mut Value, folder: &Path) {
    receipt["steps"] = steps(folder);
    let of =
        |kind: &'static str| receipt["steps"].as_array().into_iter().flatten().filter(move |step| step["note"] == kind);
    let bill = of("cost").next_back().cloned();
    let files = |change: Change| -> Value {
        let change = json!(change);
        let names = of("file").filter(|step| step["change"] == change).filter_map(|step| step["path"].as_str());
        let names: std::collections::BTreeSet<&str> = names.collect();
        names.into_iter().map(|path| json!({ "path": path, "size_bytes": null, "sha256": null })).collect()
    };
    let (created, changed) = (files(Change::Created), files(Change::Changed));
    if let Some(mut bill) = bill.filter(Value::is_object) {
        let _ = bill.as_object_mut().map(|fields| (fields.remove("note"), fields.remove("at")));
        receipt["cost"] = bill;
    }
    (receipt["files_created"], receipt["files_changed"]) = (created, changed);
}

fn steps(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join(STEPS)).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect()
}

/// Newest first.
fn folders(state: &Path) -> Vec<(SystemTime, PathBuf)> {
    let entries = fs::read_dir(state.join("tasks")).into_iter().flatten().flatten();
    let is_task = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(|name| name.parse::<TaskId>().is_ok());
    let made = |entry: fs::DirEntry| {
        // The lock is made with the task and never written to.
        let time = entry.path().join(LOCK).metadata().and_then(|found| found.modified()).ok()?;
        Some((time, entry.path()))
    };
    let mut folders: Vec<_> = entries.filter(is_task).filter_map(made).collect();
    folders.sort_by(|a, b| b.cmp(a));
    folders
}

fn prune(state: &Path) {
    for (_, folder) in folders(state).into_iter().skip(KEPT) {
        let goes_on = read(&folder).is_some_and(|receipt| receipt["status"] == "running");
        if !goes_on {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

/// Files with their hashes, as long as that does not take too long.
pub(super) async fn products(session: &Session, files: &[ChangedFile]) -> Vec<Product> {
    let mut left = READ;
    let mut products = Vec::new();
    for (count, file) in files.iter().enumerate() {
        let fits = file.kind == FileKind::File && file.size <= left && count < HASHED;
        let sha256 = if fits { hash(session, file, &mut left).await } else { None };
        let path = String::from_utf8_lossy(&file.path.0).into_owned();
        products.push(Product { path, size_bytes: Some(file.size), sha256 });
    }
    products
}

async fn hash(session: &Session, file: &ChangedFile, left: &mut u64) -> Option<String> {
    let mut path = b"/workspace/".to_vec();
    path.extend_from_slice(&file.path.0);
    let client = session.client().await.ok()?;
    let mut reader = patience::soon(client.read(&path.as_slice().into(), 0, None)).await.ok()?;
    let mut digest = Sha256::new();
    while let Some(piece) = patience::soon(reader.next()).await.ok()? {
        let length = match &piece {
            Piece::Data(data) => {
                digest.update(data);
                data.len() as u64
            }
            Piece::Hole(length) => {
                let zeros = [0; 4096];
                let mut rest = (*length).min(*left + 1);
                while rest > 0 {
                    let step = rest.min(zeros.len() as u64);
                    digest.update(&zeros[..step as usize]);
                    rest -= step;
                }
                *length
            }
        };
        *left = left.checked_sub(length)?;
        reader.recycle(piece);
    }
    Some(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_task_whose_program_was_killed_is_reported_as_interrupted() {
        let state = tempfile::tempdir().unwrap();
        let (dead, alive) = (TaskId::random().unwrap(), TaskId::random().unwrap());
        let receipt = |id: &TaskId| json!({"task_id": id, "status": "running", "task": "<b>x</b>"});
        let (folder, lock) = open(state.path(), &dead).unwrap();
        write(&folder, &receipt(&dead)).unwrap();
        fs::write(folder.join(STEPS), "{\"at\":1.5,\"note\":\"step\",\"words\":\"Reading\"}\nhalf").unwrap();
        drop(lock);
        let (other, _held) = open(state.path(), &alive).unwrap();
        write(&other, &receipt(&alive)).unwrap();
        let found = recover(state.path());
        assert_eq!(found.len(), 1);
        assert_eq!((&found[0]["status"], &found[0]["duration_seconds"]), (&json!("interrupted"), &json!(1.5)));
        assert_eq!(find(state.path(), &alive).unwrap().receipt["status"], "running");
        assert!(recover(state.path()).is_empty());
        let page = fs::read_to_string(folder.join(PAGE)).unwrap();
        assert!(page.contains("&lt;b&gt;x&lt;/b&gt;") && !page.contains("<b>x"), "{page}");
        assert_eq!(list(state.path(), 10).len(), 2);
    }
}
