//! `task`: what tasks there were, what each of them did, and how to stop one.

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{
    Answer,
    args::{Task, TaskCommand},
    screen::{self, Look},
};
use crate::{
    agent::{
        TaskId, dollars,
        receipt::{self, Listed},
    },
    config::{self, Settings},
};

pub(super) fn task(settings: &Settings, args: Task, answer: Answer) -> anyhow::Result<u8> {
    config::prepare_state(&settings.state)?;
    receipt::recover(&settings.state);
    match args.command {
        TaskCommand::List { count } => list(settings, count, answer),
        TaskCommand::Show { id } => show(&found(settings, &id)?, answer),
        TaskCommand::Stop { id } => stop(&found(settings, &id)?, answer),
    }
    .map(|()| 0)
}

/// A task by its id, or by the beginning of one.
fn found(settings: &Settings, id: &str) -> anyhow::Result<Listed> {
    if let Ok(id) = id.parse::<TaskId>() {
        return receipt::find(&settings.state, &id)
            .with_context(|| format!("there is no task {id}: `sandbox-mcp task list` shows them"));
    }
    let short = id.strip_prefix("task_").unwrap_or(id);
    let all = receipt::list(&settings.state, usize::MAX);
    let is_it = |task: &Listed| text(&task.receipt, "task_id").starts_with(&format!("task_{short}"));
    let mut matching: Vec<Listed> = all.into_iter().filter(is_it).collect();
    match (matching.pop(), matching.is_empty() && !short.is_empty()) {
        (Some(one), true) => Ok(one),
        (Some(_), _) => bail!("more than one task begins with {id}: write more of it"),
        (None, _) => bail!("there is no task {id}: `sandbox-mcp task list` shows them"),
    }
}

fn list(settings: &Settings, count: usize, answer: Answer) -> anyhow::Result<()> {
    let tasks = receipt::list(&settings.state, count);
    match answer {
        Answer::Json => {
            let short = |task: &Listed| {
                let fields =
                    ["task_id", "session_id", "status", "task", "agent", "began", "duration_seconds", "cost", "error"];
                let mut short: Value =
                    fields.into_iter().map(|field| (field, task.receipt[field].clone())).collect::<Value>();
                short["receipt"] = json!(task.folder.join("receipt.html"));
                short
            };
            screen::say_json(&tasks.iter().map(short).collect::<Vec<_>>());
        }
        Answer::Text if tasks.is_empty() => screen::tell("there were no tasks yet"),
        Answer::Text => {
            let head = format!(
                "{:<30} {:<20} {:<11} {:<11} {:>8} {:>9}  TASK",
                "ID", "BEGAN", "STATUS", "AGENT", "SECONDS", "COST"
            );
            screen::say(&screen::paint(&head, Look::Bold));
            tasks.iter().for_each(|task| screen::say(&line(&task.receipt)));
        }
    }
    Ok(())
}

fn line(receipt: &Value) -> String {
    let task: String =
        text(receipt, "task").split_whitespace().collect::<Vec<_>>().join(" ").chars().take(60).collect();
    let cost = receipt["cost"]["usd"].as_f64().map_or("-".to_owned(), dollars);
    format!(
        "{:<30} {:<20} {} {:<11} {:>8.1} {cost:>9}  {}",
        text(receipt, "task_id"),
        screen::date(receipt["began"].as_u64().unwrap_or_default()),
        screen::paint(&format!("{:<11}", text(receipt, "status")), look(receipt)),
        text(receipt, "agent"),
        receipt["duration_seconds"].as_f64().unwrap_or_default(),
        screen::harmless(&task),
    )
}

fn look(receipt: &Value) -> Look {
    match text(receipt, "status") {
        "completed" => Look::Good,
        "running" => Look::Weak,
        _ => Look::Bad,
    }
}

fn show(task: &Listed, answer: Answer) -> anyhow::Result<()> {
    let receipt = &task.receipt;
    if answer == Answer::Json {
        screen::say_json(receipt);
        return Ok(());
    }
    let say = |label: &str, value: &str| {
        for (number, line) in value.lines().enumerate() {
            let label = if number == 0 { screen::paint(&format!("{label:<10}"), Look::Bold) } else { " ".repeat(10) };
            screen::say(&format!("{label} {}", screen::harmless(line)));
        }
    };
    say("task", text(receipt, "task"));
    let status = screen::paint(text(receipt, "status"), look(receipt));
    screen::say(&format!("{} {status}", screen::paint(&format!("{:<10}", "status"), Look::Bold)));
    say("agent", &format!("{} ({})", text(receipt, "agent"), text(receipt, "agent_why")));
    say("error", text(receipt, "error"));
    say("answer", text(receipt, "output"));
    let seconds = receipt["duration_seconds"].as_f64().unwrap_or_default();
    say("took", &format!("{seconds:.1} s, from {}", screen::date(receipt["began"].as_u64().unwrap_or_default())));
    let cost = &receipt["cost"];
    let money = cost["usd"].as_f64().map_or("no price is known".to_owned(), dollars);
    let tokens: u64 =
        ["input", "output", "cache_read", "cache_written"].iter().filter_map(|kind| cost[kind].as_u64()).sum();
    match cost["turns"].as_u64() {
        Some(0) => say("cost", "nothing: no model was asked"),
        _ => say("cost", &format!("{money}, {tokens} tokens, {} questions to the model", cost["turns"])),
    }
    let steps: Vec<String> = items(&receipt["steps"]).filter_map(step).collect();
    say("steps", &steps.join("\n"));
    for (label, field) in [("new", "files_created"), ("changed", "files_changed")] {
        // Of a task that goes on, or was ended in the middle, nothing but the names is known.
        let named = |file: &Value| match file["size_bytes"].as_u64() {
            Some(size) => format!("{}  {size} bytes  {}", text(file, "path"), file["sha256"].as_str().unwrap_or("")),
            None => text(file, "path").to_owned(),
        };
        say(label, &items(&receipt[field]).map(named).collect::<Vec<_>>().join("\n"));
    }
    let plain = |field: &str| items(&receipt[field]).filter_map(Value::as_str).collect::<Vec<_>>().join("\n");
    say("results", text(receipt, "results"));
    say("deleted", &plain("files_deleted"));
    let host = |host: &Value| {
        format!(
            "{}  {} connections, {} refused, {} failed, {} bytes out, {} in",
            text(host, "target"),
            host["connections"],
            host["refused"],
            host["failed"].as_u64().unwrap_or_default(),
            host["sent_bytes"],
            host["received_bytes"]
        )
    };
    say("hosts", &items(&receipt["hosts"]).map(host).collect::<Vec<_>>().join("\n"));
    if let Some(missed) = receipt["hosts_missed"].as_u64().filter(|missed| *missed > 0) {
        say("", &format!("{missed} events came too fast to be written down: connections may be missing"));
    }
    say("packages", &plain("packages"));
    say("secrets", &plain("secrets"));
    say("refused", &items(&receipt["denials"]).map(|denial| text(denial, "message")).collect::<Vec<_>>().join("\n"));
    say(
        "level",
        &format!("{}, image {}, backend {}", text(receipt, "level"), text(receipt, "image"), text(receipt, "backend")),
    );
    say("sandbox", text(receipt, "session_id"));
    let page = task.folder.join("receipt.html");
    if page.exists() {
        say("page", &page.display().to_string());
    }
    Ok(())
}

/// A step in words: what was done, and what was asked and answered on the way.
fn step(step: &Value) -> Option<String> {
    let default =
        || Some(text(step, "default")).filter(|default| !default.is_empty()).unwrap_or("what it decided itself");
    match text(step, "note") {
        "question" => Some(format!("asked: {}", text(step, "question"))),
        "answer" => Some(format!("  {} said: {}", text(step, "by"), text(step, "answer"))),
        "unanswered" => Some(format!("  nobody answered ({}); it went on with: {}", text(step, "why"), default())),
        _ => step["words"].as_str().map(str::to_owned),
    }
}

fn stop(task: &Listed, answer: Answer) -> anyhow::Result<()> {
    if text(&task.receipt, "status") != "running" {
        bail!("the task {} does not run: it is {}", text(&task.receipt, "task_id"), text(&task.receipt, "status"));
    }
    receipt::ask_to_stop(&task.folder).context("the task cannot be told")?;
    match answer {
        Answer::Json => {
            screen::say_json(
                &json!({ "task_id": task.receipt["task_id"], "session_id": task.receipt["session_id"], "status": "stopping" }),
            );
        }
        Answer::Text => screen::tell("the task is told to stop"),
    }
    Ok(())
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_and_what_took_the_place_of_an_answer_is_among_the_steps() {
        let steps = json!([
            {"at": 0.1, "note": "call", "words": "Reading sales.csv"},
            {"at": 0.2, "note": "question", "question": "Which year?", "default": "2026"},
            {"at": 0.3, "note": "unanswered", "question": "Which year?", "default": "2026", "why": "no answer came in time"},
            {"at": 0.4, "note": "question", "question": "Which region?", "default": ""},
            {"at": 0.5, "note": "answer", "answer": "north", "by": "the person at the terminal"},
            {"at": 0.6, "note": "file", "path": "a.txt", "change": "created"},
        ]);
        let shown: Vec<String> = items(&steps).filter_map(step).collect();
        let expected = [
            "Reading sales.csv",
            "asked: Which year?",
            "  nobody answered (no answer came in time); it went on with: 2026",
            "asked: Which region?",
            "  the person at the terminal said: north",
        ];
        assert_eq!(shown, expected);
    }
}
