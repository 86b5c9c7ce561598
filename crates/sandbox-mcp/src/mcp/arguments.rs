//! What each tool takes. The doc comments are what models read, so they are short and say what helps.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

/// create_sandbox
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSandbox {
    /// host (default: this machine's own programs, read-only) or the absolute path of a root file system that the operator allows.
    pub image: Option<String>,
    /// A ready kind.
    pub template: Option<String>,
    /// What it may do.
    pub policy: Option<String>,
    /// Keep it when this server ends and when idle.
    pub persistent: Option<bool>,
    /// Environment variables of all commands.
    pub env: Option<BTreeMap<String, String>>,
    /// Lower limits than the policy's.
    pub limits: Option<LowerLimits>,
    /// A label for whose it is.
    pub user_id: Option<String>,
}

/// Limits below those of a policy.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LowerLimits {
    /// Such as 512MiB; so are disk and tmp.
    pub memory: Option<String>,
    pub cpus: Option<f64>,
    pub pids: Option<u32>,
    pub disk: Option<String>,
    pub tmp: Option<String>,
}

/// run_command
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    pub session_id: String,
    /// A shell script.
    pub command: String,
    /// Default: /workspace.
    pub cwd: Option<String>,
    pub env: Option<BTreeMap<String, String>>,
    /// Text for standard input.
    pub stdin: Option<String>,
    /// Keep standard input open for get_output.
    pub interactive: Option<bool>,
    /// The command is killed after so many seconds.
    pub timeout: Option<u64>,
    /// Answer after so many seconds even if it still runs. 0: start it in the background.
    pub wait_seconds: Option<u64>,
    /// Most bytes of output in the answer. Default: 32768.
    pub max_bytes: Option<u64>,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// get_output
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetOutput {
    pub session_id: String,
    pub job_id: String,
    /// Where to read from: a next_offset. Default: 0.
    pub offset: Option<u64>,
    /// Wait so long for the job to end. Default: 0.
    pub wait_seconds: Option<u64>,
    /// Text for its standard input.
    pub input: Option<String>,
    /// End its standard input.
    pub close_input: Option<bool>,
    /// For all its processes, such as SIGINT, SIGTERM, SIGKILL.
    pub signal: Option<String>,
    pub max_bytes: Option<u64>,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// write_files
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WriteFiles {
    pub session_id: String,
    pub files: Vec<FileToWrite>,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// One file that a caller brings.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileToWrite {
    /// Relative to /workspace, or absolute.
    pub path: String,
    pub content: String,
    /// Default: text.
    pub encoding: Option<Encoding>,
    /// Octal, such as 755. Default: 644.
    pub mode: Option<String>,
}

/// How bytes are written in JSON.
#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    Text,
    Base64,
}

/// get_files
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetFiles {
    pub session_id: String,
    /// Relative to /workspace, absolute, or a sandbox:// link.
    pub paths: Vec<String>,
    /// Read from here.
    pub offset: Option<u64>,
    /// Read so many bytes.
    pub length: Option<u64>,
    /// Most bytes of content in the answer. Default: 32768.
    pub max_bytes: Option<u64>,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// list_files
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListFiles {
    pub session_id: String,
    /// Default: /workspace.
    pub path: Option<String>,
    /// Levels of folders. Default: 3.
    pub depth: Option<u32>,
    /// Only what changed since an earlier answer's listed_at.
    pub changed_since: Option<u64>,
    /// Continue after this path.
    pub after: Option<String>,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// get_sandbox_status
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetSandboxStatus {
    /// Without it: all your sandboxes.
    pub session_id: Option<String>,
    /// Wait so long for its task to end.
    pub wait_seconds: Option<u64>,
    /// Only those with this label.
    pub user_id: Option<String>,
}

/// cleanup_session
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CleanupSession {
    pub session_id: String,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// execute_task
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ExecuteTask {
    /// What is to be done, in plain words.
    pub task: String,
    /// An existing sandbox, to go on with its conversation and files; without it a new one is made.
    pub session_id: Option<String>,
    /// Files that the agent needs, put into /workspace.
    pub files: Option<Vec<FileToWrite>>,
    /// auto (default), claude, claude-code, opencode or mock.
    pub agent: Option<String>,
    /// 1 (least allowed) to 4 (most). Default: 3.
    #[schemars(range(min = 1, max = 4))]
    pub yolo_level: Option<u8>,
    /// In seconds. Default: 300.
    pub timeout: Option<u64>,
    /// Answer after so many seconds even if it still works.
    pub wait_seconds: Option<u64>,
    /// As for create_sandbox.
    pub image: Option<String>,
    pub template: Option<String>,
    pub model: Option<String>,
    /// Most that it may cost, in US dollars.
    pub budget_usd: Option<f64>,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// open_port
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenPort {
    pub session_id: String,
    /// On which the server listens inside, on 127.0.0.1 or 0.0.0.0.
    pub port: u32,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// request_access
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RequestAccess {
    pub session_id: String,
    pub kind: Wanted,
    /// The command, a limit (timeout=900, memory=8GiB), or a host (example.com:8080).
    pub target: String,
    /// Why, for the person who decides.
    pub reason: String,
    /// How long. Default: once, for one command; a host: 10 minutes.
    #[serde(rename = "for")]
    pub span: Option<For>,
    /// With for = minutes. Default: 10.
    pub minutes: Option<u32>,
    /// Its label, if it has one.
    pub user_id: Option<String>,
}

/// What is asked for.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Wanted {
    Command,
    Limit,
    Network,
    Filesystem,
    Privilege,
    Secret,
}

/// For how long.
#[derive(Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum For {
    Once,
    Sandbox,
    Minutes,
}

/// Arguments that name an existing sandbox.
pub trait InSession {
    /// Which one.
    fn session_id(&self) -> &str;
    /// Whose it is said to be.
    fn user_id(&self) -> Option<&str>;
}

macro_rules! in_session {
    ($($name:ident),*) => {$(
        impl InSession for $name {
            fn session_id(&self) -> &str {
                &self.session_id
            }
            fn user_id(&self) -> Option<&str> {
                self.user_id.as_deref()
            }
        }
    )*};
}
in_session!(RunCommand, GetOutput, WriteFiles, GetFiles, ListFiles, OpenPort, RequestAccess);
