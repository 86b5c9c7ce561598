//! What a program inside asks its model, as far as it matters for what that may cost: read before it goes out, and made
//! shorter where the budget does not pay for all of it.
//!
//! Only questions to a model are passed on, and none that make the model's server do something whose price stands in no
//! answer, or that reaches the network from there: searching, fetching, running code, batches.

use sandbox_egress::Question;
use serde::{Deserialize, de};
use serde_json::{Value, value::RawValue};

use super::content::{self, Content};
use crate::config::Price;

/// Tools of the Messages API that whoever asks runs; of their names only the beginning counts, a date follows.
const MESSAGES_TOOLS: [&str; 5] = ["bash_", "text_editor_", "computer_", "memory_", "tool_search_tool_"];
/// The same of chat completions.
const CHAT_TOOLS: [&str; 2] = ["function", "custom"];
/// Fields that make the model's server do more than answer, or that make an answer dearer.
const FIELDS: [&str; 5] = ["mcp_servers", "web_search_options", "background", "container", "audio"];
/// Ways of being served that cost no more than the price.
const TIERS: [&str; 5] = ["auto", "default", "standard", "standard_only", "flex"];
/// Tokens that reading one picture takes at most.
const MESSAGES_PICTURE: u64 = 5_000;
const CHAT_PICTURE: u64 = 50_000;

/// What is asked.
pub(super) enum Asks<'a> {
    /// Something that costs nothing.
    Free,
    /// An answer.
    Answer(Wanted<'a>),
}

/// An answer that is wanted.
pub(super) struct Wanted<'a> {
    /// Of this model.
    pub model: Option<String>,
    /// Not longer than this, in tokens, all that it holds together. Nothing: as long as the model likes.
    pub most: Option<u64>,
    /// Nor is a shorter one than this possible.
    pub least: u64,
    /// Bytes that the model reads as text.
    pub bytes: u64,
    /// How long its cache is to keep something.
    pub keeping: Keeping,
    /// What it reads besides.
    content: Content,
    /// Answers to the same question.
    copies: u64,
    api: Api,
    fields: Vec<(String, &'a RawValue)>,
}

/// How long what is put into the cache stays there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Keeping {
    #[default]
    Usual,
    /// An hour. Which of the answer's tokens that are is not read, so all of them count so.
    Long,
}

impl Keeping {
    /// What that makes of a price: an hour costs twice what reading does.
    pub(super) fn price(self, price: Price) -> Price {
        let write = price.cache_write.unwrap_or(price.input);
        match self {
            Self::Usual => price,
            Self::Long => Price { cache_write: Some(write.max(2.0 * price.input)), ..price },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Api {
    Messages,
    Chat,
}

/// Reads a question; or says why it is not asked.
pub(super) fn read<'a>(question: Question<'a>) -> Result<Asks<'a>, String> {
    let path = question.path.trim_end_matches('/');
    let api = match question.method {
        "POST" if path.ends_with("/messages") => Api::Messages,
        "POST" if path.ends_with("/chat/completions") => Api::Chat,
        "POST" if path.ends_with("/messages/count_tokens") => return Ok(Asks::Free),
        "HEAD" => return Ok(Asks::Free),
        "GET" if path.rsplit('/').take(2).any(|part| part == "models") => return Ok(Asks::Free),
        _ => {
            return Err(format!(
                "a model that is lent for a task only answers questions, and {} {path} is none",
                question.method
            ));
        }
    };
    let Ok(Fields(fields)) = serde_json::from_slice(question.body) else {
        return Err("what is asked cannot be read: it is no JSON object, or has a field twice".to_owned());
    };
    let wanted = Wanted::new(api, fields, question.body.len() as u64)?;
    Ok(Asks::Answer(wanted))
}

impl<'a> Wanted<'a> {
    fn new(api: Api, fields: Vec<(String, &'a RawValue)>, bytes: u64) -> Result<Self, String> {
        let content = Content::default();
        let keeping = Keeping::Usual;
        let mut wanted = Self { model: None, most: None, least: 1, bytes, keeping, content, copies: 1, api, fields };
        wanted.stays_here().and_then(|()| wanted.look_at_content()).map_err(|why| {
            format!(
                "{why}: that would be done by the model's server, outside of the sandbox and of the budget, and a model that \
                 is lent for a task does not do it"
            )
        })?;
        wanted.bytes = bytes.saturating_sub(wanted.content.picture_bytes);
        wanted.model = wanted.field("model")?;
        wanted.copies = wanted.field("n")?.unwrap_or(1).max(1);
        let mut lengths = Vec::new();
        for name in LENGTHS {
            lengths.extend(wanted.field::<u64>(name)?);
        }
        wanted.most = lengths.into_iter().max().map(|most| most.saturating_mul(wanted.copies));
        // A model that is to think so much wants to say something afterwards.
        let thinking: Option<Thinking> = wanted.field("thinking")?;
        wanted.least =
            thinking.and_then(|thinking| thinking.budget_tokens).map_or(1, |tokens| tokens.saturating_add(1));
        Ok(wanted)
    }

    /// The same question, for an answer of at most so many tokens; where it did not say how many, by this name.
    pub(super) fn shortened(&self, most: u64, length: &str) -> Vec<u8> {
        let each = (most / self.copies).max(1).to_string();
        let is_length = |name: &str| LENGTHS.contains(&name);
        let said = self.fields.iter().map(|(name, value)| {
            let value = if is_length(name) { each.as_str() } else { value.get() };
            format!("{}:{value}", serde_json::Value::from(name.as_str()))
        });
        let unsaid = !self.fields.iter().any(|(name, _)| is_length(name));
        let added = unsaid.then(|| format!("\"{length}\":{each}"));
        format!("{{{}}}", said.chain(added).collect::<Vec<_>>().join(",")).into_bytes()
    }

    /// How many tokens reading all of it takes at most, where a byte of text has so many, and all that fits into the model is
    /// this.
    pub(super) fn reading(&self, ratio: f64, context: u64) -> u64 {
        let picture = match self.api {
            Api::Messages => MESSAGES_PICTURE,
            Api::Chat => CHAT_PICTURE,
        };
        let text = (self.bytes as f64 * ratio).ceil() as u64;
        let pages = if self.content.documents > 0 { context } else { 0 };
        text.saturating_add(self.content.pictures.saturating_mul(picture)).saturating_add(pages)
    }

    /// Bytes of a question that is nothing but text, from which can be learned how many tokens a byte has.
    pub(super) fn bytes_of_text(&self) -> u64 {
        if self.content == Content::default() { self.bytes } else { 0 }
    }

    /// What cannot be read is not passed on: somebody else might read it in another way.
    fn field<T: for<'b> Deserialize<'b>>(&self, name: &str) -> Result<Option<T>, String> {
        let Some((_, value)) = self.fields.iter().find(|(other, _)| other == name) else { return Ok(None) };
        serde_json::from_str::<Option<T>>(value.get())
            .map_err(|_| format!("what is asked cannot be read: `{name}` is not what it should be"))
    }

    /// Fails with what the model's server would do by itself.
    fn stays_here(&self) -> Result<(), String> {
        let set = |name: &str| self.fields.iter().any(|(other, value)| other == name && !is_nothing(value.get()));
        if let Some(field) = FIELDS.into_iter().find(|name| set(name)) {
            return Err(format!("`{field}`"));
        }
        if self.field::<String>("speed")?.is_some_and(|speed| speed != "standard") {
            return Err("`speed`".to_owned());
        }
        if self.field::<String>("service_tier")?.is_some_and(|tier| !TIERS.contains(&tier.as_str())) {
            return Err("`service_tier`".to_owned());
        }
        let Some((_, tools)) = self.fields.iter().find(|(name, _)| name == "tools") else { return Ok(()) };
        match content::read(tools).map_err(|why| format!("`tools`: {why}"))? {
            Value::Null => Ok(()),
            Value::Array(tools) => tools.iter().try_for_each(|tool| self.runs_here(tool)),
            _ => Err("`tools` that are no list".to_owned()),
        }
    }

    /// Only tools that are known to be run by whoever asks: others may come to be any day.
    fn runs_here(&self, tool: &Value) -> Result<(), String> {
        let known = |kind: &str| match self.api {
            Api::Messages => kind == "custom" || MESSAGES_TOOLS.iter().any(|name| kind.starts_with(name)),
            Api::Chat => CHAT_TOOLS.contains(&kind),
        };
        match tool.get("type") {
            None | Some(Value::Null) if self.api == Api::Messages => Ok(()),
            Some(Value::String(kind)) if known(kind) => Ok(()),
            Some(Value::String(kind)) => Err(format!("the tool `{}`", kind.chars().take(100).collect::<String>())),
            _ => Err("a tool of no kind".to_owned()),
        }
    }

    fn look_at_content(&mut self) -> Result<(), String> {
        for (name, value) in self.fields.iter().filter(|(name, _)| READ.contains(&name.as_str())) {
            let value = content::read(value)?;
            if ["messages", "system"].contains(&name.as_str()) {
                self.content.look(&value)?;
            }
            if content::stays_long(&value) {
                self.keeping = Keeping::Long;
            }
        }
        Ok(())
    }
}

/// What the model reads, and what says of it how long it is kept.
const READ: [&str; 4] = ["messages", "system", "tools", "cache_control"];
/// By which names an answer's length is told.
const LENGTHS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

fn is_nothing(value: &str) -> bool {
    matches!(value, "null" | "false" | "[]" | "{}")
}

#[derive(Deserialize)]
struct Thinking {
    budget_tokens: Option<u64>,
}

/// The fields of an object, each once: two who read one twice need not agree on which counts.
struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields: Vec<(String, &'de RawValue)> = Vec::new();
                while let Some((name, value)) = map.next_entry::<String, &'de RawValue>()? {
                    if fields.len() >= 200 || fields.iter().any(|(other, _)| *other == name) {
                        return Err(de::Error::custom("a field stands there twice"));
                    }
                    fields.push((name, value));
                }
                Ok(Fields(fields))
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn question<'a>(path: &'a str, body: &'a str) -> Question<'a> {
        Question { method: "POST", path, body: body.as_bytes() }
    }

    fn wanted<'a>(path: &'a str, body: &'a str) -> Wanted<'a> {
        match read(question(path, body)).unwrap() {
            Asks::Answer(wanted) => wanted,
            Asks::Free => panic!("{body}"),
        }
    }

    #[test]
    fn what_is_asked_is_read_and_can_be_made_shorter() {
        let body = r#"{"model":"m","max_tokens":64000,"messages":[{"role":"user","content":"a \"max_tokens\":1"}],"x":{"b":1,"a":2}}"#;
        let asked = wanted("/v1/messages", body);
        assert_eq!((asked.model.as_deref(), asked.most, asked.least), (Some("m"), Some(64_000), 1));
        assert_eq!(String::from_utf8(asked.shortened(700, "max_tokens")).unwrap(), body.replace("64000", "700"));
        let asked = wanted("/v1/chat/completions", r#"{"model":"m","messages":[],"n":3}"#);
        assert_eq!(asked.most, None);
        assert_eq!(asked.shortened(900, "max_tokens"), br#"{"model":"m","messages":[],"n":3,"max_tokens":300}"#);
        let asked = wanted("/chat/completions", r#"{"max_completion_tokens":5,"max_tokens":9,"n":2}"#);
        assert_eq!(asked.most, Some(18), "the longer one counts, for each of them");
        let asked = wanted("/messages", r#"{"thinking":{"type":"enabled","budget_tokens":4000},"max_tokens":9000}"#);
        assert_eq!(asked.least, 4001);
    }

    #[test]
    fn only_questions_are_passed_on_and_nothing_is_done_elsewhere() {
        for (method, path) in [
            ("HEAD", "/api/hello"),
            ("GET", "/v1/models"),
            ("GET", "/v1/models/m"),
            ("POST", "/v1/messages/count_tokens"),
        ] {
            assert!(matches!(read(Question { method, path, body: b"" }), Ok(Asks::Free)), "{path}");
        }
        for (method, path) in [
            ("POST", "/v1/messages/batches"),
            ("GET", "/v1/files"),
            ("DELETE", "/v1/models/m"),
            ("POST", "/v1/responses"),
            ("PUT", "/v1/messages"),
        ] {
            assert!(read(Question { method, path, body: b"{}" }).is_err(), "{path}");
        }
        for body in [
            r#"{"max_tokens":1,"max_tokens":64000}"#,
            r#"{"max_tokens":1,"max\u005ftokens":64000}"#,
            "[]",
            "",
            "{}x",
            r#"{"mcp_servers":[{"url":"https://evil.example"}]}"#,
            r#"{"tools":[{"name":"a"},{"type":"web_fetch_20250910","name":"web_fetch"}]}"#,
            r#"{"tools":[{"type":"web_fetch_20250910","name":"web_fetch"},{"type":null,"name":"a"}]}"#,
            r#"{"tools":[{"type":"custom","type":"web_fetch_20250910"}]}"#,
            r#"{"tools":{"0":{"type":"web_fetch_20250910"}}}"#,
            r#"{"tools":[{"type":["web_fetch_20250910"]}]}"#,
            r#"{"tools":[{"type":"advisor_20990101","name":"advisor"}]}"#,
            r#"{"messages":[{"content":[{"type":"document","source":{"type":"url","url":"https://x.example"}}]}]}"#,
            r#"{"container":"c"}"#,
            r#"{"speed":"fast"}"#,
            r#"{"speed":["fast"]}"#,
            r#"{"service_tier":"priority"}"#,
            r#"{"n":2.0}"#,
            r#"{"max_tokens":1,"max_completion_tokens":64000.0}"#,
        ] {
            assert!(read(question("/v1/messages", body)).is_err(), "{body}");
        }
        assert!(read(question("/chat/completions", r#"{"tools":[{"type":"web_search"}]}"#)).is_err());
        assert!(read(question("/chat/completions", r#"{"tools":[{"type":"function","function":{}}]}"#)).is_ok());
        let usual =
            r#"{"tools":[{"name":"a"},{"type":"bash_20250124","name":"bash"},{"type":"custom"}],"mcp_servers":[]}"#;
        assert!(read(question("/v1/messages", usual)).is_ok());
    }

    #[test]
    fn a_document_may_take_all_that_the_model_can_read_and_a_picture_what_pictures_take() {
        let reading = |content: &str| {
            let body = format!(r#"{{"messages":[{{"content":[{content}]}}]}}"#);
            wanted("/messages", &body).reading(0.5, 200_000)
        };
        assert!(reading(r#"{"type":"text","text":"hello"}"#) < 100);
        let data = "A".repeat(1_000_000);
        let of = |kind: &str| format!(r#"{{"type":"{kind}","source":{{"type":"base64","data":"{data}"}}}}"#);
        assert!((5_000..6_000).contains(&reading(&of("image"))), "whatever its bytes are");
        assert!(reading(&of("document")) >= 200_000);
    }

    #[test]
    fn a_question_that_is_kept_for_an_hour_has_the_price_of_that() {
        let keeping = |body: &str| wanted("/v1/messages", body).keeping;
        for body in [
            r#"{"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral","ttl":"1h"}}]}"#,
            r#"{"messages":[{"content":[{"type":"text","text":"m","cache_control":{"ttl":"\u0031h"}}]}]}"#,
            r#"{"tools":[{"name":"t","cache_control":{"type":"ephemeral","ttl":"24h"}}]}"#,
            r#"{"cache_control":{"type":"ephemeral","ttl":"1h"}}"#,
        ] {
            assert_eq!(keeping(body), Keeping::Long, "{body}");
        }
        let usual = r#"{"system":[{"cache_control":{"ttl":"5m"}}],"messages":[{"content":"\"ttl\":\"1h\""}]}"#;
        assert_eq!(keeping(usual), Keeping::Usual);
        let price = Price { input: 4.0, output: 20.0, cache_read: Some(0.2), cache_write: Some(5.0) };
        assert_eq!((Keeping::Usual.price(price), Keeping::Long.price(price).cache_write), (price, Some(8.0)));
    }

    proptest! {
        #[test]
        fn nothing_panics(body in "\\PC{0,100}", most in 0u64..u64::MAX) {
            for body in [body.clone(), format!("{{\"max_tokens\":{body}}}"), format!("{{\"n\":{most},\"max_tokens\":{most},\"tools\":{body}}}")] {
                if let Ok(Asks::Answer(wanted)) = read(question("/messages", &body)) {
                    let shorter = wanted.shortened(most, "max_tokens");
                    let read = serde_json::from_slice::<serde_json::Value>(&shorter);
                    prop_assert!(read.is_ok());
                }
            }
        }
    }
}
