//! Watches a task that another process of ours works on, at a terminal. Ctrl-C asks whether to stop it or to leave it running.

use std::{
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};

use super::{
    Answer,
    apart::{Heard, Said},
    exit,
    live::Live,
    prompt, results, screen,
};
use crate::{agent::Note, config::Settings};

/// A task that is told to stop has this long.
const FAREWELL: Duration = Duration::from_secs(10);

/// Whether a person sits here who can be asked.
pub(super) fn is_possible() -> bool {
    prompt::is_there()
}

/// What a person at the terminal wants.
enum Wish {
    Answer { number: u64, text: Option<String> },
    Stop,
    Leave,
    GoOn,
}

/// Lets another process work, and shows what it says.
pub(super) async fn watch(settings: &Settings, keep: bool, answer: Answer) -> anyhow::Result<u8> {
    let mut child = start()?;
    let (Some(mut input), Some(output), Some(errors)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        bail!("the process that does the work has no streams");
    };
    let (mut lines, mut errors) = (BufReader::new(output).lines(), BufReader::new(errors).lines());
    let (mut interrupts, mut ends) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let (wishes, mut wished) = mpsc::channel(4);
    let mut watching = Watching { live: Live::start(), told: None, task: None, session: None };
    // While a question is on the screen nothing else is shown there.
    let (mut asking, mut held, over) = (false, Held::default(), Arc::new(AtomicBool::new(false)));
    let left = loop {
        tokio::select! {
            line = lines.next_line() => match line? {
                Some(line) if asking => held.said.push(line),
                Some(line) => watching.hear(&line, settings.answer, &wishes),
                None => break false,
            },
            Ok(Some(line)) = errors.next_line() => match asking {
                true => held.errors.push(line),
                false => watching.live.tell(&line),
            },
            _ = interrupts.recv() => match asking {
                // Asked again, it stops, and nobody has to answer any more.
                true => {
                    over.store(true, Ordering::Relaxed);
                    stop(&child);
                }
                false => {
                    asking = true;
                    ask_what_to_do(&watching.live, &wishes, &over);
                }
            },
            _ = ends.recv() => stop(&child),
            Some(wish) = wished.recv() => {
                if !matches!(wish, Wish::Answer { .. }) {
                    asking = false;
                    held.show(&mut watching, settings.answer, &wishes);
                }
                match wish {
                    Wish::Stop => stop(&child),
                    Wish::GoOn => {}
                    Wish::Leave => break true,
                    Wish::Answer { number, text } => tell(&mut input, &Heard::Answer { number, text }).await,
                }
            }
        }
    };
    if asking && !left {
        over.store(true, Ordering::Relaxed);
        let _ = wished.recv().await;
        held.show(&mut watching, settings.answer, &wishes);
    }
    watching.live.stop();
    if left {
        tell(&mut input, &Heard::Leave).await;
        watching.farewell();
        return Ok(0);
    }
    while let Ok(Some(line)) = errors.next_line().await {
        watching.live.tell(&line);
    }
    let ended =
        tokio::time::timeout(FAREWELL, child.wait()).await.context("the process that does the work does not end")??;
    match &watching.told {
        Some(told) if told["error"].is_object() => screen::say_json(told),
        Some(told) => results::show(told, keep, answer),
        None => {}
    }
    Ok(ended.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::FAILED))
}

/// The same command, told that somebody watches. Keys that are typed here do not reach it.
fn start() -> anyhow::Result<Child> {
    let mut words: Vec<_> = std::env::args_os().skip(1).collect();
    let at = words.iter().position(|word| word == "run").context("this is not `run`")?;
    words.insert(at + 1, "--apart".into());
    let program = std::env::current_exe().context("this program does not know its own file")?;
    let mut command = Command::new(program);
    command.args(words).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("the process that does the work cannot be started")
}

/// What was said while a question was on the screen.
#[derive(Default)]
struct Held {
    said: Vec<String>,
    errors: Vec<String>,
}

impl Held {
    fn show(&mut self, watching: &mut Watching, patience: Duration, wishes: &mpsc::Sender<Wish>) {
        self.said.drain(..).for_each(|line| watching.hear(&line, patience, wishes));
        self.errors.drain(..).for_each(|line| watching.live.tell(&line));
    }
}

struct Watching {
    live: Live,
    told: Option<Value>,
    task: Option<String>,
    session: Option<String>,
}

impl Watching {
    fn hear(&mut self, line: &str, patience: Duration, wishes: &mpsc::Sender<Wish>) {
        match serde_json::from_str(line) {
            Ok(said) => self.show(said, patience, wishes),
            // An error, where JSON was asked for.
            Err(_) => self.told = serde_json::from_str(line).ok(),
        }
    }

    fn show(&mut self, said: Said, patience: Duration, wishes: &mpsc::Sender<Wish>) {
        match said {
            Said::Note(note) => {
                match &note {
                    Note::Task { task_id, .. } => self.task = Some(task_id.to_string()),
                    Note::Sandbox { session_id } => self.session = Some(session_id.to_string()),
                    _ => {}
                }
                self.live.show(note);
            }
            Said::Output(text) => self.live.output(text.as_bytes()),
            Said::Preview { port, address } => self.live.show(Note::Preview { port, address }),
            Said::Result(told) => self.told = Some(told),
            Said::Ask { number, text, access, choices, default } => {
                let (bar, wishes) = (self.live.bar(), wishes.clone());
                tokio::task::spawn_blocking(move || {
                    let text = bar.suspend(|| match access {
                        true => prompt::yes_once(&text, patience).map(|yes| if yes { "yes" } else { "no" }.to_owned()),
                        false => prompt::inquire(&text, &choices, &default, patience),
                    });
                    let _ = wishes.blocking_send(Wish::Answer { number, text });
                });
            }
        }
    }

    fn farewell(&self) {
        let id = self.task.as_deref().unwrap_or_default();
        screen::tell(&format!(
            "the task goes on by itself; its results will be put where they were to go. How it stands: sandbox-mcp task show {id}"
        ));
        screen::tell(&format!("to stop it: sandbox-mcp task stop {id}"));
        if let Some(session) = &self.session {
            screen::tell(&format!("what happens in it: sandbox-mcp logs --follow {session}"));
        }
    }
}

/// What to do with a task whose person pressed Ctrl-C.
fn ask_what_to_do(live: &Live, wishes: &mpsc::Sender<Wish>, over: &Arc<AtomicBool>) {
    let (bar, wishes, over) = (live.bar(), wishes.clone(), over.clone());
    tokio::task::spawn_blocking(move || {
        let question =
            "Stop the task? Type s to stop it, l to leave it running, or nothing to go on, and press Enter: ";
        let typed = bar.suspend(|| prompt::one_word(question, &over));
        let wish = match typed.as_deref() {
            Some("s" | "stop" | "y" | "yes") => Wish::Stop,
            Some("l" | "leave") => Wish::Leave,
            _ => Wish::GoOn,
        };
        let _ = wishes.blocking_send(wish);
    });
}

fn stop(child: &Child) {
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id as i32)) {
        let _ = kill_process(pid, Signal::TERM);
    }
}

async fn tell(input: &mut ChildStdin, heard: &Heard) {
    if let Ok(mut line) = serde_json::to_vec(heard) {
        line.push(b'\n');
        let _ = input.write_all(&line).await;
        let _ = input.flush().await;
    }
}
