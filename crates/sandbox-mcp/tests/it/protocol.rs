//! What the wire itself must stand.

use std::time::Duration;

use serde_json::json;

use crate::harness::{Era, spawn, start, start_with};

#[tokio::test]
async fn tools_are_listed_whole_and_small_in_both_eras() {
    for era in [Era::Legacy, Era::Modern] {
        let client = start_with(era, &[]).await;
        let tools = client.request("tools/list", json!({})).await["result"]["tools"].clone();
        let names: Vec<&str> = tools.as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
        assert_eq!(names.len(), 11);
        assert!(names.contains(&"execute_task") && !names.contains(&"exit_container"));
        let mut bytes = 0;
        for tool in tools.as_array().unwrap() {
            let read =
                json!({"name": tool["name"], "description": tool["description"], "inputSchema": tool["inputSchema"]});
            bytes += read.to_string().len();
            assert!(tool["annotations"]["readOnlyHint"].is_boolean() && tool["title"].is_string(), "{tool}");
            assert_eq!(tool["inputSchema"]["additionalProperties"], false);
            assert_eq!(tool["outputSchema"]["type"], "object");
        }
        assert!(bytes < 12_000, "{bytes}");
        let core =
            tools.as_array().unwrap().iter().filter(|tool| tool["_meta"]["anthropic/alwaysLoad"] == true).count();
        assert_eq!(core, 4);
    }
}

#[tokio::test]
async fn garbage_on_stdin_is_answered_and_survived() {
    let client = start().await;
    client.send_line("this is not json").await;
    client.send_bytes(b"\xff\xfe\x00\x01\n{\"jsonrpc\":\n[[[[[[\n{}\nnull\n42\n").await;
    client.send_line(&"[".repeat(100_000)).await;
    client
        .send_line(&json!({"jsonrpc": "2.0", "method": "notifications/nonsense", "params": {"x": 1}}).to_string())
        .await;
    client.send_line(&json!({"jsonrpc": "2.0", "id": 4711, "result": {}}).to_string()).await;
    assert_eq!(client.notification().await["error"]["code"], -32700);
    assert!(client.request("nonsense/method", json!({})).await["error"]["code"] == -32601);
    client.still_works().await;
}

#[tokio::test]
async fn garbage_before_the_handshake_is_survived() {
    let folder = tempfile::tempdir().unwrap();
    let client = spawn(folder.path(), Era::Modern, &[]);
    client.send_line("hello?").await;
    client
        .send_line(
            &json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 9}}).to_string(),
        )
        .await;
    client.send_line(&json!({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}).to_string()).await;
    assert!(client.request("tools/list", json!({})).await["result"]["tools"].is_array());
}

#[tokio::test]
async fn a_request_line_of_20_megabytes_is_refused_by_its_id_and_survived() {
    let client = start().await;
    let content = "x".repeat(20 << 20);
    let files = json!([{"path": "big", "content": content}]);
    let params = json!({"name": "write_files", "arguments": {"session_id": "x", "files": files}});
    let answer = client.request("tools/call", params).await;
    assert!(answer["error"]["message"].as_str().unwrap().contains("16 MiB"), "{answer}");
    client.still_works().await;
}

#[tokio::test]
async fn the_handshake_says_how_to_use_the_tools() {
    let folder = tempfile::tempdir().unwrap();
    let client = spawn(folder.path(), Era::Legacy, &[]);
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "it", "version": "1"}});
    let answer = client.request("initialize", hello).await;
    assert!(answer["result"]["instructions"].as_str().unwrap().contains("create_sandbox"));
    assert_eq!(answer["result"]["serverInfo"]["name"], "sandbox-mcp");
}

#[tokio::test]
async fn discovery_offers_both_eras() {
    let folder = tempfile::tempdir().unwrap();
    let client = spawn(folder.path(), Era::Modern, &[]);
    let answer = client.request("server/discover", json!({})).await;
    let versions = answer["result"]["supportedVersions"].as_array().unwrap();
    assert!(versions.contains(&json!("2026-07-28")) && versions.contains(&json!("2025-11-25")), "{answer}");
}

#[tokio::test]
async fn there_are_no_prompts_and_nothing_pretends_there_are() {
    let client = start().await;
    assert_eq!(client.request("prompts/list", json!({})).await["error"]["code"], -32601);
}

#[tokio::test]
async fn closing_the_input_ends_the_server_at_once_and_well() {
    let mut client = start().await;
    let began = std::time::Instant::now();
    assert!(client.close().await.success(), "{}", client.stderr());
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
}
