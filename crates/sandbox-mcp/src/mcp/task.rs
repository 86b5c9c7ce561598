//! execute_task: a whole task in plain words.

use std::time::Duration;

use rmcp::{RoleServer, service::RequestContext};
use sandbox_core::SessionId;
use tokio::sync::mpsc;

use super::{
    answers::{Answer, Denial, Outcome, TaskDone},
    arguments::{ExecuteTask, FileToWrite},
    asking::Caller,
    error::ToolError,
    files, paths,
    progress::Progress,
    schema::shortened,
    sessions,
};
use crate::{
    agent::{self, Content, Note, TaskFile, TaskPlace, TaskRequest, TaskResult, TaskStatus},
    app::App,
    sandboxes::{
        ChangedFile, Lifetime,
        access::{Nobody, Person},
    },
};

/// A task takes at most so long if nobody says otherwise.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Files of each kind that an answer names.
const NAMED: usize = 200;

/// Hands a task to an agent and waits for it. The agent stops when the call is cancelled.
pub async fn execute_task(
    app: &App,
    asked: ExecuteTask,
    context: &RequestContext<RoleServer>,
    caller: &Caller<'_>,
) -> Result<Answer, ToolError> {
    let mut progress = Progress::of(context);
    let existing: Option<SessionId> = asked.session_id.as_deref().map(str::parse).transpose()?;
    let owner = match &existing {
        Some(id) => sessions::caller_of(app, id, asked.user_id.as_deref())?,
        None => sessions::caller(app, asked.user_id.as_deref())?,
    };
    let level = asked.yolo_level;
    let place = match existing {
        Some(session_id) => TaskPlace::Existing { session_id, level },
        None => {
            app.settings.policy_for_model(Some(&agent::policy(&app.settings, level)?.name))?;
            TaskPlace::New { backend: None, level, image: None, lifetime: Lifetime::Temporary }
        }
    };
    let request = TaskRequest {
        files: asked.files.unwrap_or_default().iter().map(task_file).collect::<Result<_, _>>()?,
        agent: asked.agent,
        timeout: Some(asked.timeout.map_or(TIMEOUT, Duration::from_secs)),
        ..TaskRequest::new(asked.task, place)
    };
    let (sender, mut notes) = mpsc::channel(64);
    let mut latest = "working on it".to_owned();
    // Work that is half done cannot begin again with an answer, so only those are asked who can answer meanwhile.
    let person: &dyn Person = if caller.can_wait() { caller } else { &Nobody };
    let work = agent::execute(&app.sandboxes, &owner, request, Some(&sender), person);
    tokio::pin!(work);
    let result = loop {
        tokio::select! {
            result = &mut work => break result?,
            Some(note) = notes.recv() => latest = in_words(&note).unwrap_or(latest),
            () = progress.due() => progress.tell(latest.clone()),
        }
    };
    progress.finish().await;
    let outcome = if result.status == TaskStatus::Completed { Outcome::Whole } else { Outcome::Partial };
    Ok(Answer::of(&done(&result)).with_outcome(outcome))
}

fn task_file(file: &FileToWrite) -> Result<TaskFile, ToolError> {
    let checked = files::mode(file).and_then(|mode| Ok((mode, files::content(file)?)));
    let (mode, content) = checked.map_err(|problem| ToolError::Invalid(format!("{}: {problem}", file.path)))?;
    Ok(TaskFile { path: file.path.clone(), content: Content::Bytes(content), mode })
}

fn done(result: &TaskResult) -> TaskDone {
    let mut notes = Vec::new();
    if let Some(asked) = result.allowed.lowered_from {
        let (asked, given) = (asked.as_secs(), result.allowed.timeout.as_secs());
        notes.push(format!("timeout was lowered from {asked} s to the maximum of {given} s"));
    }
    let changes = &result.changes;
    if changes.truncated || changes.created.len().max(changes.changed.len()) > NAMED {
        notes.push("not all files are named; list_files shows the rest".to_owned());
    }
    let named = |files: &[ChangedFile]| files.iter().take(NAMED).map(|file| paths::shown(&file.path)).collect();
    TaskDone {
        session_id: result.session_id.to_string(),
        status: result.status.as_str().to_owned(),
        output: result.output.clone(),
        files_created: named(&changes.created),
        files_changed: named(&changes.changed),
        files_deleted: changes.deleted.iter().take(NAMED).map(paths::shown).collect(),
        duration_seconds: result.duration_seconds,
        error: result.error.clone(),
        denials: result.denials.iter().map(Denial::from).collect(),
        notes,
    }
}

/// What a person who waits is shown.
fn in_words(note: &Note) -> Option<String> {
    match note {
        Note::Step { words } | Note::Call { words, .. } => Some(shortened(words)),
        Note::Output { data, .. } => {
            let text = String::from_utf8_lossy(data);
            let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
            Some(shortened(&line.chars().filter(|c| !c.is_control()).collect::<String>()))
        }
        _ => None,
    }
}
