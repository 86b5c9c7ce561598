//! What ends on the way out: a grant after its minutes, and bytes at the limits of a policy.

use std::{
    io::{Read, Write},
    net::TcpListener,
    time::Duration,
};

use serde_json::json;

use crate::{
    harness::{Era, start_with_a_user},
    person::{Person, text},
};

/// A web server on loopback whose answers have so many bytes.
fn server(bytes: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {bytes}\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![b'x'; bytes]));
            });
        }
    });
    port
}

/// What curl in a sandbox says of such a server, and what is said of it outside, where the policy has this limit.
fn fetched(bytes: usize, limit: &str) -> (String, String) {
    let port = server(bytes);
    let person = Person::new();
    let policy = person.folder("limited.toml");
    let limited = format!("extends = \"full_isolation\"\nhost_ports = [{port}]\n[limits]\n{limit}\n");
    std::fs::write(&policy, limited).unwrap();
    let script =
        format!("curl -sS -m 60 -o /dev/null -w '%{{size_download}} %{{time_total}}' http://host.internal:{port}/");
    let ran = person.run(&["exec", "--policy", policy.to_str().unwrap(), "--", "sh", "-c", &script]);
    (text(&ran.stdout).to_owned(), text(&ran.stderr).to_owned())
}

#[test]
fn a_download_is_no_faster_than_the_bandwidth_of_the_policy() {
    let (told, error) = fetched(256 << 10, "bandwidth = \"128KiB\"");
    let (bytes, seconds) = told.split_once(' ').unwrap_or_else(|| panic!("{told} {error}"));
    assert_eq!(bytes, (256 << 10).to_string(), "{error}");
    assert!(seconds.parse::<f64>().unwrap() > 1.2, "256 KiB at 128 KiB in a second took {seconds} s");
}

#[test]
fn a_download_ends_where_the_transfer_of_the_policy_is_used_up() {
    let (told, error) = fetched(256 << 10, "transfer = \"64KiB\"");
    let bytes: usize = told.split(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{told} {error}"));
    assert!(bytes <= 64 << 10, "{told} {error}");
    assert!(error.contains("transfer_used_up") && error.contains("`transfer` under [limits]"), "{error}");
}

#[tokio::test]
async fn a_grant_for_the_network_ends_after_its_minute() {
    let client = start_with_a_user(Era::Legacy, &[]).await;
    let session = client.sandbox_with(json!({"policy": "yolo-3"})).await;
    let code = "curl -s -o /dev/null -w '%{http_code}' http://granted.invalid:8080/";
    let wish = json!({"session_id": session, "kind": "network", "target": "granted.invalid:8080", "reason": "to look",
                      "for": "minutes", "minutes": 1});
    let yes = json!({"action": "accept", "content": {"for": "1 minute"}});
    let (given, _) = client.call_answering("request_access", wish, yes).await;
    assert_eq!(given.value["granted_for"], "1 minute", "{given:?}");
    // Nobody has such a name: the policy is no longer what stands against it.
    assert_eq!(client.run(&session, code).await["stdout"], "502");
    // It waits for nothing else, and grants are given for whole minutes.
    tokio::time::sleep(Duration::from_secs(64)).await;
    assert_eq!(client.run(&session, code).await["stdout"], "403", "the grant goes on");
}
