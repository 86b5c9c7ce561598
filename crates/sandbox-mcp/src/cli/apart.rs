//! The process that works on a task while another one watches: what happens goes out as lines of JSON, answers to questions
//! come in. When the one that watches ends without a word the task is stopped; when it leaves, the task goes on.

use std::{
    collections::HashMap,
    io::{BufRead, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{oneshot, watch};

use crate::{
    agent::Note,
    sandboxes::access::{Inquiry, Person, Question, Reply, Span},
};

/// What the one that works says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Said {
    /// Something happened.
    Note(Note),
    /// A command printed this.
    Output(String),
    /// A port was opened. A note of that has no form in which it could be written down, so it is said apart.
    Preview {
        /// Which port.
        port: u16,
        /// Where to look.
        address: String,
    },
    /// Somebody is asked.
    Ask {
        /// Which question.
        number: u64,
        /// In words.
        text: String,
        /// Whether it is yes or no, or a text.
        access: bool,
        /// What can be chosen.
        choices: Vec<String>,
        /// What holds without an answer.
        default: String,
    },
    /// What came of it.
    Result(Value),
}

/// What it is told.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Heard {
    /// An answer, if there is one.
    Answer {
        /// To which question.
        number: u64,
        /// What was said.
        text: Option<String>,
    },
    /// Nobody watches any more, and the task goes on.
    Leave,
}

/// The side that works. Clones are the same.
#[derive(Clone)]
pub(super) struct Apart(Arc<Shared>);

struct Shared {
    waiting: Mutex<HashMap<u64, oneshot::Sender<Option<String>>>>,
    next: AtomicU64,
    watched: watch::Sender<Watched>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Watched {
    Yes,
    /// The one that watched has left the task to itself.
    Left,
    /// It is gone without a word.
    Abandoned,
}

impl Apart {
    /// Listens on standard input from now on.
    pub fn start() -> Self {
        let watched = watch::Sender::new(Watched::Yes);
        let shared = Arc::new(Shared { waiting: Mutex::default(), next: AtomicU64::new(1), watched });
        let listening = shared.clone();
        std::thread::spawn(move || listening.listen());
        Self(shared)
    }

    pub fn note(&self, note: &Note) {
        match note {
            Note::Output { data, .. } => say(&Said::Output(String::from_utf8_lossy(data).into_owned())),
            Note::Preview { port, address } => say(&Said::Preview { port: *port, address: address.clone() }),
            note => say(&Said::Note(note.clone())),
        }
    }

    pub fn result(&self, told: &Value) {
        say(&Said::Result(told.clone()));
    }

    pub fn person(&self, patience: Duration) -> Watcher {
        Watcher { apart: self.clone(), patience }
    }

    /// Returns when the one that watched is gone without a word.
    pub async fn abandoned(self) {
        let mut watched = self.0.watched.subscribe();
        if watched.wait_for(|watched| *watched == Watched::Abandoned).await.is_err() {
            std::future::pending().await
        }
    }

    async fn ask(&self, patience: Duration, ask: impl FnOnce(u64) -> Said) -> Option<String> {
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.0.waiting().insert(number, sender);
        say(&ask(number));
        let answer = tokio::time::timeout(patience, answer).await;
        self.0.waiting().remove(&number);
        answer.ok()?.ok().flatten()
    }
}

impl Shared {
    fn listen(&self) {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Heard::Answer { number, text }) => {
                    if let Some(waiting) = self.waiting().remove(&number) {
                        let _ = waiting.send(text);
                    }
                }
                Ok(Heard::Leave) => drop(self.watched.send_replace(Watched::Left)),
                Err(_) => {}
            }
        }
        self.waiting().clear();
        let gone = |watched: &mut Watched| {
            if *watched == Watched::Yes {
                *watched = Watched::Abandoned;
            }
        };
        self.watched.send_modify(gone);
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Option<String>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One line. Whoever does not listen any more is not missed.
fn say(said: &Said) {
    if let Ok(mut line) = serde_json::to_vec(said) {
        line.push(b'\n');
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(&line).and_then(|()| out.flush());
    }
}

/// The person at the terminal of the process that watches.
pub(super) struct Watcher {
    apart: Apart,
    patience: Duration,
}

#[async_trait]
impl Person for Watcher {
    fn name(&self) -> String {
        "the person at the terminal".to_owned()
    }

    fn is_there(&self) -> bool {
        *self.apart.0.watched.borrow() == Watched::Yes
    }

    fn after_a_no(&self) -> &'static str {
        "Do it another way"
    }

    async fn answer(&self, question: &Question) -> Reply {
        let text = question.text();
        let ask = |number| Said::Ask { number, text, access: true, choices: Vec::new(), default: String::new() };
        match self.apart.ask(self.patience, ask).await.as_deref() {
            Some("yes") => Reply::Granted(Span::Once),
            Some(_) => Reply::Declined,
            None => Reply::NoAnswer,
        }
    }

    async fn inquire(&self, inquiry: &Inquiry) -> Option<String> {
        let (text, choices, default) = (inquiry.text(), inquiry.shown_choices(), inquiry.default.clone());
        let ask = |number| Said::Ask { number, text, access: false, choices, default };
        self.apart.ask(self.patience, ask).await
    }
}
