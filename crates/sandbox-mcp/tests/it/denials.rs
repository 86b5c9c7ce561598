//! Refusals that teach: one structure from every wall, in answers, in the history and in the counts.

use serde_json::{Value, json};

use crate::harness::{Client, Era, start, start_with};

/// The refusals in the history, once all jobs that were started have ended there, and the counts of this server.
async fn denied(client: &Client, session: &str, jobs: usize, denials: usize) -> (Vec<Value>, Value) {
    let counts = client.ok("get_sandbox_status", json!({})).await["denials"].clone();
    client.history(session, "finished", jobs).await;
    let events = client.history(session, "denied", denials).await;
    (events.iter().filter(|event| event["event"] == "denied").map(|event| event["denial"].clone()).collect(), counts)
}

#[tokio::test]
async fn a_denied_command_is_not_run_and_says_how_to_ask() {
    let client = start().await;
    let session = client.sandbox().await;
    let answer =
        client.call("run_command", json!({"session_id": session, "command": "sudo touch /workspace/ran"})).await;
    assert!(answer.is_error, "{answer:?}");
    let ran = &answer.value;
    assert_eq!((&ran["status"], &ran["exit_code"], &ran["job_id"]), (&json!("denied"), &Value::Null, &Value::Null));
    let denial = ran["denials"][0].clone();
    assert_eq!((&denial["kind"], &denial["reason"]), (&json!("command"), &json!("command_denied")), "{ran}");
    assert_eq!((&denial["rule"], &denial["level"]), (&json!("sudo"), &json!("yolo-3")), "{ran}");
    assert!(
        denial["target"].as_str().unwrap().starts_with("sudo") && !denial["how_to_ask"].as_str().unwrap().is_empty()
    );
    assert!(!denial["how_to_ask"].to_string().contains("request_access"), "this client cannot be asked: {denial}");
    assert_eq!(client.output(&session, "ls /workspace").await, "");
    let twice = client.call("run_command", json!({"session_id": session, "command": "rm -rf /"})).await;
    assert_eq!(twice.value["denials"].as_array().map(Vec::len), Some(1), "two rules, one refusal: {twice:?}");
    let (events, counts) = denied(&client, &session, 1, 2).await;
    assert_eq!(events[0], denial, "the event is the same structure");
    assert_eq!(counts, json!({"command_denied": 2}));
}

#[tokio::test]
async fn a_command_that_cannot_be_told_is_run_and_says_so() {
    let client = start().await;
    let session = client.sandbox().await;
    let ran = client.run(&session, "$(cat none 2>/dev/null) echo ran").await;
    assert_eq!(ran["stdout"], "ran\n", "{ran}");
    assert!(ran["notes"].to_string().contains("the kernel has the last word"), "{ran}");
}

#[tokio::test]
async fn file_tools_refuse_in_the_same_form() {
    let client = start_with(Era::Modern, &[]).await;
    let session = client.sandbox().await;
    let files = json!([{"path": "/etc/x", "content": "x"}, {"path": "fine", "content": "x"}]);
    let written = client.call("write_files", json!({"session_id": session, "files": files})).await;
    assert!(written.is_error && written.value["written_count"] == 1, "{written:?}");
    let read = client.call("get_files", json!({"session_id": session, "paths": ["/etc/passwd"]})).await;
    for answer in [&written, &read] {
        let denial = &answer.value["denials"][0];
        assert_eq!(
            (&denial["kind"], &denial["reason"]),
            (&json!("filesystem"), &json!("outside_places")),
            "{answer:?}"
        );
        assert!(denial["how_to_ask"].as_str().unwrap().contains("/workspace"), "{answer:?}");
    }
    let listed = client.call("list_files", json!({"session_id": session, "path": "/etc"})).await;
    let told = listed.whole["result"]["content"][1]["text"].as_str().unwrap();
    assert!(listed.is_error && told.contains("outside_places"), "{listed:?}");
    assert_eq!(denied(&client, &session, 0, 3).await.1, json!({"outside_places": 3}));
}

#[tokio::test]
async fn a_timeout_and_a_limit_that_is_not_raised_are_told() {
    let client = start().await;
    let made =
        client.ok("create_sandbox", json!({"policy": "user_added", "limits": {"memory": "2GiB", "pids": 9}})).await;
    let denial = &made["denials"][0];
    assert_eq!((&denial["reason"], &denial["target"]), (&json!("memory_limit"), &json!("memory=2 GiB")), "{made}");
    assert!(denial["how_to_ask"].as_str().unwrap().contains("create_sandbox with policy"), "{made}");
    let session = made["session_id"].as_str().unwrap();
    let ran = client.ok("run_command", json!({"session_id": session, "command": "sleep 60", "timeout": 1})).await;
    assert_eq!((&ran["status"], &ran["denials"][0]["reason"]), (&json!("timeout"), &json!("time_limit")), "{ran}");
    assert!(ran["denials"][0]["message"].as_str().unwrap().starts_with("killed: ran for 1"), "{ran}");
    let how = ran["denials"][0]["how_to_ask"].to_string();
    assert!(how.contains("up to 600 s, use request_access"), "the policy gives 300 s, the operator 600 s: {how}");
    let session = client.sandbox().await;
    let ran = client.ok("run_command", json!({"session_id": session, "command": "sleep 60", "timeout": 1})).await;
    assert!(!ran["denials"][0]["how_to_ask"].to_string().contains("request_access"), "nobody can give more: {ran}");
    assert_eq!(denied(&client, &session, 1, 1).await.1, json!({"memory_limit": 1, "time_limit": 2}));
}

#[tokio::test]
async fn what_a_command_prints_is_at_most_a_hint() {
    let client = start().await;
    let session = client.sandbox().await;
    let ran = client.run(&session, "touch /usr/x").await;
    let hint = &ran["denials"][0];
    assert_eq!(
        (&hint["reason"], &hint["inferred"], &hint["target"]),
        (&json!("read_only"), &json!(true), &json!("/usr/x")),
        "{ran}"
    );
    let lie = client.run(&session, "echo 'x: Network is unreachable' >&2; exit 1").await;
    assert_eq!(
        (&lie["denials"][0]["reason"], &lie["denials"][0]["inferred"]),
        (&json!("network"), &json!(true)),
        "{lie}"
    );
    let memory = client.run(&session, "python3 -c 'bytearray(1 << 46)'").await;
    assert_eq!(memory["denials"][0]["reason"], "memory_limit", "{memory}");
    let full = client.run(&session, "head -c 100M /dev/zero > /dev/shm/x").await;
    let told = full["denials"][0]["message"].to_string();
    assert!(told.contains("limits.tmp") && told.contains("limits.disk"), "{full}");
    let packages = client.run(&session, "echo 'E: dpkg frontend lock (/x), are you root?' >&2; exit 100").await;
    assert!(packages["denials"][0]["how_to_ask"].to_string().contains("yolo-4"), "{packages}");
    let fine = client.run(&session, "echo 'x: Network is unreachable' >&2").await;
    assert_eq!(fine["denials"], json!([]), "it did not fail");
    assert_eq!(denied(&client, &session, 6, 0).await, (Vec::new(), Value::Null), "nothing that counts as a refusal");
}

#[tokio::test]
async fn a_policy_that_the_operator_does_not_allow_is_a_refusal_by_the_ceiling() {
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_ALLOWED_POLICIES", "yolo-3")]).await;
    let answer = client.call("create_sandbox", json!({"policy": "yolo-4"})).await;
    let told = answer.whole["result"]["content"][1]["text"].as_str().unwrap_or_default();
    let told: Value = serde_json::from_str(told).unwrap_or_else(|_| panic!("{answer:?}"));
    assert_eq!((&told["denials"][0]["reason"], &told["denials"][0]["target"]), (&json!("ceiling"), &json!("yolo-4")));
}

#[test]
fn the_documentation_names_every_reason() {
    let text = include_str!("../../../../docs/denials.md");
    let named: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let known: Vec<String> = sandbox_core::Reason::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(named, known, "docs/denials.md lists other reasons than the program has, or in another order");
    for reason in sandbox_core::Reason::ALL {
        assert!(text.contains(&format!("| `{reason}` | {} |", reason.kind())), "{reason} has another kind");
    }
}
