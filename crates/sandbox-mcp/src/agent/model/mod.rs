//! Asks a model, and reads its answer. One conversation, in the form of the Messages API; two ways of speaking it
//! ([`messages`], [`chat`]). What comes back is hostile data: sizes are bounded, and nothing of it is trusted to be well formed.

mod chat;
mod error;
mod events;
mod messages;
mod retry;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use http_body_util::BodyExt;
use hyper::{Response, body::Incoming};
use sandbox_egress::{Credential, Outward};
use serde_json::Value;
use tokio::sync::mpsc::UnboundedSender;

use super::Tokens;
use crate::{
    config::{ModelApi, ModelSetting, Settings},
    sandboxes::secrets,
};

pub(super) use chat::Length;
pub use error::ModelError;
use events::Events;

/// Longest answer.
const LARGEST: usize = 64 << 20;
/// How much of an error is read.
const LARGEST_ERROR: usize = 64 << 10;
/// A turn is tried so often.
const ATTEMPTS: u32 = 6;
/// Streams of one turn that may break before it is asked for as a whole.
const BROKEN_STREAMS: u32 = 2;
/// An answer as a whole says nothing until it is complete.
const WHOLE: u32 = 5;
/// Bytes that make about one token, where nobody tells.
const BYTES_PER_TOKEN: u64 = 4;

/// A model that can be asked.
pub struct Model {
    outward: Outward,
    api: ModelApi,
    idle: Duration,
    /// Whether it is asked to show its thoughts; not every model can.
    thinks: AtomicBool,
}

/// One question to a model.
pub struct Ask<'a> {
    /// Which model.
    pub model: &'a str,
    /// What it is told before everything else.
    pub system: &'a str,
    /// Tools that it may use: name, description and input_schema.
    pub tools: &'a [Value],
    /// The conversation so far.
    pub messages: &'a [Value],
    /// The longest answer, in tokens.
    pub most: u64,
}

/// What a model answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply {
    /// Its blocks, to be sent back exactly as they are.
    pub content: Vec<Value>,
    /// Why it stopped.
    pub stop: Stop,
    /// What it cost.
    pub tokens: Tokens,
    /// Who answered.
    pub model: String,
    /// Calls of tools whose arguments cannot be read, by their ids.
    pub unreadable: Vec<String>,
}

/// Why a model stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It has finished.
    End,
    /// It waits for what its tools say.
    Tools,
    /// It wants to go on with the same conversation.
    Pause,
    /// Its answer would have been longer than it may be.
    Length,
    /// The conversation is longer than it can read.
    Context,
    /// It will not do this.
    Refusal,
    /// Something that we do not know.
    Other(String),
}

/// A piece of an answer, while it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What it thinks.
    Thinking(String),
    /// What it says.
    Text(String),
    /// It did not answer, and is asked again.
    Retry {
        /// For the how-manieth time.
        attempt: u32,
        /// After how long.
        after: Duration,
        /// What went wrong.
        why: String,
    },
}

/// Puts an answer together out of its events.
trait Decoder: Send {
    /// The next event.
    fn event(&mut self, event: &Value, pieces: &UnboundedSender<Piece>) -> Result<(), ModelError>;

    /// The answer, if it is complete.
    fn finish(self: Box<Self>) -> Result<Reply, ModelError>;
}

impl Model {
    /// Reads the key, and connects to nobody yet.
    pub async fn of(setting: &ModelSetting, settings: &Settings) -> Result<Self, ModelError> {
        let key = match secrets::value(&setting.key).await {
            Ok(value) => Some(value),
            Err(_) if !setting.needs_key() => None,
            Err(why) => return Err(ModelError::Key(why)),
        };
        let credential = key.map(|value| match setting.api {
            ModelApi::Messages => Credential { value, header: "x-api-key", before: "" },
            ModelApi::Chat => Credential { value, header: "authorization", before: "Bearer " },
        });
        let outward = Outward::new(setting.upstream.clone(), credential, || settings.trust());
        let outward = outward.map_err(|error| ModelError::Key(error.to_string()))?;
        Ok(Self { outward, api: setting.api, idle: setting.idle, thinks: AtomicBool::new(true) })
    }

    /// Asks, and asks again where that may help.
    pub async fn ask(&self, ask: &Ask<'_>, pieces: &UnboundedSender<Piece>) -> Result<Reply, ModelError> {
        let (mut attempt, mut broken) = (1, 0);
        loop {
            let error = match self.ask_once(ask, broken < BROKEN_STREAMS, pieces).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error.scrubbed(|text| self.outward.scrubbed(text)),
            };
            if error.is_about_thinking() && self.thinks.swap(false, Ordering::Relaxed) {
                continue;
            }
            broken += u32::from(error.is_broken_stream());
            let Some(after) = retry::after(&error, attempt).filter(|_| attempt < ATTEMPTS) else { return Err(error) };
            attempt += 1;
            let _ = pieces.send(Piece::Retry { attempt, after, why: error.to_string() });
            tokio::time::sleep(after).await;
        }
    }

    async fn ask_once(
        &self,
        ask: &Ask<'_>,
        streaming: bool,
        pieces: &UnboundedSender<Piece>,
    ) -> Result<Reply, ModelError> {
        let (path, headers, body): (_, &[(&str, &str)], _) = match self.api {
            ModelApi::Messages => {
                let thinks = self.thinks.load(Ordering::Relaxed);
                ("/v1/messages", &messages::HEADERS, messages::body(ask, streaming, thinks))
            }
            ModelApi::Chat => {
                ("/chat/completions", &[], chat::body(ask, streaming, chat::Length::of(&self.outward.target())))
            }
        };
        let body = body.to_string().into_bytes();
        let reading = body.len() as u64 / BYTES_PER_TOKEN;
        let patience = if streaming { self.idle } else { self.idle * WHOLE };
        let answer = self.in_time(patience, self.outward.post(path, headers, body)).await??;
        if !answer.status().is_success() {
            return Err(self.refusal(answer).await);
        }
        let is_stream = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let reply = match is_stream.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            true => self.read_events(answer, pieces).await?,
            false => self.read_whole(answer, pieces, patience).await?,
        };
        Ok(reply.with_estimate(reading))
    }

    async fn read_events(
        &self,
        answer: Response<Incoming>,
        pieces: &UnboundedSender<Piece>,
    ) -> Result<Reply, ModelError> {
        let mut decoder: Box<dyn Decoder> = match self.api {
            ModelApi::Messages => Box::new(messages::Reading::default()),
            ModelApi::Chat => Box::new(chat::Reading::default()),
        };
        let (mut events, mut body, mut size) = (Events::default(), answer.into_body(), 0);
        while let Some(frame) = self.in_time(self.idle, body.frame()).await? {
            let frame = frame.map_err(|error| ModelError::Cut(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            size += data.len();
            if size > LARGEST {
                return Err(ModelError::Malformed(format!("its answer is longer than {LARGEST} bytes")));
            }
            for event in events.push(&data)? {
                decoder.event(&event, pieces)?;
            }
        }
        decoder.finish()
    }

    async fn read_whole(
        &self,
        answer: Response<Incoming>,
        pieces: &UnboundedSender<Piece>,
        patience: Duration,
    ) -> Result<Reply, ModelError> {
        let body = self.in_time(patience, collect(answer, LARGEST)).await??;
        let value: Value = serde_json::from_slice(&body).map_err(|error| ModelError::Malformed(error.to_string()))?;
        let reply = match self.api {
            ModelApi::Messages => messages::whole(value)?,
            ModelApi::Chat => chat::whole(value)?,
        };
        for block in &reply.content {
            if let Some(text) = block["text"].as_str().filter(|_| block["type"] == "text") {
                let _ = pieces.send(Piece::Text(text.to_owned()));
            }
        }
        Ok(reply)
    }

    async fn refusal(&self, answer: Response<Incoming>) -> ModelError {
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let body = self.in_time(self.idle, collect(answer, LARGEST_ERROR)).await;
        error::refusal(status, &headers, &body.ok().and_then(Result::ok).unwrap_or_default())
    }

    async fn in_time<T>(&self, patience: Duration, answer: impl Future<Output = T>) -> Result<T, ModelError> {
        tokio::time::timeout(patience, answer).await.map_err(|_| ModelError::Silent(patience))
    }
}

impl Reply {
    /// Where nobody told what it cost, an estimate: a budget holds also there.
    fn with_estimate(mut self, reading: u64) -> Self {
        if self.tokens.all() == 0 {
            self.tokens.input = reading;
            let written: usize = self.content.iter().map(|block| block.to_string().len()).sum();
            self.tokens.output = written as u64 / BYTES_PER_TOKEN;
        }
        self
    }

    /// All that it said.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter(|block| block["type"] == "text");
        texts.filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
    }
}

async fn collect(answer: Response<Incoming>, most: usize) -> Result<Vec<u8>, ModelError> {
    let (mut body, mut whole) = (answer.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ModelError::Cut(error.to_string()))?;
        if let Ok(data) = frame.into_data() {
            whole.extend_from_slice(&data);
        }
        if whole.len() > most {
            return Err(ModelError::Malformed(format!("its answer is longer than {most} bytes")));
        }
    }
    Ok(whole)
}
