//! OpenCode, headless: how it is started, and what its events mean.

use sandbox_core::exec::Exit;
use serde_json::{Value, json};

use super::{
    dialect::{Dialect, Invocation, Resume, Said, Start, call, result, short},
    home::HomeFile,
    lending::PLACEHOLDER,
};
use crate::{
    agent::{Note, WorkError, words},
    config::ModelApi,
};

/// What it calls the server of its model.
const PROVIDER: &str = "sandbox";

/// Of what it says in one step, so many bytes are kept, and what was said last before that.
const LONGEST: usize = 1 << 20;

/// What is known of one run.
#[derive(Default)]
pub(super) struct OpenCode {
    /// Why its last step ended.
    reason: Option<String>,
    /// What it said since its last step began.
    text: String,
    error: Option<String>,
}

impl Dialect for OpenCode {
    fn invocation(&self, start: &Start<'_>) -> Invocation {
        // Without a title it would ask the model for one.
        let mut argv = vec![start.program, "run", "--format", "json", "--title", "task"];
        let session = match start.resume {
            Resume::Nothing => None,
            Resume::Last => {
                argv.push("--continue");
                None
            }
            Resume::Named(session) => {
                argv.extend(["--session", session]);
                Some(session.clone())
            }
        };
        let settings = config(start).to_string();
        let mut env = vec![
            ("OPENCODE_CONFIG_CONTENT", settings.as_str()),
            ("OPENCODE_DISABLE_AUTOUPDATE", "1"),
            ("OPENCODE_DISABLE_MODELS_FETCH", "1"),
            ("OPENCODE_DISABLE_LSP_DOWNLOAD", "1"),
            ("OPENCODE_DISABLE_DEFAULT_PLUGINS", "1"),
            ("OPENCODE_DISABLE_SHARE", "1"),
        ];
        if !start.trusts_workspace {
            env.extend([("OPENCODE_PURE", "1"), ("OPENCODE_DISABLE_PROJECT_CONFIG", "1")]);
        }
        let env = env.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Invocation { argv: argv.into_iter().map(str::to_owned).collect(), env, session }
    }

    /// It has two ways to load plugins, and nothing turns off the second: what these name is executed (seen in 1.18.34).
    fn home(&self) -> Result<Vec<HomeFile>, WorkError> {
        Ok(vec![HomeFile::prompt()])
    }

    fn unstoppable(&self) -> &'static [&'static str] {
        &[".opencode", "opencode.json", "opencode.jsonc"]
    }

    fn message(&self, text: &str) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    fn listens(&self) -> bool {
        false
    }

    fn line(&mut self, line: &Value) -> Vec<Said> {
        let part = &line["part"];
        let mut said = Vec::new();
        match line["type"].as_str().unwrap_or_default() {
            "step_start" => {
                self.text.clear();
                said.extend(line["sessionID"].as_str().map(|id| Said::Session(id.to_owned())));
            }
            "text" => {
                let text = part["text"].as_str().unwrap_or_default();
                if self.text.len() < LONGEST {
                    self.text.push_str(text);
                }
                said.push(Said::Note(Note::Text { text: text.to_owned() }));
            }
            "reasoning" => {
                said.push(Said::Note(Note::Thinking { text: part["text"].as_str().unwrap_or_default().to_owned() }));
            }
            "tool_use" => said.extend(tool(part)),
            "step_finish" => {
                self.reason = part["reason"].as_str().map(str::to_owned);
                // What broke before has been made good by now.
                self.error = None;
            }
            "error" => self.error = Some(error(&line["error"])),
            _ => {}
        }
        said
    }

    /// It ends with 0 also when it just stopped; only its last step tells.
    fn outcome(&self, exit: Exit) -> Result<String, String> {
        match (&self.error, self.reason.as_deref(), exit) {
            (None, Some("stop"), Exit::Code(0)) => Ok(self.text.clone()),
            (Some(error), ..) => Err(format!("OpenCode did not finish: {error}")),
            (None, Some("tool-calls"), Exit::Code(0)) => Err("OpenCode stopped in the middle of its work, without \
                 saying why: something that it wanted was refused. Say the task in other words, or in smaller parts"
                .to_owned()),
            (None, Some(reason), exit) => {
                Err(format!("OpenCode {} and did not finish ({})", words::of_exit(exit), short(reason, 100)))
            }
            (None, None, exit) => Err(format!("OpenCode {} and gave no answer", words::of_exit(exit))),
        }
    }

    fn has_forgotten(&self) -> bool {
        self.error
            .as_deref()
            .is_some_and(|error| error.contains("Session not found") || error.contains("NotFoundError"))
    }
}

fn config(start: &Start<'_>) -> Value {
    let (package, base) = match start.api {
        ModelApi::Messages => ("@ai-sdk/anthropic", format!("{}/v1", start.address)),
        ModelApi::Chat => ("@ai-sdk/openai-compatible", start.address.to_owned()),
    };
    let name = format!("{PROVIDER}/{}", start.model);
    let limit = json!({ "context": start.context, "output": start.answer });
    json!({
        "permission": "allow",
        "autoupdate": false,
        "share": "disabled",
        "model": name,
        "small_model": name,
        "instructions": [start.prompt_file],
        "provider": { PROVIDER: {
            "npm": package,
            "options": { "baseURL": base, "apiKey": PLACEHOLDER },
            "models": { start.model: { "limit": limit, "tool_call": true } },
        } },
    })
}

/// It tells of a tool only when that has ended.
fn tool(part: &Value) -> [Said; 2] {
    let (state, id) = (&part["state"], part["callID"].as_str().unwrap_or_default());
    let time = |name: &str| state["time"][name].as_f64().unwrap_or_default();
    let well = state["status"] == "completed";
    let text = state[if well { "output" } else { "error" }].as_str().unwrap_or_default();
    let seconds = ((time("end") - time("start")) / 1000.0).clamp(0.0, 1e6);
    let tool = part["tool"].as_str().unwrap_or_default();
    [Said::Note(call(id, tool, &state["input"])), Said::Note(result(id, well, text, seconds))]
}

fn error(error: &Value) -> String {
    let message = error["data"]["message"].as_str().or(error["message"].as_str()).unwrap_or_default();
    let name = error["name"].as_str().unwrap_or("an error");
    short(&format!("{name}: {message}"), 1000)
}
