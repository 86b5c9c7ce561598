//! What happened. Events feed progress, the log and the history; nobody is called back.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sandbox_core::{Denial, JobId, Reason, SessionId, UserId, exec::Exit};
use serde::{Deserialize, Serialize};

use super::access::Span;

/// Something that happened to a sandbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// To which sandbox.
    pub session_id: SessionId,
    /// Whose it is.
    pub owner: UserId,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// It happened just now.
    pub fn now(session_id: &SessionId, owner: &UserId, what: What) -> Self {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        Self { at, session_id: session_id.clone(), owner: owner.clone(), what }
    }
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum What {
    /// The sandbox was made.
    Created {
        /// From which image.
        image: String,
        /// With which policy.
        policy: String,
        /// How long that took.
        #[serde(with = "seconds", rename = "duration_seconds", alias = "took")]
        took: Duration,
    },
    /// It was found alive after an earlier server was gone, and is looked after again.
    Adopted,
    /// A command was started.
    Started {
        /// Its job.
        job: JobId,
        /// The command, shortened.
        command: String,
    },
    /// A command ended.
    Finished {
        /// Its job.
        job: JobId,
        /// How.
        exit: Exit,
        /// After how long.
        #[serde(with = "seconds", rename = "duration_seconds", alias = "elapsed")]
        elapsed: Duration,
    },
    /// A wall refused something. Never a guess from what a command printed.
    Denied {
        /// The refusal.
        denial: Box<Denial>,
        /// The job that it ended, if it ended one.
        job: Option<JobId>,
    },
    /// Something inside connected to somewhere, or was kept from it.
    Connection {
        /// The host, by its name where that is known, and the port.
        target: String,
        /// The address that was dialled.
        #[serde(default)]
        address: Option<String>,
        /// The rule that decided.
        #[serde(default)]
        rule: Option<String>,
        /// `allowed`, or the code of the reason.
        verdict: String,
        /// Whether the policy refused it.
        #[serde(default)]
        refused: bool,
        /// The secret that it was refused for, by name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        secret: Option<String>,
        /// How often: refusals that repeat are told together.
        #[serde(default = "once")]
        times: u64,
        /// Bytes that went out.
        sent: u64,
        /// Bytes that came in.
        received: u64,
        /// From the wish to the end.
        #[serde(with = "seconds", rename = "duration_seconds")]
        elapsed: Duration,
    },
    /// A port inside was opened to this machine's loopback. Its address is not written down: who has it may look.
    PortOpened {
        /// Which port.
        port: u16,
    },
    /// It was closed.
    PortClosed {
        /// Which port.
        port: u16,
        /// Why.
        why: String,
    },
    /// A person was asked for more than the policy gives.
    Asked {
        /// `command` or `limit`.
        kind: String,
        /// What for, shortened.
        target: String,
        /// Why, in the agent's own words.
        reason: Option<String>,
        /// For how long.
        span: Span,
    },
    /// They said yes.
    Granted {
        /// `command` or `limit`.
        kind: String,
        /// To what.
        target: String,
        /// For how long.
        span: Span,
        /// Who.
        by: String,
    },
    /// They said no, or nothing.
    Declined {
        /// `command` or `limit`.
        kind: String,
        /// To what.
        target: String,
        /// `declined` or `no_answer`.
        reason: Reason,
        /// Who.
        by: String,
    },
    /// An agent asked the person something that gives no access.
    Inquired {
        /// What, shortened.
        question: String,
        /// Whether somebody answered.
        answered: bool,
        /// Who was asked.
        by: String,
    },
    /// An agent began to work on a task.
    TaskStarted {
        /// Which agent.
        agent: String,
        /// The task, shortened.
        task: String,
    },
    /// The work on a task is over.
    TaskFinished {
        /// `completed`, `failed`, `timeout` or `cancelled`.
        status: String,
        /// After how long.
        #[serde(with = "seconds", rename = "duration_seconds", alias = "elapsed")]
        elapsed: Duration,
    },
    /// A model answered.
    Spent {
        /// The service that was asked.
        service: String,
        /// Who answered, in the answer's own words.
        model: Option<String>,
        /// Read, without what was found in the cache or put there.
        input_tokens: u64,
        /// Written.
        output_tokens: u64,
        /// Found in the cache.
        cache_read_tokens: u64,
        /// Put into the cache.
        cache_written_tokens: u64,
        /// Whether the answer was broken off before it told.
        estimated: bool,
    },
    /// All its processes were stopped.
    Frozen {
        /// Why.
        why: String,
    },
    /// The sandbox ended by itself, or a limit ended it. Its files are kept until clean-up.
    Ended {
        /// Why.
        why: String,
    },
    /// The sandbox and everything in it was removed.
    Removed {
        /// Why.
        why: String,
    },
}

fn once() -> u64 {
    1
}

/// A time as people read it, and as earlier programs wrote it down.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Seconds(f64),
        Parts(Duration),
    }

    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64((time.as_secs_f64() * 1e6).round() / 1e6)
    }

    pub fn deserialize<'d, D: Deserializer<'d>>(deserializer: D) -> Result<Duration, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Seconds(seconds) => Duration::try_from_secs_f64(seconds).map_err(serde::de::Error::custom),
            Written::Parts(time) => Ok(time),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn times_are_seconds_and_old_ones_can_be_read() {
        let what = What::TaskFinished { status: "completed".to_owned(), elapsed: Duration::from_millis(1500) };
        let json = serde_json::to_value(&what).unwrap();
        assert_eq!(json["duration_seconds"], 1.5);
        assert_eq!(serde_json::from_value::<What>(json).unwrap(), what);
        let old = r#"{"event":"task_finished","status":"completed","elapsed":{"secs":1,"nanos":500000000}}"#;
        assert_eq!(serde_json::from_str::<What>(old).unwrap(), what);
    }
}
