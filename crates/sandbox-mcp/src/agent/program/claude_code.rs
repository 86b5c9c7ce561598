//! Claude Code, headless: how it is started, and what its events mean.

use std::{
    collections::{BTreeMap, HashMap},
    time::{Duration, Instant},
};

use sandbox_core::exec::Exit;
use serde_json::{Value, json};

use super::{
    chance,
    dialect::{Asked, Dialect, Invocation, Resume, Said, Start, call, result, short, text_of},
    home::{HomeFile, When},
    lending::PLACEHOLDER,
};
use crate::{
    agent::{Note, WorkError, words},
    sandboxes::access::Inquiry,
};

/// Tools that reach for the network past the sandbox's own programs, or that wait for a later that never comes.
const WITHOUT: &str = "WebFetch WebSearch CronCreate CronDelete CronList ScheduleWakeup EnterWorktree ExitWorktree \
EnterPlanMode ExitPlanMode";

/// The tool that asks a person.
const QUESTIONS: &str = "AskUserQuestion";
/// So many of its questions are put at once.
const AT_ONCE: usize = 4;
/// What it does where nobody answers.
const DECIDES: &str = "decide yourself";

/// Calls whose time is taken at once.
const CALLS: usize = 1000;

/// Plugins that it brings along.
const BUILT_IN: [&str; 3] = ["agents-md", "privacy", "plugin-authoring"];

/// What is known of one run.
#[derive(Default)]
pub(super) struct ClaudeCode {
    /// The message whose pieces were shown already.
    streamed: Option<String>,
    began: HashMap<String, Instant>,
    /// The last result.
    last: Option<Value>,
}

impl Dialect for ClaudeCode {
    fn invocation(&self, start: &Start<'_>) -> Invocation {
        let words = [
            start.program,
            "-p",
            "--input-format",
            "stream-json",
            "--output-format",
            "stream-json",
            "--include-partial-messages",
            "--verbose",
            "--dangerously-skip-permissions",
            "--disallowedTools",
            WITHOUT,
            "--model",
            start.model,
            "--append-system-prompt",
            start.prompt,
        ];
        let conversation = match start.resume {
            Resume::Named(session) => ["--resume", session],
            Resume::Nothing | Resume::Last => ["--session-id", start.session],
        };
        let session = Some(conversation[1].to_owned());
        let mut argv: Vec<&str> = words.into_iter().chain(conversation).collect();
        if start.asks {
            argv.extend(["--permission-prompt-tool", "stdio"]);
        }
        if !start.trusts_workspace {
            argv.extend(["--setting-sources", "", "--strict-mcp-config"]);
        }
        let settings = [
            ("ANTHROPIC_BASE_URL", start.address),
            ("ANTHROPIC_API_KEY", PLACEHOLDER),
            // Every model that it could ask for by itself is the one that it was given.
            ("ANTHROPIC_MODEL", start.model),
            ("ANTHROPIC_SMALL_FAST_MODEL", start.model),
            ("ANTHROPIC_DEFAULT_HAIKU_MODEL", start.model),
            ("ANTHROPIC_DEFAULT_SONNET_MODEL", start.model),
            ("ANTHROPIC_DEFAULT_OPUS_MODEL", start.model),
            ("CLAUDE_CODE_SUBAGENT_MODEL", start.model),
            ("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1"),
            ("DISABLE_AUTOUPDATER", "1"),
            ("DISABLE_TELEMETRY", "1"),
            ("DISABLE_ERROR_REPORTING", "1"),
            ("CLAUDE_CODE_MAX_RETRIES", "5"),
            // It would not work as root otherwise; and this is one.
            ("IS_SANDBOX", "1"),
        ];
        let env = settings.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        Invocation {
            argv: argv.into_iter().map(str::to_owned).collect(),
            env: env.collect::<BTreeMap<_, _>>(),
            session,
        }
    }

    fn home(&self) -> Result<Vec<HomeFile>, WorkError> {
        let content = first_start()?.to_string().into_bytes();
        Ok(vec![HomeFile { path: "/home/sandbox/.claude.json", content, when: When::Missing }])
    }

    fn message(&self, text: &str) -> Vec<u8> {
        let content = json!([{ "type": "text", "text": text }]);
        let line = json!({ "type": "user", "message": { "role": "user", "content": content } });
        format!("{line}\n").into_bytes()
    }

    fn listens(&self) -> bool {
        true
    }

    fn line(&mut self, line: &Value) -> Vec<Said> {
        match line["type"].as_str().unwrap_or_default() {
            "system" => self.system(line),
            "stream_event" => self.piece(line),
            "assistant" => self.assistant(line),
            "user" => self.results(line),
            "control_request" => vec![request(line)],
            "result" => {
                self.last = Some(line.clone());
                vec![Said::Turn]
            }
            _ => Vec::new(),
        }
    }

    fn answer(&self, asked: &Asked, answers: &[Option<String>]) -> Vec<u8> {
        let questions = asked.form["questions"].as_array().into_iter().flatten();
        let texts = questions.map(|question| question["question"].as_str().unwrap_or_default().to_owned());
        let answers = answers.iter().map(|answer| match answer {
            Some(answer) => answer.clone(),
            None => format!("(nobody answered: {DECIDES})"),
        });
        let mut form = asked.form.clone();
        form["answers"] = texts.zip(answers).map(|(text, answer)| (text, json!(answer))).collect::<Value>();
        allow(&asked.id, &form)
    }

    /// What failed at the model comes as `success` too, with `is_error`; so that alone counts.
    fn outcome(&self, exit: Exit) -> Result<String, String> {
        let Some(last) = &self.last else {
            return Err(format!("Claude Code {} and gave no result", words::of_exit(exit)));
        };
        let said = last["result"].as_str().unwrap_or_default();
        if last["is_error"] == false && last["subtype"] == "success" {
            return Ok(said.to_owned());
        }
        let errors = last["errors"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let why: Vec<&str> = Some(said).filter(|said| !said.is_empty()).into_iter().chain(errors).collect();
        let reason = last["terminal_reason"].as_str().or(last["subtype"].as_str()).unwrap_or("unknown");
        Err(short(&format!("Claude Code did not finish ({reason}): {}", why.join("; ")), 2000))
    }

    fn has_forgotten(&self) -> bool {
        let errors = self.last.iter().flat_map(|last| last["errors"].as_array()).flatten().filter_map(Value::as_str);
        errors.into_iter().any(|error| error.contains("No conversation found"))
    }
}

/// What it writes by itself when it starts in a home that it has never seen, field by field, and waits for the disk each
/// time: some 100 ms in all. What it does not find here, because it is another version, it still writes.
fn first_start() -> Result<Value, WorkError> {
    let used = json!({ "usageCount": 0, "lastUsedAt": 0, "lastUsedNumStartups": 0 });
    let plugins: Value = BUILT_IN.iter().map(|name| (format!("cc-plugin-{name}@builtin"), used.clone())).collect();
    Ok(json!({
        "firstStartTime": "2026-01-01T00:00:00.000Z",
        "migrationVersion": 15,
        // Names of nobody: they say only that two questions come from one sandbox.
        "userID": chance::hex::<32>()?,
        "machineID": chance::hex::<32>()?,
        "pluginUsage": plugins,
    }))
}

/// It asks whoever started it.
fn request(line: &Value) -> Said {
    let (id, request) = (short(line["request_id"].as_str().unwrap_or_default(), 100), &line["request"]);
    let form = &request["input"];
    if request["subtype"] != "can_use_tool" {
        return Said::Hears(control(json!({ "subtype": "error", "request_id": id, "error": "not known here" })));
    }
    // Its steps are approved, all of them.
    if request["tool_name"] != QUESTIONS || !form["questions"].is_array() {
        return Said::Hears(allow(&id, form));
    }
    let inquiries = form["questions"].as_array().into_iter().flatten().take(AT_ONCE).map(inquiry).collect();
    Said::Asks(Asked { id, form: form.clone(), inquiries })
}

fn inquiry(question: &Value) -> Inquiry {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let options = || question["options"].as_array().into_iter().flatten();
    let explained = options().filter(|option| option["description"].as_str().is_some_and(|text| !text.is_empty()));
    let explained: Vec<_> =
        explained.map(|option| format!("{}: {}", text(&option["label"]), text(&option["description"]))).collect();
    let mut asked = text(&question["question"]);
    let labels: Vec<_> = options().map(|option| text(&option["label"])).collect();
    let several = question["multiSelect"] == true;
    if several {
        asked.push_str(&format!(" Several of: {}.", labels.join(", ")));
    }
    if !explained.is_empty() {
        asked.push_str(&format!(" ({})", explained.join("; ")));
    }
    Inquiry { question: asked, choices: if several { Vec::new() } else { labels }, default: DECIDES.to_owned() }
}

fn allow(id: &str, input: &Value) -> Vec<u8> {
    let response = json!({ "behavior": "allow", "updatedInput": input });
    control(json!({ "subtype": "success", "request_id": id, "response": response }))
}

fn control(response: Value) -> Vec<u8> {
    format!("{}\n", json!({ "type": "control_response", "response": response })).into_bytes()
}

impl ClaudeCode {
    fn system(&self, line: &Value) -> Vec<Said> {
        match line["subtype"].as_str().unwrap_or_default() {
            "init" => line["session_id"].as_str().map(|id| Said::Session(id.to_owned())).into_iter().collect(),
            "api_retry" => {
                let number = |name: &str| line[name].as_u64().unwrap_or_default();
                let status = line["error_status"].as_u64().map(|status| format!("{status} ")).unwrap_or_default();
                vec![Said::Note(Note::Retry {
                    attempt: number("attempt").min(1000) as u32,
                    after: Duration::from_millis(number("retry_delay_ms").min(86_400_000)),
                    why: short(&format!("{status}{}", line["error"].as_str().unwrap_or("no answer")), 200),
                })]
            }
            _ => Vec::new(),
        }
    }

    /// A piece of an answer, while it comes. What helpers of the agent say is not shown.
    fn piece(&mut self, line: &Value) -> Vec<Said> {
        let event = &line["event"];
        if !line["parent_tool_use_id"].is_null() {
            return Vec::new();
        }
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => self.streamed = event["message"]["id"].as_str().map(str::to_owned),
            "message_stop" => self.streamed = None,
            "content_block_delta" => {
                let delta = &event["delta"];
                let text = |name: &str| delta[name].as_str().unwrap_or_default().to_owned();
                return match delta["type"].as_str().unwrap_or_default() {
                    "text_delta" => vec![Said::Note(Note::Text { text: text("text") })],
                    "thinking_delta" => vec![Said::Note(Note::Thinking { text: text("thinking") })],
                    _ => Vec::new(),
                };
            }
            _ => {}
        }
        Vec::new()
    }

    fn assistant(&mut self, line: &Value) -> Vec<Said> {
        let message = &line["message"];
        let shown = self.streamed.is_some() && message["id"].as_str() == self.streamed.as_deref();
        let helper = !line["parent_tool_use_id"].is_null();
        let mut said = Vec::new();
        for block in message["content"].as_array().into_iter().flatten() {
            let text = |name: &str| block[name].as_str().unwrap_or_default();
            match text("type") {
                "tool_use" => {
                    if self.began.len() < CALLS {
                        self.began.insert(short(text("id"), 100), Instant::now());
                    }
                    said.push(Said::Note(call(text("id"), text("name"), &block["input"])));
                    said.push(Said::Began(text("id").to_owned()));
                }
                "text" if !shown && !helper => said.push(Said::Note(Note::Text { text: text("text").to_owned() })),
                "thinking" if !shown && !helper => {
                    said.push(Said::Note(Note::Thinking { text: text("thinking").to_owned() }));
                }
                _ => {}
            }
        }
        said
    }

    fn results(&mut self, line: &Value) -> Vec<Said> {
        let blocks = line["message"]["content"].as_array().into_iter().flatten();
        let results = blocks.filter(|block| block["type"] == "tool_result");
        let mut said = Vec::new();
        for block in results {
            let id = block["tool_use_id"].as_str().unwrap_or_default();
            let seconds =
                self.began.remove(&short(id, 100)).map(|began| began.elapsed().as_secs_f64()).unwrap_or_default();
            let well = block["is_error"] != true;
            said.push(Said::Note(result(id, well, &text_of(&block["content"]), seconds)));
            said.push(Said::Ended(id.to_owned()));
        }
        said
    }
}
