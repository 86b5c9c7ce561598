//! Images over MCP: what a model may name, and how it hears that one is being fetched.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Stdio},
};

use serde_json::{Value, json};

use crate::{
    kit::{Here, Image},
    proxy::Proxy,
    registry::{Doors, Registry, free_port, is_there},
};

/// A server with its lines.
struct Server {
    child: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
    next: u64,
}

impl Server {
    fn start(here: &Here) -> Self {
        let mut command = here.command(&["serve"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut server = Self { child, input, lines: BufReader::new(output), next: 0 };
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "images", "version": "1"}});
        server.ask("initialize", hello);
        writeln!(server.input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).unwrap();
        server
    }

    /// The answer, and what was said before it.
    fn ask(&mut self, method: &str, params: Value) -> (Value, Vec<Value>) {
        self.next += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.next, "method": method, "params": params});
        writeln!(self.input, "{request}").unwrap();
        let mut before = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the server ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message["id"] == self.next {
                return (message["result"].clone(), before);
            }
            before.push(message);
        }
    }

    fn create(&mut self, image: &str) -> (Value, Vec<Value>) {
        let arguments = json!({"image": image, "policy": "yolo-1"});
        self.ask(
            "tools/call",
            json!({"name": "create_sandbox", "arguments": arguments, "_meta": {"progressToken": "t"}}),
        )
    }

    fn run(&mut self, session: &Value, command: &str) -> Value {
        let arguments = json!({"session_id": session, "command": command});
        self.ask("tools/call", json!({"name": "run_command", "arguments": arguments})).0["structuredContent"].clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_model_gets_what_the_operator_allows_and_hears_that_it_is_fetched() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = Registry::start(here.path(), Doors::Open);
    registry.push(&Image::small(), "team/small", "1");
    registry.push(&Image::small(), "other/small", "1");
    let slow = Proxy::slow(registry.port);
    let (host, dead) = (format!("localhost:{}", slow.port), free_port());
    let here = here.with("SANDBOX_MCP_ALLOWED_IMAGES", &format!("{host}/team/*,localhost:{dead}/x:*"));
    let mut server = Server::start(&here);
    let (refused, _) = server.create(&format!("{host}/other/small:1"));
    assert_eq!(refused["isError"], true, "{refused}");
    assert!(refused.to_string().contains("not allowed") && refused.to_string().contains("/team/*"), "{refused}");
    let (made, before) = server.create(&format!("{host}/team/small:1"));
    assert_ne!(made["isError"], true, "{made}");
    let told: Vec<&str> = before.iter().filter_map(|message| message["params"]["message"].as_str()).collect();
    assert!(told.iter().any(|told| told.contains("team/small:1")), "{before:?}");
    let session = &made["structuredContent"]["session_id"];
    assert_eq!(server.run(session, "cat /etc/upper")["stdout"], "upper\n");
    let (failed, _) = server.create(&format!("localhost:{dead}/x:2"));
    assert_eq!(failed["isError"], true, "{failed}");
    assert!(failed.to_string().contains("docker save"), "{failed}");
    here.ok(&["rm", "--all"]);
}
