//! execute_task: a whole task in plain words. The task goes on by itself; a call waits for it for as long as its client is
//! likely to, and then answers how it stands.

use std::{sync::Arc, time::Duration};

use rmcp::{
    RoleServer,
    model::{CallToolResult, InputRequest, Task},
    service::RequestContext,
    task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions},
};
use sandbox_core::SessionId;
use serde_json::Value;

use super::{
    answers::{Answer, Denial, Outcome, TaskDone},
    arguments::{ExecuteTask, FileToWrite},
    asking::{Caller, Put, Questions, Relay},
    error::ToolError,
    files, follow, paths,
    progress::Progress,
    schema::shortened,
    sessions,
};
use crate::{
    agent::{self, Content, Running, TaskFile, TaskPlace, TaskRequest, TaskResult, TaskStatus},
    app::App,
    config::NotAllowed,
    sandboxes::{
        ChangedFile, Lifetime,
        access::{Nobody, Person},
    },
};

/// A task takes at most so long if nobody says otherwise.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Files of each kind that an answer names.
const NAMED: usize = 200;
/// A task that is done this soon needs no handle: whoever gets one asks again only after a second.
const GRACE: Duration = Duration::from_secs(2);
/// How long a client may ask for what came of a task.
const KEPT_MS: u64 = 24 * 3600 * 1000;

/// What a call comes to.
pub enum Handed {
    /// An answer.
    Answer(Answer),
    /// A task of the protocol, which the client asks about.
    Task(Box<Task>),
}

/// Hands a task to an agent. The agent stops when the call is cancelled before it was answered.
pub async fn execute_task(
    app: &App,
    asked: ExecuteTask,
    context: &RequestContext<RoleServer>,
    caller: &Caller<'_>,
    manager: &TaskManager,
) -> Result<Handed, ToolError> {
    let mut progress = Progress::of(context);
    let existing: Option<SessionId> = asked.session_id.as_deref().map(str::parse).transpose()?;
    let owner = match &existing {
        Some(id) => sessions::caller_of(app, id, asked.user_id.as_deref())?,
        None => sessions::caller(app, asked.user_id.as_deref())?,
    };
    let wait_seconds = asked.wait_seconds;
    let (relay, questions) = Relay::new(caller);
    let can_task = caller.can_task();
    let at_work = existing.as_ref().and_then(|id| app.tasks.of(id)).filter(|task| task.status() == TaskStatus::Running);
    // It still works: this is one more thing that it is told.
    let told = match (at_work, &existing) {
        (Some(running), Some(id)) => {
            app.sandboxes.find(&owner, id).await?;
            if asked.files.is_some() {
                let what = "a task still runs in this sandbox: wait for it, or leave `files` out to tell its agent something more";
                return Err(ToolError::Invalid(what.to_owned()));
            }
            let is_heard = running.say(&asked.task);
            if !is_heard {
                // Its agent has ended, and nobody would read that: it is the next task.
                wait(app, id, LONGEST, &mut progress).await;
            }
            is_heard.then_some(running)
        }
        _ => None,
    };
    let (running, mut stopper) = match told {
        Some(running) => (running, Stopper(None)),
        None => {
            let person: Arc<dyn Person> = match caller.user() {
                Some(user) => Arc::new(user),
                None if can_task => Arc::new(relay),
                None => Arc::new(Nobody),
            };
            let request = request(app, asked, existing)?;
            let running = app.tasks.start(&app.sandboxes, &owner, request, person);
            (running.clone(), Stopper(Some(running)))
        }
    };
    let wait = if can_task { GRACE } else { follow::patience(&progress, wait_seconds, LONGEST) };
    let deadline = tokio::time::sleep(wait);
    tokio::pin!(deadline);
    let outcome = loop {
        tokio::select! {
            outcome = running.finished() => break Some(outcome),
            () = progress.due() => progress.tell(shortened(&running.standing().words)),
            () = &mut deadline => break None,
        }
    };
    progress.finish().await;
    stopper.0 = None;
    match outcome {
        Some(Some(outcome)) => match &*outcome {
            Ok(result) => Ok(Handed::Answer(answer(result))),
            Err(error) => Err(ToolError::Invalid(error.to_string())),
        },
        Some(None) => Err(ToolError::Cancelled),
        None if can_task => Ok(Handed::Task(Box::new(hand_over(manager, running, questions)))),
        None => Ok(Handed::Answer(Answer::of(&standing(&running)))),
    }
}

/// No call waits longer.
const LONGEST: Duration = Duration::from_secs(3600);

fn request(app: &App, asked: ExecuteTask, existing: Option<SessionId>) -> Result<TaskRequest, ToolError> {
    let level = asked.yolo_level;
    let place = match existing {
        Some(_) if asked.image.is_some() || asked.template.is_some() => {
            let what = "image and template are for a new sandbox: leave them out, or leave session_id out";
            return Err(ToolError::Invalid(what.to_owned()));
        }
        Some(session_id) => TaskPlace::Existing { session_id, level },
        None => {
            app.settings.policy_for_model(Some(&agent::policy(&app.settings, level)?.name))?;
            let template = asked.template.as_deref().map(|name| app.settings.template(name)).transpose();
            let template = template.map_err(NotAllowed::from)?;
            let image = match (template, asked.image.as_deref()) {
                (Some(_), Some(_)) => {
                    let what = "a template has an image: leave out `image` or `template`";
                    return Err(ToolError::Invalid(what.to_owned()));
                }
                (Some(template), None) => Some(template.image.clone()),
                (None, image) => image.map(|image| app.settings.image_for_model(Some(image))).transpose()?,
            };
            TaskPlace::New {
                backend: template.and_then(|template| template.backend.clone()),
                level,
                image,
                lifetime: Lifetime::Temporary,
                env: template.map(|template| template.env.clone()).unwrap_or_default(),
            }
        }
    };
    if asked.budget_usd.is_some_and(|usd| !usd.is_finite() || usd < 0.0) {
        return Err(ToolError::Invalid("budget_usd must be an amount of US dollars, such as 0.5".to_owned()));
    }
    // Said now, before anything is made.
    agent::choose(&app.settings, asked.agent.as_deref()).map_err(agent::TaskError::from)?;
    Ok(TaskRequest {
        files: asked.files.unwrap_or_default().iter().map(task_file).collect::<Result<_, _>>()?,
        agent: asked.agent,
        model: asked.model,
        budget_usd: asked.budget_usd,
        timeout: Some(asked.timeout.map_or(TIMEOUT, Duration::from_secs)),
        ..TaskRequest::new(asked.task, place)
    })
}

/// Stops a task whose call went away before it was answered.
struct Stopper(Option<Arc<Running>>);

impl Drop for Stopper {
    fn drop(&mut self) {
        self.0.take().iter().for_each(|running| running.stop());
    }
}

/// From now on the client asks about a task of the protocol.
fn hand_over(manager: &TaskManager, running: Arc<Running>, mut questions: Questions) -> Task {
    let asks = manager.clone();
    let options = TaskOptions::new().with_ttl_ms(KEPT_MS).with_status_message(running.standing().words);
    manager.spawn(options, move |context: TaskContext| {
        Box::pin(async move {
            let mut number = 0;
            loop {
                tokio::select! {
                    outcome = running.finished() => return match outcome.as_deref() {
                        Some(Ok(result)) => Ok(CallToolResult::from(answer(result))),
                        Some(Err(error)) => Ok(CallToolResult::from(ToolError::Invalid(error.to_string()))),
                        None => Err(TaskExit::Cancelled),
                    },
                    () = running.changed() => context.set_status_message(running.standing().words),
                    () = context.cancelled() => {
                        running.stop();
                        return Err(TaskExit::Cancelled);
                    }
                    Some(put) = questions.recv() => {
                        number += 1;
                        ask(&asks, &context, format!("question-{number}"), put).await;
                    }
                }
            }
        })
    })
}

/// Puts a question to the client, for as long as somebody waits for the answer.
async fn ask(manager: &TaskManager, context: &TaskContext, key: String, put: Put) {
    let Put { request, mut answer } = put;
    tokio::select! {
        asked = context.request_input(key.clone(), InputRequest::Elicitation(request)) => drop(answer.send(asked.ok())),
        // The agent went on without an answer. A question that is not taken back would keep the task from going on.
        () = answer.closed() => drop(manager.update_task(context.task_id(), [(key, Value::Null)])),
    }
}

fn task_file(file: &FileToWrite) -> Result<TaskFile, ToolError> {
    let checked = files::mode(file).and_then(|mode| Ok((mode, files::content(file)?)));
    let (mode, content) = checked.map_err(|problem| ToolError::Invalid(format!("{}: {problem}", file.path)))?;
    Ok(TaskFile { path: file.path.clone(), content: Content::Bytes(content), mode })
}

fn answer(result: &TaskResult) -> Answer {
    let outcome = if result.status == TaskStatus::Completed { Outcome::Whole } else { Outcome::Partial };
    Answer::of(&done(result)).with_outcome(outcome)
}

/// How the last task of a sandbox stands, as get_sandbox_status tells it.
pub fn of_sandbox(app: &App, session: &SessionId) -> Option<Value> {
    if let Some(running) = app.tasks.of(session) {
        match running.outcome().as_deref() {
            Some(Ok(result)) => return serde_json::to_value(done(result)).ok(),
            Some(Err(_)) => return None,
            None if running.status() == TaskStatus::Running => return serde_json::to_value(standing(&running)).ok(),
            // It was stopped, and its receipt knows more.
            None => {}
        }
    }
    let id = agent::last_task(&app.settings.state, session)?;
    if let Some(interrupted) = agent::receipt::recover_one(&app.settings.state, &id) {
        let sandboxes = app.sandboxes.clone();
        tokio::spawn(async move { agent::end_after(&interrupted, &sandboxes).await });
    }
    let receipt = agent::receipt::find(&app.settings.state, &id)?.receipt;
    let fields = [
        "task_id",
        "status",
        "output",
        "error",
        "agent",
        "duration_seconds",
        "cost",
        "files_created",
        "files_changed",
        "files_deleted",
    ];
    Some(fields.into_iter().map(|field| (field.to_owned(), named(&receipt[field]))).collect())
}

/// A receipt has files with their sizes and hashes; an answer has their names.
fn named(field: &Value) -> Value {
    match field {
        Value::Array(files) => files.iter().take(NAMED).map(|file| file.get("path").unwrap_or(file).clone()).collect(),
        field => field.clone(),
    }
}

/// Waits until the task of a sandbox has ended, though not longer than this.
pub async fn wait(app: &App, session: &SessionId, most: Duration, progress: &mut Progress) {
    let Some(running) = app.tasks.of(session) else { return };
    let deadline = tokio::time::sleep(most);
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            _ = running.finished() => return,
            () = progress.due() => progress.tell(shortened(&running.standing().words)),
            () = &mut deadline => return,
        }
    }
}

fn standing(running: &Running) -> TaskDone {
    let standing = running.standing();
    let status = running.status();
    let mut notes = Vec::new();
    if status == TaskStatus::Running {
        notes.push("it goes on: get_sandbox_status with this session_id and wait_seconds tells how it stands, and what came of it".to_owned());
    }
    TaskDone {
        task_id: standing.task_id.map(|id| id.to_string()).unwrap_or_default(),
        session_id: standing.session_id.map(|id| id.to_string()).unwrap_or_default(),
        status: status.as_str().to_owned(),
        agent: standing.agent,
        output: String::new(),
        step: Some(standing.words),
        steps: standing.steps,
        files_created: Vec::new(),
        files_changed: Vec::new(),
        files_deleted: Vec::new(),
        duration_seconds: (running.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
        turns: standing.cost.turns,
        cost: standing.cost.into(),
        error: None,
        denials: Vec::new(),
        enforced: Default::default(),
        notes,
    }
}

fn done(result: &TaskResult) -> TaskDone {
    let mut notes = Vec::new();
    if let Some(asked) = result.allowed.lowered_from {
        let (asked, given) = (asked.as_secs(), result.allowed.timeout.as_secs());
        notes.push(format!("timeout was lowered from {asked} s to the maximum of {given} s"));
    }
    let changes = &result.changes;
    if let Some(why) = &result.unlisted {
        notes.push(format!("what it changed in /workspace is not known: {why}"));
    } else if changes.truncated || changes.created.len().max(changes.changed.len()) > NAMED {
        notes.push("not all files are named; list_files shows the rest".to_owned());
    }
    if result.agent_why.starts_with("auto") {
        notes.push(result.agent_why.clone());
    }
    notes.extend(result.lowered.iter().cloned());
    if result.status != TaskStatus::Completed {
        notes.push("another task with this session_id goes on with the conversation and the files".to_owned());
    }
    let named = |files: &[ChangedFile]| files.iter().take(NAMED).map(|file| paths::shown(&file.path)).collect();
    TaskDone {
        task_id: result.task_id.to_string(),
        session_id: result.session_id.to_string(),
        status: result.status.as_str().to_owned(),
        agent: result.agent.clone(),
        output: result.output.clone(),
        step: None,
        steps: Vec::new(),
        files_created: named(&changes.created),
        files_changed: named(&changes.changed),
        files_deleted: changes.deleted.iter().take(NAMED).map(paths::shown).collect(),
        duration_seconds: result.duration_seconds,
        turns: result.cost.turns,
        cost: result.cost.clone().into(),
        error: result.error.clone(),
        denials: result.denials.iter().map(Denial::from).collect(),
        enforced: result.enforced.clone(),
        notes,
    }
}
