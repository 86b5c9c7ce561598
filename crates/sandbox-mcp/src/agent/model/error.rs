//! Why a model gave no answer, and what that means for asking again.

use std::time::{Duration, SystemTime};

use hyper::HeaderMap;
use sandbox_egress::OutwardError;
use serde_json::Value;

/// So much of what a server says about an error is shown.
const SHOWN: usize = 500;

/// A model gave no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Its key cannot be read.
    #[error("the key of the model cannot be used: {0}. The setting `model_key` says where it comes from")]
    Key(String),
    /// Nobody is there.
    #[error("the model cannot be asked: {0}")]
    Unreachable(String),
    /// The machine is there, and nobody listens.
    #[error(
        "no model's server runs at {0}: start it, or name another with the setting `model_url` (SANDBOX_MCP_MODEL_URL in the environment)"
    )]
    Absent(String),
    /// It is not who it should be.
    #[error("the model cannot be asked: {0}")]
    Untrusted(String),
    /// It said no.
    #[error("the model's server said {status}{}: {message}{}", kind_in_words(.kind), what_to_do(*.status))]
    Status {
        /// The code of HTTP.
        status: u16,
        /// The kind of the error, in the server's words.
        kind: String,
        /// What it said.
        message: String,
        /// Whether it says that asking again helps.
        again: Option<bool>,
        /// When.
        after: Option<Duration>,
    },
    /// It broke off with an error in the middle of its answer.
    #[error("the model's server broke off its answer ({kind}): {message}")]
    Stream {
        /// The kind of the error.
        kind: String,
        /// What it said.
        message: String,
    },
    /// The connection ended in the middle of the answer.
    #[error("the connection to the model broke in the middle of an answer: {0}")]
    Cut(String),
    /// It said nothing for too long.
    #[error("the model said nothing for {} s (model_idle_seconds)", .0.as_secs())]
    Silent(Duration),
    /// It answered something that makes no sense.
    #[error("the model's answer cannot be understood: {0}")]
    Malformed(String),
}

impl From<OutwardError> for ModelError {
    fn from(error: OutwardError) -> Self {
        match error {
            OutwardError::Unreachable { .. } | OutwardError::Broken { .. } => Self::Unreachable(error.to_string()),
            OutwardError::Absent { target } => Self::Absent(target),
            OutwardError::Untrusted { .. } | OutwardError::Trust(_) => Self::Untrusted(error.to_string()),
            OutwardError::Key => Self::Key(error.to_string()),
        }
    }
}

impl ModelError {
    /// The same without anything that must not be shown.
    pub(super) fn scrubbed(mut self, scrub: impl Fn(&str) -> String) -> Self {
        match &mut self {
            Self::Key(text)
            | Self::Unreachable(text)
            | Self::Absent(text)
            | Self::Untrusted(text)
            | Self::Cut(text)
            | Self::Malformed(text) => *text = scrub(text),
            Self::Status { kind, message, .. } | Self::Stream { kind, message } => {
                *kind = scrub(kind);
                *message = scrub(message);
            }
            Self::Silent(_) => {}
        }
        self
    }

    /// Whether it failed because a conversation is longer than it can read.
    pub fn is_too_long(&self) -> bool {
        let (status, kind, message) = match self {
            Self::Status { status, kind, message, .. } => (*status, kind, message.to_lowercase()),
            Self::Stream { kind, message } => (400, kind, message.to_lowercase()),
            _ => return false,
        };
        let says = |words: &str| message.contains(words);
        let said = says("prompt is too long")
            || says("context length")
            || says("context window")
            || says("context size")
            || says("too many tokens");
        kind == "request_too_large" || kind == "context_length_exceeded" || status == 413 || (status == 400 && said)
    }

    /// Whether it failed because the model cannot be asked for its thoughts.
    pub(super) fn is_about_thinking(&self) -> bool {
        matches!(self, Self::Status { status: 400, message, .. } if message.to_lowercase().contains("thinking"))
    }

    /// Whether an answer broke off after it had begun.
    pub(super) fn is_broken_stream(&self) -> bool {
        matches!(self, Self::Stream { .. } | Self::Cut(_) | Self::Silent(_) | Self::Malformed(_))
    }
}

/// What an answer that is none says.
pub(super) fn refusal(status: u16, headers: &HeaderMap, body: &[u8]) -> ModelError {
    let told: Value = serde_json::from_slice(body).unwrap_or_default();
    let error = if told["error"].is_object() { &told["error"] } else { &told };
    let text = |value: &Value| value.as_str().map(shortened);
    let message = text(&error["message"]).or_else(|| text(&told["error"])).or_else(|| text(&told["detail"]));
    let message = message.unwrap_or_else(|| shortened(&String::from_utf8_lossy(body)));
    let kind = text(&error["details"]["error_code"]).or_else(|| text(&error["code"])).or_else(|| text(&error["type"]));
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let milliseconds = header("retry-after-ms").and_then(|text| text.trim().parse::<f64>().ok());
    let after = milliseconds.map(|ms| ms / 1000.0).or_else(|| header("retry-after").and_then(seconds));
    ModelError::Status {
        status,
        kind: kind.unwrap_or_default(),
        message,
        again: header("x-should-retry").and_then(|text| text.parse().ok()),
        after: after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
    }
}

/// The error that an event of a stream tells.
pub(super) fn in_stream(error: &Value) -> ModelError {
    let text = |value: &Value| value.as_str().map(shortened).unwrap_or_default();
    let kind = if error["type"].is_string() { &error["type"] } else { &error["code"] };
    ModelError::Stream { kind: text(kind), message: text(&error["message"]) }
}

/// A number of seconds, or a date (`Wed, 21 Oct 2026 07:28:00 GMT`).
fn seconds(text: &str) -> Option<f64> {
    let text = text.trim();
    let until = |date: SystemTime| date.duration_since(SystemTime::now()).unwrap_or_default().as_secs_f64();
    text.parse().ok().or_else(|| httpdate::parse_http_date(text).ok().map(until))
}

fn shortened(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(SHOWN).collect()
}

fn kind_in_words(kind: &str) -> String {
    if kind.is_empty() { String::new() } else { format!(" ({kind})") }
}

fn what_to_do(status: u16) -> &'static str {
    match status {
        401 | 403 => ". Check the key: the setting `model_key` says where it comes from",
        402 => ". The account has nothing left: see to it at the provider",
        404 => ". Check `model` and `model_url`",
        429 => ". Wait a while, or use another key or model",
        500.. => ". Try again later",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn errors_of_both_kinds_are_read() {
        let anthropic =
            br#"{"type":"error","error":{"type":"rate_limit_error","message":"slow down"},"request_id":"r"}"#;
        let told = refusal(429, &headers(&[("retry-after", "7")]), anthropic);
        assert_eq!(
            told.to_string(),
            "the model's server said 429 (rate_limit_error): slow down. Wait a while, or use another key or model"
        );
        assert!(matches!(told, ModelError::Status { after: Some(after), .. } if after == Duration::from_secs(7)));
        let openai = br#"{"error":{"message":"This model's maximum context length is 8192 tokens","type":"invalid_request_error","code":"context_length_exceeded"}}"#;
        assert!(refusal(400, &HeaderMap::new(), openai).is_too_long());
        let plain = refusal(502, &HeaderMap::new(), b"<html>Bad\x1b[2J Gateway</html>");
        assert!(plain.to_string().contains("Bad[2J Gateway"), "{plain}");
        let ms = refusal(529, &headers(&[("retry-after-ms", "250"), ("retry-after", "9")]), b"{}");
        assert!(matches!(ms, ModelError::Status { after: Some(after), .. } if after == Duration::from_millis(250)));
    }

    #[test]
    fn a_date_is_a_time_from_now() {
        let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));
        assert!((55.0..=60.0).contains(&seconds(&date).unwrap()));
        assert_eq!(seconds("Wed, 21 Oct 2015 07:28:00 GMT"), Some(0.0));
        assert_eq!(seconds("soon"), None);
    }

    #[test]
    fn what_must_not_be_shown_is_taken_out() {
        let told = refusal(401, &HeaderMap::new(), br#"{"error":{"message":"bad key sk-1234"}}"#);
        let shown = told.scrubbed(|text| text.replace("sk-1234", "[hidden]")).to_string();
        assert!(shown.contains("bad key [hidden]") && shown.contains("model_key"), "{shown}");
    }
}
