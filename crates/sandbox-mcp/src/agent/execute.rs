//! The way of a task from request to result. Every door calls [`execute`]; dropping its future stops the work.

use std::{
    io::Read,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{Policy, UserId};
use sandbox_executor::protocol::NewFile;
use tokio::sync::mpsc;

use super::{
    Agent, Content, Note, TaskError, TaskFile, TaskPlace, TaskRequest, TaskResult, TaskStatus, WorkError, Worker,
    task::MAX_TASK,
};
use crate::{
    config::Settings,
    sandboxes::{
        Allowed, NewSandbox, Sandboxes, SandboxesError, Session, State, TaskRecord, What, access::Person, patience,
    },
};

/// The level when none is asked for.
const DEFAULT_LEVEL: u8 = 3;
/// Files are read in pieces of this size.
const PIECE: u64 = 256 << 10;

/// Works on a task to its end, or until its time is over. What the policy denies is asked of the person. Dropping the future kills what the agent started.
pub async fn execute(
    sandboxes: &Sandboxes,
    caller: &UserId,
    request: TaskRequest,
    notes: Option<&mpsc::Sender<Note>>,
    person: &dyn Person,
) -> Result<TaskResult, TaskError> {
    let began = Instant::now();
    check(&request.task)?;
    let session = place(sandboxes, caller, &request.place).await?;
    let worker = Worker::new(session.clone(), notes, person);
    worker.note(Note::Sandbox(session.id().clone())).await;
    if let Err(error) = upload(&session, request.files).await {
        // Nobody learns the name of a sandbox whose task never began.
        if matches!(request.place, TaskPlace::New { .. }) {
            let _ = sandboxes.remove(caller, session.id()).await;
        }
        return Err(error);
    }
    let before = session.snapshot().await?;
    let ledger = Ledger::open(sandboxes, &session, request.agent, &request.task, began);

    let allowed = session.allowed(request.timeout);
    let worked = tokio::time::timeout(allowed.timeout, request.agent.work(&worker, &request.task)).await;
    let denials = worker.denials();
    drop(worker);
    let (status, output, error) = match worked {
        Ok(Ok(output)) => (TaskStatus::Completed, output, None),
        Ok(Err(error)) => (TaskStatus::Failed, String::new(), Some(in_words(&session, &error))),
        Err(_) => (TaskStatus::Timeout, String::new(), Some(too_long(allowed))),
    };
    let changes = session.files_changed_since(&before).await.unwrap_or_default();
    ledger.close(status, error.clone());
    let duration_seconds = (began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
    let session_id = session.id().clone();
    Ok(TaskResult { session_id, status, output, changes, duration_seconds, error, denials, allowed })
}

fn check(task: &str) -> Result<(), TaskError> {
    match task {
        empty if empty.trim().is_empty() => Err(TaskError::Empty),
        long if long.len() > MAX_TASK => Err(TaskError::TooLong(long.len())),
        _ => Ok(()),
    }
}

async fn place(sandboxes: &Sandboxes, caller: &UserId, place: &TaskPlace) -> Result<Arc<Session>, TaskError> {
    match place {
        TaskPlace::Existing { session_id, level } => {
            let session = sandboxes.find_to_use(caller, session_id).await?;
            let policy = &session.facts().spec.policy.name;
            match *level {
                Some(level) if *policy != format!("yolo-{level}") => {
                    let (session_id, policy) = (session_id.clone(), policy.clone());
                    Err(TaskError::OtherLevel { session_id, policy, level })
                }
                _ => Ok(session),
            }
        }
        TaskPlace::New { backend, level, image, lifetime, env } => {
            let settings = sandboxes.settings();
            let image = image.clone().unwrap_or_else(|| settings.default_image.clone());
            let policy = policy(settings, *level)?;
            let (backend, env) = (backend.clone(), env.clone());
            let new = NewSandbox { backend, image, policy, lifetime: *lifetime, env };
            Ok(sandboxes.create(caller, new).await?)
        }
    }
}

/// What a new sandbox for a task of this level may do.
pub fn policy(settings: &Settings, level: Option<u8>) -> Result<Policy, TaskError> {
    match level {
        // The operator's default is followed where it is a level; a task needs one.
        None if settings.default_policy.name.starts_with("yolo-") => Ok(settings.default_policy.clone()),
        None => Ok(settings.policy(&format!("yolo-{DEFAULT_LEVEL}"))?),
        Some(level @ 1..=4) => Ok(settings.policy(&format!("yolo-{level}"))?),
        Some(other) => Err(TaskError::NoSuchLevel(other)),
    }
}

async fn upload(session: &Session, files: Vec<TaskFile>) -> Result<(), TaskError> {
    if files.is_empty() {
        return Ok(());
    }
    let mut writer = patience::soon(session.client().await?.write()).await.map_err(SandboxesError::from)?;
    for TaskFile { path, content, mode } in files {
        let failed = |why: String| TaskError::File { path: path.clone(), why };
        let new = NewFile { path: path.as_str().into(), mode };
        patience::soon(writer.begin(&new)).await.map_err(|error| failed(error.to_string()))?;
        match content {
            Content::Bytes(bytes) => {
                patience::in_time(writer.data(&bytes)).await.map_err(|error| failed(error.to_string()))?
            }
            Content::File(mut file) => loop {
                // A disk answers soon enough; a hop to another thread for each piece would cost more.
                let mut piece = Vec::with_capacity(PIECE as usize);
                let read = file.by_ref().take(PIECE).read_to_end(&mut piece);
                if read.map_err(|error| failed(error.to_string()))? == 0 {
                    break;
                }
                patience::in_time(writer.data(&piece)).await.map_err(|error| failed(error.to_string()))?;
            },
        }
        patience::in_time(writer.finish()).await.map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

fn in_words(session: &Session, error: &WorkError) -> String {
    match session.state() {
        State::Ended { why } => format!("{error} (the sandbox has ended: {why})"),
        _ => error.to_string(),
    }
}

fn too_long(allowed: Allowed) -> String {
    let seconds = allowed.timeout.as_secs_f64();
    let lowered = match allowed.lowered_from {
        Some(asked) => format!(" ({} s were asked for, which is more than the maximum)", asked.as_secs_f64()),
        None => String::new(),
    };
    format!("the task was stopped after {seconds} s{lowered}. Ask for less at once, or for more time")
}

/// Sees to it that the history knows how a task ended, also when it is dropped half-way.
struct Ledger {
    sandboxes: Sandboxes,
    session: Arc<Session>,
    record: TaskRecord,
    began: Instant,
}

impl Ledger {
    fn open(sandboxes: &Sandboxes, session: &Arc<Session>, agent: Agent, task: &str, began: Instant) -> Self {
        let task: String = task.chars().take(1000).collect();
        session.record(What::TaskStarted { agent: agent.name().to_owned(), task: task.chars().take(200).collect() });
        let record = TaskRecord {
            at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            session_id: session.id().clone(),
            owner: session.owner().clone(),
            agent: agent.name().to_owned(),
            task,
            status: TaskStatus::Cancelled.as_str().to_owned(),
            seconds: 0.0,
            error: None,
        };
        Self { sandboxes: sandboxes.clone(), session: session.clone(), record, began }
    }

    fn close(mut self, status: TaskStatus, error: Option<String>) {
        self.record.status = status.as_str().to_owned();
        self.record.error = error;
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        let elapsed = self.began.elapsed();
        self.record.seconds = elapsed.as_secs_f64();
        self.session.record(What::TaskFinished { status: self.record.status.clone(), elapsed });
        self.sandboxes.history().record_task(self.record.clone());
    }
}
