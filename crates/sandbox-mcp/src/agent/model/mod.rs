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
}

/// No answer, which may have cost something all the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What went wrong.
    pub error: ModelError,
    /// What was told of the cost before, or an estimate; nothing where nobody began to answer.
    pub tokens: Tokens,
}

/// How often one question was asked.
#[derive(Debug, Default)]
pub struct Tries {
    failed: u32,
    /// Answers that broke off after they had begun.
    broken: u32,
}

/// Puts an answer together out of its events.
trait Decoder: Send {
    /// The next event.
    fn event(&mut self, event: &Value, pieces: &UnboundedSender<Piece>) -> Result<(), ModelError>;

    /// What was told of its cost so far.
    fn tokens(&self) -> Tokens;

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

    /// Asks once.
    pub async fn ask(&self, ask: &Ask<'_>, tries: &Tries, pieces: &UnboundedSender<Piece>) -> Result<Reply, Failure> {
        let mut tokens = Tokens::default();
        let answer = self.ask_once(ask, tries.broken < BROKEN_STREAMS, pieces, &mut tokens).await;
        answer.map_err(|error| Failure { error: error.scrubbed(|text| self.outward.scrubbed(text)), tokens })
    }

    /// How long to wait before asking again; nothing where that makes no sense.
    pub fn again(&self, error: &ModelError, tries: &mut Tries) -> Option<Duration> {
        if error.is_about_thinking() && self.thinks.swap(false, Ordering::Relaxed) {
            return Some(Duration::ZERO);
        }
        tries.failed += 1;
        tries.broken += u32::from(error.is_broken_stream());
        retry::after(error, tries.failed).filter(|_| tries.failed < ATTEMPTS)
    }

    /// `cost` is what it has cost so far, however it ends.
    async fn ask_once(
        &self,
        ask: &Ask<'_>,
        streaming: bool,
        pieces: &UnboundedSender<Piece>,
        cost: &mut Tokens,
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
        // Whoever is to answer as a whole may have written all of it when we give up.
        let unseen = Tokens { input: reading, output: if streaming { 0 } else { ask.most }, ..Tokens::default() };
        let answer = self.in_time(patience, self.outward.post(path, headers, body)).await;
        let answer = answer.inspect_err(|_| *cost = unseen)??;
        if !answer.status().is_success() {
            return Err(self.refusal(answer).await);
        }
        let is_stream = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok());
        let reply = match is_stream.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            true => {
                *cost = Tokens { output: 0, ..unseen };
                self.read_events(answer, pieces, cost).await?
            }
            false => {
                *cost = Tokens { output: ask.most, ..unseen };
                self.read_whole(answer, pieces, patience, cost).await?
            }
        };
        Ok(reply.with_estimate(reading))
    }

    async fn read_events(
        &self,
        answer: Response<Incoming>,
        pieces: &UnboundedSender<Piece>,
        cost: &mut Tokens,
    ) -> Result<Reply, ModelError> {
        let mut decoder: Box<dyn Decoder> = match self.api {
            ModelApi::Messages => Box::new(messages::Reading::default()),
            ModelApi::Chat => Box::new(chat::Reading::default()),
        };
        let (mut events, mut body, mut size) = (Events::default(), answer.into_body(), 0);
        let (reading, mut written) = (cost.input, 0);
        while let Some(frame) = self.in_time(self.idle, body.frame()).await? {
            let frame = frame.map_err(|error| ModelError::Cut(error.to_string()))?;
            let Ok(data) = frame.into_data() else { continue };
            size += data.len();
            if size > LARGEST {
                return Err(ModelError::Malformed(format!("its answer is longer than {LARGEST} bytes")));
            }
            for event in events.push(&data)? {
                let understood = decoder.event(&event, pieces);
                written += 1;
                *cost = so_far(decoder.tokens(), reading, written);
                understood?;
            }
        }
        decoder.finish()
    }

    async fn read_whole(
        &self,
        answer: Response<Incoming>,
        pieces: &UnboundedSender<Piece>,
        patience: Duration,
        cost: &mut Tokens,
    ) -> Result<Reply, ModelError> {
        let body = self.in_time(patience, collect(answer, LARGEST)).await??;
        cost.output = cost.output.min(body.len() as u64 / BYTES_PER_TOKEN);
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

impl Tries {
    /// The how-manieth attempt the next one is.
    pub fn next(&self) -> u32 {
        self.failed + 1
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

/// What an answer has cost that is not complete: its last word on that is still to come. An event is about one token.
fn so_far(told: Tokens, reading: u64, written: u64) -> Tokens {
    let input = if told.read() == 0 { reading } else { told.input };
    Tokens { input, output: told.output.max(written), ..told }
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
