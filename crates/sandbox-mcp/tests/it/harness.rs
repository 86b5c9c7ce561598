//! A small MCP client on raw lines, so that tests can also say what no well-behaved client says.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, Command},
    sync::{mpsc, oneshot},
};

use crate::schema::difference;

/// The program under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_sandbox-mcp");
/// No call of a test takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// Which revision of the protocol a client speaks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Era {
    Legacy,
    Modern,
}

/// A server process and a client of it.
pub struct Client {
    era: Era,
    capabilities: Value,
    questions: tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>,
    child: Child,
    input: tokio::sync::Mutex<Option<ChildStdin>>,
    waiting: Waiting,
    notifications: tokio::sync::Mutex<mpsc::UnboundedReceiver<Value>>,
    stderr: Arc<Mutex<String>>,
    listening: tokio::task::JoinHandle<()>,
    next: AtomicU64,
    tools: tokio::sync::OnceCell<Vec<Value>>,
    state: PathBuf,
    _folder: Option<TempDir>,
}

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Value>>>>;

/// What a tool answered.
#[derive(Debug)]
pub struct Answer {
    pub is_error: bool,
    pub text: String,
    pub value: Value,
    pub whole: Value,
}

/// A server with a state folder of its own.
pub async fn start() -> Client {
    start_with(Era::Legacy, &[]).await
}

/// The same, with these variables.
pub async fn start_with(era: Era, variables: &[(&str, &str)]) -> Client {
    let folder = tempfile::tempdir().unwrap();
    let mut client = start_in(folder.path(), era, variables).await;
    client._folder = Some(folder);
    client
}

/// A server with a client whose user can be asked.
pub async fn start_with_a_user(era: Era, variables: &[(&str, &str)]) -> Client {
    let folder = tempfile::tempdir().unwrap();
    let mut client = start_as(folder.path(), era, json!({"elicitation": {}}), variables).await;
    client._folder = Some(folder);
    client
}

/// A server in this state folder.
pub async fn start_in(state: &Path, era: Era, variables: &[(&str, &str)]) -> Client {
    start_as(state, era, json!({}), variables).await
}

/// A server of the present era, with a client that can do this.
pub async fn start_as_able(state: &Path, capabilities: Value) -> Client {
    start_as(state, Era::Modern, capabilities, &[]).await
}

/// A server in this state folder, with a client that can do this.
pub async fn start_as(state: &Path, era: Era, capabilities: Value, variables: &[(&str, &str)]) -> Client {
    let mut client = spawn(state, era, variables);
    client.capabilities = capabilities;
    if era == Era::Legacy {
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": client.capabilities, "clientInfo": {"name": "it", "version": "1"}});
        let answer = client.request("initialize", hello).await;
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer} {}", client.stderr());
        client.send_line(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string()).await;
    }
    client
}

/// A server process to which nothing has been said yet. Its state is in a folder of its own in this one.
pub fn spawn(state: &Path, era: Era, variables: &[(&str, &str)]) -> Client {
    let state = &state.join("state");
    let mut command = Command::new(BINARY);
    command
        .arg("serve")
        .env("WORKSPACE_BASE", state)
        .env("SANDBOX_MCP_LEASE_SECONDS", "10")
        // Who runs the tests may have one, and it is not theirs to spend.
        .env_remove("ANTHROPIC_API_KEY")
        .envs(variables.iter().copied())
        .kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let waiting = Waiting::default();
    let (sender, notifications) = mpsc::unbounded_channel();
    let (asking, questions) = mpsc::unbounded_channel();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    tokio::spawn(read(stdout, waiting.clone(), sender, asking));
    let stderr = Arc::new(Mutex::new(String::new()));
    let listening = tokio::spawn(listen(child.stderr.take().unwrap(), stderr.clone()));
    Client {
        era,
        capabilities: json!({}),
        questions: tokio::sync::Mutex::new(questions),
        input: tokio::sync::Mutex::new(child.stdin.take()),
        child,
        waiting,
        notifications: tokio::sync::Mutex::new(notifications),
        stderr,
        listening,
        next: AtomicU64::new(1),
        tools: tokio::sync::OnceCell::new(),
        state: state.to_owned(),
        _folder: None,
    }
}

async fn read(
    mut lines: BufReader<tokio::process::ChildStdout>,
    waiting: Waiting,
    notifications: mpsc::UnboundedSender<Value>,
    questions: mpsc::UnboundedSender<Value>,
) {
    let mut line = String::new();
    while lines.read_line(&mut line).await.unwrap_or(0) > 0 {
        let message: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("stdout is not protocol: {line:.200}"));
        if message["method"].is_string() && !message["id"].is_null() {
            drop(questions.send(message));
            line.clear();
            continue;
        }
        let responder = message["id"].as_u64().and_then(|id| waiting.lock().unwrap().remove(&id));
        match responder {
            Some(responder) => drop(responder.send(message)),
            None => drop(notifications.send(message)),
        }
        line.clear();
    }
    waiting.lock().unwrap().clear();
}

async fn listen(mut from: tokio::process::ChildStderr, to: Arc<Mutex<String>>) {
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut bytes).await {
        let mut text = to.lock().unwrap();
        if text.len() < 1 << 20 {
            text.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    }
}

impl Client {
    /// Sends a line as it is.
    pub async fn send_line(&self, line: &str) {
        self.send_bytes(format!("{line}\n").as_bytes()).await;
    }

    /// Sends bytes as they are.
    pub async fn send_bytes(&self, bytes: &[u8]) {
        let mut input = self.input.lock().await;
        let input = input.as_mut().expect("the input is still open");
        input.write_all(bytes).await.unwrap();
        input.flush().await.unwrap();
    }

    /// Sends a request and gives back its id and where the answer will come.
    pub async fn begin(&self, method: &str, mut params: Value) -> (u64, oneshot::Receiver<Value>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        if self.era == Era::Modern {
            params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
            params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = self.capabilities.clone();
        }
        let (sender, receiver) = oneshot::channel();
        self.waiting.lock().unwrap().insert(id, sender);
        let line = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).to_string();
        self.send_line(&line).await;
        (id, receiver)
    }

    /// The whole answer to a request.
    pub async fn request(&self, method: &str, params: Value) -> Value {
        let (_, answer) = self.begin(method, params).await;
        let waited = tokio::time::timeout(PATIENCE, answer).await;
        waited
            .unwrap_or_else(|_| panic!("{method} was not answered: {}", self.stderr()))
            .unwrap_or_else(|_| panic!("the server ended during {method}: {}", self.stderr()))
    }

    /// Calls a tool.
    pub async fn call(&self, tool: &str, arguments: Value) -> Answer {
        self.call_with(tool, arguments, json!({})).await
    }

    /// Calls a tool with metadata, such as a progress token.
    pub async fn call_with(&self, tool: &str, arguments: Value, meta: Value) -> Answer {
        let whole = self.request("tools/call", json!({"name": tool, "arguments": arguments, "_meta": meta})).await;
        Answer::of(whole)
    }

    /// Calls a tool; a question that comes up is answered with this. Tells the question too.
    pub async fn call_answering(&self, tool: &str, arguments: Value, answer: Value) -> (Answer, Option<Value>) {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {}});
        let mut call = Box::pin(self.request("tools/call", params.clone()));
        let question = tokio::select! {
            whole = &mut call => match whole["result"]["resultType"] == "input_required" {
                false => return (Answer::of(whole), None),
                true => {
                    let question = whole["result"]["inputRequests"]["access"].clone();
                    let mut again = params;
                    again["requestState"] = whole["result"]["requestState"].clone();
                    again["inputResponses"] = json!({"access": answer});
                    return (Answer::of(self.request("tools/call", again).await), Some(question));
                }
            },
            question = self.question() => question,
        };
        let reply = json!({"jsonrpc": "2.0", "id": question["id"], "result": answer});
        self.send_line(&reply.to_string()).await;
        (Answer::of(call.await), Some(question))
    }

    /// What the server asks next.
    pub async fn question(&self) -> Value {
        self.questions.lock().await.recv().await.expect("the server is there")
    }

    /// The structured content of a call that must succeed. The text must say the same.
    pub async fn ok(&self, tool: &str, arguments: Value) -> Value {
        let answer = self.call(tool, arguments).await;
        assert!(!answer.is_error, "{tool}: {answer:?}");
        assert_eq!(serde_json::from_str::<Value>(&answer.text).unwrap(), answer.value, "text and structure differ");
        if let Some(tool) = self.tools().await.iter().find(|known| known["name"] == tool) {
            assert_eq!(difference(&tool["outputSchema"], &answer.value, ""), None);
        }
        answer.value
    }

    /// The tools as they are listed.
    async fn tools(&self) -> &[Value] {
        let list = async || self.request("tools/list", json!({})).await["result"]["tools"].as_array().unwrap().clone();
        self.tools.get_or_init(list).await
    }

    /// The text of a call that must fail as a tool, not as a protocol.
    pub async fn refused(&self, tool: &str, arguments: Value) -> String {
        let answer = self.call(tool, arguments).await;
        assert!(answer.is_error, "{tool} should fail: {:.500}", answer.text);
        answer.text
    }

    /// A new sandbox.
    pub async fn sandbox(&self) -> String {
        self.sandbox_with(json!({})).await
    }

    /// A new sandbox, made with these arguments.
    pub async fn sandbox_with(&self, arguments: Value) -> String {
        self.ok("create_sandbox", arguments).await["session_id"].as_str().unwrap().to_owned()
    }

    /// Runs a command.
    pub async fn run(&self, session: &str, command: &str) -> Value {
        self.ok("run_command", json!({"session_id": session, "command": command})).await
    }

    /// Standard output of a command that must succeed.
    pub async fn output(&self, session: &str, command: &str) -> String {
        let ran = self.run(session, command).await;
        assert_eq!(ran["exit_code"], 0, "{command}: {ran}");
        ran["stdout"].as_str().unwrap().to_owned()
    }

    /// Shows that everything still works.
    pub async fn still_works(&self) {
        let session = self.sandbox().await;
        assert_eq!(self.output(&session, "echo alive").await, "alive\n");
        self.ok("cleanup_session", json!({"session_id": session})).await;
    }

    /// The next message that is no answer.
    pub async fn notification(&self) -> Value {
        let mut notifications = self.notifications.lock().await;
        let waited = tokio::time::timeout(PATIENCE, notifications.recv()).await;
        waited.expect("a notification in time").expect("the server is there")
    }

    /// All notifications so far.
    pub async fn notifications(&self) -> Vec<Value> {
        let mut notifications = self.notifications.lock().await;
        std::iter::from_fn(|| notifications.try_recv().ok()).collect()
    }

    /// What the history holds of a sandbox, once it holds so many of these. It is written in the background.
    pub async fn history(&self, session: &str, kind: &str, count: usize) -> Vec<Value> {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let mut logs = Command::new(BINARY);
            logs.args(["logs", session, "--json"]).env("WORKSPACE_BASE", &self.state);
            let told = String::from_utf8(logs.output().await.unwrap().stdout).unwrap();
            let events: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            if events.iter().filter(|event| event["event"] == kind).count() >= count {
                return events;
            }
            assert!(Instant::now() < until, "the history does not hold {count} times {kind}: {told}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Closes the input and waits for the end.
    pub async fn close(&mut self) -> std::process::ExitStatus {
        drop(self.input.lock().await.take());
        tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.expect("it ends in time").unwrap()
    }

    /// Waits until nobody holds the server's error output any more: clients wait for that.
    pub async fn streams_end(&mut self) {
        tokio::time::timeout(Duration::from_secs(3), &mut self.listening)
            .await
            .expect("somebody holds it open")
            .unwrap();
    }

    /// Asks the server to end, as whoever shuts a machine down does, and waits for the end.
    pub async fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        tokio::time::timeout(Duration::from_secs(10), self.child.wait()).await.expect("it ends in time").unwrap();
    }

    /// Kills the server; it can do nothing about it.
    pub async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id().unwrap()
    }

    pub fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Where a sandbox lies on this machine.
    pub fn folder(&self, session: &str) -> PathBuf {
        self.state.join("sandboxes").join(session)
    }
}

impl Answer {
    pub fn of(whole: Value) -> Self {
        let result = &whole["result"];
        assert!(result.is_object(), "not a result: {whole:.1000}");
        Self {
            is_error: result["isError"].as_bool().unwrap_or(false),
            text: result["content"][0]["text"].as_str().unwrap_or_default().to_owned(),
            value: result["structuredContent"].clone(),
            whole,
        }
    }
}

/// Processes of this machine whose command line holds this text.
pub fn processes_with(text: &str) -> usize {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).replace('\0', " ").contains(text)).count()
}

/// The process that started the one whose command line is this text, as soon as there is one.
pub fn parent_of(text: &str) -> u32 {
    let parent = || {
        let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|entry| entry.path());
        let is_it = |path: &PathBuf| {
            let line = std::fs::read(path.join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ").trim() == text
        };
        let status = entries.filter(is_it).find_map(|path| std::fs::read_to_string(path.join("status")).ok())?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    for _ in 0..100 {
        if let Some(parent) = parent() {
            return parent;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    panic!("`{text}` does not run");
}

/// Control groups of this machine whose name holds this text.
pub fn cgroups_with(text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().contains(text) {
                    found.push(entry.path());
                }
                folders.push(entry.path());
            }
        }
    }
    found
}

/// Mounts that this process sees and that have to do with this text.
pub fn mounts_with(text: &str) -> usize {
    std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().filter(|line| line.contains(text)).count()
}

/// Nothing of a sandbox is left on this machine: no process with this mark, no mount, no cgroup.
pub async fn nothing_left(session: &str, mark: &str, within: Duration) {
    let until = Instant::now() + within;
    loop {
        let left = (processes_with(mark), mounts_with(session), cgroups_with(session));
        if left == (0, 0, Vec::new()) {
            return;
        }
        assert!(Instant::now() < until, "left behind (processes, mounts, cgroups): {left:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A number that no other test uses, to tell processes apart: sleep takes it for a time.
pub fn mark() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{}.{:06}{:04}", 90_000, std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Kilobytes of memory that a process holds.
pub fn resident_kilobytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
