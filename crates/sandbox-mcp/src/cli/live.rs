//! What a person at a terminal sees while a task goes on: steps, time, cost, files. Others see nothing.

use std::{
    collections::BTreeSet,
    io::{IsTerminal, stderr},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::screen::{self, Look};
use crate::agent::{Bill, Change, Note};

/// Longest piece of a line that is shown while the work goes on.
const SHOWN: usize = 400;
/// Lines of one command that are shown.
const LINES: usize = 12;

/// The live view.
pub(super) struct Live {
    bar: ProgressBar,
    words: String,
    cost: Bill,
    files: BTreeSet<String>,
    /// Questions that nobody answered, and what the agent went on with.
    unanswered: Vec<(String, String)>,
    /// Of the command that runs now.
    lines: usize,
    /// The beginning of a line whose end has not come yet.
    begun: Vec<u8>,
}

impl Live {
    pub fn start() -> Self {
        let hidden = if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, hidden);
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        let words = "making a sandbox".to_owned();
        let (cost, files, unanswered, begun) = Default::default();
        let live = Self { bar, words, cost, files, unanswered, lines: 0, begun };
        live.refresh();
        live
    }

    /// What must be off the screen while somebody reads a question.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    pub fn show(&mut self, note: Note) {
        if !matches!(note, Note::Output { .. } | Note::Cost(_)) {
            self.end_line();
        }
        match note {
            Note::Task { agent, why, .. } => self.line(&format!("the agent {agent} works ({why})"), Look::Dim),
            Note::Sandbox { session_id } => self.words = format!("working in {session_id}"),
            Note::Step { words } | Note::Call { words, .. } => self.step(&words),
            Note::Result { well: false, summary, .. } => {
                let first = summary.lines().last().unwrap_or_default();
                self.line(&format!("  did not work: {}", cut(first)), Look::Weak);
            }
            Note::Retry { attempt, after, why } => {
                let seconds = after.as_secs_f64();
                self.line(&format!("  {}; asking again in {seconds:.1} s (attempt {attempt})", cut(&why)), Look::Weak);
            }
            Note::Cost(bill) => self.cost = bill,
            Note::File { path, change } => {
                if change == Change::Deleted {
                    self.files.remove(&path);
                } else {
                    self.files.insert(path);
                }
            }
            Note::Preview { port, address } => {
                self.line(&format!("  until the task ends, port {port} is to be seen at {address}"), Look::Good);
            }
            Note::Answer { answer, by } => self.line(&format!("  {by} said: {}", cut(&answer)), Look::Dim),
            Note::Unanswered { question, default, why } => {
                self.line(&format!("  nobody answered ({why}); it goes on with: {}", cut(&default)), Look::Weak);
                self.unanswered.push((question, default));
            }
            Note::Output { data, .. } => self.output(&data),
            Note::Result { .. } | Note::Thinking { .. } | Note::Text { .. } | Note::Question { .. } => {}
        }
        self.refresh();
    }

    pub fn stop(&mut self) {
        self.end_line();
        self.bar.finish_and_clear();
        self.unanswered.drain(..).for_each(|(question, default)| screen::tell(&nobody_said(&question, &default)));
    }

    fn step(&mut self, words: &str) {
        self.lines = 0;
        self.words = screen::harmless(words);
        self.line(&format!("• {words}"), Look::Bold);
    }

    /// What a command printed.
    pub fn output(&mut self, data: &[u8]) {
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            // Of a line that is longer the rest is not shown anyway.
            let room = (4 * SHOWN).saturating_sub(self.begun.len());
            self.begun.extend(piece.iter().filter(|byte| **byte != b'\n').take(room));
            if piece.ends_with(b"\n") {
                self.whole_line();
            }
        }
    }

    /// Shows what has come of a line that nothing is added to any more.
    pub fn end_line(&mut self) {
        if !self.begun.is_empty() {
            self.whole_line();
        }
    }

    fn whole_line(&mut self) {
        let line = std::mem::take(&mut self.begun);
        self.lines += 1;
        match self.lines {
            lines if lines <= LINES => {
                let text = String::from_utf8_lossy(&line);
                self.line(&format!("│ {}", cut(text.trim_end_matches('\r'))), Look::Dim);
            }
            lines if lines == LINES + 1 => self.line("│ …", Look::Dim),
            _ => {}
        }
    }

    /// A message of another process.
    pub fn tell(&self, line: &str) {
        match self.bar.is_hidden() || self.bar.is_finished() {
            true => screen::tell_as_it_is(line),
            false => self.bar.println(screen::harmless(line)),
        }
    }

    fn line(&self, text: &str, look: Look) {
        match self.bar.is_hidden() {
            false => self.bar.println(screen::paint_if(true, &screen::harmless(text), look)),
            // A terminal that cannot draw (TERM says so, or nothing) has lines all the same.
            true if stderr().is_terminal() => screen::tell_as_it_is(&screen::harmless(text)),
            true => {}
        }
    }

    fn refresh(&self) {
        let mut message = self.words.clone();
        if self.cost.turns > 0 {
            message.push_str(&format!(" · {}", self.cost.in_words()));
        }
        match self.files.len() {
            0 => {}
            1 => message.push_str(" · 1 file"),
            count => message.push_str(&format!(" · {count} files")),
        }
        self.bar.set_message(message);
    }
}

/// What a person should know at the end, since the answer may rest on it.
fn nobody_said(question: &str, default: &str) -> String {
    match default.trim() {
        "" => format!("nobody answered the question “{}”: the agent decided by itself", cut(question)),
        default => {
            format!("nobody answered the question “{}”: the agent went on with “{}”", cut(question), cut(default))
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_that_nobody_answered_is_told_with_what_took_its_place() {
        let told = nobody_said("Which region?", "all of them");
        assert!(told.contains("“Which region?”") && told.contains("“all of them”"), "{told}");
        assert!(nobody_said("Which region?", " ").ends_with("decided by itself"));
    }
}
