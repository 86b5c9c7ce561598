//! Chat completions, as OpenAI, Ollama, llama.cpp and vLLM have them: the conversation is put into their form, and their
//! answers are put into ours.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tokio::sync::mpsc::UnboundedSender;

use super::{Ask, Decoder, ModelError, Piece, Reply, Stop, error};
use crate::agent::Tokens;

/// Calls of tools in one answer.
const MOST_CALLS: usize = 200;

/// Under which name the longest answer is told: OpenAI has changed it, the others have not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Length {
    Tokens,
    CompletionTokens,
}

impl Length {
    /// As this server wants it.
    pub fn of(target: &str) -> Self {
        let host = target.rsplit_once(':').map_or(target, |(host, _)| host);
        if host == "api.openai.com" { Self::CompletionTokens } else { Self::Tokens }
    }

    /// In a question.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tokens => "max_tokens",
            Self::CompletionTokens => "max_completion_tokens",
        }
    }
}

/// A question in the form of this API.
pub(super) fn body(ask: &Ask<'_>, streaming: bool, length: Length) -> Value {
    let mut messages = vec![json!({"role": "system", "content": ask.system})];
    for message in ask.messages {
        match message["role"] == "assistant" {
            true => messages.push(from_model(&message["content"])),
            false => messages.extend(from_us(&message["content"])),
        }
    }
    let function = |tool: &Value| {
        let (name, about) = (&tool["name"], &tool["description"]);
        json!({"type": "function", "function": {"name": name, "description": about, "parameters": tool["input_schema"]}})
    };
    let tools: Vec<Value> = ask.tools.iter().map(function).collect();
    let mut body = json!({"model": ask.model, "messages": messages, "stream": streaming});
    body[length.name()] = json!(ask.most);
    if !tools.is_empty() {
        body["tools"] = json!(tools);
    }
    if streaming {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

/// What the model said.
fn from_model(content: &Value) -> Value {
    let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let text: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
    let call = |block: &Value| {
        let function = json!({"name": block["name"], "arguments": block["input"].to_string()});
        json!({"id": block["id"], "type": "function", "function": function})
    };
    let calls: Vec<Value> = blocks.iter().filter(|block| block["type"] == "tool_use").map(call).collect();
    let text = content.as_str().map_or_else(|| text.join("\n"), str::to_owned);
    let mut message = json!({"role": "assistant", "content": text});
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    message
}

/// What we said: results of tools one by one, and the rest after them. Results hold only text there, so images follow.
fn from_us(content: &Value) -> Vec<Value> {
    if let Some(text) = content.as_str() {
        return vec![json!({"role": "user", "content": text})];
    }
    let (mut messages, mut rest) = (Vec::new(), Vec::new());
    for block in content.as_array().into_iter().flatten() {
        match block["type"].as_str() {
            Some("tool_result") => {
                let (text, images) = result(&block["content"]);
                messages.push(json!({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}));
                rest.extend(images);
            }
            Some("image") => rest.extend(image(block)),
            _ => rest.push(json!({"type": "text", "text": block["text"]})),
        }
    }
    if !rest.is_empty() {
        messages.push(json!({"role": "user", "content": rest}));
    }
    messages
}

fn result(content: &Value) -> (String, Vec<Value>) {
    match content.as_array() {
        None => (content.as_str().unwrap_or_default().to_owned(), Vec::new()),
        Some(blocks) => {
            let texts: Vec<&str> = blocks.iter().filter_map(|block| block["text"].as_str()).collect();
            (texts.join("\n"), blocks.iter().filter_map(image).collect())
        }
    }
}

fn image(block: &Value) -> Option<Value> {
    let source = &block["source"];
    let (kind, data) = (source["media_type"].as_str()?, source["data"].as_str()?);
    Some(json!({"type": "image_url", "image_url": {"url": format!("data:{kind};base64,{data}")}}))
}

/// An answer that is being read.
#[derive(Default)]
pub(super) struct Reading {
    text: String,
    calls: BTreeMap<u64, Call>,
    stop: Option<String>,
    tokens: Tokens,
    model: String,
}

#[derive(Default)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Decoder for Reading {
    fn event(&mut self, event: &Value, pieces: &UnboundedSender<Piece>) -> Result<(), ModelError> {
        if event["error"].is_object() {
            return Err(error::in_stream(&event["error"]));
        }
        if let Some(message) = event["error"].as_str() {
            return Err(error::in_stream(&json!({ "message": message })));
        }
        self.note(event);
        let choice = &event["choices"][0];
        self.add(&choice["delta"], pieces)?;
        self.stop = choice["finish_reason"].as_str().map(str::to_owned).or(self.stop.take());
        Ok(())
    }

    fn tokens(&self) -> Tokens {
        self.tokens
    }

    fn finish(self: Box<Self>) -> Result<Reply, ModelError> {
        if self.stop.is_none() {
            return Err(ModelError::Cut("it ended before the answer was complete".to_owned()));
        }
        Ok(self.reply())
    }
}

impl Reading {
    fn note(&mut self, told: &Value) {
        if let Some(model) = told["model"].as_str() {
            self.model = model.chars().filter(|letter| !letter.is_control()).take(100).collect();
        }
        let usage = &told["usage"];
        if let (Some(input), Some(output)) = (usage["prompt_tokens"].as_u64(), usage["completion_tokens"].as_u64()) {
            let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or_default().min(input);
            self.tokens = Tokens { input: input - cached, output, cache_read: cached, cache_written: 0 };
        }
    }

    fn add(&mut self, delta: &Value, pieces: &UnboundedSender<Piece>) -> Result<(), ModelError> {
        if let Some(text) = delta["content"].as_str().filter(|text| !text.is_empty()) {
            self.text.push_str(text);
            let _ = pieces.send(Piece::Text(text.to_owned()));
        }
        let thought = delta["reasoning_content"].as_str().or(delta["reasoning"].as_str());
        if let Some(text) = thought.filter(|text| !text.is_empty()) {
            let _ = pieces.send(Piece::Thinking(text.to_owned()));
        }
        for (position, part) in delta["tool_calls"].as_array().into_iter().flatten().enumerate() {
            let index = part["index"].as_u64().unwrap_or(position as u64);
            if self.calls.len() >= MOST_CALLS && !self.calls.contains_key(&index) {
                return Err(ModelError::Malformed(format!("it calls more than {MOST_CALLS} tools at once")));
            }
            let call = self.calls.entry(index).or_default();
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            if call.id.is_empty() {
                call.id = text(&part["id"]);
            }
            call.name.push_str(&text(&part["function"]["name"]));
            match &part["function"]["arguments"] {
                // Some servers hand them over already read.
                arguments @ Value::Object(_) => call.arguments = arguments.to_string(),
                arguments => call.arguments.push_str(arguments.as_str().unwrap_or_default()),
            }
        }
        Ok(())
    }

    fn reply(self) -> Reply {
        let (mut content, mut unreadable) = (Vec::new(), Vec::new());
        if !self.text.is_empty() {
            content.push(json!({"type": "text", "text": self.text}));
        }
        let has_calls = !self.calls.is_empty();
        for (index, Call { id, name, arguments }) in self.calls {
            let id = if id.is_empty() { format!("call_{index}") } else { id };
            let read = match arguments.trim() {
                "" => Some(json!({})),
                text => serde_json::from_str(text).ok().filter(Value::is_object),
            };
            if read.is_none() {
                unreadable.push(id.clone());
            }
            content.push(json!({"type": "tool_use", "id": id, "name": name, "input": read.unwrap_or(json!({}))}));
        }
        let stop = match self.stop.as_deref() {
            Some("length") => Stop::Length,
            Some("content_filter") => Stop::Refusal,
            // Some servers say `stop` though they wait for tools.
            Some("stop" | "tool_calls" | "function_call") if has_calls => Stop::Tools,
            Some("stop" | "tool_calls" | "function_call") => Stop::End,
            other => Stop::Other(other.unwrap_or("no reason").chars().take(60).collect()),
        };
        Reply { content, stop, tokens: self.tokens, model: self.model, unreadable }
    }
}

/// An answer that came as a whole.
pub(super) fn whole(answer: Value) -> Result<Reply, ModelError> {
    if answer["error"].is_object() {
        return Err(error::in_stream(&answer["error"]));
    }
    let choice = &answer["choices"][0];
    if !choice["message"].is_object() {
        return Err(ModelError::Malformed("it has no message".to_owned()));
    }
    let mut reading = Reading { stop: choice["finish_reason"].as_str().map(str::to_owned), ..Reading::default() };
    reading.note(&answer);
    let (nobody, _) = tokio::sync::mpsc::unbounded_channel();
    reading.add(&choice["message"], &nobody)?;
    Ok(reading.reply())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tokio::sync::mpsc;

    use super::*;

    fn read(events: &[Value]) -> Result<Reply, ModelError> {
        let (sender, _pieces) = mpsc::unbounded_channel();
        let mut reading = Box::<Reading>::default();
        events.iter().try_for_each(|event| reading.event(event, &sender))?;
        reading.finish()
    }

    #[test]
    fn a_conversation_with_tools_and_images_is_put_into_their_form() {
        let messages = [
            json!({"role": "user", "content": "look"}),
            json!({"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}]}),
            json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
                {"type": "text", "text": "a.png"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]},
                {"type": "text", "text": "and hurry"}]}),
        ];
        let tools = [json!({"name": "bash", "description": "runs", "input_schema": {"type": "object"}})];
        let ask = Ask { model: "m", system: "s", tools: &tools, messages: &messages, most: 7 };
        let body = body(&ask, true, Length::of("127.0.0.1:8080"));
        let said = body["messages"].as_array().unwrap();
        assert_eq!(
            said.iter().map(|one| one["role"].as_str().unwrap()).collect::<Vec<_>>(),
            ["system", "user", "assistant", "tool", "user"]
        );
        assert_eq!(said[2]["tool_calls"][0]["function"], json!({"name": "bash", "arguments": "{\"command\":\"ls\"}"}));
        assert_eq!((&said[2]["content"], &said[3]["content"]), (&json!("I look."), &json!("a.png")));
        assert_eq!(said[4]["content"][0]["image_url"]["url"], "data:image/png;base64,AAAA");
        assert_eq!(
            (&body["max_tokens"], &body["tools"][0]["function"]["parameters"]["type"]),
            (&json!(7), &json!("object"))
        );
        assert_eq!(super::body(&ask, false, Length::of("api.openai.com:443"))["max_completion_tokens"], 7);
    }

    #[test]
    fn a_stream_becomes_the_blocks_that_were_meant() {
        let reply = read(&[
            json!({"model": "gpt-x", "choices": [{"delta": {"role": "assistant", "content": "Let me "}}]}),
            json!({"choices": [{"delta": {"content": "look."}}]}),
            json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "bash", "arguments": ""}}]}}]}),
            json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{\"command\":"}}]}}]}),
            json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "\"ls\"}"}}, {"index": 1, "function": {"name": "edit", "arguments": "{oops"}}]}}]}),
            json!({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
            json!({"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}),
        ])
        .unwrap();
        assert_eq!((reply.text().as_str(), &reply.stop, reply.model.as_str()), ("Let me look.", &Stop::Tools, "gpt-x"));
        assert_eq!(
            reply.content[1],
            json!({"type": "tool_use", "id": "c1", "name": "bash", "input": {"command": "ls"}})
        );
        assert_eq!((reply.content[2]["id"].as_str().unwrap(), reply.unreadable), ("call_1", vec!["call_1".to_owned()]));
        assert_eq!(reply.tokens, Tokens { input: 6, output: 5, cache_read: 4, cache_written: 0 });
    }

    #[test]
    fn what_breaks_off_or_fails_is_no_answer() {
        assert!(matches!(read(&[json!({"choices": [{"delta": {"content": "half"}}]})]), Err(ModelError::Cut(_))));
        assert!(matches!(read(&[json!({"error": {"message": "boom", "code": "x"}})]), Err(ModelError::Stream { .. })));
        for wrong in [json!({}), json!({"choices": []}), json!({"choices": [{"message": "text"}]}), json!([1])] {
            assert!(whole(wrong).is_err());
        }
    }

    #[test]
    fn an_answer_as_a_whole_is_the_same() {
        let call = json!({"id": "c", "function": {"name": "bash", "arguments": {"command": "ls"}}});
        let answer = json!({"model": "m", "choices": [{"message": {"content": null, "tool_calls": [call]}, "finish_reason": "stop"}]});
        let reply = whole(answer).unwrap();
        assert_eq!((&reply.stop, &reply.content[0]["input"]["command"]), (&Stop::Tools, &json!("ls")));
    }
}
