//! Sandboxes that are kept ready: handed out whole, once, to whoever asks for that kind, and never shown before.

use std::{path::PathBuf, time::Duration};

use serde_json::{Value, json};

use crate::harness::{Client, Era, cgroups_with, start_in, start_with};

const WARM: &str = "sandbox_warm_";
const PATIENCE: Duration = Duration::from_secs(20);

/// Folders of sandboxes that belong to nobody yet.
fn ready(client: &Client) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(client.folder("")).into_iter().flatten().flatten();
    let nobodys = |folder: &PathBuf| {
        let facts = std::fs::read(folder.join("facts.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&facts).is_ok_and(|facts| facts["spec"]["owner"] == "-")
    };
    folders.map(|entry| entry.path()).filter(nobodys).collect()
}

async fn until_ready(client: &Client, count: usize) -> Vec<PathBuf> {
    let end = tokio::time::Instant::now() + PATIENCE;
    loop {
        let status = client.ok("get_sandbox_status", json!({})).await;
        if status["warm"] == json!(count) {
            return ready(client);
        }
        assert!(tokio::time::Instant::now() < end, "{count} were to be ready: {status} {}", client.stderr());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn one_that_is_ready_is_handed_out_once_and_another_one_is_made() {
    let mut client = start_with(Era::Legacy, &[("SANDBOX_MCP_WARM", "2")]).await;
    until_ready(&client, 2).await;
    let shown = client.ok("get_sandbox_status", json!({})).await;
    assert_eq!(shown["sandboxes"], json!([]), "what is nobody's is shown to nobody");
    let sessions = [client.sandbox().await, client.sandbox().await];
    assert_ne!(sessions[0], sessions[1]);
    for (session, word) in sessions.iter().zip(["one", "two"]) {
        assert!(session.starts_with(WARM), "{session}");
        assert_eq!(
            client.output(session, &format!("ls -A /workspace; echo {word} > mine; cat mine")).await,
            format!("{word}\n")
        );
    }
    assert_eq!(client.ok("get_sandbox_status", json!({})).await["sandboxes"].as_array().unwrap().len(), 2);
    until_ready(&client, 2).await;
    for session in sessions {
        client.ok("cleanup_session", json!({"session_id": session})).await;
    }
    assert!(client.close().await.success());
    assert_eq!(std::fs::read_dir(client.folder("")).unwrap().count(), 0, "those that were ready are gone too");
}

#[tokio::test]
async fn whoever_names_a_user_gets_one_that_is_theirs_alone() {
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_WARM", "1")]).await;
    until_ready(&client, 1).await;
    let ann = client.sandbox_with(json!({"user_id": "ann"})).await;
    assert!(ann.starts_with(WARM), "{ann}");
    let as_user = |user| json!({"session_id": ann, "user_id": user, "command": "echo hello"});
    assert_eq!(client.ok("run_command", as_user("ann")).await["stdout"], "hello\n");
    for other in ["bob", "local", "warm", "-"] {
        client.refused("run_command", as_user(other)).await;
    }
    let others = client.ok("get_sandbox_status", json!({"user_id": "bob"})).await;
    assert_eq!(others["sandboxes"], json!([]));
}

#[tokio::test]
async fn what_is_asked_for_otherwise_is_made_as_asked() {
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_WARM", "1")]).await;
    let before = until_ready(&client, 1).await;
    for asked in [
        json!({"policy": "yolo-1"}),
        json!({"limits": {"memory": "64MiB"}}),
        json!({"env": {"A": "b"}}),
        json!({"persistent": true}),
    ] {
        let session = client.sandbox_with(asked.clone()).await;
        assert!(!session.starts_with(WARM), "{asked}");
        client.ok("cleanup_session", json!({"session_id": session})).await;
    }
    assert_eq!(ready(&client), before);
}

#[tokio::test]
async fn one_that_died_while_it_waited_is_not_handed_out() {
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_WARM", "1")]).await;
    let dead = until_ready(&client, 1).await.remove(0);
    let note = std::fs::read_to_string(dead.join("lock")).unwrap();
    let first: i32 = note.split_whitespace().next().unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(first).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    // A killed process may finish what it was saying.
    while std::path::Path::new(&format!("/proc/{first}/exe")).read_link().is_ok() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let session = client.sandbox().await;
    assert!(!dead.ends_with(&session), "{session}");
    assert_eq!(client.output(&session, "echo well").await, "well\n");
}

#[tokio::test]
async fn those_of_a_server_that_was_killed_are_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("SANDBOX_MCP_WARM", "2"), ("SANDBOX_MCP_LEASE_SECONDS", "60")];
    let mut first = start_in(folder.path(), Era::Legacy, &variables).await;
    let left = until_ready(&first, 2).await;
    first.kill().await;
    let mut second = start_in(folder.path(), Era::Legacy, &[]).await;
    let status = second.ok("get_sandbox_status", json!({})).await;
    assert_eq!(status["sandboxes"], json!([]), "{status}");
    for folder in left {
        assert!(!folder.exists(), "{}", folder.display());
        assert_eq!(cgroups_with(&folder.file_name().unwrap().to_string_lossy()), Vec::<PathBuf>::new());
    }
    second.close().await;
}

#[tokio::test]
async fn those_that_are_ready_stand_back_where_there_is_no_room() {
    let variables = [("SANDBOX_MCP_WARM", "2"), ("SANDBOX_MCP_MAX_SANDBOXES_PER_USER", "2")];
    let client = start_with(Era::Legacy, &variables).await;
    until_ready(&client, 2).await;
    for policy in ["yolo-1", "yolo-2"] {
        client.sandbox_with(json!({"policy": policy})).await;
    }
    assert_eq!(ready(&client), Vec::<PathBuf>::new());
    client.refused("create_sandbox", json!({"policy": "yolo-1"})).await;
}
