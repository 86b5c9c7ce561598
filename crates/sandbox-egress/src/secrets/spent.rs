//! What answers of models cost, read on the side while they pass: nothing waits for it, and little is remembered.

use std::sync::Arc;

use hyper::{Response, body::Incoming, header};

use super::{
    Kept,
    account::{Account, Form},
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
    /// The answer did not get that far: at least about this much.
    Estimated,
}

/// Reads one answer.
pub(crate) struct Meter {
    kept: Arc<Kept>,
    service: usize,
    /// Bytes of the question.
    sent: u64,
    account: Account,
}

impl Meter {
    /// Nothing if the answer is none that could tell its cost.
    pub(super) fn new(kept: Arc<Kept>, service: usize, sent: u64, response: &Response<Incoming>) -> Option<Self> {
        let kind = response.headers().get(header::CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
        let form = match kind.split(';').next()?.trim() {
            "text/event-stream" => Form::Events,
            "application/json" => Form::Whole,
            _ => return None,
        };
        let account = Account::new(form);
        response.status().is_success().then_some(Self { kept, service, sent, account })
    }

    pub(super) fn read(&mut self, piece: &[u8]) {
        self.account.read(piece);
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        let Some(serving) = self.kept.services.get(self.service) else { return };
        let account = std::mem::take(&mut self.account);
        if let Some(spent) = account.close(&serving.service.name, self.sent) {
            (self.kept.on_spent)(&spent);
        }
    }
}
