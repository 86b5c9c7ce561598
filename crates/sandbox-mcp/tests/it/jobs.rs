//! Jobs that outlive a call, progress, cancellation.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Era, mark, processes_with, start, start_with};

#[tokio::test]
async fn progress_comes_soon_and_often_with_the_newest_line_in_both_eras() {
    for era in [Era::Legacy, Era::Modern] {
        let client = start_with(era, &[]).await;
        let session = client.sandbox().await;
        let arguments =
            json!({"session_id": session, "command": "for i in 1 2 3 4 5 6 7 8 9; do echo step $i; sleep 1; done"});
        let began = Instant::now();
        let params = json!({"name": "run_command", "arguments": arguments, "_meta": {"progressToken": "tok"}});
        let (_, answer) = client.begin("tools/call", params).await;
        let first = client.notification().await;
        // Two seconds are promised; other tests run at the same time.
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!(
            (&first["method"], &first["params"]["progressToken"]),
            (&json!("notifications/progress"), &json!("tok"))
        );
        let answer = answer.await.unwrap();
        assert_eq!(answer["result"]["structuredContent"]["status"], "exited", "{answer}");
        let rest = client.notifications().await;
        assert!(!rest.is_empty() && rest[0]["params"]["message"].as_str().unwrap().starts_with("step"), "{rest:?}");
        assert!(rest[0]["params"]["progress"].as_f64() > first["params"]["progress"].as_f64());
    }
}

#[tokio::test]
async fn with_a_progress_token_a_call_waits_as_long_as_it_is_told() {
    let client = start().await;
    let session = client.sandbox().await;
    let arguments = json!({"session_id": session, "command": "sleep 60", "wait_seconds": 3});
    let began = Instant::now();
    let answer = client.call_with("run_command", arguments, json!({"progressToken": 1})).await;
    assert_eq!(answer.value["status"], "running");
    assert!((3..5).contains(&began.elapsed().as_secs()));
}

#[tokio::test]
async fn cancelling_a_call_kills_the_whole_process_tree_in_both_eras() {
    for era in [Era::Legacy, Era::Modern] {
        let client = start_with(era, &[]).await;
        let (session, mark) = (client.sandbox().await, mark());
        let script = format!("sleep {mark} & (setsid sleep {mark} &) ; sh -c 'trap \"\" TERM; sleep {mark}'");
        let params = json!({"name": "run_command", "arguments": {"session_id": session, "command": script}});
        let (id, answer) = client.begin("tools/call", params).await;
        wait_for(|| processes_with(&format!("sleep {mark}")) >= 3).await;
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        client.send_line(&cancel.to_string()).await;
        wait_for(|| processes_with(&format!("sleep {mark}")) == 0).await;
        assert!(
            tokio::time::timeout(Duration::from_millis(300), answer).await.is_err(),
            "a cancelled call has no answer"
        );
        assert_eq!(client.output(&session, "echo on").await, "on\n");
    }
}

#[tokio::test]
async fn cancelling_what_has_ended_or_never_was_does_nothing() {
    let client = start().await;
    for id in [json!(1), json!(99_999), json!("text")] {
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        client.send_line(&cancel.to_string()).await;
    }
    client.still_works().await;
}

#[tokio::test]
async fn a_job_in_the_background_takes_input_and_signals() {
    let client = start().await;
    let session = client.sandbox().await;
    let script = "trap 'echo bye; exit 5' INT; while read line; do echo got $line; done; sleep 60 & wait";
    let started = json!({"session_id": session, "command": script, "wait_seconds": 0, "interactive": true});
    let job = client.ok("run_command", started).await;
    assert_eq!(job["status"], "running");
    let sent = json!({"session_id": session, "job_id": job["job_id"], "input": "one\ntwo\n", "wait_seconds": 1});
    assert_eq!(client.ok("get_output", sent).await["stdout"], "got one\ngot two\n");
    let end =
        json!({"session_id": session, "job_id": job["job_id"], "close_input": true, "offset": 16, "wait_seconds": 1});
    assert_eq!(client.ok("get_output", end).await["status"], "running");
    let interrupt =
        json!({"session_id": session, "job_id": job["job_id"], "signal": "SIGINT", "offset": 16, "wait_seconds": 5});
    let ended = client.ok("get_output", interrupt).await;
    assert_eq!((&ended["stdout"], &ended["exit_code"]), (&json!("bye\n"), &json!(5)), "{ended}");
}

#[tokio::test]
async fn a_process_that_ignores_sigterm_is_ended_by_sigkill() {
    let client = start().await;
    let session = client.sandbox().await;
    let script = "trap '' TERM; echo ready; while true; do sleep 1; done";
    let started = json!({"session_id": session, "command": script, "wait_seconds": 1});
    let job = client.ok("run_command", started).await;
    assert_eq!(job["stdout"], "ready\n");
    let signal =
        |name: &str| json!({"session_id": session, "job_id": job["job_id"], "signal": name, "wait_seconds": 2});
    assert_eq!(client.ok("get_output", signal("SIGTERM")).await["status"], "running");
    let ended = client.ok("get_output", signal("SIGKILL")).await;
    assert_eq!((&ended["status"], &ended["signal"]), (&json!("killed"), &json!("SIGKILL")), "{ended}");
}

#[tokio::test]
async fn a_daemon_that_double_forks_does_not_hold_up_the_answer_and_dies_with_the_sandbox() {
    let client = start().await;
    let (session, mark) = (client.sandbox().await, mark());
    let began = Instant::now();
    let script = format!("(setsid sh -c 'setsid sleep {mark} </dev/null >/dev/null 2>&1 &' &); echo started");
    assert_eq!(client.output(&session, &script).await, "started\n");
    assert!(began.elapsed() < Duration::from_secs(5));
    wait_for(|| processes_with(&format!("sleep {mark}")) == 1).await;
    client.ok("cleanup_session", json!({"session_id": session})).await;
    wait_for(|| processes_with(&format!("sleep {mark}")) == 0).await;
}

async fn wait_for(condition: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < until, "it did not happen in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
