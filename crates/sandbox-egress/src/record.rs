//! What is written down about every connection.

use std::{net::SocketAddr, time::Duration};

use crate::{Reason, engine::Refusal};

/// The target of a connection that ended before it named one.
pub(crate) const UNNAMED: &str = "(not named)";

/// One connection, or one that was not made; or several of the latter that were refused alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// What a program inside wanted.
    pub target: String,
    /// The address that was dialled.
    pub address: Option<SocketAddr>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// The secret that it is about, by name, if it was refused for the sake of one.
    pub secret: Option<String>,
    /// What became of it.
    pub verdict: Verdict,
    /// How often. Only refusals are counted together.
    pub times: u64,
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    /// From the wish to the end; of several, the last one's.
    pub duration: Duration,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was made.
    Allowed,
    /// It was not made, or was ended.
    Denied(Reason),
}

impl Record {
    pub(crate) fn refused(target: String, refusal: &Refusal, duration: Duration) -> Self {
        let (rule, verdict) = (refusal.rule.clone(), Verdict::Denied(refusal.reason));
        let secret = refusal.secret.clone();
        Self { target, address: None, rule, secret, verdict, times: 1, sent: 0, received: 0, duration }
    }

    /// This and a later one like it, as one.
    pub(crate) fn and(self, later: Self) -> Self {
        Self {
            times: self.times + later.times,
            sent: self.sent + later.sent,
            received: self.received + later.received,
            ..later
        }
    }
}
