//! The Messages API: what is sent, and how its answers are read. Blocks are kept as they came, since they must go back
//! exactly so (signatures).

use serde_json::{Map, Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::{Ask, Decoder, ModelError, Piece, Reply, Stop, error};
use crate::agent::Tokens;

/// Sent with every question.
pub(super) const HEADERS: [(&str, &str); 1] = [("anthropic-version", "2023-06-01")];
/// Blocks of one answer.
const MOST_BLOCKS: usize = 1000;

/// A question in the form of this API.
pub(super) fn body(ask: &Ask<'_>, streaming: bool, thinks: bool) -> Value {
    let mut tools = ask.tools.to_vec();
    // What stays the same from turn to turn is read from the cache: the tools, the system prompt, the conversation.
    if let Some(last) = tools.last_mut() {
        last["cache_control"] = cache();
    }
    let mut messages = ask.messages.to_vec();
    if let Some(last) = messages.last_mut() {
        mark_last_block(last);
    }
    let mut body = json!({
        "model": ask.model,
        "max_tokens": ask.most,
        "system": [{"type": "text", "text": ask.system, "cache_control": cache()}],
        "tools": tools,
        "messages": messages,
        "stream": streaming,
    });
    if thinks && ask.model.starts_with("claude-") {
        // Without it models of today say nothing between calls of tools.
        body["thinking"] = json!({"type": "adaptive", "display": "summarized"});
    }
    body
}

fn cache() -> Value {
    json!({"type": "ephemeral"})
}

fn mark_last_block(message: &mut Value) {
    if let Some(text) = message["content"].as_str().map(str::to_owned) {
        message["content"] = json!([{"type": "text", "text": text}]);
    }
    let last = message["content"].as_array_mut().and_then(|blocks| blocks.last_mut());
    if let Some(block) = last.filter(|block| !matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking")))
    {
        block["cache_control"] = cache();
    }
}

/// An answer that is being read.
#[derive(Default)]
pub(super) struct Reading {
    blocks: Vec<Value>,
    /// Arguments of tools, still in text.
    inputs: Map<String, Value>,
    unreadable: Vec<String>,
    stop: Option<String>,
    tokens: Tokens,
    model: String,
    complete: bool,
}

impl Decoder for Reading {
    fn event(&mut self, event: &Value, pieces: &UnboundedSender<Piece>) -> Result<(), ModelError> {
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                self.model = name(&event["message"]["model"]);
                self.note_usage(&event["message"]["usage"]);
            }
            "content_block_start" => self.begin(event)?,
            "content_block_delta" => self.add(event, pieces),
            "content_block_stop" => self.end(index(event)),
            "message_delta" => {
                self.note_usage(&event["usage"]);
                self.stop = event["delta"]["stop_reason"].as_str().map(str::to_owned).or(self.stop.take());
            }
            "message_stop" => self.complete = true,
            "error" => return Err(error::in_stream(&event["error"])),
            _ => {}
        }
        Ok(())
    }

    fn tokens(&self) -> Tokens {
        self.tokens
    }

    fn finish(mut self: Box<Self>) -> Result<Reply, ModelError> {
        if !self.complete {
            return Err(ModelError::Cut("it ended before the answer was complete".to_owned()));
        }
        (0..self.blocks.len()).for_each(|index| self.end(index));
        self.blocks.retain(|block| !block.is_null());
        let Self { blocks, stop, tokens, model, unreadable, .. } = *self;
        Ok(Reply { stop: meaning(stop.as_deref(), &blocks), content: blocks, tokens, model, unreadable })
    }
}

impl Reading {
    fn begin(&mut self, event: &Value) -> Result<(), ModelError> {
        let index = index(event);
        if index >= MOST_BLOCKS || !event["content_block"].is_object() {
            return Err(ModelError::Malformed("it begins a block that cannot be".to_owned()));
        }
        self.blocks.resize(self.blocks.len().max(index + 1), Value::Null);
        self.blocks[index] = event["content_block"].clone();
        Ok(())
    }

    fn add(&mut self, event: &Value, pieces: &UnboundedSender<Piece>) {
        let index = index(event);
        let delta = &event["delta"];
        let Some(block) = self.blocks.get_mut(index) else { return };
        let append = |block: &mut Value, field: &str| {
            let more = delta[field].as_str().unwrap_or_default();
            let text = format!("{}{more}", block[field].as_str().unwrap_or_default());
            block[field] = Value::String(text);
            more.to_owned()
        };
        match delta["type"].as_str().unwrap_or_default() {
            "text_delta" => drop(pieces.send(Piece::Text(append(block, "text")))),
            "thinking_delta" => drop(pieces.send(Piece::Thinking(append(block, "thinking")))),
            "signature_delta" => drop(append(block, "signature")),
            "input_json_delta" => {
                let text = self.inputs.entry(index.to_string()).or_insert_with(|| json!(""));
                let more = delta["partial_json"].as_str().unwrap_or_default();
                *text = Value::String(format!("{}{more}", text.as_str().unwrap_or_default()));
            }
            "citations_delta" => match block["citations"].as_array_mut() {
                Some(citations) => citations.push(delta["citation"].clone()),
                None => block["citations"] = json!([delta["citation"]]),
            },
            _ => {}
        }
    }

    /// A block is whole: its arguments can be read.
    fn end(&mut self, index: usize) {
        let Some(Value::String(text)) = self.inputs.remove(&index.to_string()) else { return };
        let Some(block) = self.blocks.get_mut(index) else { return };
        if text.trim().is_empty() {
            return;
        }
        match serde_json::from_str::<Value>(&text) {
            Ok(input @ Value::Object(_)) => block["input"] = input,
            _ => {
                block["input"] = json!({});
                self.unreadable.extend(block["id"].as_str().map(str::to_owned));
            }
        }
    }

    /// What is told later counts more: numbers add up while the answer comes.
    fn note_usage(&mut self, usage: &Value) {
        let note = |total: &mut u64, field: &str| *total = usage[field].as_u64().unwrap_or(*total);
        note(&mut self.tokens.input, "input_tokens");
        note(&mut self.tokens.output, "output_tokens");
        note(&mut self.tokens.cache_read, "cache_read_input_tokens");
        note(&mut self.tokens.cache_written, "cache_creation_input_tokens");
    }
}

/// An answer that came as a whole.
pub(super) fn whole(mut answer: Value) -> Result<Reply, ModelError> {
    if answer["type"] == "error" {
        return Err(error::in_stream(&answer["error"]));
    }
    let Some(Value::Array(content)) = answer.get_mut("content").map(Value::take) else {
        return Err(ModelError::Malformed("it has no content".to_owned()));
    };
    if content.len() > MOST_BLOCKS || content.iter().any(|block| !block.is_object()) {
        return Err(ModelError::Malformed("its content is not made of blocks".to_owned()));
    }
    let mut reading = Reading::default();
    reading.note_usage(&answer["usage"]);
    Ok(Reply {
        stop: meaning(answer["stop_reason"].as_str(), &content),
        tokens: reading.tokens,
        model: name(&answer["model"]),
        unreadable: Vec::new(),
        content,
    })
}

fn meaning(stop: Option<&str>, content: &[Value]) -> Stop {
    match stop {
        // Nothing to answer: whoever waits for tools that were not called would wait for ever.
        Some("tool_use") if !content.iter().any(|block| block["type"] == "tool_use") => Stop::End,
        Some("tool_use") => Stop::Tools,
        Some("end_turn" | "stop_sequence") => Stop::End,
        Some("pause_turn" | "compaction") => Stop::Pause,
        Some("max_tokens") => Stop::Length,
        Some("model_context_window_exceeded") => Stop::Context,
        Some("refusal") => Stop::Refusal,
        other => Stop::Other(other.unwrap_or("no reason").chars().take(60).collect()),
    }
}

fn index(event: &Value) -> usize {
    event["index"].as_u64().and_then(|index| usize::try_from(index).ok()).unwrap_or_default()
}

fn name(model: &Value) -> String {
    model.as_str().unwrap_or_default().chars().filter(|letter| !letter.is_control()).take(100).collect()
}

#[cfg(test)]
#[path = "messages_tests.rs"]
mod tests;
