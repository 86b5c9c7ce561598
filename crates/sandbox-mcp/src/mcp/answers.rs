//! What each tool answers, and how an answer goes over the wire: as structured content and as the same JSON in text,
//! because some clients show a model only the one and some only the other.

use std::collections::BTreeMap;

use rmcp::model::{CallToolResult, ContentBlock, Resource};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::error::ToolError;
use crate::sandboxes::access::Hint;

/// An answer on its way out.
pub struct Answer {
    value: Value,
    links: Vec<Resource>,
    outcome: Outcome,
}

/// Whether the caller got what it asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Yes.
    Whole,
    /// Not all of it; the answer says what is missing.
    Partial,
}

impl Answer {
    /// A whole answer.
    pub fn of(answer: &impl Serialize) -> Self {
        let value = serde_json::to_value(answer).unwrap_or(Value::Null);
        Self { value, links: Vec::new(), outcome: Outcome::Whole }
    }

    /// Marks it as not whole.
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// Adds links to what was too large.
    pub fn with_links(mut self, links: Vec<Resource>) -> Self {
        self.links = links;
        self
    }
}

impl From<Answer> for CallToolResult {
    fn from(answer: Answer) -> Self {
        let mut content = vec![ContentBlock::text(answer.value.to_string())];
        content.extend(answer.links.into_iter().map(ContentBlock::resource_link));
        let mut result = Self::success(content);
        result.structured_content = Some(answer.value);
        result.is_error = Some(answer.outcome == Outcome::Partial);
        result
    }
}

impl From<ToolError> for CallToolResult {
    fn from(error: ToolError) -> Self {
        let mut content = vec![ContentBlock::text(error.to_string())];
        // Not as structured content: that must have the form of the tool's own answer.
        if let ToolError::Denied(denials) = &error {
            let denials: Vec<Denial> = denials.iter().map(Denial::from).collect();
            content.push(ContentBlock::text(json!({ "denials": denials }).to_string()));
        }
        Self::error(content)
    }
}

/// create_sandbox
#[derive(Serialize, JsonSchema)]
pub struct Created {
    /// The handle for every other tool.
    pub session_id: String,
    pub image: String,
    pub policy: String,
    pub persistent: bool,
    /// The working folder inside.
    pub workspace: String,
    pub limits: BTreeMap<String, Value>,
    /// How each limit and wall is held: by the kernel, supervised, or by nobody.
    pub enforcement: BTreeMap<String, Held>,
    /// What was asked for and not given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

/// How one limit is held.
#[derive(Serialize, JsonSchema)]
pub struct Held {
    /// kernel, supervised or none.
    pub held: String,
    pub by: String,
}

/// run_command and get_output
#[derive(Serialize, JsonSchema)]
pub struct Ran {
    pub session_id: String,
    /// Null when it was not run.
    pub job_id: Option<String>,
    /// How it stands: running, exited, killed (by a signal or a limit), timeout, or denied (it was not run).
    pub status: JobStatus,
    /// Set when it exited.
    pub exit_code: Option<i32>,
    /// The name of the signal that ended it.
    pub signal: Option<String>,
    pub stdout: String,
    pub stderr: String,
    /// Where to go on with get_output.
    pub next_offset: u64,
    /// Output that is not in this answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    pub duration_seconds: f64,
    /// What the policy refused.
    pub denials: Vec<Denial>,
    /// What else is worth knowing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Something that a policy refused, and how to ask for it.
#[derive(Serialize, JsonSchema)]
pub struct Denial {
    pub kind: String,
    /// A stable code.
    pub reason: String,
    pub target: String,
    pub rule: String,
    /// The policy.
    pub level: String,
    pub message: String,
    pub how_to_ask: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// Guessed from what the command printed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inferred: bool,
}

impl From<&sandbox_core::Denial> for Denial {
    fn from(denial: &sandbox_core::Denial) -> Self {
        Self {
            kind: denial.kind().to_string(),
            reason: denial.reason.to_string(),
            target: denial.target.clone(),
            rule: denial.rule.clone(),
            level: denial.level.clone(),
            message: denial.message.clone(),
            how_to_ask: denial.how_to_ask.clone(),
            verdict: denial.verdict.clone(),
            inferred: false,
        }
    }
}

impl From<&Hint> for Denial {
    fn from(Hint(denial): &Hint) -> Self {
        Self { inferred: true, ..Self::from(denial) }
    }
}

/// open_port
#[derive(Serialize, JsonSchema)]
pub struct PortOpened {
    /// For a browser on this computer, exactly as it is.
    pub url: String,
    pub port: u16,
    /// Whether a server listens on it now; until then the address shows a page that waits for it.
    pub listening: bool,
}

/// request_access
#[derive(Serialize, JsonSchema)]
pub struct Access {
    pub session_id: String,
    pub granted: bool,
    pub target: String,
    /// once, sandbox or a time; null where nobody had to be asked.
    pub granted_for: Option<String>,
    pub message: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
}

/// How a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum JobStatus {
    Running,
    Exited,
    Killed,
    Timeout,
    Denied,
    Frozen,
}

/// A part of the output that is not in the answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LeftOut {
    pub from_offset: u64,
    pub to_offset: u64,
    /// Whether get_output can still read it.
    pub kept: bool,
}

/// write_files
#[derive(Serialize, JsonSchema)]
pub struct Written {
    pub session_id: String,
    pub written_count: usize,
    pub failed_count: usize,
    /// The first hundred of those written.
    pub written: Vec<WrittenFile>,
    /// The first hundred of those not written.
    pub failed: Vec<FileProblem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
}

/// A file that was written.
#[derive(Serialize, JsonSchema)]
pub struct WrittenFile {
    pub path: String,
    pub size_bytes: u64,
}

/// A file with which something is wrong.
#[derive(Serialize, JsonSchema)]
pub struct FileProblem {
    pub path: String,
    pub error: String,
}

/// get_files
#[derive(Serialize, JsonSchema)]
pub struct Files {
    pub session_id: String,
    pub files: Vec<File>,
    /// Paths where there is nothing.
    pub missing: Vec<String>,
    /// Paths that cannot be read, with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FileProblem>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub denials: Vec<Denial>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A file with its content, or with where to get it.
#[derive(Serialize, JsonSchema)]
pub struct File {
    pub path: String,
    /// Base64; null when the file is too large for this answer.
    pub content: Option<String>,
    /// Size of the whole file.
    pub size_bytes: u64,
    pub mime_type: String,
    /// Where the content starts, if a part was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Where to go on, if there is more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// For resources/read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// list_files
#[derive(Serialize, JsonSchema)]
pub struct Listed {
    pub session_id: String,
    pub path: String,
    pub entries: Vec<Entry>,
    /// Whether there is more; go on with after = the last path.
    pub truncated: bool,
    /// When this was read, for changed_since.
    pub listed_at: u64,
}

/// One file or folder.
#[derive(Serialize, JsonSchema)]
pub struct Entry {
    /// Beneath the listed folder.
    pub path: String,
    /// file, folder, link or other.
    pub kind: String,
    pub size_bytes: u64,
    pub mode: String,
    /// Milliseconds since 1970.
    pub modified: u64,
    /// A link to use as a path, where the name is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uri: Option<String>,
}

/// get_sandbox_status
#[derive(Serialize, JsonSchema)]
pub struct Statuses {
    pub sandboxes: Vec<Map<String, Value>>,
    /// How often each wall refused something, since this server started.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub denials: BTreeMap<String, u64>,
    /// What was found when this server started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovered: Option<String>,
    /// Sandboxes that are ready before anybody asks, where the operator wants some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm: Option<usize>,
}

/// cleanup_session
#[derive(Serialize, JsonSchema)]
pub struct CleanedUp {
    pub status: String,
    pub message: String,
    pub session_id: String,
}

/// execute_task
#[derive(Serialize, JsonSchema)]
pub struct TaskDone {
    pub task_id: String,
    pub session_id: String,
    /// completed, failed, timeout, cancelled or running.
    pub status: String,
    pub agent: String,
    /// What the agent says.
    pub output: String,
    /// What it does now, while it runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<String>,
    pub files_created: Vec<String>,
    pub files_changed: Vec<String>,
    pub files_deleted: Vec<String>,
    pub duration_seconds: f64,
    /// How often the model was asked.
    pub turns: u32,
    pub cost: Cost,
    pub error: Option<String>,
    /// What the policy refused.
    pub denials: Vec<Denial>,
    /// How each limit and wall is held: kernel, supervised or none.
    pub enforced: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// What a task cost.
#[derive(Serialize, JsonSchema)]
pub struct Cost {
    /// Null where no price is known.
    pub usd: Option<f64>,
    pub input_tokens: u64,
    pub output_tokens: u64,
    pub cache_read_tokens: u64,
    pub cache_written_tokens: u64,
    pub model: Option<String>,
}

impl From<crate::agent::Bill> for Cost {
    fn from(bill: crate::agent::Bill) -> Self {
        Self {
            usd: bill.usd.map(|usd| (usd * 1e6).round() / 1e6),
            input_tokens: bill.tokens.input,
            output_tokens: bill.tokens.output,
            cache_read_tokens: bill.tokens.cache_read,
            cache_written_tokens: bill.tokens.cache_written,
            model: bill.model,
        }
    }
}
