//! What answers of models cost, read on the side while they pass: nothing waits for it, and little is remembered.
//!
//! Understood are the answers of the Messages API and of those that speak like OpenAI's (chat completions and responses), whole
//! or as events. A stream that ends before it has told its cost is estimated, or breaking off would be a way not to pay.

use std::sync::Arc;

use hyper::{Response, body::Incoming, header};

use super::Kept;

/// A whole answer that is longer is looked at only where it ends, which is where costs are told.
const LONGEST_ANSWER: usize = 1 << 20;
/// How much of such an end.
const LONGEST_END: usize = 16 << 10;
/// Lines of events that are longer tell no costs.
const LONGEST_LINE: usize = 256 << 10;
const LONGEST_MODEL: usize = 100;
/// Bytes of a text that make about one token.
const BYTES_PER_TOKEN: u64 = 4;

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

/// What was read so far.
#[derive(Default)]
struct Account {
    form: Form,
    /// A line that is not whole yet, or the answer.
    text: Vec<u8>,
    /// Whether something before `text` was left out.
    cut: bool,
    events: u64,
    model: Option<String>,
    costs: Costs,
    told: bool,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Form {
    #[default]
    Whole,
    Events,
}

#[derive(Clone, Copy, Default)]
struct Costs {
    input: u64,
    output: u64,
    cache_read: u64,
    cache_written: u64,
}

/// The parts of an answer, or of one event, that tell something.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Told {
    model: Option<String>,
    usage: Option<Usage>,
    /// The Messages API's first event.
    message: Option<Inner>,
    /// The Responses API's last one.
    response: Option<Inner>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Inner {
    model: Option<String>,
    usage: Option<Usage>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Usage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    #[serde(alias = "input_tokens_details")]
    prompt_tokens_details: Option<Details>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u64>,
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
        let account = Account { form, ..Account::default() };
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

impl Account {
    fn read(&mut self, piece: &[u8]) {
        match self.form {
            Form::Whole => self.read_whole(piece),
            Form::Events => piece.split_inclusive(|&byte| byte == b'\n').for_each(|part| self.read_line(part)),
        }
    }

    fn read_whole(&mut self, piece: &[u8]) {
        self.text.extend_from_slice(piece);
        let most = if self.cut { 2 * LONGEST_END } else { LONGEST_ANSWER };
        if self.text.len() > most {
            self.text = self.text.split_off(self.text.len() - LONGEST_END);
            self.cut = true;
        }
    }

    fn read_line(&mut self, part: &[u8]) {
        if self.text.len() + part.len() > LONGEST_LINE {
            self.text.clear();
            self.cut = true;
        }
        if !self.cut {
            self.text.extend_from_slice(part);
        }
        if part.ends_with(b"\n") {
            let line = std::mem::take(&mut self.text);
            if std::mem::take(&mut self.cut) {
                self.events += 1;
            } else if let Some(data) = line.strip_prefix(b"data:") {
                self.read_event(data.trim_ascii());
            }
        }
    }

    fn read_event(&mut self, data: &[u8]) {
        if data == b"[DONE]" {
            return;
        }
        self.events += 1;
        // Most events are words; those are not worth reading.
        let says = |key: &[u8]| data.windows(key.len()).any(|window| window == key);
        if says(b"\"usage\"") || self.model.is_none() && says(b"\"model\"") {
            self.note(serde_json::from_slice(data).unwrap_or_default());
        }
    }

    fn note(&mut self, told: Told) {
        let Told { model, usage, message, response } = told;
        // The first event tells what was read, and that as good as nothing was written yet.
        let begun = message.unwrap_or_default();
        let ended = response.unwrap_or_default();
        let model = model.or(begun.model).or(ended.model).map(|model| model.chars().take(LONGEST_MODEL).collect());
        self.model = self.model.take().or(model);
        self.told |= usage.is_some() || ended.usage.is_some();
        for usage in [begun.usage, usage, ended.usage].into_iter().flatten() {
            self.costs = self.costs.at_least(&usage.into());
        }
    }

    /// What it comes to; nothing if it is not known to be an answer of a model at all.
    fn close(mut self, service: &str, sent: u64) -> Option<Spent> {
        if self.form == Form::Whole {
            let told = if self.cut { end(&self.text) } else { serde_json::from_slice(&self.text).ok() };
            self.note(told.unwrap_or_default());
        } else if !self.text.is_empty() {
            self.read_line(b"\n");
        }
        let Costs { mut input, mut output, cache_read, cache_written } = self.costs;
        let basis = if self.told { Basis::Told } else { Basis::Estimated };
        if !self.told {
            let streamed = self.form == Form::Events && self.events > 0;
            if self.model.is_none() && !streamed {
                return None;
            }
            output = output.max(self.events);
            input = if input + cache_read + cache_written == 0 { sent / BYTES_PER_TOKEN } else { input };
        }
        Some(Spent { service: service.to_owned(), model: self.model, input, output, cache_read, cache_written, basis })
    }
}

impl Costs {
    /// Costs within a stream are told as sums.
    fn at_least(self, other: &Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cache_read: self.cache_read.max(other.cache_read),
            cache_written: self.cache_written.max(other.cache_written),
        }
    }
}

impl From<Usage> for Costs {
    fn from(usage: Usage) -> Self {
        let cached = usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0);
        // Some tell what came from the cache as a part of what was read, others beside it.
        let input = usage.input_tokens.or(usage.prompt_tokens).unwrap_or(0).saturating_sub(cached);
        Self {
            input,
            output: usage.output_tokens.or(usage.completion_tokens).unwrap_or(0),
            cache_read: usage.cache_read_input_tokens.unwrap_or(cached),
            cache_written: usage.cache_creation_input_tokens.unwrap_or(0),
        }
    }
}

/// The costs at the end of an answer whose beginning is not there. Within a text a quote has a backslash before it, so the
/// key cannot be part of one.
fn end(text: &[u8]) -> Option<Told> {
    const KEY: &[u8] = b"\"usage\":";
    let at = text.windows(KEY.len()).rposition(|window| window == KEY)?;
    let mut values = serde_json::Deserializer::from_slice(&text[at + KEY.len()..]).into_iter::<Usage>();
    Some(Told { usage: Some(values.next()?.ok()?), ..Told::default() })
}

#[cfg(test)]
#[path = "spent_tests.rs"]
mod tests;
