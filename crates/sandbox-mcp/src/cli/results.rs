//! What came of a task: its files taken out, and how that is shown.

use std::{
    fs::File,
    io::{IsTerminal, Read},
    path::{Path, PathBuf},
};

use anyhow::Context;
use rustix::fs::{Access, Mode, OFlags};
use sandbox_core::{Bytes, Denial, SessionId};
use serde_json::{Value, json};

use super::{
    Answer,
    archive::Archive,
    out::{Existing, OutError, OutFolder},
    outside, preview,
    screen::{self, Look},
};
use crate::{
    agent::{MOCK, TaskResult, receipt},
    app::App,
    sandboxes::ChangedFile,
};

/// Where results go if nobody says.
const RESULTS: &str = "sandbox-output";

/// So many of a kind are shown one by one.
const SHOWN: usize = 20;

/// Whether results can be put there: those that can be put nowhere would be lost.
pub(super) fn check(out: Option<&Path>) -> anyhow::Result<()> {
    if let Some(folder) = out {
        return open_out(folder, Existing::Keep).map(drop);
    }
    // With the dot at its end, a file of that name is in the way.
    let place = if Path::new(RESULTS).exists() { Path::new(RESULTS).join(".") } else { PathBuf::from(".") };
    let cannot = || format!("results cannot be put into ./{RESULTS}: name another folder with --out");
    rustix::fs::access(place, Access::WRITE_OK).with_context(cannot)
}

fn open_out(folder: &Path, existing: Existing) -> anyhow::Result<OutFolder> {
    let cannot = || format!("results cannot be put into {}: name another folder with --out", folder.display());
    OutFolder::open(folder, existing).with_context(cannot)
}

/// What was taken out, file by file.
pub(super) struct Taken<'r> {
    folder: PathBuf,
    files: Vec<(&'r ChangedFile, Result<(), OutError>)>,
    /// Those for which something was in the way: the sandbox goes, but its results must not.
    aside: Option<Box<Taken<'r>>>,
}

impl<'r> Taken<'r> {
    /// Into a folder.
    pub async fn take_out(
        app: &App,
        result: &'r TaskResult,
        out: Option<PathBuf>,
        existing: Existing,
    ) -> anyhow::Result<Self> {
        let folder = out.unwrap_or_else(|| new_folder(&result.session_id));
        let mut taken = Taken { folder, files: Vec::new(), aside: None };
        let mut results = result.changes.created.iter().chain(&result.changes.changed).peekable();
        if results.peek().is_some() {
            let session = app.sandboxes.find(&app.owner_of(&result.session_id), &result.session_id).await?;
            taken.files = open_out(&taken.folder, existing)?.take(&session, results).await;
            let in_the_way = |error: &OutError| matches!(error, OutError::Exists(_) | OutError::InTheWay);
            let left = taken.files.iter().filter(|(_, copied)| copied.as_ref().is_err_and(in_the_way));
            let left: Vec<&ChangedFile> = left.map(|(file, _)| *file).collect();
            if !left.is_empty() {
                let folder = new_folder(&result.session_id);
                match open_out(&folder, Existing::Keep) {
                    Ok(target) => {
                        let files = target.take(&session, left).await;
                        taken.aside = Some(Box::new(Taken { folder, files, aside: None }));
                    }
                    Err(error) => screen::tell_error(&error),
                }
            }
        }
        Ok(taken)
    }

    /// Into one archive.
    pub async fn pack(app: &App, result: &'r TaskResult, archive: Archive) -> anyhow::Result<Self> {
        let folder = archive.target().to_owned();
        let session = app.sandboxes.find(&app.owner_of(&result.session_id), &result.session_id).await?;
        let files = archive.take(&session, result.changes.created.iter().chain(&result.changes.changed)).await?;
        Ok(Taken { folder, files, aside: None })
    }

    /// Whether every file is where it should be. Links and the like stay inside, and are told.
    pub fn all_well(&self) -> bool {
        !self.files.iter().any(|(_, copied)| copied.as_ref().is_err_and(OutError::is_loss))
    }

    /// Why there may be results that are nowhere outside.
    pub fn missing(&self, result: &TaskResult) -> Option<String> {
        let lost = |(file, copied): &(&ChangedFile, Result<(), OutError>)| {
            let aside = self.aside.iter().flat_map(|aside| &aside.files);
            let is_aside = aside.into_iter().any(|(other, copied)| other.path == file.path && copied.is_ok());
            copied.as_ref().is_err_and(OutError::is_loss) && !is_aside
        };
        let why = match &result.unlisted {
            Some(why) => return Some(format!("/workspace could not be looked at when the task was over ({why})")),
            None if result.changes.truncated => {
                "not all of /workspace could be looked at: it has folders that cannot be read, or too many files to count"
            }
            None if self.files.iter().any(lost) => "not every result could be taken out",
            None => return None,
        };
        Some(why.to_owned())
    }

    /// All about a task, as JSON. Its receipt learns where the results are.
    pub fn told(&self, result: &TaskResult, narrowed: &[String]) -> Value {
        if let Some(page) = result.receipt.as_deref().filter(|_| !self.files.is_empty()) {
            let noted = receipt::note_results(page, &self.folder);
            let _ = noted.inspect_err(|error| tracing::warn!("the receipt does not know of the results: {error}"));
        }
        let mut told = serde_json::to_value(result).unwrap_or_default();
        let file = |(file, copied): &(&ChangedFile, Result<(), OutError>)| {
            let path = String::from_utf8_lossy(&file.path.0).into_owned();
            let error = copied.as_ref().err().map(ToString::to_string);
            json!({ "path": path, "size_bytes": file.size, "copied": copied.is_ok(), "error": error })
        };
        let out = |taken: &Taken<'_>| json!({ "folder": taken.folder.to_string_lossy(), "files": taken.files.iter().map(file).collect::<Vec<_>>() });
        told["out"] = out(self);
        if let Some(aside) = &self.aside {
            told["out_aside"] = out(aside);
        }
        told["narrowed"] = json!(narrowed);
        told
    }
}

/// One that is not there yet.
fn new_folder(id: &SessionId) -> PathBuf {
    let first = Path::new(RESULTS).join(screen::short_id(id));
    let later = (2..).map(|number| PathBuf::from(format!("{}-{number}", first.display())));
    std::iter::once(first.clone()).chain(later).find(|folder| folder.symlink_metadata().is_err()).unwrap_or(first)
}

/// Shows what came of a task. Everything in it may come from inside.
pub(super) fn show(told: &Value, keep: bool, answer: Answer) {
    match answer {
        Answer::Json => screen::say_json(told),
        Answer::Text => show_text(told),
    }
    if keep {
        let id = told["session_id"].as_str().unwrap_or_default();
        screen::tell(&format!("the sandbox is kept; to go on: sandbox-mcp run --session {id} \"what to do next\""));
        screen::tell(&format!("to go in: sandbox-mcp exec --session {id} -- bash"));
        screen::tell(&format!("to see a page that it serves: sandbox-mcp open {id} PORT"));
        screen::tell(&format!("to remove it: sandbox-mcp rm {id}"));
    }
}

fn show_text(told: &Value) {
    let text = |field: &str| told[field].as_str().unwrap_or_default();
    text("output").lines().for_each(|line| screen::say(&screen::harmless(line)));
    show_files(&told["out"]);
    if told["out_aside"].is_object() {
        let folder = told["out_aside"]["folder"].as_str().unwrap_or_default();
        screen::tell(&format!("what was not taken out is in {folder} instead:"));
        show_files(&told["out_aside"]);
    }
    // Whoever set nothing up did not want to be shown how it looks.
    let pretended = text("agent") == MOCK && text("agent_why").starts_with("auto");
    let look = match text("status") {
        "completed" if pretended => Look::Weak,
        "completed" => Look::Good,
        _ => Look::Bad,
    };
    let seconds = told["duration_seconds"].as_f64().unwrap_or_default();
    let (word, digits) = (if look == Look::Bad { "after" } else { "in" }, if seconds < 0.1 { 3 } else { 1 });
    let cost = told["cost"]["usd"].as_f64().map(|usd| format!(", {}", crate::agent::dollars(usd))).unwrap_or_default();
    let by_nobody = if pretended { ", by the agent `mock`, which only pretends" } else { "" };
    screen::tell_marked(text("status"), look, &format!("{word} {seconds:.digits$} s{cost}{by_nobody}"));
    text("error").lines().for_each(screen::tell);
    if !text("missing").is_empty() {
        screen::tell(text("missing"));
    }
    let denials: Vec<Denial> = serde_json::from_value(told["denials"].clone()).unwrap_or_default();
    outside::say(&denials);
    told["lowered"].as_array().into_iter().flatten().filter_map(Value::as_str).for_each(screen::tell);
    if !text("receipt").is_empty() {
        screen::tell(&format!("what was done, step by step: sandbox-mcp task show {}", text("task_id")));
        screen::tell(&format!("the same as a page for your browser: {}", text("receipt")));
    }
}

/// Those near the top first, and of many only the first: the rest is counted.
fn show_files(out: &Value) {
    let folder = Path::new(out["folder"].as_str().unwrap_or_default());
    let mut files: Vec<&Value> = out["files"].as_array().into_iter().flatten().collect();
    files.sort_by_key(|file| file["path"].as_str().unwrap_or_default().matches('/').count());
    let (failed, taken): (Vec<&Value>, Vec<&Value>) = files.into_iter().partition(|file| file["error"].is_string());
    for file in taken.iter().take(SHOWN) {
        let inside = file["path"].as_str().unwrap_or_default();
        show_file(&folder.join(inside), file["size_bytes"].as_u64().unwrap_or_default());
    }
    if let Some(more @ 1..) = taken.len().checked_sub(SHOWN) {
        screen::say(&format!("… and {more} more in {}", folder.display()));
    }
    for file in failed.iter().take(SHOWN) {
        let [inside, error] = ["path", "error"].map(|field| file[field].as_str().unwrap_or_default());
        screen::tell(&format!("{inside} was not taken out: {error}"));
    }
    if let Some(more @ 1..) = failed.len().checked_sub(SHOWN) {
        screen::tell(&format!("nor were {more} more; --json names them all"));
    }
}

/// A result, with a first look at it where a person sits.
fn show_file(file: &Path, size: u64) {
    let name = file.display().to_string();
    let begins = begins(file);
    let kind = preview::kind(&name, &begins).map(|kind| format!(", {kind}")).unwrap_or_default();
    screen::say(&screen::harmless(&format!("{name}  {}{kind}", Bytes(size))));
    if std::io::stdout().is_terminal() {
        for line in preview::lines(&name, &begins) {
            screen::say(&screen::paint(&format!("    {line}"), Look::Dim));
        }
    }
}

/// The beginning of a file that was just taken out, if it is one.
fn begins(file: &Path) -> Vec<u8> {
    let mut begins = Vec::new();
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(file, flags, Mode::empty()) {
        let _ = File::from(file).take(preview::LOOKED_AT).read_to_end(&mut begins);
    }
    begins
}
