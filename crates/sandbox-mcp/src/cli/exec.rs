//! `exec` in a sandbox that exists, or with a terminal: everything goes through a relay, nothing of ours goes inside.

use std::{sync::Arc, time::Duration};

use sandbox_core::exec::Exit;
use sandbox_executor::protocol::{Failure, Reason};
use serde_json::json;

use super::{
    Answer,
    args::Exec,
    exit, outside,
    prompt::AtTerminal,
    pulling::Pulling,
    relay::{self, Ended, Sink},
    screen, single, terminal,
};
use crate::{
    app::App,
    config::Settings,
    sandboxes::{
        ClientError, Lifetime, NewSandbox, SandboxesError, Session, TimeLimit, access::Refused, way_out::WayOut,
    },
};

/// SIGSTOP: what became of a command in a sandbox that was frozen.
const STOPPED: i32 = 19;

pub(super) async fn exec(settings: Settings, args: Exec, answer: Answer) -> anyhow::Result<u8> {
    let app = if args.session.is_some() { App::reach(settings)? } else { App::make_one(settings)? };
    let code = tokio::select! {
        code = in_sandbox(&app, args, answer) => code,
        signal = terminal::stop_asked() => Ok(128 + signal),
    };
    app.sandboxes.close().await;
    code
}

async fn in_sandbox(app: &App, args: Exec, answer: Answer) -> anyhow::Result<u8> {
    let (session, narrowed) = session(app, &args).await?;
    let mut command = single::command(args)?;
    let interactive = answer == Answer::Text && terminal::is_interactive();
    // A person at a terminal ends a command when they want; only a limit that they asked for holds.
    let limit = if interactive && command.timeout.is_none() { TimeLimit::None } else { TimeLimit::Policy };
    if interactive {
        command.terminal = Some(terminal::size());
        command.env.entry("TERM".into()).or_insert_with(|| std::env::var("TERM").unwrap_or_else(|_| "xterm".into()));
    }
    let allowed = session.allowed(command.timeout);
    if let Some(asked) = allowed.lowered_from {
        let policy = &session.facts().spec.policy;
        screen::tell(&single::lowered(asked, allowed.timeout, policy, &app.settings));
    }
    let admitted = match session.admit(command, &AtTerminal::new(&app.settings)).await {
        Ok(admitted) => admitted,
        Err(refused) => return Ok(denied(&refused, answer)),
    };
    let attached = match session.start_attached(admitted, limit).await {
        Ok(attached) => attached,
        Err(SandboxesError::Executor(ClientError::Refused(failure))) => return Ok(refused(&failure, answer)),
        Err(error) => return Err(error.into()),
    };
    let (job, sink) = (attached.job(), Sink::new(answer));
    let raw = if interactive { Some(terminal::Raw::enter()?) } else { None };
    let ended = relay::relay(&session, attached, sink).await;
    drop(raw);
    match ended? {
        Ended::Finished { exit, elapsed, captured } => {
            session.record_end(job, exit, elapsed, &sandbox_core::exec::Ending::default());
            let refused = session.take_refused(exit).await;
            outside::say(&refused);
            if exit != Exit::Code(0) {
                outside::say_unreached(&session.way_out().map(WayOut::take_unreached).unwrap_or_default());
            }
            if let Some(message) = exit::message(exit, &session.facts().spec.policy) {
                screen::tell(&message);
            }
            if let Some(captured) = captured {
                let mut told = captured.told(exit, elapsed);
                told["narrowed"] = json!(narrowed);
                told["denials"] = json!(refused);
                screen::say_json(&told);
            }
            Ok(exit::code(exit))
        }
        Ended::Frozen { why, captured } => {
            outside::say(&session.way_out().map(WayOut::take_refused).unwrap_or_default());
            screen::tell(&format!("frozen: {why}"));
            if let Some(captured) = captured {
                let mut told = captured.told(Exit::Signal(STOPPED), Duration::ZERO);
                told["frozen"] = json!(why);
                screen::say_json(&told);
            }
            Ok(exit::code(Exit::Signal(STOPPED)))
        }
        Ended::NobodyReads => Ok(128 + 13),
    }
}

/// The sandbox, and what the ceiling took from the policy of a fresh one.
async fn session(app: &App, args: &Exec) -> anyhow::Result<(Arc<Session>, Vec<String>)> {
    if let Some(id) = &args.session {
        return Ok((app.sandboxes.find_to_use(&app.owner_of(id), id).await?, Vec::new()));
    }
    let (policy, narrowed) = single::policy(&app.settings, args)?;
    let (image, env) = single::image(&app.settings, args)?;
    let new = NewSandbox {
        backend: single::backend(&app.settings, args)?.cloned(),
        image,
        policy,
        lifetime: Lifetime::Temporary,
        env,
        tools: Vec::new(),
    };
    let pulling = Pulling::new(false);
    let tell = Arc::new(move |fetching| pulling.show(&fetching));
    Ok((app.sandboxes.create_telling(&app.caller, new, tell).await?, narrowed))
}

/// A command that the policy does not let run.
fn denied(refused: &Refused, answer: Answer) -> u8 {
    screen::tell(&refused.to_string());
    if let (Refused::Denied(denials), Answer::Json) = (refused, answer) {
        screen::say_json(&json!({ "status": "denied", "denials": denials }));
    }
    exit::NOT_ALLOWED
}

/// A command that could not be started ends as shells have it.
fn refused(failure: &Failure, answer: Answer) -> u8 {
    screen::tell(&failure.what);
    if answer == Answer::Json {
        screen::say_json(&screen::error_in_json(&failure.what));
    }
    match failure.reason {
        Reason::NotFound => exit::NO_COMMAND,
        Reason::Denied | Reason::WrongKind => exit::NOT_ALLOWED,
        _ => exit::NO_SANDBOX,
    }
}
