//! Arguments that are not what a tool takes: a clear word to the model, and nothing else happens.

use serde_json::json;

use crate::harness::start;

#[tokio::test]
async fn an_unknown_tool_is_an_error_of_the_protocol() {
    let client = start().await;
    let answer = client.request("tools/call", json!({"name": "make_coffee", "arguments": {}})).await;
    assert_eq!(answer["error"]["code"], -32602);
    assert!(answer["error"]["message"].as_str().unwrap().contains("make_coffee"));
}

#[tokio::test]
async fn an_unknown_field_is_named_with_the_one_that_was_meant() {
    let client = start().await;
    let text = client.refused("run_command", json!({"session_id": "x", "comand": "true"})).await;
    assert!(text.contains("`comand`") && text.contains("Did you mean `command`?"), "{text}");
}

#[tokio::test]
async fn a_wrong_type_is_named_with_what_is_expected() {
    let client = start().await;
    let arguments = json!({"session_id": "x", "command": "true", "timeout": "soon"});
    let text = client.refused("run_command", arguments).await;
    assert!(text.contains("`timeout` must be a whole number") && text.contains("\"soon\""), "{text}");
    let text = client.refused("write_files", json!({"session_id": "x", "files": [{"path": "a", "content": 5}]})).await;
    assert!(text.contains("`files[0].content` must be a string"), "{text}");
}

#[tokio::test]
async fn a_missing_field_is_named() {
    let client = start().await;
    let text = client.refused("run_command", json!({"command": "true"})).await;
    assert!(text.contains("`session_id` is missing"), "{text}");
}

#[tokio::test]
async fn arguments_that_are_no_object_are_answered_with_the_right_form() {
    let client = start().await;
    let answer = client.request("tools/call", json!({"name": "run_command", "arguments": "ls"})).await;
    assert_eq!(answer["error"]["code"], -32602);
    assert!(answer["error"]["message"].as_str().unwrap().contains("tools/call needs params"), "{answer}");
}

#[tokio::test]
async fn an_unknown_session_is_an_error_and_never_a_new_sandbox() {
    let client = start().await;
    for id in ["sandbox_local_000000000000000000000000", "../../etc", "", "nonsense"] {
        let text = client.refused("run_command", json!({"session_id": id, "command": "true"})).await;
        assert!(text.contains("sandbox") || text.contains("session id"), "{text}");
    }
    assert_eq!(client.ok("get_sandbox_status", json!({})).await["sandboxes"], json!([]));
}

#[tokio::test]
async fn an_unknown_policy_or_image_is_told_with_those_that_exist() {
    let client = start().await;
    assert!(client.refused("create_sandbox", json!({"policy": "yolo-9"})).await.contains("yolo-3"));
    assert!(client.refused("create_sandbox", json!({"image": "ubuntu:24.04"})).await.contains("host"));
}

#[tokio::test]
async fn another_users_label_does_not_open_a_sandbox() {
    let client = start().await;
    let session = client.sandbox_with(json!({"user_id": "ann"})).await;
    let text = client.refused("run_command", json!({"session_id": session, "command": "id", "user_id": "bob"})).await;
    assert!(text.contains("belongs to somebody else"), "{text}");
    let arguments = json!({"session_id": session, "command": "true", "user_id": "ann"});
    assert_eq!(client.ok("run_command", arguments).await["exit_code"], 0);
}

#[tokio::test]
async fn an_unknown_job_or_signal_is_told() {
    let client = start().await;
    let session = client.sandbox().await;
    client.refused("get_output", json!({"session_id": session, "job_id": "job_77"})).await;
    let text = client.refused("get_output", json!({"session_id": session, "job_id": "seven"})).await;
    assert!(text.contains("job_3"), "{text}");
    let text =
        client.refused("get_output", json!({"session_id": session, "job_id": "job_1", "signal": "SIGFOO"})).await;
    assert!(text.contains("SIGFOO"), "{text}");
}
