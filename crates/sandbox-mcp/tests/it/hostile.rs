//! What a hostile or broken command tries from inside. The sandbox may end; nothing else may.

use serde_json::json;

use crate::harness::{mark, nothing_left, parent_of, start};

/// The switch that leaves walls out is for tests of the attack suite: a program for people has not even its name.
#[cfg(not(feature = "breakable"))]
#[test]
fn no_variable_leaves_a_wall_out() {
    let program = std::fs::read(crate::harness::BINARY).unwrap();
    let name = b"SANDBOX_MCP_WITHOUT";
    assert!(!program.windows(name.len()).any(|window| window == name));
}

#[tokio::test]
async fn killing_pid_1_from_inside_does_nothing_to_anybody_else() {
    let client = start().await;
    let (session, other) = (client.sandbox().await, client.sandbox().await);
    let script = "for s in TERM INT HUP QUIT KILL SEGV STOP USR1; do kill -$s 1; done; kill -9 -1; echo survived";
    client.call("run_command", json!({"session_id": session, "command": script})).await;
    assert_eq!(client.output(&other, "echo untouched").await, "untouched\n");
    let after = client.call("run_command", json!({"session_id": session, "command": "echo again"})).await;
    assert!(after.is_error || after.value["stdout"] == "again\n", "{}", after.text);
    client.ok("cleanup_session", json!({"session_id": session})).await;
}

#[tokio::test]
async fn the_executor_inside_cannot_be_read_or_traced() {
    let client = start().await;
    let session = client.sandbox().await;
    let script = "cat /proc/1/environ; cat /proc/1/mem; ls /proc/1/fd; ls /proc/1/cwd/; readlink /proc/1/exe";
    let ran = client.run(&session, script).await;
    assert_eq!(ran["stdout"], "", "{ran}");
}

#[tokio::test]
async fn nothing_of_this_machine_leaks_in() {
    let client = start().await;
    let session = client.sandbox().await;
    let text = client
        .output(&session, "env; ls -A /root /home 2>&1; ls /run 2>/dev/null; cat /proc/net/route 2>/dev/null | wc -l")
        .await;
    assert!(!text.contains("WORKSPACE_BASE") && !text.contains(".cargo") && !text.contains(".ssh"), "{text}");
    // In a file, where no list of commands sees it: the kernel's walls are meant.
    let attack = "mount -t tmpfs x /mnt; chroot / true; unshare -U true; dmesg; touch /usr/x /etc/x";
    let files = json!([{"path": "attack", "content": attack}]);
    client.ok("write_files", json!({"session_id": session, "files": files})).await;
    let ran = client.run(&session, "sh attack").await;
    assert_ne!(ran["exit_code"], 0, "{ran}");
}

#[tokio::test]
async fn a_fork_bomb_is_held_and_the_sandbox_can_be_removed() {
    let client = start().await;
    let session = client.sandbox_with(json!({"limits": {"pids": 64, "memory": "256MiB"}})).await;
    let mark = mark();
    let script = format!("bomb() {{ sleep {mark} & bomb & bomb; }}; bomb");
    let arguments = json!({"session_id": session, "command": script, "timeout": 5});
    client.call("run_command", arguments).await;
    client.still_works().await;
    client.ok("cleanup_session", json!({"session_id": session})).await;
    nothing_left(&session, &format!("sleep {mark}"), std::time::Duration::from_secs(5)).await;
}

#[tokio::test]
async fn a_frozen_executor_holds_up_nobody_and_can_be_removed() {
    let client = start().await;
    let (session, mark) = (client.sandbox().await, mark());
    let command = format!("exec sleep {mark}");
    client.ok("run_command", json!({"session_id": session, "command": command, "wait_seconds": 0})).await;
    let executor = parent_of(&format!("sleep {mark}"));
    let frozen = std::process::Command::new("kill").args(["-STOP", &executor.to_string()]).status().unwrap();
    assert!(frozen.success());
    let began = std::time::Instant::now();
    let ask = |tool: &'static str, arguments: serde_json::Value| client.refused(tool, arguments);
    let answers = tokio::join!(
        ask("run_command", json!({"session_id": session, "command": "true"})),
        ask("get_output", json!({"session_id": session, "job_id": "job_1", "signal": "SIGTERM"})),
        ask("get_files", json!({"session_id": session, "paths": ["a"]})),
        client.still_works(),
    );
    for text in [answers.0, answers.1, answers.2] {
        assert!(text.contains("does not answer") && text.contains("cleanup_session"), "{text}");
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    client.ok("cleanup_session", json!({"session_id": session})).await;
    nothing_left(&session, &format!("sleep {mark}"), std::time::Duration::from_secs(5)).await;
}
