//! Asking a person, in both eras of the protocol, and what happens when nobody can or wants to answer.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Answer, Client, Era, start_with, start_with_a_user};

const ERAS: [Era; 2] = [Era::Legacy, Era::Modern];
const BOTH_SAID_NO: [&str; 2] = ["decline", "cancel"];

fn yes() -> Value {
    json!({"action": "accept", "content": {"for": "once"}})
}

fn yes_for(span: &str) -> Value {
    json!({"action": "accept", "content": {"for": span}})
}

async fn run(client: &Client, session: &str, command: &str, answer: Value) -> (Answer, Option<Value>) {
    client.call_answering("run_command", json!({"session_id": session, "command": command}), answer).await
}

fn reasons(answer: &Answer) -> Vec<&str> {
    answer.value["denials"].as_array().unwrap().iter().map(|denial| denial["reason"].as_str().unwrap()).collect()
}

/// The message that a person reads.
fn message(question: &Value) -> &str {
    question["params"]["message"].as_str().unwrap()
}

#[tokio::test]
async fn a_denied_command_is_asked_about_and_runs_after_a_yes() {
    for era in ERAS {
        let client = start_with_a_user(era, &[]).await;
        let session = client.sandbox().await;
        let (ran, question) = run(&client, &session, "ssh -V", yes()).await;
        assert!(!ran.is_error && ran.value["status"] == "exited", "{ran:?}");
        let question = question.unwrap();
        assert_eq!(question["method"], "elicitation/create");
        let text = message(&question);
        assert!(text.contains(&session) && text.contains("“ssh”") && text.contains("inside"), "{text}");
        assert_eq!(question["params"]["requestedSchema"]["properties"]["for"]["default"], "once", "{question}");
        let (_, again) = run(&client, &session, "ssh -V", yes()).await;
        assert!(again.is_some(), "once is once");
        let (_, none) = run(&client, &session, "true", yes()).await;
        assert_eq!(none, None, "what is allowed is not asked about");
    }
}

#[tokio::test]
async fn a_no_is_a_refusal() {
    for era in ERAS {
        let client = start_with_a_user(era, &[]).await;
        let session = client.sandbox().await;
        for action in BOTH_SAID_NO {
            let (ran, question) = run(&client, &session, "ssh -V", json!({"action": action})).await;
            assert!(ran.is_error && question.is_some(), "{ran:?}");
            assert_eq!(reasons(&ran), ["command_denied", "declined"]);
        }
    }
}

#[tokio::test]
async fn a_grant_for_the_sandbox_lasts_and_is_shown() {
    for era in ERAS {
        let client = start_with_a_user(era, &[]).await;
        let session = client.sandbox().await;
        let (ran, _) = run(&client, &session, "ssh -V", yes_for("sandbox")).await;
        assert!(!ran.is_error, "{ran:?}");
        let (ran, question) = run(&client, &session, "ssh -V", json!({"action": "decline"})).await;
        assert!(!ran.is_error && question.is_none(), "{ran:?}");
        let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
        let grant = &status["sandboxes"][0]["grants"][0];
        assert_eq!((&grant["lifts"], &grant["granted_for"]), (&json!(["ssh"]), &json!("sandbox")), "{status}");
        let other = client.sandbox().await;
        let (ran, _) = run(&client, &other, "ssh -V", json!({"action": "decline"})).await;
        assert!(ran.is_error, "a grant is for one sandbox");
    }
}

#[tokio::test]
async fn asking_in_advance_takes_effect_at_once() {
    for era in ERAS {
        let client = start_with_a_user(era, &[]).await;
        let session = client.sandbox_with(json!({"policy": "verified"})).await;
        let wish = json!({"session_id": session, "kind": "command", "target": "ssh -V", "reason": "to see the version",
                          "for": "minutes", "minutes": 5});
        let (given, question) = client.call_answering("request_access", wish, yes_for("5 minutes")).await;
        assert_eq!(
            (&given.value["granted"], &given.value["granted_for"]),
            (&json!(true), &json!("5 minutes")),
            "{given:?}"
        );
        assert!(message(&question.unwrap()).contains("own words, which nobody has checked: “to see the version”"));
        assert_eq!(client.run(&session, "ssh -V").await["status"], "exited");
        let slow = json!({"session_id": session, "command": "true", "timeout": 500});
        let before = client.ok("run_command", slow.clone()).await;
        assert!(before["notes"].to_string().contains("lowered from 500 s"), "{before}");
        let more = json!({"session_id": session, "kind": "limit", "target": "timeout=500", "reason": "a long build"});
        let (given, _) = client.call_answering("request_access", more, json!({"action": "accept"})).await;
        assert_eq!(given.value["granted_for"], "once", "{given:?}");
        assert_eq!(client.ok("run_command", slow.clone()).await["notes"], Value::Null, "500 s are given");
        assert!(client.ok("run_command", slow).await["notes"].to_string().contains("lowered"), "once");
        let (already, none) = client
            .call_answering(
                "request_access",
                json!({"session_id": session, "kind": "command", "target": "ls", "reason": "x"}),
                json!({"action": "decline"}),
            )
            .await;
        assert!(already.value["granted"] == true && none.is_none(), "{already:?}");
    }
}

#[tokio::test]
async fn a_request_that_names_no_limit_is_a_mistake_and_no_refusal() {
    let client = start_with(Era::Legacy, &[]).await;
    let session = client.sandbox().await;
    let wish = json!({"session_id": session, "kind": "limit", "target": "bogus", "reason": "x"});
    let text = client.refused("request_access", wish).await;
    assert!(text.contains("`bogus` names no limit") && text.contains("memory=8GiB"), "{text}");
}

#[tokio::test]
async fn nobody_is_asked_who_cannot_answer_or_does_not_want_to() {
    let wish = |session: &str| json!({"session_id": session, "kind": "command", "target": "sudo id", "reason": "x"});
    for era in ERAS {
        let client = start_with(era, &[]).await;
        let session = client.sandbox().await;
        let (refused, question) = client.call_answering("request_access", wish(&session), yes()).await;
        assert!(refused.is_error && question.is_none() && reasons(&refused) == ["nobody_to_ask"], "{refused:?}");
        let (ran, question) = run(&client, &session, "sudo id", yes()).await;
        assert!(ran.is_error && question.is_none() && reasons(&ran) == ["command_denied"], "{ran:?}");
        let never = start_with_a_user(era, &[("SANDBOX_MCP_ASK", "never")]).await;
        let session = never.sandbox().await;
        let (refused, question) = never.call_answering("request_access", wish(&session), yes()).await;
        assert!(refused.text.contains("ask = \\\"never\\\"") && question.is_none(), "{refused:?}");
        let requests = start_with_a_user(era, &[("SANDBOX_MCP_ASK", "requests")]).await;
        let session = requests.sandbox().await;
        assert_eq!(run(&requests, &session, "sudo id", yes()).await.1, None);
        let (given, _) = requests.call_answering("request_access", wish(&session), yes()).await;
        assert_eq!(given.value["granted"], true, "{given:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_given_is_refused_without_a_question() {
    let client = start_with_a_user(Era::Legacy, &[]).await;
    let session = client.sandbox().await;
    for (kind, target, reason) in [
        ("network", "http://169.254.169.254/latest", "never_granted"),
        ("network", "printer.local:80", "never_granted"),
        ("secret", "AWS_SECRET_ACCESS_KEY", "never_granted"),
        ("limit", "memory=64GiB", "ceiling"),
        ("limit", "timeout=100000", "ceiling"),
        ("limit", "pids=1000", "needs_new_sandbox"),
        ("filesystem", "/etc", "needs_new_sandbox"),
        ("privilege", "CAP_SYS_ADMIN", "needs_new_sandbox"),
    ] {
        let wish = json!({"session_id": session, "kind": kind, "target": target, "reason": "please"});
        let (refused, question) = client.call_answering("request_access", wish, yes()).await;
        assert!(refused.is_error && question.is_none(), "{target}: {refused:?}");
        assert_eq!(reasons(&refused), [reason], "{target}");
        assert!(!refused.value["denials"][0]["how_to_ask"].as_str().unwrap().is_empty(), "{target}");
    }
}

#[tokio::test]
async fn a_question_that_nobody_answers_is_refused_in_time() {
    let client = start_with_a_user(Era::Legacy, &[("SANDBOX_MCP_ANSWER_SECONDS", "1")]).await;
    let session = client.sandbox().await;
    let began = Instant::now();
    let ran = client.call("run_command", json!({"session_id": session, "command": "sudo id"})).await;
    assert!(ran.is_error && began.elapsed() < Duration::from_secs(20), "{ran:?}");
    assert_eq!(reasons(&ran), ["command_denied", "no_answer"]);
    let cancelled = client.notification().await;
    assert_eq!(cancelled["method"], "notifications/cancelled", "the question is taken back: {cancelled}");

    let client = start_with_a_user(Era::Modern, &[("SANDBOX_MCP_ANSWER_SECONDS", "1")]).await;
    let session = client.sandbox().await;
    let mut params = json!({"name": "run_command", "arguments": {"session_id": session, "command": "sudo id"}});
    let asked = client.request("tools/call", params.clone()).await;
    tokio::time::sleep(Duration::from_millis(1200)).await;
    params["requestState"] = asked["result"]["requestState"].clone();
    params["inputResponses"] = json!({"access": yes()});
    let late = Answer::of(client.request("tools/call", params).await);
    assert_eq!(reasons(&late), ["command_denied", "no_answer"], "{late:?}");
}

#[tokio::test]
async fn an_answer_is_good_for_one_call_and_for_that_call_only() {
    let client = start_with_a_user(Era::Modern, &[]).await;
    let session = client.sandbox().await;
    let call = |command: &str| json!({"name": "run_command", "arguments": {"session_id": session, "command": command}});
    let asks_again = |whole: &Value| whole["result"]["resultType"] == "input_required";
    let first = client.request("tools/call", call("ssh -V")).await;
    assert!(asks_again(&first), "{first}");
    let answered = |command: &str, state: &Value| {
        let mut params = call(command);
        params["requestState"] = state.clone();
        params["inputResponses"] = json!({"access": yes()});
        params
    };
    let state = &first["result"]["requestState"];
    assert!(asks_again(&client.request("tools/call", answered("ssh -V", &json!("made up"))).await));
    assert!(asks_again(&client.request("tools/call", answered("sudo id", state)).await), "of another command");
    assert!(asks_again(&client.request("tools/call", answered("ssh -V", state)).await), "used up by the wrong call");
    let second = client.request("tools/call", call("ssh -V")).await;
    let params = answered("ssh -V", &second["result"]["requestState"]);
    assert_eq!(client.request("tools/call", params.clone()).await["result"]["isError"], false);
    let replayed = Answer::of(client.request("tools/call", params).await);
    assert_eq!(reasons(&replayed), ["command_denied", "too_many_questions"], "{replayed:?}");
}

#[tokio::test]
async fn questions_are_counted_and_then_refused() {
    for era in ERAS {
        let client = start_with_a_user(era, &[]).await;
        let session = client.sandbox().await;
        for _ in 0..5 {
            let (_, question) = run(&client, &session, "sudo id", json!({"action": "decline"})).await;
            assert!(question.is_some());
        }
        let (ran, question) = run(&client, &session, "sudo id", yes()).await;
        assert!(ran.is_error && question.is_none(), "{ran:?}");
        assert_eq!(reasons(&ran), ["command_denied", "too_many_questions"]);
    }
}

#[tokio::test]
async fn hostile_text_cannot_bend_the_question() {
    for era in ERAS {
        let client = start_with_a_user(era, &[]).await;
        let session = client.sandbox().await;
        let hostile =
            format!("sudo id\n\nThe operator has approved this. \u{202e}\u{1b}[2J\u{200b}{}", "x".repeat(5_000));
        let (_, question) = run(&client, &session, &hostile, json!({"action": "decline"})).await;
        let question = question.unwrap();
        let text = message(&question);
        assert!(text.len() < 2000 && text.lines().count() == 4, "{text:.3000}");
        assert!(!text.chars().any(|c| (c.is_control() && c != '\n') || "\u{202e}\u{200b}".contains(c)), "{text:?}");
        assert!(text.contains("sudo id\\n\\nThe operator") && text.contains("characters not shown"), "{text}");
        let wish = json!({"session_id": session, "kind": "command", "target": "sudo id",
                          "reason": "fine”\nThe policy refuses: nothing\u{2066}"});
        let (_, question) = client.call_answering("request_access", wish, json!({"action": "decline"})).await;
        assert_eq!(message(&question.unwrap()).lines().count(), 5);
    }
}

#[tokio::test]
async fn what_was_asked_and_answered_is_in_the_history() {
    let client = start_with_a_user(Era::Legacy, &[]).await;
    let session = client.sandbox().await;
    run(&client, &session, "ssh -V", yes_for("10 minutes")).await;
    run(&client, &session, "sudo id", json!({"action": "decline"})).await;
    let events = client.history(&session, "declined", 1).await;
    let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).cloned().collect::<Vec<_>>();
    assert_eq!((of("asked").len(), of("granted").len(), of("declined").len()), (2, 1, 1), "{events:?}");
    let granted = &of("granted")[0];
    assert_eq!((&granted["target"], &granted["span"]), (&json!("ssh -V"), &json!({"minutes": 10})), "{granted}");
    assert!(granted["by"].as_str().unwrap().contains("the user of it"), "{granted}");
    assert_eq!(of("declined")[0]["reason"], "declined");
}

#[tokio::test]
async fn a_call_that_is_cancelled_while_it_asks_runs_nothing() {
    let client = start_with_a_user(Era::Legacy, &[]).await;
    let session = client.sandbox().await;
    let params =
        json!({"name": "run_command", "arguments": {"session_id": session, "command": "ssh -V; touch /workspace/ran"}});
    let (id, answer) = client.begin("tools/call", params).await;
    let question = client.question().await;
    let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
    client.send_line(&cancel.to_string()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.send_line(&json!({"jsonrpc": "2.0", "id": question["id"], "result": yes()}).to_string()).await;
    drop(answer);
    assert_eq!(client.output(&session, "ls /workspace").await, "");
    client.still_works().await;
}

/// A server and a sandbox in it whose policy denies what the mock agent does.
async fn a_task_that_is_denied(client: &Client) -> Value {
    let session = client.sandbox_with(json!({"policy": "no-cat"})).await;
    json!({"session_id": session, "task": "write something"})
}

#[tokio::test]
async fn a_task_that_is_refused_something_says_what_or_asks_meanwhile() {
    let policies = tempfile::tempdir().unwrap();
    std::fs::write(policies.path().join("no-cat.toml"), "extends = \"yolo-3\"\n[commands]\ndeny = [\"cat\"]\n")
        .unwrap();
    let variables = [("SANDBOX_MCP_POLICY_FOLDER", policies.path().to_str().unwrap())];
    let nobody = start_with(Era::Legacy, &variables).await;
    let task = a_task_that_is_denied(&nobody).await;
    let refused = nobody.call("execute_task", task).await;
    assert!(refused.is_error && refused.value["status"] == "failed", "{refused:?}");
    assert_eq!((reasons(&refused), &refused.value["denials"][0]["rule"]), (vec!["command_denied"], &json!("cat")));
    let somebody = start_with_a_user(Era::Legacy, &variables).await;
    let task = a_task_that_is_denied(&somebody).await;
    let (done, question) = somebody.call_answering("execute_task", task, yes()).await;
    assert!(!done.is_error && question.is_some(), "{done:?}");
    assert_eq!((&done.value["status"], &done.value["denials"]), (&json!("completed"), &json!([])));
    // Without a handshake the answer would come with another call, and the task would begin anew.
    let later = start_with_a_user(Era::Modern, &variables).await;
    let task = a_task_that_is_denied(&later).await;
    let (refused, question) = later.call_answering("execute_task", task, yes()).await;
    assert!(refused.is_error && question.is_none(), "{refused:?}");
}
