//! One task of a program: it is started, followed line by line, watched, and ended.

use std::{
    collections::{HashSet, VecDeque},
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use sandbox_core::exec::{Exec, Exit, Stdin, Stream};
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::{
    Program, chance,
    dialect::{Asked, Dialect, Resume, Said, Start, short},
    home, leftover,
    lending::{self, LentModel},
    placing, prompt,
    purse::{Purse, Told},
};
use crate::{
    agent::{Assignment, Command, Finished, Note, Progress, WorkError, Worker},
    sandboxes::{InputEnd, secrets},
};

/// Longest line that is read; what is longer tells nothing. Once understood it takes many times as much memory.
const LONGEST_LINE: usize = 2 << 20;
/// Of its answer at the end, so many letters are passed on.
const LONGEST_ANSWER: usize = 100_000;
/// Tools that it may run at once, as far as we count.
const TOOLS: usize = 1000;
/// It may ask so many times before the first is answered.
const QUESTIONS: usize = 8;
/// Of what it writes to standard error, so much is kept.
const LAST_WORDS: usize = 2000;
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(500);
/// A program that has finished is killed after so long,
const FAREWELL: Duration = Duration::from_millis(1500);
/// and one that was asked to end after so long.
const STOPPING: Duration = Duration::from_millis(900);
/// The model may fail so often in a row.
const FAILURES: u32 = 12;
/// Where not even a model is waited for, a program may be silent at least for so long: a busy machine takes its time,
const SLOW: Duration = Duration::from_secs(120);
/// and so many times as long while a command may run.
const COMMANDS: u32 = 10;

/// Works on a task to its end.
pub(super) async fn work(program: &Program, task: Assignment, worker: &Worker<'_>) -> Result<Finished, WorkError> {
    let settings = worker.settings();
    let model = task.model.clone().unwrap_or_else(|| settings.model.name.clone());
    check_workspace(program, worker).await?;
    if task.memory.is_some() {
        leftover::end_in(worker.session()).await;
    }
    let path = placing::place(program.kind, &program.installed, worker).await?;
    let (sender, mut told) = mpsc::unbounded_channel();
    let purse = Arc::new(Purse::new(task.budget, settings.model.clone(), model.clone(), sender));
    let lent = lending::lend(worker, purse.clone()).await?;
    home::furnish(program.dialect().home()?, worker).await?;
    let mut text = task.task;
    let mut resume = match task.memory.as_ref().map(|memory| memory["session"].as_str()) {
        None => Resume::Nothing,
        Some(None) => Resume::Last,
        Some(Some(session)) => Resume::Named(session.to_owned()),
    };
    loop {
        let mut run = Run::new(program, worker, &purse, &mut told);
        let ended = run.follow(&path, &model, &lent, &resume, &text).await;
        let session = run.session.take();
        if resume != Resume::Nothing && run.dialect.has_forgotten() {
            worker.say("The earlier conversation is gone; beginning anew").await;
            resume = Resume::Nothing;
            continue;
        }
        let output = ended?;
        // What was said meanwhile, to a program that could not listen.
        let more = worker.mailbox().take();
        if more.is_empty() {
            return Ok(Finished { output });
        }
        (text, resume) = (more.join("\n\n"), session.map_or(Resume::Nothing, Resume::Named));
    }
}

/// Refuses a workspace out of which the program would run what nobody asked for.
async fn check_workspace(program: &Program, worker: &Worker<'_>) -> Result<(), WorkError> {
    if worker.settings().trust_workspace {
        return Ok(());
    }
    for name in program.dialect().unstoppable() {
        if worker.stat(&format!("/workspace/{name}")).await.is_ok() {
            return Err(WorkError::Agent(format!(
                "{program} was not started: /workspace holds `{name}`, and {program} would run the plugins that it names without \
                 being asked. Remove it, use another agent, or set `trust_workspace = true` if you trust it",
                program = program.kind.name
            )));
        }
    }
    Ok(())
}

/// Questions that a person sees, one after the other.
type Asking<'a> = Pin<Box<dyn Future<Output = (Asked, Vec<Option<String>>)> + Send + 'a>>;

async fn ask(worker: &Worker<'_>, asked: Asked) -> (Asked, Vec<Option<String>>) {
    let mut answers = Vec::new();
    for inquiry in &asked.inquiries {
        answers.push(worker.ask(inquiry).await.ok());
    }
    (asked, answers)
}

/// For ever, where nothing is asked.
async fn answered(asking: &mut Option<Asking<'_>>) -> (Asked, Vec<Option<String>>) {
    match asking {
        Some(asking) => asking.await,
        None => std::future::pending().await,
    }
}

/// One process.
struct Run<'a, 'w> {
    worker: &'a Worker<'w>,
    program: &'a Program,
    purse: &'a Purse,
    told: &'a mut UnboundedReceiver<Told>,
    dialect: Box<dyn Dialect>,
    session: Option<String>,
    /// Tools that have begun and not ended.
    tools: HashSet<String>,
    /// What it asks the person.
    questions: VecDeque<Asked>,
    line: Vec<u8>,
    last_words: String,
    /// When it last said something.
    heard: Instant,
    /// Since when it should be ending.
    leaving: Option<Instant>,
}

impl<'a, 'w> Run<'a, 'w> {
    fn new(
        program: &'a Program,
        worker: &'a Worker<'w>,
        purse: &'a Purse,
        told: &'a mut UnboundedReceiver<Told>,
    ) -> Self {
        Self {
            worker,
            program,
            purse,
            told,
            dialect: program.dialect(),
            session: None,
            tools: HashSet::new(),
            questions: VecDeque::new(),
            line: Vec::new(),
            last_words: String::new(),
            heard: Instant::now(),
            leaving: None,
        }
    }

    async fn follow(
        &mut self,
        path: &str,
        model: &str,
        lent: &LentModel<'_>,
        resume: &Resume,
        text: &str,
    ) -> Result<String, WorkError> {
        let mut command = self.start(path, model, lent, resume).await?;
        let end = if self.dialect.listens() { InputEnd::Keep } else { InputEnd::Close };
        command.input(&self.dialect.message(text), end).await?;
        let mailbox = self.worker.mailbox().clone();
        let mut look = tokio::time::interval(LOOK);
        let mut asking: Option<Asking<'_>> = None;
        loop {
            if asking.is_none()
                && let Some(asked) = self.questions.pop_front()
            {
                asking = Some(Box::pin(ask(self.worker, asked)));
            }
            let listens = self.dialect.listens() && self.leaving.is_none();
            tokio::select! {
                progress = command.next() => match progress? {
                    Progress::Output { stream: Stream::Stdout, data } => self.hear(&data, &command).await?,
                    Progress::Output { data, .. } => self.murmur(&data),
                    Progress::Ended { exit, elapsed, .. } => {
                        self.worker.look_for_changes(elapsed).await;
                        self.count_rest().await?;
                        return self.outcome(exit);
                    }
                },
                Some(told) = self.told.recv() => self.count(told).await?,
                (asked, answers) = answered(&mut asking) => {
                    asking = None;
                    self.heard = Instant::now();
                    // It may have ended meanwhile, which is heard of.
                    let _ = command.input(&self.dialect.answer(&asked, &answers), InputEnd::Keep).await;
                }
                () = mailbox.interrupted() => return self.interrupt(command).await,
                () = mailbox.message(), if listens => {
                    for message in mailbox.take() {
                        command.input(&self.dialect.message(&message), InputEnd::Keep).await?;
                    }
                }
                _ = look.tick() => self.look_after(&command).await?,
            }
        }
    }

    async fn start(
        &self,
        path: &str,
        model: &str,
        lent: &LentModel<'_>,
        resume: &Resume,
    ) -> Result<Command<'a>, WorkError> {
        let (settings, address, session) = (self.worker.settings(), lent.address(), chance::uuid()?);
        let asks = self.worker.can_ask();
        let invocation = self.dialect.invocation(&Start {
            program: path,
            address: &address,
            api: settings.model.api,
            model,
            context: settings.model.context,
            answer: settings.model.answer,
            resume,
            session: &session,
            trusts_workspace: settings.trust_workspace,
            asks,
            prompt: &prompt::prompt(if asks { prompt::ASKING } else { prompt::ALONE }),
            prompt_file: prompt::FILE,
        });
        self.remember(invocation.session.as_deref());
        let mut exec = Exec::argv(invocation.argv);
        exec.env = invocation.env;
        exec.stdin = Stdin::Piped;
        self.worker.start(exec).await
    }

    /// At once: whoever is stopped, runs out of time or loses its server is gone on with all the same.
    fn remember(&self, session: Option<&str>) {
        self.worker.remember_now(json!({ "session": session, "version": self.program.installed.version }));
    }

    /// Reads what it printed, line by line.
    async fn hear(&mut self, data: &[u8], command: &Command<'_>) -> Result<(), WorkError> {
        self.heard = Instant::now();
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + piece.len() <= LONGEST_LINE {
                self.line.extend_from_slice(piece);
            }
            if !piece.ends_with(b"\n") {
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let Ok(line) = serde_json::from_slice::<Value>(&line) else { continue };
            for said in self.dialect.line(&line) {
                self.take(said, command).await?;
            }
        }
        Ok(())
    }

    async fn take(&mut self, said: Said, command: &Command<'_>) -> Result<(), WorkError> {
        match said {
            Said::Session(id) => {
                // It comes from inside: one word, or none.
                let fits = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
                let fitting = Some(id).filter(|id| id.len() <= 100 && id.chars().all(fits));
                if fitting.is_some() && fitting != self.session {
                    self.remember(fitting.as_deref());
                }
                self.session = fitting;
            }
            Said::Note(note) => {
                let ran = match &note {
                    Note::Result { seconds, .. } => Some(Duration::from_secs_f64(seconds.clamp(0.0, 1e6))),
                    _ => None,
                };
                self.worker.note(note).await;
                if let Some(ran) = ran {
                    self.worker.look_for_changes(ran).await;
                }
            }
            Said::Began(_) if self.tools.len() >= TOOLS => {}
            Said::Began(id) => drop(self.tools.insert(short(&id, 100))),
            Said::Ended(id) => drop(self.tools.remove(&short(&id, 100))),
            Said::Asks(asked) if self.questions.len() < QUESTIONS => self.questions.push_back(asked),
            // It goes on without.
            Said::Asks(asked) => drop(command.input(&self.dialect.answer(&asked, &[]), InputEnd::Keep).await),
            Said::Hears(answer) => drop(command.input(&answer, InputEnd::Keep).await),
            Said::Turn => {
                let more = self.worker.mailbox().take();
                for message in &more {
                    command.input(&self.dialect.message(message), InputEnd::Keep).await?;
                }
                if more.is_empty() && self.leaving.is_none() {
                    self.leaving = Some(Instant::now());
                    // It may have ended by itself.
                    let _ = command.input(&[], InputEnd::Close).await;
                }
            }
        }
        Ok(())
    }

    fn murmur(&mut self, data: &[u8]) {
        self.last_words.push_str(&String::from_utf8_lossy(data));
        let over = self.last_words.len().saturating_sub(LAST_WORDS);
        let cut = (over..self.last_words.len()).find(|at| self.last_words.is_char_boundary(*at)).unwrap_or(over);
        self.last_words.drain(..cut);
    }

    async fn count(&self, told: Told) -> Result<(), WorkError> {
        match told {
            Told::Spent { spent, model, tokens } => {
                self.worker.session().record(secrets::event(&spent));
                self.worker.spent(&model, tokens).await;
            }
            Told::Failed { why, times } if times >= FAILURES => {
                return Err(WorkError::Agent(format!("the model failed {times} times in a row; the last time: {why}")));
            }
            // Who speaks of it themselves needs nobody to do so.
            Told::Failed { .. } if self.dialect.listens() => {}
            Told::Failed { why, times } => {
                self.worker.note(Note::Retry { attempt: times, after: Duration::ZERO, why }).await;
            }
            Told::Empty(why) => return Err(WorkError::Budget(why)),
        }
        Ok(())
    }

    async fn count_rest(&mut self) -> Result<(), WorkError> {
        while let Ok(told) = self.told.try_recv() {
            self.count(told).await?;
        }
        Ok(())
    }

    /// Whether it still does something.
    async fn look_after(&self, command: &Command<'_>) -> Result<(), WorkError> {
        if self.leaving.is_some_and(|since| since.elapsed() > FAREWELL) {
            return command.signal(9).await;
        }
        let (idle, name) = (self.worker.settings().model.idle, self.program.kind.name);
        let seconds = idle.as_secs();
        if self.purse.silence() > idle {
            return Err(WorkError::Agent(format!(
                "{name} was stopped: its model has said nothing for {seconds} s (`model_idle_seconds`). What it made is kept"
            )));
        }
        // Some do not tell when a tool begins: they may be running one.
        let patience = match self.tools.is_empty() && self.dialect.listens() {
            true => idle.max(SLOW),
            false => idle.max(SLOW) * COMMANDS,
        };
        if self.purse.silence() == Duration::ZERO && self.heard.elapsed() > patience {
            let seconds = patience.as_secs();
            return Err(WorkError::Agent(format!(
                "{name} was stopped: it has done nothing for {seconds} s{}. What it made is kept",
                self.in_its_words()
            )));
        }
        Ok(())
    }

    async fn interrupt(&mut self, mut command: Command<'_>) -> Result<String, WorkError> {
        let _ = command.signal(2).await;
        let farewell = async { while !matches!(command.next().await, Ok(Progress::Ended { .. }) | Err(_)) {} };
        // What is left is killed with the worker.
        let _ = tokio::time::timeout(STOPPING, farewell).await;
        self.count_rest().await?;
        Err(WorkError::Interrupted)
    }

    fn outcome(&self, exit: Exit) -> Result<String, WorkError> {
        let said = self.dialect.outcome(exit).map(|said| short(&said, LONGEST_ANSWER));
        said.map_err(|why| WorkError::Agent(format!("{why}{}", self.in_its_words())))
    }

    /// What it said last where nobody listens, for whoever has to find out.
    fn in_its_words(&self) -> String {
        let words = self.last_words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let words: String = words.chars().filter(|letter| !letter.is_control()).take(300).collect();
        if words.is_empty() { String::new() } else { format!(" (its last words: {words})") }
    }
}
