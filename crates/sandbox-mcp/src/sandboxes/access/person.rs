//! Somebody who may be asked: the user of an MCP client, a person at a terminal, or nobody.

use async_trait::async_trait;

use super::{Question, Span};

/// What came of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Yes, for so long.
    Granted(Span),
    /// No.
    Declined,
    /// Nothing came in time.
    NoAnswer,
    /// The question is on its way; the answer comes with another call.
    Later,
}

/// Somebody who may be asked.
#[async_trait]
pub trait Person: Send + Sync {
    /// Who, for the record.
    fn name(&self) -> String;

    /// Whether anybody can answer.
    fn is_there(&self) -> bool;

    /// The answer to a question that was put before.
    fn answered(&self, _: &Question) -> Option<Reply> {
        None
    }

    /// Puts the question and waits, though not for ever.
    async fn answer(&self, question: &Question) -> Reply;
}

/// Nobody is there.
pub struct Nobody;

#[async_trait]
impl Person for Nobody {
    fn name(&self) -> String {
        "nobody".to_owned()
    }

    fn is_there(&self) -> bool {
        false
    }

    async fn answer(&self, _: &Question) -> Reply {
        Reply::NoAnswer
    }
}
