//! A question to the person at the terminal. It is put on the terminal itself, not on standard streams: those may be
//! the command's. What was typed before the question does not answer it.

use std::{
    fs::File,
    io::{IsTerminal, Read, Write, stderr},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use async_trait::async_trait;
use indicatif::ProgressBar;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    termios::{QueueSelector, tcflush, tcgetpgrp},
};
use sandbox_core::{Denial, Reason, SandboxSpec, exec::Exec};

use super::screen;
use crate::{
    config::{Ask, Settings},
    sandboxes::access::{
        Inquiry, Liftable, Objection, Person, Question, Reply, Span, Wish, is_operators, judge, permit, refusals, way,
    },
};

/// A person at the terminal, if one is there.
pub(super) struct AtTerminal {
    patience: Duration,
    /// What must be off the screen while somebody reads.
    bar: Option<ProgressBar>,
}

impl AtTerminal {
    pub fn new(settings: &Settings) -> Self {
        Self { patience: settings.answer, bar: None }
    }

    pub fn beside(mut self, bar: ProgressBar) -> Self {
        self.bar = Some(bar);
        self
    }
}

#[async_trait]
impl Person for AtTerminal {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn is_there(&self) -> bool {
        terminal().is_some()
    }

    fn how_to_ask(&self, rules: &[&str]) -> String {
        format!("To allow it, take the rule off in a policy of your own ({})", permit(rules))
    }

    fn without_asking(&self, rules: &[&str]) -> String {
        format!("{}; at a terminal you would be asked, unless ask = \"never\"", self.how_to_ask(rules))
    }

    fn after_a_no(&self) -> &'static str {
        "Do it another way"
    }

    async fn answer(&self, question: &Question) -> Reply {
        // Beside a bar an agent is at work; else the command is the person's own.
        let text = if self.bar.is_some() { question.text() } else { question.about_own_command() };
        let (patience, bar) = (self.patience, self.bar.clone());
        let put = move || match bar {
            Some(bar) => bar.suspend(|| ask(&text, patience)),
            None => ask(&text, patience),
        };
        tokio::task::spawn_blocking(put).await.unwrap_or(Reply::NoAnswer)
    }

    async fn inquire(&self, inquiry: &Inquiry) -> Option<String> {
        let (text, choices, default) = (inquiry.text(), inquiry.shown_choices(), inquiry.default.clone());
        let (patience, bar) = (self.patience, self.bar.clone());
        let put = move || match bar {
            Some(bar) => bar.suspend(|| inquire(&text, &choices, &default, patience)),
            None => inquire(&text, &choices, &default, patience),
        };
        tokio::task::spawn_blocking(put).await.ok().flatten()
    }
}

/// A question with an answer in words, or a number of a choice. An empty line means the default.
pub(super) fn inquire(text: &str, choices: &[String], default: &str, patience: Duration) -> Option<String> {
    let mut terminal = terminal()?;
    let _ = tcflush(&terminal, QueueSelector::IFlush);
    let text: Vec<String> = text.lines().map(screen::for_reading).collect();
    let listed = choices.iter().enumerate().map(|(number, choice)| format!("  {}: {choice}\n", number + 1));
    let listed: String = listed.collect();
    let hint = if choices.is_empty() { "type your answer" } else { "type a number, or your own answer" };
    write!(terminal, "{}\n{listed}[{hint}; Enter alone: it decides] ", text.join("\n")).ok()?;
    terminal.flush().ok()?;
    let Some(typed) = line(&mut terminal, patience) else {
        let _ = writeln!(terminal);
        return None;
    };
    match typed.trim() {
        "" => Some(default.to_owned()),
        typed => {
            let chosen = typed.parse::<usize>().ok().and_then(|number| choices.get(number.checked_sub(1)?));
            Some(chosen.cloned().unwrap_or_else(|| typed.to_owned()))
        }
    }
}

const NAME: &str = "the person at the terminal";

/// Looks at a command that has a sandbox for itself alone, and asks where that may help.
pub(super) fn admit(command: &Exec, spec: &SandboxSpec, settings: &Settings) -> Result<(), Vec<Denial>> {
    let judged = judge(command, &spec.policy);
    let open: Vec<&Objection> = judged.objections.iter().collect();
    if open.is_empty() {
        return Ok(());
    }
    let can_be_lifted =
        judged.objections.iter().all(|found| found.liftable == Liftable::Yes && !is_operators(&found.rule, settings));
    if settings.ask != Ask::Denied || !can_be_lifted || terminal().is_none() {
        let person = AtTerminal::new(settings);
        return Err(refusals(&open, |rules| Some(way(rules, settings, &person))));
    }
    let mut denials = refusals(&open, |_| None);
    let question = Question {
        session_id: spec.id.clone(),
        policy: spec.policy.name.clone(),
        wish: Wish::Command { rules: judged.objections.into_iter().map(|objection| objection.rule).collect() },
        target: command.program.to_string(),
        reason: None,
        span: Span::Once,
    };
    let (reason, message) = match ask(&question.about_own_command(), settings.answer) {
        Reply::Granted(_) => return Ok(()),
        Reply::Declined => (Reason::Declined, format!("{NAME} said no")),
        Reply::NoAnswer | Reply::Later => (Reason::NoAnswer, format!("{NAME} did not answer in time")),
    };
    denials.push(question.refusal(reason, message, "Do it another way"));
    Err(denials)
}

/// The terminal, where somebody sits at it: our messages go there, and we are in front.
fn terminal() -> Option<File> {
    if !stderr().is_terminal() {
        return None;
    }
    let terminal = File::options().read(true).write(true).open("/dev/tty").ok()?;
    let in_front = tcgetpgrp(&terminal).is_ok_and(|group| group == rustix::process::getpgrp());
    in_front.then_some(terminal)
}

/// Whether somebody sits at a terminal in front of us.
pub(super) fn is_there() -> bool {
    terminal().is_some()
}

/// Yes or no, to something that holds once; nothing without an answer.
pub(super) fn yes_once(text: &str, patience: Duration) -> Option<bool> {
    match ask(text, patience) {
        Reply::Granted(_) => Some(true),
        Reply::Declined => Some(false),
        Reply::NoAnswer | Reply::Later => None,
    }
}

/// One word, small and without spaces around it.
pub(super) fn one_word(question: &str, over: &AtomicBool) -> Option<String> {
    let (mut terminal, end) = (terminal()?, Instant::now() + PATIENCE);
    let _ = tcflush(&terminal, QueueSelector::IFlush);
    write!(terminal, "\n{question}").and_then(|()| terminal.flush()).ok()?;
    while !over.load(Ordering::Relaxed) && Instant::now() < end {
        if let Some(typed) = line(&mut terminal, GLANCE) {
            return Some(typed.trim().to_ascii_lowercase());
        }
    }
    let _ = writeln!(terminal);
    None
}

/// How often somebody who waits for an answer looks whether it still matters.
const GLANCE: Duration = Duration::from_millis(200);

/// A person who was asked what to do may think about it, but the task goes on meanwhile.
const PATIENCE: Duration = Duration::from_secs(300);

fn ask(text: &str, patience: Duration) -> Reply {
    let Some(mut terminal) = terminal() else { return Reply::NoAnswer };
    let _ = tcflush(&terminal, QueueSelector::IFlush);
    // What is granted for longer lives in a server, and this program ends with its command.
    let text: Vec<String> = text.lines().map(screen::for_reading).collect();
    if write!(terminal, "{}\n[y: yes, once; anything else: no] ", text.join("\n"))
        .and_then(|()| terminal.flush())
        .is_err()
    {
        return Reply::NoAnswer;
    }
    let Some(typed) = line(&mut terminal, patience) else {
        let _ = writeln!(terminal);
        return Reply::NoAnswer;
    };
    match typed.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Reply::Granted(Span::Once),
        _ => Reply::Declined,
    }
}

/// What is typed up to the end of a line, unless that takes too long.
fn line(terminal: &mut File, patience: Duration) -> Option<String> {
    let deadline = Instant::now() + patience;
    let mut bytes = [0; 256];
    loop {
        let left = deadline.checked_duration_since(Instant::now())?;
        let timeout = Timespec::try_from(left).ok()?;
        match poll(&mut [PollFd::new(terminal, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return None,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => return None,
        }
        // A terminal hands out whole lines.
        let length = terminal.read(&mut bytes).ok()?;
        return Some(String::from_utf8_lossy(&bytes[..length]).into_owned());
    }
}
