//! What sandboxes reach, through the real doors. Servers of the tests are on this machine's loopback, which policies of the
//! tests name; nothing else is ever sent anywhere.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{Client, Era, start_in, start_with, start_with_a_user},
    person::{Person, text},
};

/// A web server on loopback that says `served` and the path, and a folder with a policy `named` that reaches it.
fn world() -> (u16, TempDir) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    let policies = tempfile::tempdir().unwrap();
    let named = format!("extends = \"full_isolation\"\nhost_ports = [{port}]\n");
    std::fs::write(policies.path().join("named.toml"), named).unwrap();
    (port, policies)
}

fn serve(mut stream: std::net::TcpStream) {
    std::thread::spawn(move || {
        let mut head = [0; 4096];
        let length = stream.read(&mut head).unwrap_or(0);
        let path = String::from_utf8_lossy(&head[..length]).split(' ').nth(1).unwrap_or_default().to_owned();
        let body = format!("served {path}\n");
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    });
}

fn variables(policies: &TempDir) -> [(&'static str, &str); 1] {
    [("SANDBOX_MCP_POLICY_FOLDER", policies.path().to_str().unwrap())]
}

/// Sandboxes that bwrap starts reach nothing.
fn nothing_is_reached() -> bool {
    std::env::var_os("SANDBOX_MCP_USE_BWRAP").is_some()
}

async fn fetch(client: &Client, session: &str, url: &str, how: &str) -> Value {
    client.run(session, &format!("curl -sS {how} -m 20 {url}")).await
}

#[tokio::test]
async fn what_the_policy_names_is_reached_in_both_ways_and_nothing_else() {
    let (port, policies) = world();
    let client = start_with(Era::Legacy, &variables(&policies)).await;
    let session = client.sandbox_with(json!({"policy": "named"})).await;
    if nothing_is_reached() {
        assert_ne!(fetch(&client, &session, &format!("http://host.internal:{port}/x"), "").await["exit_code"], 0);
        return;
    }
    for how in ["", "--noproxy '*'", "-x socks5h://127.0.0.1:3128", "--noproxy '*' -6"] {
        let served = fetch(&client, &session, &format!("http://host.internal:{port}/x"), how).await;
        assert_eq!(served["stdout"], "served /x\n", "{how}: {served}");
        assert_eq!(served["denials"], json!([]), "{served}");
    }
    // The name of the machine is the only way: inside, its loopback is the sandbox's own.
    for (url, how) in [
        (format!("http://127.0.0.1:{port}/x"), "--noproxy '*'"),
        (format!("http://127.0.0.1:{port}/x"), "--proxy http://127.0.0.1:3128 --noproxy ''"),
        (format!("http://localhost:{port}/x"), "--proxy http://127.0.0.1:3128 --noproxy ''"),
        ("http://93.184.215.14/".to_owned(), "--noproxy '*'"),
        ("http://example.invalid/".to_owned(), ""),
        ("https://example.invalid/".to_owned(), ""),
        ("http://169.254.169.254/latest/".to_owned(), ""),
    ] {
        let refused = fetch(&client, &session, &url, how).await;
        assert!(!refused["stdout"].to_string().contains("served"), "{url} {how}: {refused}");
    }
    let refused = fetch(&client, &session, "http://example.invalid/", "").await;
    let denial = &refused["denials"][0];
    assert_eq!((&denial["kind"], &denial["target"]), (&json!("network"), &json!("example.invalid:80")), "{refused}");
    assert!(denial["how_to_ask"].as_str().unwrap().contains("request_access"), "{denial}");
    let history = client.history(&session, "connection", 8).await;
    let connected = history.iter().find(|event| event["verdict"] == "allowed").unwrap();
    assert_eq!(connected["target"], format!("host.internal:{port}"));
    assert!(connected["sent"].as_u64() > Some(20) && connected["received"].as_u64() > Some(20), "{connected}");
    assert!(history.iter().any(|event| event["verdict"] == "no_rule" && event["refused"] == true), "{history:?}");
}

#[tokio::test]
async fn what_is_granted_is_reached_from_then_on() {
    let client = start_with_a_user(Era::Legacy, &[]).await;
    if nothing_is_reached() {
        return;
    }
    let session = client.sandbox_with(json!({"policy": "yolo-3"})).await;
    let code = "curl -s -o /dev/null -w '%{http_code}' http://granted.invalid:8080/";
    assert_eq!(client.run(&session, code).await["stdout"], "403");
    let wish = json!({"session_id": session, "kind": "network", "target": "granted.invalid:8080", "reason": "to look"});
    let no = client.call_answering("request_access", wish.clone(), json!({"action": "decline"})).await;
    assert!(no.0.is_error && client.run(&session, code).await["stdout"] == "403");
    let yes = json!({"action": "accept", "content": {"allow": true}});
    let (given, question) = client.call_answering("request_access", wish.clone(), yes.clone()).await;
    assert_eq!(
        (&given.value["granted"], &given.value["granted_for"]),
        (&json!(true), &json!("10 minutes")),
        "{given:?}"
    );
    assert!(question.unwrap().to_string().contains("It wants to connect to granted.invalid (port 8080)"));
    // Nobody has such a name: the policy is no longer what stands against it.
    let after = client.run(&session, code).await;
    assert_eq!((&after["stdout"], &after["denials"]), (&json!("502"), &json!([])), "{after}");
    let (already, question) = client.call_answering("request_access", wish, yes).await;
    assert!(already.text.contains("just connect") && question.is_none(), "{already:?}");
    let other = client.sandbox().await;
    assert_eq!(client.run(&other, code).await["stdout"], "403", "a grant is for one sandbox");
}

#[tokio::test]
async fn a_sandbox_without_a_server_reaches_nothing_and_with_the_next_one_all_again() {
    let (port, policies) = world();
    let folder = tempfile::tempdir().unwrap();
    let mut first = start_in(folder.path(), Era::Legacy, &variables(&policies)).await;
    let session = first.sandbox_with(json!({"policy": "named", "persistent": true})).await;
    if nothing_is_reached() {
        return;
    }
    let script = format!(
        "while ! test -e /tmp/go; do sleep 0.1; done; curl -sS --noproxy '*' -m 1 http://host.internal:{port}/alone; echo $?"
    );
    let job = first.ok("run_command", json!({"session_id": session, "command": script, "wait_seconds": 0})).await;
    first.kill().await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let mut second = start_in(folder.path(), Era::Legacy, &variables(&policies)).await;
    let served = fetch(&second, &session, &format!("http://host.internal:{port}/again"), "--noproxy '*'").await;
    assert_eq!(served["stdout"], "served /again\n", "{served}");
    second.output(&session, "touch /tmp/go").await;
    let arguments = json!({"session_id": session, "job_id": job["job_id"], "wait_seconds": 20});
    assert_eq!(second.ok("get_output", arguments).await["stdout"], "served /alone\n0\n");
    second.ok("cleanup_session", json!({"session_id": session})).await;
    second.close().await;
}

#[test]
fn a_single_command_reaches_what_it_may_and_is_told_what_it_may_not() {
    let (port, policies) = world();
    let person = Person::new();
    if nothing_is_reached() {
        return;
    }
    let policy = policies.path().join("named.toml");
    let script = format!("curl -sS http://host.internal:{port}/single; curl -s http://example.invalid/; true");
    let output = person.run(&["exec", "--policy", policy.to_str().unwrap(), "--", "sh", "-c", &script]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(stdout.starts_with("served /single\n") && output.status.success(), "{stdout} {stderr}");
    assert!(stderr.contains("example.invalid:80") && stderr.contains("--policy"), "{stderr}");
    assert!(!stderr.contains("request_access"), "{stderr}");
    assert_eq!(crate::harness::processes_with(policy.to_str().unwrap()), 0, "nobody stays behind");
}
