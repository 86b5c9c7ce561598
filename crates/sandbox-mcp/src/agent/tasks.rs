//! Tasks that this program works on: each goes on by itself, whoever waits for it, and can be asked how it stands, talked
//! to, and stopped.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use sandbox_core::{SessionId, UserId};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinHandle},
};

use super::{Bill, Mailbox, Note, TaskError, TaskId, TaskRequest, TaskResult, TaskStatus, execute};
use crate::sandboxes::{Sandboxes, access::Person};

/// Tasks that have ended and are still remembered here; all of them are in their receipts.
const REMEMBERED: usize = 256;
/// A task that is stopped has this long to write its receipt.
const FAREWELL: Duration = Duration::from_secs(2);
/// So long it may look at what it has made.
const LOOKING: Duration = Duration::from_millis(1500);

/// All tasks of this program. Clones are the same.
#[derive(Clone, Default)]
pub struct Tasks(Arc<Mutex<HashMap<SessionId, Arc<Running>>>>);

/// How a task stands.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Its name, as soon as it has one.
    pub task_id: Option<TaskId>,
    /// Who works on it.
    pub agent: String,
    /// Where, as soon as that is known.
    pub session_id: Option<SessionId>,
    /// What is being done, in plain words.
    pub words: String,
    /// What it cost so far.
    pub cost: Bill,
    /// Steps in plain words so far, the newest last.
    pub steps: Vec<String>,
}

/// What came of it. Clones are the same result.
pub type Outcome = Arc<Result<TaskResult, TaskError>>;

/// A task that goes on, or has ended.
pub struct Running {
    mailbox: Mailbox,
    began: Instant,
    standing: watch::Receiver<Standing>,
    outcome: watch::Receiver<Option<Outcome>>,
    abort: AbortHandle,
    handle: Mutex<Option<JoinHandle<()>>>,
}

impl Tasks {
    /// Begins a task that goes on by itself. What it was made in is remembered as soon as that is known.
    pub fn start(
        &self,
        sandboxes: &Sandboxes,
        caller: &UserId,
        request: TaskRequest,
        person: Arc<dyn Person>,
    ) -> Arc<Running> {
        let mailbox = request.mailbox.clone();
        let (standing_sender, standing) =
            watch::channel(Standing { words: "making a sandbox".to_owned(), ..Standing::default() });
        let (outcome_sender, outcome) = watch::channel(None);
        let (sandboxes, caller) = (sandboxes.clone(), caller.clone());
        let work = async move {
            let (notes, mut told) = mpsc::channel(64);
            let worked = execute(&sandboxes, &caller, request, Some(&notes), &*person);
            tokio::pin!(worked);
            let result = loop {
                tokio::select! {
                    result = &mut worked => break result,
                    Some(note) = told.recv() => standing_sender.send_modify(|standing| standing.note(note)),
                }
            };
            while let Ok(note) = told.try_recv() {
                standing_sender.send_modify(|standing| standing.note(note));
            }
            outcome_sender.send_replace(Some(Arc::new(result)));
        };
        let handle = tokio::spawn(work);
        let abort = handle.abort_handle();
        let handle = Mutex::new(Some(handle));
        let running = Arc::new(Running { mailbox, began: Instant::now(), standing, outcome, abort, handle });
        let (tasks, watched) = (self.clone(), running.clone());
        tokio::spawn(async move {
            if let Some(id) = watched.session().await {
                tasks.remember(id, watched);
            }
        });
        running
    }

    /// The last task of a sandbox.
    pub fn of(&self, session: &SessionId) -> Option<Arc<Running>> {
        self.all().get(session).cloned()
    }

    /// Stops all tasks because the program ends, and gives them time to write down what they did. What they made so far is
    /// nowhere else: their sandboxes do not end with the program, nor do those of tasks that were stopped just before.
    pub async fn stop_all(&self, sandboxes: &Sandboxes) {
        let is_unfinished =
            |running: &Arc<Running>| matches!(running.status(), TaskStatus::Running | TaskStatus::Cancelled);
        let all: Vec<Arc<Running>> = {
            let all = self.all();
            all.iter().filter(|(_, running)| is_unfinished(running)).for_each(|(id, _)| drop(sandboxes.leave(id)));
            all.values().cloned().collect()
        };
        all.iter().for_each(|running| running.stop());
        let ends = all.iter().map(|running| running.ended());
        let _ = tokio::time::timeout(FAREWELL, futures::future::join_all(ends)).await;
    }

    fn remember(&self, id: SessionId, running: Arc<Running>) {
        let mut all = self.all();
        if all.len() >= REMEMBERED {
            let oldest = all
                .iter()
                .filter(|(_, running)| running.outcome().is_some())
                .max_by_key(|(_, running)| running.began.elapsed());
            if let Some(id) = oldest.map(|(id, _)| id.clone()) {
                all.remove(&id);
            }
        }
        all.insert(id, running);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<Running>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Running {
    /// What came of it, if it has ended by itself.
    pub fn outcome(&self) -> Option<Outcome> {
        self.outcome.borrow().clone()
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        self.standing.borrow().clone()
    }

    /// Since it began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// `running`, or how it ended.
    pub fn status(&self) -> TaskStatus {
        match self.outcome().as_deref() {
            Some(Ok(result)) => result.status,
            Some(Err(_)) => TaskStatus::Failed,
            None if self.abort.is_finished() => TaskStatus::Cancelled,
            None => TaskStatus::Running,
        }
    }

    /// Says something to the agent. False where nobody will read it: it is about to end.
    pub fn say(&self, message: &str) -> bool {
        self.mailbox.say(message)
    }

    /// Stops it: its agent at once, and what that started is killed; what it made is still looked at, for a moment.
    pub fn stop(&self) {
        self.mailbox.interrupt();
        let abort = self.abort.clone();
        let late = async move {
            tokio::time::sleep(LOOKING).await;
            abort.abort();
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(late)),
            Err(_) => self.abort.abort(),
        }
    }

    /// Returns when it has ended, with what came of it; nothing if it was stopped.
    pub async fn finished(&self) -> Option<Outcome> {
        let mut outcome = self.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await;
        ended.ok().and_then(|outcome| outcome.clone())
    }

    /// Returns when something new is to be told.
    pub async fn changed(&self) {
        let mut standing = self.standing.clone();
        standing.mark_unchanged();
        if standing.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// The sandbox, as soon as there is one; nothing if there never is.
    async fn session(&self) -> Option<SessionId> {
        let mut standing = self.standing.clone();
        let found = standing.wait_for(|standing| standing.session_id.is_some()).await;
        found.ok().and_then(|standing| standing.session_id.clone())
    }

    async fn ended(&self) {
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = handle {
            let _ = handle.await;
        }
    }
}

/// Steps that are told to whoever asks how a task stands.
const TOLD: usize = 20;

impl Standing {
    fn note(&mut self, note: Note) {
        match note {
            Note::Task { task_id, agent, .. } => (self.task_id, self.agent) = (Some(task_id), agent),
            Note::Sandbox { session_id } => self.session_id = Some(session_id),
            Note::Step { words } | Note::Call { words, .. } => self.step(words),
            Note::Question { question, .. } => self.step(format!("Asking: {question}")),
            Note::Retry { attempt, why, .. } => self.step(format!("Asking the model again, attempt {attempt}: {why}")),
            Note::Cost(bill) => self.cost = bill,
            Note::Output { data, .. } => {
                let text = String::from_utf8_lossy(&data);
                let line = text.lines().rev().find(|line| !line.trim().is_empty());
                let plain = |line: &str| line.chars().filter(|letter| !letter.is_control()).take(200).collect();
                self.words = line.map_or(std::mem::take(&mut self.words), plain);
            }
            Note::Thinking { .. }
            | Note::Text { .. }
            | Note::Result { .. }
            | Note::Preview { .. }
            | Note::File { .. }
            | Note::Answer { .. }
            | Note::Unanswered { .. } => {}
        }
    }

    fn step(&mut self, words: String) {
        let words: String = words.chars().take(300).collect();
        if self.steps.len() >= TOLD {
            self.steps.remove(0);
        }
        self.steps.push(words.clone());
        self.words = words;
    }
}
