//! What is written down about every connection.

use std::{net::SocketAddr, time::Duration};

use crate::{Reason, engine::Refusal};

/// One connection, or one that was not made.
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
    /// Bytes that went out.
    pub sent: u64,
    /// Bytes that came in.
    pub received: u64,
    /// From the wish to the end.
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
        Self { target, address: None, rule, secret: refusal.secret.clone(), verdict, sent: 0, received: 0, duration }
    }
}
