//! Tools that concern people: a question, more access, a look at a web page.

use sandbox_egress::Reader;
use serde_json::{Value, json};

use super::{Outcome, text};
use crate::{
    agent::{WorkError, Worker},
    sandboxes::{
        OpenPort,
        access::{AccessKind, AccessRequest, Inquiry, Span, in_words},
    },
};

pub(super) fn definitions() -> [Value; 3] {
    [
        json!({
            "name": "open_port",
            "description": "Gives the person a web address for an HTTP server that you started in the background. The address works on their computer only, and ends when the sandbox ends. The result says what to tell them about it.",
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
    Ok(Outcome::text(shown_at(&opened, worker.session().reader())))
}

/// What the model is told of an address. At a terminal it ends with the task, so nobody could use it who reads the answer.
fn shown_at(opened: &OpenPort, reader: Reader) -> String {
    let OpenPort { url, port, listening } = opened;
    let tell = match reader {
        Reader::Person => format!(
            "At a terminal they are shown it now, and it ends with this task: in your answer do not repeat it, but say \
             which port to open: {port}"
        ),
        Reader::Model | Reader::Unheard => {
            "Put it into your answer, and say that it ends when the sandbox ends".to_owned()
        }
    };
    let listens = if *listening { "" } else { " Nobody listens on it yet." };
    format!("The person can see it at {url}, on this computer only and until the sandbox ends. {tell}.{listens}")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_ends_with_the_task_is_not_for_the_answer() {
        let opened = OpenPort { url: "http://k.s.localhost:1/".to_owned(), port: 8000, listening: false };
        let (person, model) = (shown_at(&opened, Reader::Person), shown_at(&opened, Reader::Model));
        assert!(person.contains("do not repeat it") && person.contains("which port to open: 8000"), "{person}");
        assert!(model.contains("Put it into your answer") && model.contains("when the sandbox ends"), "{model}");
        for told in [person, model] {
            assert!(told.contains(&opened.url) && told.ends_with("Nobody listens on it yet."), "{told}");
        }
    }
}
