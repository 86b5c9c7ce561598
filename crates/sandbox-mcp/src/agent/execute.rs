//! The way of a task from request to result. Every door calls [`execute`]; dropping its future stops the work.

use std::{
    collections::BTreeMap,
    fs::{File, TryLockError},
    io::Read,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{Policy, SessionId, Tool, UserId};
use sandbox_executor::protocol::NewFile;
use tokio::sync::mpsc;

use super::{
    Assignment, Budget, Chosen, Content, Conversation, Finished, Note, TaskError, TaskFile, TaskId, TaskPlace,
    TaskRequest, TaskResult, TaskStatus, Trail, WorkError, Worker, choose, conversation, dollars,
    receipt::{Beginning, Ending, Writing, goes_on, stop_asked, stopped},
    task::MAX_TASK,
    worker::Equipment,
};
use crate::{
    config::Settings,
    sandboxes::{
        Allowed, Changes, FileWriter, NewSandbox, Sandboxes, SandboxesError, Session, State, TaskRecord, What,
        access::Person, patience,
    },
};

/// The level when none is asked for.
const DEFAULT_LEVEL: u8 = 3;
/// Files are read in pieces of this size.
const PIECE: u64 = 256 << 10;
/// An agent that was asked to stop has so long to do so.
const FAREWELL: Duration = Duration::from_secs(1);

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
    let settings = sandboxes.settings();
    let chosen = choose(settings, request.agent.as_deref())?;
    let (budget, lowered) = budget(settings, &request)?;
    let task_id = TaskId::random().map_err(|error| TaskError::NoName(error.to_string()))?;
    let session = place(sandboxes, caller, &request.place, chosen.agent.tools()).await?;
    // An agent that waits for its model or for a person asks nothing of its sandbox for a long time.
    let _in_use = session.keep_in_use();
    let trail = Trail::new(notes.cloned());
    let files: Vec<String> = request.files.iter().map(|file| file.path.clone()).collect();
    let begun = async {
        let claim = claim(settings, session.id())?;
        let (agent, why) = (chosen.agent.name().to_owned(), chosen.why.clone());
        trail.note(Note::Task { task_id: task_id.clone(), agent, why }).await;
        trail.note(Note::Sandbox { session_id: session.id().clone() }).await;
        upload(&session, request.files).await?;
        Ok::<_, TaskError>((claim, session.snapshot().await?))
    };
    let (_claim, before) = match begun.await {
        Ok(begun) => begun,
        Err(error) => {
            // Nobody learns the name of a sandbox whose task never began.
            if matches!(request.place, TaskPlace::New { .. }) {
                let _ = sandboxes.remove(caller, session.id()).await;
            }
            return Err(error);
        }
    };
    let ledger = Ledger::open(sandboxes, &session, &chosen, &request.task, began);
    let beginning = Beginning {
        task_id: &task_id,
        task: &request.task,
        agent: chosen.agent.name(),
        why: &chosen.why,
        files: &files,
        budget,
    };
    let writing = Writing::begin(&session, settings, &trail, &beginning);
    let receipt = writing.folder().map(|folder| folder.join("receipt.html"));
    conversation::sweep(&settings.state);
    conversation::note_task(&settings.state, session.id(), &task_id);
    let conversation = Conversation::of(&settings.state, session.id(), chosen.agent.name());
    let allowed = session.allowed(request.timeout);
    let assignment =
        Assignment { task: request.task, model: request.model, budget, memory: conversation.recall(), files };
    let worker = Worker::new(Equipment {
        session: session.clone(),
        trail: trail.clone(),
        person,
        mailbox: request.mailbox,
        budget,
        conversation,
        deadline: Instant::now() + allowed.timeout,
        before: before.clone(),
        last: writing.last.clone(),
    });
    let stop = stop_asked(writing.folder().cloned());
    let work = async {
        let mut working = chosen.agent.work(assignment, &worker);
        tokio::select! {
            worked = &mut working => return worked,
            () = stop => worker.mailbox().interrupt(),
            () = worker.mailbox().interrupted() => {}
        }
        // Who ends by themselves know what a follow-up goes on with; who does not is killed.
        tokio::time::timeout(FAREWELL, working).await.unwrap_or(Err(WorkError::Interrupted))
    };
    let worked = tokio::time::timeout(allowed.timeout, work).await;
    worker.mailbox().close();
    let (denials, cost) = (worker.denials(), worker.bill());
    drop(worker);
    let (status, output, error) = match worked {
        Ok(Ok(Finished { output })) => (TaskStatus::Completed, output, None),
        Ok(Err(WorkError::Interrupted)) => {
            let (status, why) = stopped(&session);
            (status, String::new(), Some(why.to_owned()))
        }
        Ok(Err(error)) => (TaskStatus::Failed, String::new(), Some(in_words(&session, &error))),
        Err(_) => (TaskStatus::Timeout, String::new(), Some(too_long(allowed))),
    };
    let listed = session.files_changed_since(&before).await;
    ledger.close(status, error.clone());
    let ending =
        Ending { status, output: output.clone(), error: error.clone(), cost: cost.clone(), denials: denials.clone() };
    writing.close(listed.as_ref().ok(), ending).await;
    let (changes, unlisted) = match listed {
        Ok(changes) => (changes, None),
        Err(error) => (Changes { truncated: true, ..Changes::default() }, Some(error.to_string())),
    };
    Ok(TaskResult {
        task_id,
        agent: chosen.agent.name().to_owned(),
        agent_why: chosen.why,
        session_id: session.id().clone(),
        status,
        output,
        changes,
        unlisted,
        duration_seconds: (began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
        error,
        denials,
        cost,
        enforced: enforced(&session),
        lowered,
        receipt,
        allowed,
    })
}

/// What was asked for, and never more than the operator allows; and what was lowered, in words.
fn budget(settings: &Settings, request: &TaskRequest) -> Result<(Budget, Vec<String>), TaskError> {
    let model = request.model.as_deref().unwrap_or(&settings.model.name);
    // Nor does whoever names a model spend what the operator cannot count.
    let foreign = model != settings.model.name && settings.model.price(&settings.model.name).is_some();
    if (request.budget_usd.is_some() || foreign) && settings.model.price(model).is_none() {
        return Err(TaskError::NoPrice { model: model.chars().take(100).collect() });
    }
    let (most_turns, most_usd) = (settings.max_turns, settings.task_budget_usd);
    let asked = request.budget_usd.filter(|usd| *usd >= 0.0);
    let budget = Budget {
        turns: request.max_turns.unwrap_or(most_turns).min(most_turns),
        usd: asked.unwrap_or(most_usd).min(most_usd),
        tokens: settings.task_budget_tokens,
    };
    let usd = asked.filter(|usd| *usd > most_usd).map(|asked| {
        let (asked, most) = (dollars(asked), dollars(most_usd));
        format!("the budget of {asked} is lowered to {most}, the most that a task may cost here (task_budget_usd)")
    });
    let turns = request.max_turns.filter(|turns| *turns > most_turns).map(|asked| {
        format!(
            "{asked} questions to the model are lowered to {most_turns}, the most that a task may ask here (max_turns)"
        )
    });
    Ok((budget, usd.into_iter().chain(turns).collect()))
}

/// Two agents that know nothing of each other would change the same files, and one of them would do all orders again.
fn claim(settings: &Settings, session: &SessionId) -> Result<File, TaskError> {
    conversation::claim(&settings.state, session).map_err(|error| match error {
        TryLockError::Error(why) => TaskError::Claim { session: session.clone(), why },
        TryLockError::WouldBlock => {
            let last = conversation::last_task(&settings.state, session);
            let last = last.filter(|task| goes_on(&settings.state, task));
            last.map_or_else(|| TaskError::Begins(session.clone()), TaskError::GoesOn)
        }
    })
}

fn enforced(session: &Session) -> BTreeMap<String, String> {
    let held = |holding: &sandbox_core::Holding| format!("{:?}", holding.held).to_lowercase();
    session.facts().enforcement.0.iter().map(|(control, holding)| (control.to_string(), held(holding))).collect()
}

fn check(task: &str) -> Result<(), TaskError> {
    match task {
        empty if empty.trim().is_empty() => Err(TaskError::Empty),
        long if long.len() > MAX_TASK => Err(TaskError::TooLong(long.len())),
        _ => Ok(()),
    }
}

async fn place(
    sandboxes: &Sandboxes,
    caller: &UserId,
    place: &TaskPlace,
    tools: Vec<Tool>,
) -> Result<Arc<Session>, TaskError> {
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
            let (backend, lifetime, env) = (backend.clone(), *lifetime, env.clone());
            let new = NewSandbox { backend, image, policy, lifetime, env, tools };
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
        let written = match content {
            Content::Bytes(bytes) => patience::in_time(writer.data(&bytes)).await.map_err(|error| error.to_string()),
            Content::File(file) => pour(&mut writer, file).await,
            Content::Path(path) => match std::fs::File::open(path) {
                Ok(file) => pour(&mut writer, file).await,
                Err(error) => Err(error.to_string()),
            },
        };
        written.map_err(failed)?;
        patience::in_time(writer.finish()).await.map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

async fn pour(writer: &mut FileWriter, mut file: std::fs::File) -> Result<(), String> {
    loop {
        // A disk answers soon enough; a hop to another thread for each piece would cost more.
        let mut piece = Vec::with_capacity(PIECE as usize);
        let read = file.by_ref().take(PIECE).read_to_end(&mut piece);
        if read.map_err(|error| error.to_string())? == 0 {
            return Ok(());
        }
        patience::in_time(writer.data(&piece)).await.map_err(|error| error.to_string())?;
    }
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
    fn open(sandboxes: &Sandboxes, session: &Arc<Session>, chosen: &Chosen, task: &str, began: Instant) -> Self {
        let agent = chosen.agent.name().to_owned();
        let task: String = task.chars().take(1000).collect();
        session.record(What::TaskStarted { agent: agent.clone(), task: task.chars().take(200).collect() });
        let record = TaskRecord {
            at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64,
            session_id: session.id().clone(),
            owner: session.owner().clone(),
            agent,
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
        if self.record.status == TaskStatus::Cancelled.as_str() {
            self.record.status = stopped(&self.session).0.as_str().to_owned();
        }
        self.record.seconds = elapsed.as_secs_f64();
        self.session.record(What::TaskFinished { status: self.record.status.clone(), elapsed });
        self.sandboxes.history().record_task(self.record.clone());
    }
}
