//! Reads the costs of an answer out of its text.
//!
//! Understood are the answers of the Messages API and of those that speak like OpenAI's (chat completions and responses), whole
//! or as events. A stream that ends before it has told all of its cost is estimated, and known as that: who broke it off may
//! owe far more.

use serde::de::IgnoredAny;

use super::{Basis, Spent};

/// A whole answer that is longer is looked at only where it ends, which is where costs are told.
const LONGEST_ANSWER: usize = 1 << 20;
/// How much of such an end.
const LONGEST_END: usize = 16 << 10;
/// Lines of events that are longer tell no costs.
const LONGEST_LINE: usize = 256 << 10;
const LONGEST_MODEL: usize = 100;
/// Bytes of a text that make about one token.
const BYTES_PER_TOKEN: u64 = 4;

/// What was read so far.
#[derive(Default)]
pub(super) struct Account {
    form: Form,
    /// A line that is not whole yet, or the answer.
    text: Vec<u8>,
    /// Whether something before `text` was left out.
    cut: bool,
    events: u64,
    model: Option<String>,
    costs: Costs,
    known: Known,
}

/// What the costs are so far.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    #[default]
    Nothing,
    /// Those until now, told with the words that they are for: some servers do so with every event.
    UntilNow,
    /// The service gave up, and says so.
    Failed,
    All,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Form {
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
    /// What the Messages API adds to its message; the last time, why it stopped.
    delta: Option<Delta>,
    /// The words of chat completions. An event that has none comes after all of them.
    choices: Option<Vec<IgnoredAny>>,
    error: Option<IgnoredAny>,
}

#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Delta {
    stop_reason: Option<IgnoredAny>,
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

impl Account {
    /// For an answer of this form.
    pub(super) fn new(form: Form) -> Self {
        Self { form, ..Self::default() }
    }

    /// Takes the next piece.
    pub(super) fn read(&mut self, piece: &[u8]) {
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
            // What was told last is all of it.
            self.known = if self.known == Known::UntilNow { Known::All } else { self.known };
            return;
        }
        self.events += 1;
        // Most events are words; those are not worth reading.
        let says = |key: &[u8]| data.windows(key.len()).any(|window| window == key);
        if says(b"\"usage\"") || says(b"\"error\"") || self.model.is_none() && says(b"\"model\"") {
            self.note(serde_json::from_slice(data).unwrap_or_default());
        }
    }

    fn note(&mut self, told: Told) {
        let known = self.known_by(&told);
        self.known = self.known.max(known);
        let Told { model, usage, message, response, .. } = told;
        // The first event tells what was read, and that as good as nothing was written yet.
        let begun = message.unwrap_or_default();
        let ended = response.unwrap_or_default();
        let model = model.or(begun.model).or(ended.model).map(|model| model.chars().take(LONGEST_MODEL).collect());
        self.model = self.model.take().or(model);
        for usage in [begun.usage, usage, ended.usage].into_iter().flatten() {
            self.costs = self.costs.at_least(&usage.into());
        }
    }

    fn known_by(&self, told: &Told) -> Known {
        let goes_on = told.choices.as_ref().is_some_and(|words| !words.is_empty())
            || told.delta.as_ref().is_some_and(|delta| delta.stop_reason.is_none());
        let is_told = told.usage.is_some() || told.response.as_ref().is_some_and(|response| response.usage.is_some());
        match self.form {
            Form::Events if told.error.is_some() => Known::Failed,
            _ if !is_told => Known::Nothing,
            Form::Events if goes_on => Known::UntilNow,
            _ => Known::All,
        }
    }

    /// What it comes to; nothing if it is not known to be an answer of a model at all.
    pub(super) fn close(mut self, service: &str, sent: u64) -> Option<Spent> {
        if self.form == Form::Whole {
            let told = if self.cut { end(&self.text) } else { serde_json::from_slice(&self.text).ok() };
            self.note(told.unwrap_or_default());
        } else if !self.text.is_empty() {
            self.read_line(b"\n");
        }
        let Costs { mut input, mut output, cache_read, cache_written } = self.costs;
        let basis = match self.known {
            Known::All => Basis::Told,
            Known::Failed => Basis::Failed,
            Known::Nothing | Known::UntilNow => Basis::Estimated,
        };
        if basis != Basis::Told {
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
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[{"type":"text","text":"a \"usage\": b"}],"stop_reason":"end_turn","usage":{"input_tokens":12,"cache_creation_input_tokens":3,"cache_read_input_tokens":4,"output_tokens":56,"service_tier":"standard"}}"#;
    const MESSAGE_EVENTS: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"claude-x\",\"usage\":{\"input_tokens\":12,\"cache_creation_input_tokens\":3,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":56}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    const CHAT: &str = r#"{"object":"chat.completion","model":"gpt-x","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":16,"completion_tokens":56,"total_tokens":72,"prompt_tokens_details":{"cached_tokens":4}}}"#;
    const CHAT_EVENTS: &str = "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\r\n\r\ndata: {\"model\":\"gpt-x\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":56,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\r\n\r\ndata: [DONE]\r\n\r\n";
    const RESPONSE_EVENTS: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-x\",\"usage\":{\"input_tokens\":16,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":56}}}\n\n";

    fn read(form: Form, text: &str, piece: usize) -> Option<Spent> {
        let mut account = Account::new(form);
        text.as_bytes().chunks(piece).for_each(|piece| account.read(piece));
        account.close("s", 400)
    }

    fn spent(model: &str, cache_written: u64) -> Spent {
        let (service, model) = ("s".into(), Some(model.to_owned()));
        Spent { service, model, input: 12, output: 56, cache_read: 4, cache_written, basis: Basis::Told }
    }

    #[test]
    fn every_form_of_answer_is_understood_in_pieces_of_every_size() {
        for piece in [1, 2, 7, 1000] {
            assert_eq!(read(Form::Whole, MESSAGE, piece), Some(spent("claude-x", 3)));
            assert_eq!(read(Form::Events, MESSAGE_EVENTS, piece), Some(spent("claude-x", 3)));
            assert_eq!(read(Form::Whole, CHAT, piece), Some(spent("gpt-x", 0)));
            assert_eq!(read(Form::Events, CHAT_EVENTS, piece), Some(spent("gpt-x", 0)));
            assert_eq!(read(Form::Events, RESPONSE_EVENTS, piece), Some(spent("gpt-x", 0)));
        }
    }

    #[test]
    fn who_breaks_off_before_the_cost_is_told_pays_an_estimate() {
        let until = MESSAGE_EVENTS.find("event: message_delta").expect("an event");
        let broken = read(Form::Events, &MESSAGE_EVENTS[..until], 5).expect("a cost");
        assert_eq!((broken.input, broken.output, broken.cache_read, broken.basis), (12, 2, 4, Basis::Estimated));
        let untold = "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n".repeat(9);
        let untold = read(Form::Events, &untold, 5).expect("a cost");
        assert_eq!((untold.input, untold.output, untold.basis), (100, 9, Basis::Estimated));
    }

    #[test]
    fn a_cost_that_is_told_word_by_word_is_whole_only_at_the_end() {
        let word = "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"content\":\"hi\"},\"finish_reason\":null}],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":1}}\n\n";
        let basis = |text: &str| read(Form::Events, text, 7).map(|spent| spent.basis);
        assert_eq!(basis(word), Some(Basis::Estimated));
        assert_eq!(basis(&format!("{word}data: [DONE]\n\n")), Some(Basis::Told));
        let so_far = MESSAGE_EVENTS.replace("{\"stop_reason\":\"end_turn\"}", "{\"stop_reason\":null}");
        assert_eq!(basis(&so_far), Some(Basis::Estimated));
    }

    #[test]
    fn only_the_service_itself_can_say_that_it_has_failed() {
        let until = MESSAGE_EVENTS.find("event: message_delta").expect("an event");
        let basis = |more: &str| {
            let text = format!("{}data: {more}\n\n", &MESSAGE_EVENTS[..until]);
            read(Form::Events, &text, 9).map(|spent| (spent.input, spent.output, spent.basis))
        };
        let failed = r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
        assert_eq!(basis(failed), Some((12, 3, Basis::Failed)));
        let words = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"{\"error\":{}}","error":{}},"error":null}"#;
        assert_eq!(basis(words), Some((12, 3, Basis::Estimated)));
    }

    #[test]
    fn what_is_no_answer_of_a_model_costs_nothing() {
        for text in ["", "{}", "[]", "{\"usage\":7}", "{\"usage\":{\"input_tokens\":-1}}", "no json", "\u{0}"] {
            assert_eq!(read(Form::Whole, text, 3), None, "{text}");
        }
        assert_eq!(read(Form::Events, "", 3), None);
    }

    #[test]
    fn long_answers_take_little_memory_and_their_end_is_read() {
        let filler = format!("\"{}\",", "x".repeat(1000)).repeat(3000);
        let text = MESSAGE.replace("\"content\":[", &format!("\"content\":[{filler}"));
        let mut account = Account::default();
        for piece in text.as_bytes().chunks(5000) {
            account.read(piece);
            assert!(account.text.len() <= LONGEST_ANSWER);
        }
        let found = account.close("s", 0).expect("a cost");
        assert_eq!((found.input, found.output, found.basis), (12, 56, Basis::Told));
        let mut endless = Account::new(Form::Events);
        for _ in 0..1000 {
            endless.read(&[b'x'; 5000]);
            assert!(endless.text.len() <= LONGEST_LINE);
        }
        let told = "\ndata: {\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}\n";
        endless.read(told.as_bytes());
        assert_eq!(endless.close("s", 0).map(|spent| spent.output), Some(2));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "[\\PC\n]{0,200}", piece in 1usize..40) {
            for form in [Form::Whole, Form::Events] {
                let _ = read(form, &text, piece);
                let _ = read(form, &format!("data: {{\"usage\":{text}}}\n"), piece);
            }
            let _ = end(format!("\"usage\":{text}").as_bytes());
        }
    }
}
