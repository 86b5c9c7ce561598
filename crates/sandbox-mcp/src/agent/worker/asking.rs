//! What an agent asks of people: more access, an answer, a look at a web page.

use sandbox_core::Denial;

use super::{Note, WorkError, Worker};
use crate::{
    config::Ask,
    sandboxes::{
        OpenPort,
        access::{AccessRequest, Given, Inquiry, Refused, shown},
    },
};

/// How much of a question or answer is written down.
const SHOWN: (usize, usize) = (1000, 200);

impl Worker<'_> {
    /// Whether anybody may be asked and could answer.
    pub fn can_ask(&self) -> bool {
        self.person.is_there() && self.settings().ask != Ask::Never
    }

    /// Asks the person something; or why nobody answered. Nobody is waited for for ever: without an answer the default holds.
    pub async fn ask(&self, inquiry: &Inquiry) -> Result<String, String> {
        let (question, default) = (shown(&inquiry.question, SHOWN), shown(&inquiry.default, SHOWN));
        self.note(Note::Question { question: question.clone(), default: default.clone() }).await;
        // Whoever shows notes comes first: a question is about what was done before it.
        tokio::task::yield_now().await;
        let answered = self.session.inquire(inquiry, self.person).await;
        self.note(match &answered {
            Ok(answer) => Note::Answer { answer: shown(answer, SHOWN), by: self.person.name() },
            Err(why) => Note::Unanswered { question, default, why: why.clone() },
        })
        .await;
        answered
    }

    /// Asks for more than the policy gives.
    pub async fn request_access(&self, request: AccessRequest) -> Result<Given, Vec<Denial>> {
        match self.session.request(request, self.person).await {
            Ok(given) => Ok(given),
            Err(Refused::Denied(denials)) => {
                denials.iter().for_each(|denial| self.denied(denial.clone()));
                Err(denials)
            }
            Err(Refused::Unclear(message)) => Ok(Given { span: None, message }),
            Err(Refused::Later) => Ok(Given { span: None, message: "nobody could be asked now".to_owned() }),
        }
    }

    /// Opens a port inside to this machine's loopback, for the person to look at. Whoever watches sees where.
    pub async fn open_port(&self, port: u16) -> Result<OpenPort, WorkError> {
        let opened = self.session.open_port(port).await?;
        self.note(Note::Preview { port, address: opened.url.clone() }).await;
        Ok(opened)
    }
}
