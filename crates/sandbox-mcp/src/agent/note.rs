//! What happens while a task is worked on, one note after the other: for the live view, for progress, and for the receipt.

use std::time::Duration;

use sandbox_core::{SessionId, exec::Stream};
use serde::{Deserialize, Deserializer, Serialize};

use super::{Bill, TaskId};

/// Something to show while the work goes on. Text may come from inside, and is hostile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// The task has this name.
    Task {
        /// Its id.
        task_id: TaskId,
        /// Who works on it.
        agent: String,
        /// Why it is this agent.
        why: String,
    },
    /// The work happens in this sandbox.
    Sandbox {
        /// Its handle.
        session_id: SessionId,
    },
    /// What is being done, in plain words.
    Step {
        /// Such as `Reading sales.csv`.
        words: String,
    },
    /// What the agent thinks.
    Thinking {
        /// A piece of it.
        text: String,
    },
    /// What the agent says.
    Text {
        /// A piece of it.
        text: String,
    },
    /// The agent uses a tool.
    Call {
        /// Which call, to find its result.
        call: String,
        /// Which tool.
        tool: String,
        /// With what, shortened.
        input: String,
        /// In plain words.
        words: String,
    },
    /// What came of it.
    Result {
        /// Of which call.
        call: String,
        /// Whether it worked.
        well: bool,
        /// What the agent gets to see, shortened.
        summary: String,
        /// How long it took.
        seconds: f64,
    },
    /// What a command printed.
    #[serde(skip)]
    Output {
        /// Where to.
        stream: Stream,
        /// What.
        data: Vec<u8>,
    },
    /// A port inside was opened to the person. Its address is for their eyes: it is never written down.
    #[serde(skip)]
    Preview {
        /// Which port.
        port: u16,
        /// Where to look, with the key in it.
        address: String,
    },
    /// A file in /workspace is new or different.
    File {
        /// Its path there.
        path: String,
        /// What happened to it.
        change: Change,
    },
    /// What the task has cost so far.
    Cost(Bill),
    /// The agent asks the person something.
    Question {
        /// What.
        question: String,
        /// What it does if nobody answers.
        default: String,
    },
    /// What the person said.
    Answer {
        /// The answer.
        answer: String,
        /// Who said it.
        by: String,
    },
    /// Nobody answered, and the agent goes on with its default.
    Unanswered {
        /// What was asked.
        question: String,
        /// What it goes on with.
        default: String,
        /// Why nobody answered.
        why: String,
    },
    /// The model could not be asked, and is asked again.
    Retry {
        /// For the how-manieth time.
        attempt: u32,
        /// After how long.
        #[serde(serialize_with = "seconds", deserialize_with = "from_seconds", rename = "after_seconds")]
        after: Duration,
        /// What went wrong.
        why: String,
    },
}

/// What happened to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names say it")]
pub enum Change {
    Created,
    Changed,
    Deleted,
}

impl Note {
    /// A step in plain words.
    pub fn step(words: impl Into<String>) -> Self {
        Self::Step { words: words.into() }
    }
}

fn seconds<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

fn from_seconds<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(deserializer)?;
    Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom)
}
