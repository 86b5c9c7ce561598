//! What a program inside asks its model, as far as it matters for what that may cost: read before it goes out, and made
//! shorter where the budget does not pay for all of it.
//!
//! Only questions to a model are passed on, and none that make the model's server do something whose price stands in no
//! answer, or that reaches the network from there: searching, fetching, running code, batches.

use sandbox_egress::Question;
use serde::{Deserialize, de};
use serde_json::value::RawValue;

/// Tools that the model's server runs by itself.
const ELSEWHERE: [&str; 4] = ["web_search", "web_fetch", "code_execution", "mcp_toolset"];
/// The same as fields.
const FIELDS: [&str; 3] = ["mcp_servers", "web_search_options", "background"];

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
    /// Bytes that the model reads.
    pub bytes: u64,
    /// Answers to the same question.
    copies: u64,
    api: Api,
    fields: Vec<(String, &'a RawValue)>,
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
        let mut wanted = Self { model: None, most: None, least: 1, bytes, copies: 1, api, fields };
        if let Some(why) = wanted.reaches_out() {
            return Err(format!(
                "{why} would be done by the model's server, outside of the sandbox and of the budget: a model that is lent \
                 for a task does not do that"
            ));
        }
        wanted.model = wanted.field("model");
        wanted.copies = wanted.field("n").unwrap_or(1).max(1);
        let most = LENGTHS.iter().filter_map(|name| wanted.field::<u64>(name)).max();
        wanted.most = most.map(|most| most.saturating_mul(wanted.copies));
        // A model that is to think so much wants to say something afterwards.
        let thinking: Option<Thinking> = wanted.field("thinking");
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

    fn field<T: for<'b> Deserialize<'b>>(&self, name: &str) -> Option<T> {
        let (_, value) = self.fields.iter().find(|(other, _)| other == name)?;
        serde_json::from_str(value.get()).ok()
    }

    /// What the model's server would do by itself.
    fn reaches_out(&self) -> Option<String> {
        let set = |name: &str| self.fields.iter().any(|(other, value)| other == name && !is_nothing(value.get()));
        if let Some(field) = FIELDS.into_iter().find(|name| set(name)) {
            return Some(format!("`{field}`"));
        }
        if self.field::<String>("speed").is_some_and(|speed| speed != "standard") {
            return Some("`speed`".to_owned());
        }
        let tools: Vec<Tool> = self.field("tools").unwrap_or_default();
        let elsewhere = |tool: &Tool| ELSEWHERE.iter().any(|name| tool.kind.starts_with(name));
        tools
            .into_iter()
            .find(|tool| self.api == Api::Messages && elsewhere(tool))
            .map(|tool| format!("`{}`", tool.kind))
    }
}

/// By which names an answer's length is told.
const LENGTHS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

fn is_nothing(value: &str) -> bool {
    matches!(value, "null" | "false" | "[]" | "{}")
}

#[derive(Deserialize)]
struct Thinking {
    budget_tokens: Option<u64>,
}

#[derive(Deserialize)]
struct Tool {
    #[serde(rename = "type", default)]
    kind: String,
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
            r#"{"speed":"fast"}"#,
        ] {
            assert!(read(question("/v1/messages", body)).is_err(), "{body}");
        }
        let usual =
            r#"{"tools":[{"name":"a"},{"type":"bash_20250124","name":"bash"},{"type":"custom"}],"mcp_servers":[]}"#;
        assert!(read(question("/v1/messages", usual)).is_ok());
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
