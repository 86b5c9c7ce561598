//! Tools that concern people: a question, more access, a look at a web page.

use serde_json::{Value, json};

use super::{Outcome, text};
use crate::{
    agent::{WorkError, Worker},
    sandboxes::access::{AccessKind, AccessRequest, Inquiry, Span, in_words},
};

pub(super) fn definitions() -> [Value; 3] {
    [
        json!({
            "name": "open_port",
            "description": "Gives the person a web address for an HTTP server that you started in the background. Put the address into your answer.",
            "input_schema": {"type": "object", "properties": {"port": {"type": "integer"}}, "required": ["port"]},
        }),
        json!({
            "name": "request_access",
            "description": "Asks the person for what the policy refuses: a host, a command, a longer timeout. Only for what the task needs; a no is final.",
            "input_schema": {
                "type": "object",
                "properties": {
                    "kind": {"type": "string", "enum": ["network", "command", "limit"]},
                    "target": {"type": "string", "description": "example.com:443, the command, or timeout=900."},
                    "reason": {"type": "string", "description": "Why, for the person."},
                },
                "required": ["kind", "target", "reason"],
            },
        }),
        json!({
            "name": "ask_person",
            "description": "Asks the person something that you cannot decide yourself. If nobody answers in time, the default holds.",
            "input_schema": {
                "type": "object",
                "properties": {
                    "question": {"type": "string"},
                    "choices": {"type": "array", "items": {"type": "string"}, "description": "Answers to choose from, if there are few."},
                    "default": {"type": "string", "description": "What you do without an answer."},
                },
                "required": ["question", "default"],
            },
        }),
    ]
}

pub(super) async fn open_port(worker: &Worker<'_>, input: &Value) -> Result<Outcome, WorkError> {
    let port = input["port"].as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
    let Some(port) = port else { return Ok(Outcome::failed("`port` must be a number from 1 to 65535.")) };
    let opened = worker.open_port(port).await?;
    let listens = if opened.listening { "" } else { " Nobody listens on it yet." };
    Ok(Outcome::text(format!("The person can see it at {} (on this computer only).{listens}", opened.url)))
}

pub(super) async fn request_access(worker: &Worker<'_>, input: &Value) -> Result<Outcome, WorkError> {
    let kind = match input["kind"].as_str() {
        Some("network") => AccessKind::Network,
        Some("command") => AccessKind::Command,
        Some("limit") => AccessKind::Limit,
        _ => return Ok(Outcome::failed("`kind` is network, command or limit.")),
    };
    let shortened = |name: &str| text(input, name).chars().take(2000).collect::<String>();
    let (target, reason) = (shortened("target"), shortened("reason"));
    if target.trim().is_empty() {
        return Ok(Outcome::failed("`target` is missing."));
    }
    let reason = Some(reason).filter(|reason| !reason.trim().is_empty());
    let request = AccessRequest { kind, target, reason, span: Span::Once };
    Ok(match worker.request_access(request).await {
        Ok(given) => Outcome::text(given.message),
        Err(denials) => Outcome::failed(in_words(&denials)),
    })
}

pub(super) async fn ask(worker: &Worker<'_>, input: &Value) -> Result<Outcome, WorkError> {
    let question: String = text(input, "question").chars().take(4000).collect();
    if question.trim().is_empty() {
        return Ok(Outcome::failed("`question` is missing."));
    }
    let choices = input["choices"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let choices = choices.filter(|choice| !choice.trim().is_empty()).map(str::to_owned).collect();
    let inquiry = Inquiry { question, choices, default: text(input, "default") };
    Ok(Outcome::text(match worker.ask(&inquiry).await {
        Ok(answer) => answer,
        Err(why) => format!("Nobody answered ({why}). Go on with your default: {}", inquiry.default),
    }))
}
