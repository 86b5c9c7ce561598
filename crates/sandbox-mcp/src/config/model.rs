//! The model that the agent `claude` asks: where it is, what it is called, where its key comes from, and what it costs.
//! The key is read when a task begins, never before.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use sandbox_egress::{Scheme, Upstream};
use serde::Deserialize;

use super::{SecretSource, words::in_table};

/// A model and how it is asked.
#[derive(Clone, Debug)]
pub struct ModelSetting {
    /// How it is spoken to.
    pub api: ModelApi,
    /// Where it is.
    pub upstream: Upstream,
    /// Whether the operator named the address.
    pub is_named: bool,
    /// Which model.
    pub name: String,
    /// Where its key comes from.
    pub key: SecretSource,
    /// How many tokens a conversation may have before it is shortened.
    pub context: u64,
    /// How many tokens one answer may have.
    pub answer: u64,
    /// It must say something within this time.
    pub idle: Duration,
    /// What is paid, by name of model.
    pub prices: BTreeMap<String, Price>,
}

/// How a model is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelApi {
    /// Anthropic's Messages API.
    Messages,
    /// Chat completions, as OpenAI, Ollama, llama.cpp and vLLM have them.
    Chat,
}

/// US dollars for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// Read.
    pub input: f64,
    /// Written.
    pub output: f64,
    /// Found in the cache; as `input`, if not said.
    pub cache_read: Option<f64>,
    /// Put into the cache; as `input`, if not said.
    pub cache_write: Option<f64>,
}

/// Which model, if nobody says.
pub(super) const MODEL: &str = "claude-opus-5-5";
/// Where, if nobody says.
const ANTHROPIC: &str = "https://api.anthropic.com";
/// What Anthropic asks for a million tokens (published prices of 2026; the settings have the last word).
const PRICES: [(&str, Price); 5] = [
    ("claude-opus-5-5", price(4.0, 20.0, 0.2, 5.0)),
    ("claude-opus-5", price(5.0, 25.0, 0.5, 6.25)),
    ("claude-sonnet-5-5", price(2.0, 10.0, 0.2, 2.5)),
    ("claude-sonnet-5", price(2.0, 10.0, 0.2, 2.5)),
    ("claude-fable-5-1", price(10.0, 50.0, 1.0, 12.5)),
];

const fn price(input: f64, output: f64, cache_read: f64, cache_write: f64) -> Price {
    Price { input, output, cache_read: Some(cache_read), cache_write: Some(cache_write) }
}

impl ModelApi {
    /// As settings have it.
    pub(super) fn parse(said: &toml::Value) -> Option<Self> {
        match said.as_str()? {
            "messages" => Some(Self::Messages),
            "chat" => Some(Self::Chat),
            _ => None,
        }
    }

    /// The variable that usually holds the key.
    pub(super) fn usual_key(self) -> SecretSource {
        SecretSource::Variable(match self {
            Self::Messages => "ANTHROPIC_API_KEY".to_owned(),
            Self::Chat => "OPENAI_API_KEY".to_owned(),
        })
    }

    /// Where it is if nobody says.
    pub(super) fn usual_address(self) -> &'static str {
        match self {
            Self::Messages => ANTHROPIC,
            Self::Chat => "https://api.openai.com/v1",
        }
    }
}

impl ModelSetting {
    /// What this model costs, where that is known. A name with a date behind it costs what the name costs.
    pub fn price(&self, model: &str) -> Option<Price> {
        let matches = |name: &str| model == name || model.strip_prefix(name).is_some_and(|rest| rest.starts_with("-2"));
        let own = self.prices.iter().find(|(name, _)| matches(name)).map(|(_, price)| *price);
        own.or_else(|| PRICES.iter().find(|(name, _)| matches(name)).map(|(_, price)| *price))
    }

    /// Whether the key is there, as far as that can be told without reading it.
    pub fn has_key(&self) -> bool {
        match &self.key {
            SecretSource::Value(_) | SecretSource::Command(_) => true,
            SecretSource::Variable(name) => std::env::var_os(name).is_some_and(|value| !value.is_empty()),
            SecretSource::File(file) => file.exists(),
        }
    }

    /// Whether it may be asked without a key: servers of one's own mostly want none.
    pub fn needs_key(&self) -> bool {
        self.upstream.scheme == Scheme::Https
    }

    /// Where the key comes from, in words that do not hold it.
    pub fn key_in_words(&self) -> String {
        match &self.key {
            SecretSource::Value(_) => "the settings file".to_owned(),
            SecretSource::Variable(name) => format!("the variable {name}"),
            SecretSource::File(file) => format!("the file {}", file.display()),
            SecretSource::Command(words) => format!("the program {}", words.first().map_or("", String::as_str)),
        }
    }
}

/// `env:NAME`, `file:/PATH`, `command:PROGRAM ARGUMENT…`. Never the key itself: it would stand in lists of processes and logs.
pub(super) fn key(said: &toml::Value) -> Option<SecretSource> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    match said.as_str()?.split_once(':')? {
        ("env", name) if !name.is_empty() => Some(SecretSource::Variable(name.to_owned())),
        ("file", path) if path.starts_with('/') => Some(SecretSource::File(PathBuf::from(path))),
        ("command", line) if !words(line).is_empty() => Some(SecretSource::Command(words(line))),
        _ => None,
    }
}

/// The table `[prices]` of the file.
pub(super) fn prices(said: &toml::Value) -> Result<BTreeMap<String, Price>, String> {
    let read: BTreeMap<String, Price> =
        said.clone().try_into().map_err(|error: toml::de::Error| in_table(&error, "prices"))?;
    let wrong = |price: &Price| {
        let parts = [Some(price.input), Some(price.output), price.cache_read, price.cache_write];
        parts.into_iter().flatten().any(|part| !(0.0..=1e6).contains(&part))
    };
    match read.iter().find(|(_, price)| wrong(price)) {
        Some((name, _)) => {
            Err(format!("prices.{name}: a price is in US dollars for a million tokens, and not below 0"))
        }
        None => Ok(read),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Settings, Typed};

    fn model(text: &str) -> ModelSetting {
        let mut typed = Typed::default();
        typed.add_file(std::path::Path::new("/x"), text).unwrap();
        typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
        Settings::from_typed(typed).unwrap().model
    }

    #[test]
    fn a_model_is_described_by_a_few_words() {
        let usual = model("");
        assert_eq!((usual.name.as_str(), usual.api, usual.needs_key()), (MODEL, ModelApi::Messages, true));
        assert_eq!(usual.upstream.target.to_string(), "api.anthropic.com:443");
        let local = model("model_api = \"chat\"\nmodel_url = \"http://127.0.0.1:11434/v1\"\nmodel = \"qwen\"\n");
        assert_eq!((local.needs_key(), local.upstream.path.as_str(), local.price("qwen")), (false, "/v1", None));
        assert!(matches!(model("model_key = \"env:OTHER\"").key, SecretSource::Variable(name) if name == "OTHER"));
    }

    #[test]
    fn prices_of_the_file_have_the_last_word() {
        let own = model("[prices.\"claude-opus-5-5\"]\ninput = 1\noutput = 2\n[prices.local]\ninput = 0\noutput = 0\n");
        assert_eq!(own.price("claude-opus-5-5").unwrap().output, 2.0);
        assert_eq!(own.price("claude-opus-5-5-20260922").unwrap().input, 1.0);
        assert_eq!(own.price("local").unwrap().input, 0.0);
        assert_eq!(own.price("claude-opus-5").unwrap().output, 25.0);
        assert_eq!(own.price("unheard-of"), None);
    }

    #[test]
    fn a_key_never_stands_in_a_setting() {
        for wrong in ["sk-ant-123", "value:sk-ant-123", "env:", "file:relative", "command: "] {
            assert!(key(&toml::Value::String(wrong.to_owned())).is_none(), "{wrong}");
        }
    }
}
