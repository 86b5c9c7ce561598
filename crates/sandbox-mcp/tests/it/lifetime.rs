//! Coming and going: closed input, killed servers, servers side by side, a hundred rounds.

use std::time::Duration;

use serde_json::json;

use crate::harness::{
    Era, cgroups_with, mark, mounts_with, nothing_left, processes_with, resident_kilobytes, start, start_in,
};

const SOON: Duration = Duration::from_secs(5);

#[tokio::test]
async fn closing_stdin_ends_sandboxes_and_leaves_nothing() {
    let mut client = start().await;
    let (session, mark) = (client.sandbox().await, mark());
    client
        .ok("run_command", json!({"session_id": session, "command": format!("sleep {mark}"), "wait_seconds": 0}))
        .await;
    assert!(client.close().await.success());
    nothing_left(&session, &format!("sleep {mark}"), SOON).await;
    assert!(!client.folder(&session).exists());
}

#[tokio::test]
async fn a_client_that_goes_away_in_the_middle_of_a_call_leaves_nothing() {
    let mut client = start().await;
    let (session, mark) = (client.sandbox().await, mark());
    let arguments = json!({"session_id": session, "command": format!("sleep {mark}")});
    client.begin("tools/call", json!({"name": "run_command", "arguments": arguments})).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(client.close().await.success());
    nothing_left(&session, &format!("sleep {mark}"), SOON).await;
}

#[tokio::test]
async fn a_persistent_sandbox_outlives_its_server_and_is_adopted() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = start_in(folder.path(), Era::Legacy, &[]).await;
    let session = first.sandbox_with(json!({"persistent": true})).await;
    first.output(&session, "echo kept > kept.txt").await;
    assert!(first.close().await.success());
    first.streams_end().await;
    let mut second = start_in(folder.path(), Era::Legacy, &[]).await;
    let status = second.ok("get_sandbox_status", json!({})).await;
    assert!(status["recovered"].as_str().is_some_and(|text| text.contains(&session)), "{status}");
    assert_eq!(second.output(&session, "cat kept.txt").await, "kept\n");
    second.ok("cleanup_session", json!({"session_id": session})).await;
    second.close().await;
    assert_eq!(cgroups_with(&session), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn two_servers_side_by_side_reach_each_others_sandboxes() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = start_in(folder.path(), Era::Legacy, &[]).await;
    let second = start_in(folder.path(), Era::Modern, &[]).await;
    let (one, two) = (first.sandbox().await, second.sandbox().await);
    first.output(&one, "echo from the first > note").await;
    assert_eq!(second.output(&one, "cat note").await, "from the first\n");
    assert_eq!(first.output(&two, "echo hello").await, "hello\n");
    let job =
        first.ok("run_command", json!({"session_id": one, "command": "sleep 1; echo late", "wait_seconds": 0})).await;
    let seen = second.ok("get_output", json!({"session_id": one, "job_id": job["job_id"], "wait_seconds": 5})).await;
    assert_eq!(seen["stdout"], "late\n");
    assert_eq!(second.ok("get_sandbox_status", json!({})).await["sandboxes"].as_array().unwrap().len(), 2);
    first.close().await;
    second.refused("run_command", json!({"session_id": one, "command": "true"})).await;
    assert_eq!(second.output(&two, "echo still").await, "still\n");
}

#[tokio::test]
async fn a_server_killed_in_the_middle_of_a_command_leaves_only_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let lease = [("SANDBOX_MCP_LEASE_SECONDS", "2")];
    let mut client = start_in(folder.path(), Era::Legacy, &lease).await;
    let (session, mark) = (client.sandbox().await, mark());
    let arguments = json!({"session_id": session, "command": format!("echo work > result.txt; sleep {mark}")});
    client.begin("tools/call", json!({"name": "run_command", "arguments": arguments})).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(processes_with(&format!("sleep {mark}")), 2);
    client.kill().await;
    let mut list = std::process::Command::new(crate::harness::BINARY);
    let listed = list.args(["list", "--json", "--state"]).arg(client.state()).output().unwrap();
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let left = listed[0]["expires_in_seconds"].as_f64().unwrap();
    assert!(left <= 60.0 || listed[0]["state"] == "ended", "nobody renews its lease: {listed}");
    nothing_left(&session, &format!("sleep {mark}"), Duration::from_secs(10)).await;
    let kept = client.folder(&session).join("workspace/result.txt");
    assert_eq!(std::fs::read_to_string(kept).unwrap(), "work\n");
    let next = start_in(folder.path(), Era::Legacy, &lease).await;
    let status = next.ok("get_sandbox_status", json!({})).await;
    assert!(status["recovered"].as_str().is_some_and(|text| text.contains(&session)), "{status}");
    next.ok("cleanup_session", json!({"session_id": session})).await;
    assert!(!next.folder(&session).exists());
}

#[tokio::test]
async fn an_idle_sandbox_is_cleaned_up() {
    let client = crate::harness::start_with(Era::Legacy, &[("AUTO_CLEANUP_MINUTES", "0.05")]).await;
    let session = client.sandbox().await;
    tokio::time::timeout(Duration::from_secs(30), async {
        while client.folder(&session).exists() {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    })
    .await
    .expect("it is gone in time");
    client.refused("run_command", json!({"session_id": session, "command": "true"})).await;
}

#[tokio::test]
async fn a_hundred_rounds_leave_memory_flat_and_nothing_behind() {
    let mut client = start().await;
    let mark = mark();
    let mut first = String::new();
    let mut round = async |client: &crate::harness::Client| {
        let session = client.sandbox().await;
        client.output(&session, &format!("sleep {mark} & seq 1 2000; echo ok > f")).await;
        client.ok("get_files", json!({"session_id": session, "paths": ["f"]})).await;
        client.ok("cleanup_session", json!({"session_id": session})).await;
        first = session;
    };
    for _ in 0..40 {
        round(&client).await;
    }
    let before = resident_kilobytes(client.pid());
    for _ in 0..100 {
        round(&client).await;
    }
    let after = resident_kilobytes(client.pid());
    assert!(after as f64 <= before as f64 * 1.05, "{before} kB before, {after} kB after");
    let state = client.state().to_str().unwrap().to_owned();
    assert_eq!(std::fs::read_dir(client.state().join("sandboxes")).unwrap().count(), 0);
    nothing_left(&first, &format!("sleep {mark}"), SOON).await;
    assert_eq!((cgroups_with(&first).len(), mounts_with(&state)), (0, 0));
    assert!(client.close().await.success());
}

#[tokio::test]
async fn who_is_killed_while_a_sandbox_is_born_leaves_nothing_that_counts() {
    let folder = tempfile::tempdir().unwrap();
    let mut client = start_in(folder.path(), Era::Legacy, &[]).await;
    let state = client.state().to_owned();
    // As if the server of before had been killed before it had written down what it makes.
    let session = client.sandbox().await;
    let nameless = state.join("sandboxes").join(session.replace(|digit: char| digit.is_ascii_digit(), "0"));
    std::fs::create_dir(&nameless).unwrap();
    for name in ["lock", "facts.json"] {
        std::fs::write(nameless.join(name), "\n").unwrap();
    }
    let mark = mark();
    for delay in 0..24 {
        let exec = std::process::Command::new(env!("CARGO_BIN_EXE_sandbox-mcp"))
            .args(["exec", "--state", state.to_str().unwrap(), "--", "sleep", &mark])
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn();
        let mut exec = exec.unwrap();
        tokio::time::sleep(Duration::from_micros(500 * delay)).await;
        exec.kill().unwrap();
        exec.wait().unwrap();
    }
    nothing_left("no session", &mark, SOON).await;
    client.ok("cleanup_session", json!({"session_id": session})).await;
    assert!(client.close().await.success());
    let again = start_in(folder.path(), Era::Legacy, &[]).await;
    tokio::time::timeout(SOON, async {
        let folders = || std::fs::read_dir(state.join("sandboxes")).unwrap().flatten().map(|entry| entry.path());
        let says_nothing = |folder: std::path::PathBuf| {
            let name = folder.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with("sandbox_") && std::fs::read(folder.join("facts.json")).map_or(0, |facts| facts.len()) < 2
        };
        while folders().any(says_nothing) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .expect("what nobody can tell anything about is removed");
    again.still_works().await;
}
