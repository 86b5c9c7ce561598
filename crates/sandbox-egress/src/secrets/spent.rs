//! What answers of models cost, read on the side while they pass: nothing waits for it, and little is remembered.

use std::sync::Arc;

use hyper::{Response, body::Incoming, header};

use super::{
    Kept,
    account::{Account, Form},
    follow::Followed,
};

/// What one answer cost, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// The service that was asked.
    pub service: String,
    /// Who answered, in the answer's own words.
    pub model: Option<String>,
    /// Read, without what was found in the cache or written there.
    pub input: u64,
    /// Written.
    pub output: u64,
    /// Read from the cache.
    pub cache_read: u64,
    /// Put into the cache.
    pub cache_written: u64,
    /// How that is known.
    pub basis: Basis,
}

/// How a cost is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// The answer told it.
    Told,
    /// The service gave up in the middle of the answer and said so: about this much.
    Failed,
    /// The answer did not get that far: at least about this much.
    Estimated,
}

/// Reads one answer.
pub(crate) struct Meter {
    kept: Arc<Kept>,
    service: usize,
    /// Bytes of the question.
    sent: u64,
    /// Nothing if the answer is none that could tell its cost.
    account: Option<Account>,
    followed: Option<Followed>,
}

impl Meter {
    pub(super) fn new(
        kept: Arc<Kept>,
        service: usize,
        sent: u64,
        response: &Response<Incoming>,
        followed: Option<Followed>,
    ) -> Self {
        if let Some(followed) = &followed {
            followed.answered(response.status().as_u16());
        }
        let account = form(response).filter(|_| response.status().is_success()).map(Account::new);
        Self { kept, service, sent, account, followed }
    }

    pub(super) fn read(&mut self, piece: &[u8]) {
        if let Some(followed) = &self.followed {
            followed.heard(piece.len());
        }
        if let Some(account) = &mut self.account {
            account.read(piece);
        }
    }
}

fn form(response: &Response<Incoming>) -> Option<Form> {
    let kind = response.headers().get(header::CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
    match kind.split(';').next()?.trim() {
        "text/event-stream" => Some(Form::Events),
        "application/json" => Some(Form::Whole),
        _ => None,
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let Some(serving) = self.kept.services.get(self.service) else { return };
        let spent = self.account.take().and_then(|account| account.close(&serving.service.name, self.sent));
        let Some(spent) = spent else { return };
        (self.kept.on_spent)(&spent);
        if let Some(followed) = &self.followed {
            followed.spent(&spent);
        }
    }
}
