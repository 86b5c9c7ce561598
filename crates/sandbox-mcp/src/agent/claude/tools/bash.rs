//! The tool `bash`: a command in a new shell.

use std::time::Duration;

use sandbox_core::exec::{Exec, Exit};
use serde_json::{Value, json};

use super::{LONGEST, Outcome, text};
use crate::{
    agent::{Progress, WorkError, Worker, words},
    sandboxes::access::in_words,
};

/// A command takes at most so long if the model does not say otherwise.
const USUAL: Duration = Duration::from_secs(120);
/// So long a command in the background is watched before it is left to itself: most that fail do so at once.
const SOON: Duration = Duration::from_millis(700);

pub(super) fn definition() -> Value {
    json!({
        "name": "bash",
        "description": "Runs a shell command in /workspace and returns what it prints and its exit code. Each call is a new \
            shell: cd and variables do not carry over. Long output is cut in the middle.",
        "input_schema": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command or script."},
                "description": {"type": "string", "description": "What it does, in a few plain words for the person who waits."},
                "timeout": {"type": "number", "description": "Seconds after which it is killed. Default: 120."},
                "background": {"type": "boolean", "description": "Leave it running and return at once, for servers."},
            },
            "required": ["command"],
        },
    })
}

pub(super) async fn run(worker: &Worker<'_>, input: &Value) -> Result<Outcome, WorkError> {
    let command = text(input, "command");
    if command.trim().is_empty() {
        return Ok(match input["restart"] == true {
            true => Outcome::text("Every call is a new shell: there is nothing to restart."),
            false => Outcome::failed("`command` is missing."),
        });
    }
    if command.contains('\0') {
        return Ok(Outcome::failed("A command cannot hold a NUL byte."));
    }
    let asked = input["timeout"].as_f64().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let mut exec = Exec::argv(["bash", "-c", command.as_str()]);
    exec.timeout = Some(asked.filter(|time| !time.is_zero()).unwrap_or(USUAL).min(worker.time_left()));
    if input["background"] == true {
        exec.timeout = Some(worker.time_left());
        return in_background(worker, exec).await;
    }
    let ran = match worker.run_keeping(exec, LONGEST).await {
        // Images without it have a shell all the same.
        Err(error) if is_missing(&error) => worker.run_keeping(Exec::shell(command), LONGEST).await?,
        ran => ran?,
    };
    let mut said = ran.output.trim_end().to_owned();
    let ending = match ran.exit {
        Exit::Code(0) if said.is_empty() => Some("(it worked, and printed nothing)".to_owned()),
        Exit::Code(0) => None,
        Exit::Code(code) => Some(format!("[exit code {code}]")),
        Exit::Signal(signal) => Some(format!("[ended by signal {signal}]")),
        Exit::Limit(control) => Some(format!("[ended after {:.0} s: the {control} limit]", ran.elapsed.as_secs_f64())),
    };
    let refused = (!ran.denials.is_empty()).then(|| format!("[refused: {}]", in_words(&ran.denials)));
    for line in ending.into_iter().chain(refused) {
        said = if said.is_empty() { line } else { format!("{said}\n{line}") };
    }
    Ok(if ran.exit == Exit::Code(0) { Outcome::text(said) } else { Outcome::failed(said) })
}

/// Starts a command and leaves it running, unless it ends at once.
async fn in_background(worker: &Worker<'_>, exec: Exec) -> Result<Outcome, WorkError> {
    let mut command = worker.start(exec).await?;
    let mut output = Vec::new();
    let watched = tokio::time::timeout(SOON, async {
        loop {
            match command.next().await? {
                Progress::Output { data, .. } if output.len() < LONGEST => output.extend_from_slice(&data),
                Progress::Output { .. } => {}
                Progress::Ended { exit, .. } => return Ok::<_, WorkError>(exit),
            }
        }
    });
    let ended = watched.await;
    let output = String::from_utf8_lossy(&output).into_owned();
    Ok(match ended {
        Ok(exit) => match exit? {
            Exit::Code(0) => Outcome::text(format!("{output}\n(it has ended already)")),
            exit => Outcome::failed(format!("{output}\n(it {} already)", words::of_exit(exit))),
        },
        Err(_) => Outcome::text(format!("{output}\n(it runs in the background as {})", command.leave())),
    })
}

fn is_missing(error: &WorkError) -> bool {
    matches!(error, WorkError::Sandbox(_)) && error.to_string().contains("no such command")
}
