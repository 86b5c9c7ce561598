//! Steps that the mock agent follows: a file in TOML or JSON, with one entry for each step. It comes from the settings
//! (`mock_script`), or with the task as a file `mock-script.toml` or `mock-script.json`.

use std::time::Duration;

use sandbox_core::exec::{Exec, Exit};
use serde::Deserialize;
use serde_json::json;

use super::{Assignment, Finished, WorkError, Worker};
use crate::{
    agent::{Note, Tokens, words},
    sandboxes::access::Inquiry,
};

/// Names under which a script comes with a task.
const NAMES: [&str; 2] = ["mock-script.toml", "mock-script.json"];
/// Largest script.
const LARGEST: u64 = 1 << 20;
/// So much of a command's output is kept.
const OUTPUT: usize = 30_000;

/// All steps, in order.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Script {
    steps: Vec<Action>,
}

/// One step.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
enum Action {
    /// Tells what is being done.
    Step(String),
    /// Says something.
    Say(String),
    /// Thinks something.
    Think(String),
    /// Writes a file.
    Write { path: String, content: String },
    /// Runs a shell command; it may fail.
    Run(String),
    /// Runs a shell command that must not fail.
    Must(String),
    /// Asks the person, and puts the answer where `{answer}` stands in later steps.
    Ask {
        question: String,
        #[serde(default)]
        choices: Vec<String>,
        #[serde(default)]
        default: String,
    },
    /// Acts as if a model had answered.
    Spend { input: u64, output: u64 },
    /// Waits.
    Sleep(f64),
    /// Waits for a message of the person, and puts it where `{answer}` stands.
    Wait,
    /// Fails.
    Fail(String),
    /// Ends with this result. `{task}`, `{answer}`, `{output}` and `{earlier}` (tasks before in this sandbox) are filled in.
    Finish(String),
}

/// What later steps may speak of.
#[derive(Default)]
struct Known {
    answer: String,
    output: String,
}

impl Script {
    /// The script of this task, if it has one.
    pub async fn find(task: &Assignment, worker: &Worker<'_>) -> Result<Option<Self>, WorkError> {
        if let Some(name) = NAMES.into_iter().find(|name| task.files.iter().any(|file| file == name)) {
            let text = worker.read(name, LARGEST).await?;
            return Self::parse(name, &String::from_utf8_lossy(&text)).map(Some);
        }
        let Some(file) = &worker.settings().mock_script else { return Ok(None) };
        let name = file.display().to_string();
        let text = tokio::fs::read_to_string(file).await;
        let text = text.map_err(|error| WorkError::Agent(format!("the script {name} cannot be read: {error}")))?;
        Self::parse(&name, &text).map(Some)
    }

    fn parse(name: &str, text: &str) -> Result<Self, WorkError> {
        let parsed = match name.ends_with(".json") {
            true => serde_json::from_str(text).map_err(|error| error.to_string()),
            false => toml::from_str(text).map_err(|error| error.to_string()),
        };
        parsed.map_err(|why| WorkError::Agent(format!("the script {name} cannot be understood: {why}")))
    }

    /// Does what it says.
    pub async fn follow(self, task: &Assignment, worker: &Worker<'_>) -> Result<Finished, WorkError> {
        let earlier = task.memory.as_ref().and_then(|memory| memory["tasks"].as_u64()).unwrap_or_default();
        let mut known = Known::default();
        let work = async {
            for action in self.steps {
                let filled = |text: &str| {
                    text.replace("{answer}", &known.answer)
                        .replace("{output}", known.output.trim_end())
                        .replace("{earlier}", &earlier.to_string())
                        .replace("{task}", &task.task)
                };
                if let Action::Finish(text) = &action {
                    return Ok(Finished { output: filled(text) });
                }
                let action = action.filled(&filled);
                action.carry_out(worker, &mut known).await?;
                worker.may_go_on()?;
            }
            Ok(Finished { output: known.output })
        };
        let finished = tokio::select! {
            finished = work => finished,
            () = worker.mailbox().interrupted() => Err(WorkError::Interrupted),
        };
        worker.remember(json!({ "tasks": earlier + 1 }));
        finished
    }
}

impl Action {
    fn filled(self, fill: &impl Fn(&str) -> String) -> Self {
        match self {
            Self::Step(text) => Self::Step(fill(&text)),
            Self::Say(text) => Self::Say(fill(&text)),
            Self::Write { path, content } => Self::Write { path: fill(&path), content: fill(&content) },
            Self::Run(text) => Self::Run(fill(&text)),
            Self::Must(text) => Self::Must(fill(&text)),
            Self::Fail(text) => Self::Fail(fill(&text)),
            other => other,
        }
    }

    async fn carry_out(self, worker: &Worker<'_>, known: &mut Known) -> Result<(), WorkError> {
        match self {
            Self::Step(words) => worker.say(&words).await,
            Self::Say(text) => worker.note(Note::Text { text }).await,
            Self::Think(text) => worker.note(Note::Thinking { text }).await,
            Self::Write { path, content } => {
                worker.say(&format!("Writing {path}")).await;
                worker.write(&path, content.as_bytes()).await?;
                worker.look_for_changes(Duration::from_secs(1)).await;
            }
            Self::Run(command) => known.output = run(worker, &command).await?.0,
            Self::Must(command) => match run(worker, &command).await? {
                (output, Exit::Code(0)) => known.output = output,
                (output, exit) => return Err(WorkError::Command { command, exit, output }),
            },
            Self::Ask { question, choices, default } => {
                let inquiry = Inquiry { question, choices, default };
                known.answer = worker.ask(&inquiry).await.unwrap_or(inquiry.default);
            }
            Self::Spend { input, output } => {
                let tokens = Tokens { input, output, ..Tokens::default() };
                worker.spent(&worker.settings().model.name, tokens).await;
            }
            Self::Sleep(seconds) => tokio::time::sleep(Duration::from_secs_f64(seconds.clamp(0.0, 3600.0))).await,
            Self::Wait => {
                worker.mailbox().message().await;
                known.answer = worker.mailbox().take().join("\n");
            }
            Self::Fail(why) => return Err(WorkError::Agent(why)),
            Self::Finish(_) => {}
        }
        Ok(())
    }
}

async fn run(worker: &Worker<'_>, command: &str) -> Result<(String, Exit), WorkError> {
    let (call, tool) = (format!("mock-{}", command.len()), "bash".to_owned());
    let words = words::of_command(command);
    worker.note(Note::Call { call: call.clone(), tool, input: command.to_owned(), words }).await;
    let ran = worker.run_keeping(Exec::shell(command), OUTPUT).await?;
    let (well, seconds) = (ran.exit == Exit::Code(0), ran.elapsed.as_secs_f64());
    let summary = ran.output.chars().take(2000).collect();
    worker.note(Note::Result { call, well, summary, seconds }).await;
    worker.look_for_changes(ran.elapsed).await;
    Ok((ran.output, ran.exit))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_script_is_written_in_toml_or_json() {
        let toml = "[[steps]]\nstep = \"Reading sales.csv\"\n[[steps]]\nrun = \"wc -l sales.csv\"\n\
                    [[steps]]\nwrite = { path = \"a.txt\", content = \"{output}\" }\n[[steps]]\nfinish = \"done\"\n";
        assert_eq!(Script::parse("x.toml", toml).unwrap().steps.len(), 4);
        let json =
            r#"{"steps": [{"ask": {"question": "Which?", "default": "all"}}, {"sleep": 0.1}, {"finish": "{answer}"}]}"#;
        assert_eq!(Script::parse("x.json", json).unwrap().steps.len(), 3);
        let wrong = Script::parse("x.toml", "[[steps]]\nfly = \"high\"\n").unwrap_err().to_string();
        assert!(wrong.contains("x.toml") && wrong.contains("fly"), "{wrong}");
    }
}
