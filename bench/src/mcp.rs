//! A client of `sandbox-mcp serve` on standard streams, just large enough to be measured.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::clock::{Stopwatch, Timing};

/// A server that was greeted.
pub struct Server {
    child: Child,
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    last_id: u64,
}

impl Server {
    /// Starts the program with its state in this folder.
    pub fn start(program: &Path, state: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.arg("serve").env("XDG_STATE_HOME", state);
        Self::greet(command)
    }

    /// Starts it by this command.
    pub fn greet(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("starting sandbox-mcp serve")?;
        let requests = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("a pipe was asked for")?);
        let mut server = Self { child, requests, answers, last_id: 0 };
        let client = json!({ "name": "bench", "version": "1" });
        let hello = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client });
        server.ask("initialize", hello)?;
        server.send(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
        Ok(server)
    }

    /// `create_sandbox`, `run_command`, `cleanup_session`. An answer comes whole, so the first output is the second answer.
    pub fn time_start(&mut self) -> Result<Timing> {
        self.time_start_of(json!({}))
    }

    /// The same with these arguments for the sandbox.
    pub fn time_start_of(&mut self, arguments: Value) -> Result<Timing> {
        let mut watch = Stopwatch::start();
        let session = self.create(arguments)?;
        let ran = self.run(&session, "echo hello")?;
        watch.output();
        ensure!(ran["stdout"] == "hello\n", "run_command answered {ran}");
        self.call("cleanup_session", json!({ "session_id": session }))?;
        Ok(watch.stop())
    }

    /// Waits until so many sandboxes are ready before anybody asks.
    pub fn until_ready(&mut self, count: usize, patience: Duration) -> Result<()> {
        let start = Instant::now();
        while self.call("get_sandbox_status", json!({}))?["warm"] != json!(count) {
            ensure!(start.elapsed() < patience, "{count} sandboxes are not ready after {patience:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// `create_sandbox`; its session.
    pub fn create(&mut self, arguments: Value) -> Result<String> {
        let made = self.call("create_sandbox", arguments)?;
        Ok(made["session_id"].as_str().context("create_sandbox answers with a session_id")?.to_owned())
    }

    /// `run_command`; its answer, when it has ended.
    pub fn run(&mut self, session: &str, command: &str) -> Result<Value> {
        self.call("run_command", json!({ "session_id": session, "command": command, "wait_seconds": 60 }))
    }

    /// `execute_task`; what came of it, however long it takes.
    pub fn task(&mut self, arguments: Value) -> Result<Value> {
        let done = self.call("execute_task", arguments)?;
        self.finished(done)
    }

    /// The same for all of these at once.
    pub fn tasks(&mut self, all: Vec<Value>) -> Result<Vec<Value>> {
        let count = all.len();
        let first = self.last_id + 1;
        for arguments in all {
            self.last_id += 1;
            let params = json!({ "name": "execute_task", "arguments": arguments });
            self.send(&json!({ "jsonrpc": "2.0", "id": self.last_id, "method": "tools/call", "params": params }))?;
        }
        let mut answers = Vec::with_capacity(count);
        while answers.len() < count {
            let mut message = self.hear("execute_task")?;
            if message["id"].as_u64().is_some_and(|id| id >= first) {
                answers.push(message["result"]["structuredContent"].take());
            }
        }
        answers.into_iter().map(|done| self.finished(done)).collect()
    }

    /// Removes the sandbox of a task.
    pub fn remove(&mut self, done: &Value) -> Result<()> {
        self.call("cleanup_session", json!({ "session_id": done["session_id"] })).map(drop)
    }

    fn finished(&mut self, mut done: Value) -> Result<Value> {
        while done["status"] == "running" {
            let asked = json!({ "session_id": done["session_id"], "wait_seconds": 8 });
            done = self.call("get_sandbox_status", asked)?["sandboxes"][0]["task"].take();
        }
        Ok(done)
    }

    /// Its process.
    pub fn process(&self) -> u32 {
        self.child.id()
    }

    fn call(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let mut result = self.ask("tools/call", json!({ "name": tool, "arguments": arguments }))?;
        ensure!(result["isError"] != json!(true), "{tool}: {result}");
        Ok(result["structuredContent"].take())
    }

    fn ask(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params }))?;
        loop {
            let mut message = self.hear(method)?;
            if message["id"] != json!(self.last_id) {
                continue;
            }
            if !message["error"].is_null() {
                bail!("{method}: {}", message["error"]);
            }
            return Ok(message["result"].take());
        }
    }

    fn hear(&mut self, method: &str) -> Result<Value> {
        let mut line = String::new();
        ensure!(self.answers.read_line(&mut line)? > 0, "the server closed its output during {method}");
        serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))
    }

    fn send(&mut self, message: &Value) -> Result<()> {
        let requests = self.requests.as_mut().context("the server was stopped")?;
        requests.write_all(format!("{message}\n").as_bytes())?;
        Ok(requests.flush()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // End of input is how a client says goodbye.
        self.requests = None;
        let _ = self.child.wait();
    }
}
