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

/// Steps that are kept; of a task with more, the beginning and the last ones.
const MOST: usize = 2000;
/// So much of one text is kept.
const LONGEST: usize = 20_000;

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
    latest: String,
    file: Option<File>,
    /// Steps that are in the file already.
    written: usize,
}

impl Trail {
    /// Of a task that begins now.
    pub fn new(watcher: Option<mpsc::Sender<Note>>) -> Self {
        let kept = Kept { latest: "working on it".to_owned(), ..Kept::default() };
        Self(Arc::new(Inner { watcher, began: Instant::now(), kept: Mutex::new(kept) }))
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
            Note::Step { words } => kept.latest = shortened(words, 200),
            Note::Call { words, .. } => kept.latest = shortened(words, 200),
            Note::Retry { why, .. } => kept.latest = format!("waiting for the model: {}", shortened(why, 200)),
            Note::Question { question, .. } => kept.latest = format!("asking: {}", shortened(question, 200)),
            Note::Output { .. } => return,
            _ => {}
        }
        // What a model says comes in pieces of a few letters.
        match (kept.steps.last_mut().map(|step| &mut step.note), note) {
            (Some(Note::Text { text }), Note::Text { text: more })
            | (Some(Note::Thinking { text }), Note::Thinking { text: more }) => {
                if text.len() < LONGEST {
                    text.push_str(&shortened(more, LONGEST));
                }
                return;
            }
            // Of costs only the last word counts.
            (Some(Note::Cost(bill)), Note::Cost(more)) => return *bill = more.clone(),
            _ => {}
        }
        kept.write_all();
        if kept.steps.len() >= MOST {
            kept.steps.remove(MOST / 2);
            kept.written = kept.written.saturating_sub(1);
            kept.left_out += 1;
        }
        let at = (self.0.began.elapsed().as_secs_f64() * 1000.0).round() / 1000.0;
        kept.steps.push(Step { at, note: note.clone() });
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    /// Whatever is not in the file yet: all but the last step, to which something may still be added.
    fn write_all(&mut self) {
        let Self { steps, file: Some(file), written, .. } = self else { return };
        for step in steps.iter().skip(*written) {
            let Ok(mut line) = serde_json::to_vec(step) else { continue };
            line.push(b'\n');
            if file.write_all(&line).is_err() {
                return;
            }
            *written += 1;
        }
    }
}

fn shortened(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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
        assert_eq!(written.lines().count(), 2, "{written}");
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
    async fn an_endless_task_takes_little_memory() {
        let trail = Trail::new(None);
        for number in 0..MOST + 500 {
            trail.note(Note::step(format!("step {number}"))).await;
        }
        let (steps, left_out) = trail.steps();
        assert_eq!((steps.len(), left_out), (MOST, 500));
        assert_eq!(steps[0].note, Note::step("step 0"));
    }
}
