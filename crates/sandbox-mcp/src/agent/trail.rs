//! What a task did, step by step: told to whoever watches, kept for the receipt, and written down at once, so that it is
//! known also after the program was killed.

use std::{
    fs::File,
    io::Write,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use serde::Serialize;
use tokio::sync::mpsc;

use super::Note;
use crate::sandboxes::Addresses;

/// Steps that are kept; of a task with more, the beginning and the last ones.
const MOST: usize = 2000;
/// So much of what an agent says at once is kept,
const LONGEST: usize = 20_000;
/// and so much of everything else.
const LONG: usize = 4_000;
/// All steps together take no more than this, in memory and in the file each: what agents say is theirs to choose.
const LARGEST: usize = 8 << 20;

/// One note with its time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// Seconds since the task began.
    pub at: f64,
    /// What happened.
    #[serde(flatten)]
    pub note: Note,
}

/// The steps of one task. Clones are the same trail.
#[derive(Clone)]
pub struct Trail(Arc<Inner>);

struct Inner {
    watcher: Option<mpsc::Sender<Note>>,
    began: Instant,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    steps: Vec<Step>,
    left_out: usize,
    /// Bytes of all that is kept.
    size: usize,
    latest: String,
    file: Option<File>,
    /// Steps that are in the file already.
    written: usize,
    /// Bytes that are.
    written_size: usize,
    /// Their key is left out of the file.
    addresses: Addresses,
}

impl Trail {
    /// Of a task that begins now.
    pub fn new(watcher: Option<mpsc::Sender<Note>>) -> Self {
        let kept = Kept { latest: "working on it".to_owned(), ..Kept::default() };
        Self(Arc::new(Inner { watcher, began: Instant::now(), kept: Mutex::new(kept) }))
    }

    /// Steps may speak of these addresses, and are written without their key.
    pub fn hide(&self, addresses: Addresses) {
        self.kept().addresses = addresses;
    }

    /// From now on steps are written to this file too. Without it they are only kept in memory.
    pub fn write_to(&self, file: &Path) {
        match File::options().create(true).append(true).open(file) {
            Ok(file) => self.kept().file = Some(file),
            Err(error) => tracing::warn!("the steps of a task are not written down: {error}"),
        }
    }

    /// Something happened. A watcher that has gone away is not missed.
    pub async fn note(&self, note: Note) {
        let note = bounded(note);
        self.keep(&note);
        if let Some(watcher) = &self.0.watcher {
            let _ = watcher.send(note).await;
        }
    }

    /// The last step in plain words.
    pub fn latest(&self) -> String {
        self.kept().latest.clone()
    }

    /// All steps so far, and how many were left out.
    pub fn steps(&self) -> (Vec<Step>, usize) {
        let mut kept = self.kept();
        kept.write_all();
        (kept.steps.clone(), kept.left_out)
    }

    fn keep(&self, note: &Note) {
        let mut kept = self.kept();
        match note {
            Note::Step { words } | Note::Call { words, .. } => kept.latest = shortened(words.clone(), 200),
            Note::Retry { why, .. } => kept.latest = format!("waiting for the model: {}", shortened(why.clone(), 200)),
            Note::Question { question, .. } => kept.latest = format!("asking: {}", shortened(question.clone(), 200)),
            Note::Output { .. } | Note::Preview { .. } => return,
            _ => {}
        }
        // What a model says comes in pieces of a few letters.
        match (kept.steps.last_mut().map(|step| &mut step.note), note) {
            (Some(Note::Text { text }), Note::Text { text: more })
            | (Some(Note::Thinking { text }), Note::Thinking { text: more }) => {
                if text.len() < LONGEST {
                    text.push_str(more);
                    kept.size += more.len();
                }
                return;
            }
            // Of costs only the last word counts.
            (Some(Note::Cost(bill)), Note::Cost(more)) => return *bill = more.clone(),
            _ => {}
        }
        kept.write_all();
        kept.size += weight(note);
        while kept.steps.len() >= MOST || (kept.size > LARGEST && kept.steps.len() > 2) {
            let middle = kept.steps.len() / 2;
            let gone = kept.steps.remove(middle);
            kept.size = kept.size.saturating_sub(weight(&gone.note));
            kept.written = kept.written.saturating_sub(1);
            kept.left_out += 1;
        }
        let at = (self.0.began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        kept.steps.push(Step { at, note: note.clone() });
        // Nothing is added to others any more, and whoever asks how the task stands reads the file.
        if !matches!(note, Note::Text { .. } | Note::Thinking { .. } | Note::Cost(_)) {
            kept.write_all();
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Whatever is not in the file yet. Called when nothing is added to the last step any more.
    fn write_all(&mut self) {
        let Self { steps, file: Some(file), written, written_size, addresses, .. } = self else { return };
        for step in steps.iter().skip(*written) {
            let Ok(line) = serde_json::to_string(step) else { continue };
            let line = format!("{}\n", addresses.hide(&line));
            if *written_size + line.len() > LARGEST || file.write_all(line.as_bytes()).is_err() {
                return;
            }
            *written += 1;
            *written_size += line.len();
        }
    }
}

/// With texts that are not longer than anybody reads.
fn bounded(note: Note) -> Note {
    let long = |text: String| shortened(text, LONG);
    match note {
        Note::Text { text } => Note::Text { text: shortened(text, LONGEST) },
        Note::Thinking { text } => Note::Thinking { text: shortened(text, LONGEST) },
        Note::Step { words } => Note::Step { words: long(words) },
        Note::Call { call, tool, input, words } => {
            Note::Call { call: long(call), tool: long(tool), input: long(input), words: long(words) }
        }
        Note::Result { call, well, summary, seconds } => {
            Note::Result { call: long(call), well, summary: long(summary), seconds }
        }
        Note::Question { question, default } => Note::Question { question: long(question), default: long(default) },
        Note::Answer { answer, by } => Note::Answer { answer: long(answer), by: long(by) },
        Note::Unanswered { question, default, why } => {
            Note::Unanswered { question: long(question), default: long(default), why: long(why) }
        }
        Note::Retry { attempt, after, why } => Note::Retry { attempt, after, why: long(why) },
        other => other,
    }
}

/// Bytes of texts, and something for the rest.
fn weight(note: &Note) -> usize {
    100 + match note {
        Note::Text { text } | Note::Thinking { text } => text.len(),
        Note::Step { words } => words.len(),
        Note::Call { call, tool, input, words } => call.len() + tool.len() + input.len() + words.len(),
        Note::Result { call, summary, .. } => call.len() + summary.len(),
        Note::Question { question, default } => question.len() + default.len(),
        Note::Answer { answer, by } => answer.len() + by.len(),
        Note::Unanswered { question, default, why } => question.len() + default.len() + why.len(),
        Note::Retry { why, .. } => why.len(),
        Note::File { path, .. } => path.len(),
        _ => 0,
    }
}

fn shortened(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use sandbox_core::{SessionId, UserId};

    use super::*;
    use crate::inward::Name;

    #[tokio::test]
    async fn pieces_of_a_text_are_one_step_and_steps_are_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, mut watched) = mpsc::channel(10);
        let trail = Trail::new(Some(sender));
        trail.write_to(&folder.path().join("steps.jsonl"));
        for text in ["The sum ", "is ", "42."] {
            trail.note(Note::Text { text: text.to_owned() }).await;
        }
        trail.note(Note::step("Reading sales.csv")).await;
        trail.note(Note::step("Drawing the chart")).await;
        let written = std::fs::read_to_string(folder.path().join("steps.jsonl")).unwrap();
        assert_eq!(written.lines().count(), 3, "{written}");
        let (steps, left_out) = trail.steps();
        assert_eq!((steps.len(), left_out, trail.latest().as_str()), (3, 0, "Drawing the chart"));
        assert_eq!(steps[0].note, Note::Text { text: "The sum is 42.".to_owned() });
        assert_eq!(std::fs::read_to_string(folder.path().join("steps.jsonl")).unwrap().lines().count(), 3);
        drop(trail);
        let mut count = 0;
        while watched.recv().await.is_some() {
            count += 1;
        }
        assert_eq!(count, 5);
    }

    #[tokio::test]
    async fn the_key_of_an_address_is_not_written_down_in_whatever_pieces_it_comes() {
        let folder = tempfile::tempdir().unwrap();
        let session = SessionId::random(&UserId::local()).unwrap();
        let addresses = Addresses::default();
        let name = addresses.name_or(|| Name::random(&session)).unwrap();
        let (sender, mut watched) = mpsc::channel(10);
        let trail = Trail::new(Some(sender));
        trail.hide(addresses);
        trail.write_to(&folder.path().join("steps.jsonl"));
        let address = name.url(40_000);
        trail.note(Note::Preview { port: 8000, address: address.clone() }).await;
        let (begin, end) = address.split_at(15);
        for text in ["It is at ", begin, end] {
            trail.note(Note::Text { text: text.to_owned() }).await;
        }
        trail.note(Note::step("Resting")).await;
        let written = std::fs::read_to_string(folder.path().join("steps.jsonl")).unwrap();
        assert!(!written.contains(name.key()) && written.contains("It is at http://KEY."), "{written}");
        assert_eq!(watched.recv().await, Some(Note::Preview { port: 8000, address }), "whoever watches sees it");
        assert!(trail.steps().0.iter().all(|step| !matches!(step.note, Note::Preview { .. })));
    }

    #[tokio::test]
    async fn an_endless_task_takes_little_memory() {
        let trail = Trail::new(None);
        for number in 0..MOST + 500 {
            trail.note(Note::step(format!("step {number}"))).await;
        }
        let (steps, left_out) = trail.steps();
        assert_eq!((steps.len(), left_out), (MOST, 500));
        assert_eq!(steps[0].note, Note::step("step 0"));
    }

    #[tokio::test]
    async fn an_agent_that_says_far_too_much_fills_neither_memory_nor_disk() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("steps.jsonl");
        let (sender, mut watched) = mpsc::channel(10_000);
        let trail = Trail::new(Some(sender));
        trail.write_to(&file);
        for number in 0..1500 {
            trail.note(Note::Text { text: "x".repeat(100_000) }).await;
            trail.note(Note::step(format!("step {number}"))).await;
        }
        let (steps, left_out) = trail.steps();
        let kept: usize = steps.iter().map(|step| weight(&step.note)).sum();
        assert!(kept <= LARGEST && left_out > 0 && left_out + steps.len() == 3000, "{kept} {left_out}");
        assert!(std::fs::metadata(&file).unwrap().len() <= LARGEST as u64);
        while let Ok(note) = watched.try_recv() {
            assert!(weight(&note) < 2 * LONGEST);
        }
    }
}
