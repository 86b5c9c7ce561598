//! `logs`: what happened, and with `--follow` what happens.

use std::time::Duration;

use anyhow::bail;
use sandbox_core::{Bytes, exec::Exit};

use super::{
    Answer,
    args::Logs,
    screen::{self, Look},
    terminal::stop_asked,
};
use crate::{
    app::App,
    config::Settings,
    sandboxes::{Event, Query, Recorded, What},
};

/// Other servers write the history too, so it is asked again and again.
const PAUSE: Duration = Duration::from_millis(250);

pub(super) async fn logs(settings: Settings, args: Logs, answer: Answer) -> anyhow::Result<u8> {
    let app = App::reach(settings)?;
    let kind = args.network.then_some("connection");
    let mut query = Query { owner: None, session: args.session, after: None, kind, limit: args.lines };
    let history = app.sandboxes.history();
    let events = history.events(query.clone()).await?;
    events.iter().for_each(|event| show(event, answer));
    if !args.follow {
        match &query.session {
            _ if events.is_empty() && args.network => screen::tell("no connection is on record"),
            Some(id) if events.is_empty() && args.lines > 0 => {
                bail!("nothing is known of {id}: `sandbox-mcp list` shows the sandboxes that exist")
            }
            None if events.is_empty() => screen::tell("nothing has happened yet"),
            _ => {}
        }
        return Ok(0);
    }
    query.after = Some(events.last().map_or(0, |event| event.id));
    query.limit = 1000;
    let follow = async {
        loop {
            tokio::time::sleep(PAUSE).await;
            let events = history.events(query.clone()).await?;
            events.iter().for_each(|event| show(event, answer));
            query.after = events.last().map(|event| event.id).or(query.after);
        }
    };
    tokio::select! {
        stopped = follow => stopped,
        _ = stop_asked() => Ok(0),
    }
}

fn show(recorded: &Recorded, answer: Answer) {
    match answer {
        Answer::Json => screen::say_json(recorded),
        Answer::Text => screen::say(&line(&recorded.event)),
    }
}

fn line(event: &Event) -> String {
    let when = screen::paint(&screen::date(event.at), Look::Dim);
    format!("{when}  {}  {}", event.session_id, screen::harmless(&words(&event.what)))
}

fn words(what: &What) -> String {
    match what {
        What::Created { image, policy, took } => {
            format!("created from {image} with policy {policy} in {:.1} ms", took.as_secs_f64() * 1000.0)
        }
        What::Adopted => "looked after again".to_owned(),
        What::Started { job, command } => format!("{job} started: {command}"),
        What::Finished { job, exit, elapsed } => {
            let how = match exit {
                Exit::Code(code) => format!("with code {code}"),
                Exit::Signal(signal) => format!("by signal {signal}"),
                Exit::Limit(control) => format!("by the {control} limit"),
            };
            format!("{job} ended {how} after {:.3} s", elapsed.as_secs_f64())
        }
        What::Denied { denial, .. } => {
            format!("denied ({}): {} [{}]", denial.reason, denial.target, denial.rule)
        }
        What::Connection { target, verdict, refused, rule, times, sent, received, elapsed, .. } => {
            let rule = rule.as_deref().unwrap_or("no rule");
            let often = if *times > 1 { format!(", {times} times") } else { String::new() };
            match verdict.as_str() {
                "allowed" => format!(
                    "connected to {target} for {:.3} s: {} out, {} in [{rule}]",
                    elapsed.as_secs_f64(),
                    Bytes(*sent),
                    Bytes(*received)
                ),
                reason if *refused => format!("refused {target} ({reason}{often}) [{rule}]"),
                reason => format!("did not reach {target} ({reason}{often}) [{rule}]"),
            }
        }
        What::PortOpened { port } => format!("port {port} opened to this machine's loopback"),
        What::PortClosed { port, why } => format!("port {port} closed: {why}"),
        What::Asked { kind, target, span, .. } => format!("asked for the {kind} {target} ({span})"),
        What::Granted { target, span, by, .. } => format!("granted by {by} ({span}): {target}"),
        What::Declined { target, reason, by, .. } => format!("{reason} by {by}: {target}"),
        What::Inquired { question, answered, by } => {
            let how = if *answered { "answered" } else { "not answered" };
            format!("the agent asked: {question} ({how} by {by})")
        }
        What::TaskStarted { agent, task } => format!("{agent} works on: {task}"),
        What::TaskFinished { status, elapsed } => format!("task {status} after {:.1} s", elapsed.as_secs_f64()),
        What::Spent { service, model, input_tokens, output_tokens, .. } => {
            let model = model.as_deref().unwrap_or("a model");
            format!("{service}: {model} read {input_tokens} tokens and wrote {output_tokens}")
        }
        What::Frozen { why } => format!("frozen: {why}"),
        What::Ended { why } => format!("ended: {why}"),
        What::Removed { why } => format!("removed: {why}"),
    }
}
