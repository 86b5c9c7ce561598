//! Commands that print too much, the wrong things, or nothing; many at once; too long.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Era, start, start_with};

#[tokio::test]
async fn a_command_that_prints_a_gigabyte_is_answered_with_its_ends() {
    let client = start().await;
    let session = client.sandbox().await;
    let script = "echo first; head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo last";
    let arguments = json!({"session_id": session, "command": script, "wait_seconds": 100});
    let answer = client.call_with("run_command", arguments, json!({"progressToken": "p"})).await;
    let ran = &answer.value;
    assert_eq!((&ran["status"], &ran["exit_code"]), (&json!("exited"), &json!(0)), "{:.300}", answer.text);
    let stdout = ran["stdout"].as_str().unwrap();
    assert!(stdout.starts_with("first\nxxx") && stdout.ends_with("xxx\nlast\n") && stdout.len() < 40_000);
    assert_eq!(ran["next_offset"], 1_000_000_000u64 + 12);
    assert!(answer.whole.to_string().len() < 100_000);
    assert!(!ran["left_out"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn left_out_output_can_be_read_by_its_offset() {
    let client = start().await;
    let session = client.sandbox().await;
    let ran = client.run(&session, "seq 1 30000").await;
    let part = &ran["left_out"][0];
    assert_eq!(part["kept"], true, "{part}");
    let mut text = String::new();
    let mut offset = part["from_offset"].as_u64().unwrap();
    while offset < part["to_offset"].as_u64().unwrap() {
        let more =
            client.ok("get_output", json!({"session_id": session, "job_id": ran["job_id"], "offset": offset})).await;
        text.push_str(more["stdout"].as_str().unwrap());
        offset = more["next_offset"].as_u64().unwrap();
    }
    let all: String = (1..=30_000).map(|n| format!("{n}\n")).collect();
    assert_eq!(text, all[part["from_offset"].as_u64().unwrap() as usize..]);
}

#[tokio::test]
async fn binary_output_is_made_safe_and_called_so() {
    let client = start().await;
    let session = client.sandbox().await;
    let answer =
        client.call("run_command", json!({"session_id": session, "command": "head -c 100000 /dev/urandom"})).await;
    assert_eq!(answer.value["exit_code"], 0);
    assert!(answer.value["notes"].to_string().contains("not all text"), "{}", answer.value["notes"]);
    assert!(answer.text.len() < 100_000);
    let zeros = client.run(&session, "head -c 50000 /dev/zero").await;
    assert!(zeros.to_string().len() < 100_000);
}

#[tokio::test]
async fn a_command_that_prints_nothing_answers_running_in_time_and_goes_on() {
    let client = start().await;
    let session = client.sandbox().await;
    let began = Instant::now();
    let ran = client.run(&session, "sleep 10; echo done").await;
    assert_eq!(ran["status"], "running", "{ran}");
    assert!((7..10).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    let arguments =
        json!({"session_id": session, "job_id": ran["job_id"], "offset": ran["next_offset"], "wait_seconds": 8});
    let end = client.ok("get_output", arguments).await;
    assert_eq!((&end["status"], &end["stdout"], &end["exit_code"]), (&json!("exited"), &json!("done\n"), &json!(0)));
}

#[tokio::test]
async fn commands_in_one_sandbox_run_in_parallel() {
    let client = std::sync::Arc::new(start().await);
    let session = client.sandbox().await;
    let began = Instant::now();
    let runs = (0..10).map(|n| {
        let (client, session) = (client.clone(), session.clone());
        tokio::spawn(async move { client.output(&session, &format!("sleep 1; echo {n}")).await })
    });
    for (n, run) in runs.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(run.await.unwrap(), format!("{n}\n"));
    }
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_timeout_kills_the_command_and_is_named() {
    let client = start().await;
    let session = client.sandbox().await;
    let arguments = json!({"session_id": session, "command": "echo begun; sleep 60", "timeout": 1});
    let ran = client.ok("run_command", arguments).await;
    assert_eq!((&ran["status"], &ran["stdout"]), (&json!("timeout"), &json!("begun\n")), "{ran}");
    assert!(ran["denials"].to_string().contains("time_limit"), "{ran}");
}

#[tokio::test]
async fn a_timeout_above_the_maximum_is_lowered_and_that_is_said() {
    let client = start_with(Era::Legacy, &[("MAX_TIMEOUT_SECONDS", "5")]).await;
    let session = client.sandbox().await;
    let ran = client.ok("run_command", json!({"session_id": session, "command": "true", "timeout": 9999})).await;
    assert!(ran["notes"].to_string().contains("lowered from 9999 s to 5 s (max_timeout_seconds"), "{ran}");
    let ran = client.run(&session, "sleep 60").await;
    assert_eq!(ran["status"], "timeout");
}

#[tokio::test]
async fn a_command_that_cannot_be_started_says_why() {
    let client = start().await;
    let session = client.sandbox().await;
    let ran = client.run(&session, "no-such-program --x").await;
    assert_eq!(ran["exit_code"], 127);
    assert!(ran["stderr"].as_str().unwrap().contains("not found"));
    let text =
        client.refused("run_command", json!({"session_id": session, "command": "true", "cwd": "/no/such"})).await;
    assert!(text.contains("/no/such"), "{text}");
    let text = client.refused("run_command", json!({"session_id": session, "command": "echo a\0b"})).await;
    assert!(text.contains("NUL"), "{text}");
    let huge = format!("true {}", "x".repeat(3 << 20));
    let text = client.refused("run_command", json!({"session_id": session, "command": huge})).await;
    assert!(text.contains("too large") || text.contains("too long") || text.contains("file"), "{text:.300}");
    assert_eq!(client.output(&session, "echo still").await, "still\n");
}

#[tokio::test]
async fn an_exit_by_a_signal_is_told_from_one_by_code() {
    let client = start().await;
    let session = client.sandbox().await;
    let ran = client.run(&session, "kill -SEGV $$").await;
    assert_eq!((&ran["status"], &ran["signal"]), (&json!("killed"), &json!("SIGSEGV")), "{ran}");
    assert_eq!(ran["exit_code"], json!(null));
}
