//! Somebody who may be asked: the user of an MCP client, a person at a terminal, or nobody.

use async_trait::async_trait;

use super::{Inquiry, Question, Span};

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

    /// How to ask for these rules of the command list to be lifted, as a sentence.
    fn how_to_ask(&self, _: &[&str]) -> String {
        "A person may allow it: request_access with kind command".to_owned()
    }

    /// The same where nobody is asked.
    fn without_asking(&self, rules: &[&str]) -> String {
        format!("Nobody can be asked here; the operator may permit it in a policy ({})", permit(rules))
    }

    /// What to do after a no.
    fn after_a_no(&self) -> &'static str {
        "Do it another way; do not ask again"
    }

    /// The answer to a question that was put before.
    fn answered(&self, _: &Question) -> Option<Reply> {
        None
    }

    /// Puts the question and waits, though not for ever.
    async fn answer(&self, question: &Question) -> Reply;

    /// Puts a question of an agent and waits, though not for ever. Nothing: nobody answered.
    async fn inquire(&self, _: &Inquiry) -> Option<String> {
        None
    }
}

/// The setting of a policy that lifts these rules.
pub fn permit(rules: &[&str]) -> String {
    let quoted: Vec<String> = rules.iter().map(|rule| format!("\"{rule}\"")).collect();
    format!("commands.permit = [{}]", quoted.join(", "))
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
