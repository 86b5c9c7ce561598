//! The tools of a sandbox for programs in it: tried from inside, with curl, by friends and by enemies.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Client, Era, start, start_with_a_user};

const CURL: &str = "curl -s -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' \
                    -H 'mcp-protocol-version: 2025-11-25'";

/// What a program inside is answered.
async fn ask(client: &Client, session: &str, method: &str, params: Value) -> Value {
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
    let request = json!([{"path": "request.json", "content": request.to_string()}]);
    client.ok("write_files", json!({"session_id": session, "files": request})).await;
    let command = format!("{CURL} $SANDBOX_MCP_URL --data @request.json");
    let text = patiently(client, session, &command).await;
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// What a script printed, however long it took.
async fn patiently(client: &Client, session: &str, script: &str) -> String {
    let mut ran = client.run(session, script).await;
    let mut printed = ran["stdout"].as_str().unwrap().to_owned();
    while ran["status"] == "running" {
        let more =
            json!({"session_id": session, "job_id": ran["job_id"], "offset": ran["next_offset"], "wait_seconds": 8});
        ran = client.ok("get_output", more).await;
        printed.push_str(ran["stdout"].as_str().unwrap());
    }
    printed
}

async fn call(client: &Client, session: &str, tool: &str, arguments: Value) -> Value {
    ask(client, session, "tools/call", json!({"name": tool, "arguments": arguments})).await
}

fn refusal(answer: &Value) -> &str {
    assert_eq!(answer["result"]["isError"], true, "{answer}");
    answer["result"]["content"][0]["text"].as_str().unwrap()
}

#[tokio::test]
async fn programs_inside_have_the_tools_of_their_own_sandbox() {
    let client = start().await;
    let session = client.sandbox().await;
    let tools = ask(&client, &session, "tools/list", json!({})).await;
    let names: Vec<_> = tools["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names.len(), 8, "{names:?}");
    for tool in tools["result"]["tools"].as_array().unwrap() {
        assert_eq!(tool["inputSchema"]["properties"]["session_id"], Value::Null, "{tool}");
    }
    let status = call(&client, &session, "get_sandbox_status", json!({})).await;
    let own = &status["result"]["structuredContent"]["sandboxes"][0];
    assert_eq!((&own["session_id"], &own["policy"]), (&json!(session), &json!("yolo-3")));
    assert_eq!((&own["limits"]["pids"], &own["reaches"]["network"]), (&json!(512), &json!("web_and_registries")));
    let ran = call(&client, &session, "run_command", json!({"command": "echo from inside > made; id -u"})).await;
    assert_eq!(ran["result"]["structuredContent"]["stdout"], "1000\n", "{ran}");
    assert_eq!(client.output(&session, "cat made").await, "from inside\n");
    let opened = call(&client, &session, "open_port", json!({"port": 8000})).await;
    assert!(opened["result"]["structuredContent"]["url"].as_str().unwrap().contains("localhost"), "{opened}");
}

#[tokio::test]
async fn no_other_sandbox_can_be_named_from_inside() {
    let client = start().await;
    let (session, other) = (client.sandbox().await, client.sandbox().await);
    client.output(&other, "echo private > file").await;
    for (tool, mut arguments) in [
        ("get_sandbox_status", json!({})),
        ("run_command", json!({"command": "cat file"})),
        ("get_files", json!({"paths": ["file"]})),
        ("list_files", json!({})),
        ("open_port", json!({"port": 8000})),
        ("request_access", json!({"kind": "network", "target": "example.com:22", "reason": "x"})),
    ] {
        arguments["session_id"] = json!(other);
        let answer = call(&client, &session, tool, arguments).await;
        assert!(refusal(&answer).contains("this one sandbox"), "{tool}: {answer}");
    }
    let link = format!("sandbox://{other}/workspace/file");
    let answer = call(&client, &session, "get_files", json!({"paths": [link]})).await;
    assert!(!answer.to_string().contains(&other) || answer.to_string().contains("another sandbox"), "{answer}");
    let answer = ask(&client, &session, "resources/read", json!({"uri": link})).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("this one sandbox"), "{answer}");
    for tool in ["create_sandbox", "cleanup_session", "exit_container", "execute_task", "create_container_environment"]
    {
        let answer = call(&client, &session, tool, json!({"session_id": session})).await;
        assert!(answer["error"]["message"].as_str().unwrap().contains("there is no tool"), "{tool}: {answer}");
    }
    let status = call(&client, &session, "get_sandbox_status", json!({})).await;
    assert!(!status.to_string().contains(&other), "{status}");
}

#[tokio::test]
async fn a_sandbox_without_a_network_has_no_address() {
    let client = start().await;
    let session = client.sandbox_with(json!({"policy": "yolo-1"})).await;
    let said =
        client.output(&session, "echo ${SANDBOX_MCP_URL-none}; curl -s -m 5 http://127.0.0.1:3128/mcp; echo $?").await;
    assert!(said.starts_with("none\n") && !said.ends_with("\n0\n"), "{said}");
}

#[tokio::test]
async fn only_requests_to_this_address_are_answered() {
    let client = start().await;
    let session = client.sandbox().await;
    let code = "-o /dev/null -w '%{http_code}\\n'";
    let script = format!(
        "{CURL} {code} $SANDBOX_MCP_URL
         {CURL} {code} -H 'Host: evil.example' -d '{{}}' $SANDBOX_MCP_URL
         {CURL} {code} -H 'Origin: http://evil.example' -d '{{}}' $SANDBOX_MCP_URL
         head -c 2000000 /dev/zero | {CURL} {code} --data-binary @- $SANDBOX_MCP_URL
         {CURL} {code} -d 'no json' $SANDBOX_MCP_URL
         {CURL} {code} -d '{{}}' ${{SANDBOX_MCP_URL}}/more"
    );
    let codes = patiently(&client, &session, &script).await;
    let codes: Vec<&str> = codes.lines().collect();
    assert_eq!(codes[..4], ["405", "403", "403", "413"], "{codes:?}");
    assert!(codes[4..].iter().all(|code| code.starts_with('4')), "{codes:?}");
}

/// A wish from inside is put to whoever sits at the server's own client, and the call inside waits for the answer.
#[tokio::test]
async fn a_person_outside_is_asked_for_what_is_wanted_inside() {
    let client = start_with_a_user(Era::Legacy, &[]).await;
    let wish = json!({"kind": "network", "target": "git.example:22", "reason": "to push"});
    for (answer, granted) in [
        (json!({"action": "accept", "content": {"for": "sandbox"}}), true),
        (json!({"action": "decline"}), false),
        (json!({"action": "cancel"}), false),
    ] {
        let session = client.sandbox().await;
        let command = inside_call("request_access", &wish);
        let arguments = json!({"session_id": session, "command": command, "wait_seconds": 60});
        let (ran, question) = client.call_answering("run_command", arguments, answer).await;
        let text = question.unwrap()["params"]["message"].to_string();
        assert!(text.contains("git.example") && text.contains("to push") && text.contains(&session), "{text}");
        let inside: Value = serde_json::from_str(ran.value["stdout"].as_str().unwrap()).unwrap();
        assert_eq!(inside["result"]["structuredContent"]["granted"], granted, "{inside}");
        let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
        assert_eq!(status["sandboxes"][0]["grants"].to_string().contains("git.example"), granted, "{status}");
    }
}

fn inside_call(tool: &str, arguments: &Value) -> String {
    let wish = json!({"name": tool, "arguments": arguments});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": wish}).to_string();
    format!("{CURL} $SANDBOX_MCP_URL --data '{request}'")
}

/// Whoever calls from inside says that it can be asked. It is not: it would grant its own wishes.
#[tokio::test]
async fn whoever_calls_from_inside_is_never_asked() {
    let client = start().await;
    let session = client.sandbox().await;
    let wish = json!({"kind": "network", "target": "git.example:22", "reason": "to push"});
    let meta = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "inside", "version": "1"}});
    let params = json!({"name": "request_access", "arguments": wish, "_meta": meta});
    for version in ["2025-11-25", "2026-07-28"] {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let command = format!(
            "curl -s -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' \
             -H 'mcp-protocol-version: {version}' -H 'mcp-method: tools/call' -H 'mcp-name: request_access' \
             $SANDBOX_MCP_URL --data '{request}'"
        );
        let said = patiently(&client, &session, &command).await;
        assert!(!said.contains("\"granted\":true") && !said.contains("input_required"), "{version}: {said}");
        assert!(!said.contains("elicitation/create"), "{version}: {said}");
    }
}

#[tokio::test]
async fn a_flood_from_inside_keeps_nobody_from_the_server() {
    let client = start().await;
    let (session, other) = (client.sandbox().await, client.sandbox().await);
    // Slow ones that hold their turn, and many that ask for much.
    let slow = inside_call("run_command", &json!({"command": "sleep 20", "wait_seconds": 20}));
    let quick = inside_call("get_sandbox_status", &json!({}));
    let flood = format!(
        "for i in $(seq 40); do ({slow} >/dev/null &) ; done; for i in $(seq 3); do (while :; do {quick} >/dev/null; done &) ; done; sleep 15"
    );
    client.ok("run_command", json!({"session_id": session, "command": flood, "wait_seconds": 0})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for _ in 0..5 {
        let begin = Instant::now();
        assert_eq!(client.output(&other, "echo here").await, "here\n");
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    }
    // Too many at once are sent away, and told so.
    let script = format!(
        "touch codes; for i in $(seq 20); do ({slow} -o /dev/null -w '%{{http_code}}\\n' >> codes &) ; done
         while [ $(wc -l < codes) -lt 4 ]; do sleep 0.2; done; cat codes"
    );
    let codes = patiently(&client, &session, &script).await;
    assert!(codes.contains("429"), "{codes}");
    client.ok("cleanup_session", json!({"session_id": session})).await;
    client.still_works().await;
}
