//! Limits that are really held, by the kernel or by us, and named when they end something.

use serde_json::json;

use crate::harness::{Era, start, start_with};

#[tokio::test]
async fn filling_memory_ends_the_command_and_names_the_limit() {
    let client = start().await;
    let session = client.sandbox_with(json!({"limits": {"memory": "64MiB"}})).await;
    // Four processes that each hold less than the limit, and together more: nobody is told "no" before it is too late.
    let script = "echo before; for i in 1 2 3 4; do (head -c 40000000 /dev/zero; sleep 5) | tail > /dev/null & p=\"$p $!\"; done; \
                  for q in $p; do wait $q || exit 9; done";
    let ran = client.ok("run_command", json!({"session_id": session, "command": script, "timeout": 60})).await;
    assert_eq!((&ran["status"], &ran["stdout"]), (&json!("killed"), &json!("before\n")), "{ran}");
    let denial = &ran["denials"][0];
    assert_eq!((&denial["kind"], &denial["reason"]), (&json!("limit"), &json!("memory_limit")), "{ran}");
    let message = denial["message"].as_str().unwrap();
    assert!(message.starts_with("killed: used ") && message.ends_with(" MiB of 64 MiB of memory"), "{ran}");
    assert!(denial["how_to_ask"].as_str().unwrap().contains("create_sandbox with policy yolo-3"), "{ran}");
    assert_eq!(client.output(&session, "echo after").await, "after\n");
}

#[tokio::test]
async fn filling_tmp_is_refused_by_the_kernel() {
    let client = start().await;
    let session = client.sandbox_with(json!({"limits": {"tmp": "4MiB"}})).await;
    let ran = client.run(&session, "head -c 50000000 /dev/zero > /tmp/full; stat -c %s /tmp/full; rm /tmp/full; echo x > /tmp/ok && cat /tmp/ok").await;
    let lines: Vec<&str> = ran["stdout"].as_str().unwrap().lines().collect();
    assert!(lines[0].parse::<u64>().unwrap() <= 4 << 20, "{ran}");
    assert_eq!(lines[1], "x");
    assert!(ran["stderr"].as_str().unwrap().contains("space"), "{ran}");
}

#[tokio::test]
async fn filling_the_disk_is_stopped_and_named() {
    let client = start().await;
    let session = client.sandbox_with(json!({"limits": {"disk": "16MiB"}})).await;
    let script = "for i in 1 2 3 4 5 6 7 8 9 10; do head -c 10000000 /dev/zero > fill$i || exit 9; sleep 0.5; done";
    let ran = client.ok("run_command", json!({"session_id": session, "command": script, "timeout": 30})).await;
    assert_ne!(ran["exit_code"], 0, "{ran}");
    let text = ran.to_string();
    assert!(text.contains("MiB of 16 MiB of disk") || text.contains("No space"), "{text}");
    assert!(text.contains("disk_limit"), "{text}");
    client.still_works().await;
}

#[tokio::test]
async fn filling_pids_is_refused_by_the_kernel() {
    let client = start().await;
    let session = client.sandbox_with(json!({"limits": {"pids": 20}})).await;
    let script = "n=0; while [ $n -lt 100 ]; do sleep 5 & n=$((n+1)); done; echo never";
    let ran = client.run(&session, script).await;
    assert!(ran["stderr"].as_str().unwrap().to_lowercase().contains("fork") || ran["exit_code"] != 0, "{ran}");
    assert_eq!(
        (&ran["denials"][0]["reason"], &ran["denials"][0]["inferred"]),
        (&json!("pids_limit"), &json!(true)),
        "{ran}"
    );
    client.still_works().await;
}

#[tokio::test]
async fn quotas_are_told_with_what_to_do() {
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_MAX_SANDBOXES_PER_USER", "2")]).await;
    let first = client.sandbox().await;
    // A label is not another user.
    client.sandbox_with(json!({"user_id": "ann"})).await;
    let text = client.refused("create_sandbox", json!({})).await;
    assert!(text.contains("may have 2") && text.contains("cleanup_session"), "{text}");
    client.ok("cleanup_session", json!({"session_id": first})).await;
    client.sandbox().await;
}

#[tokio::test]
async fn many_calls_at_once_are_all_answered() {
    let client = start().await;
    let session = client.sandbox().await;
    let call = async || client.run(&session, "sleep 0.2; echo done").await;
    let calls = futures::future::join_all((0..700).map(|_| call())).await;
    let wrong = calls.iter().find(|ran| ran["stdout"] != "done\n" && ran["status"] != "running");
    assert_eq!(wrong, None);
}
