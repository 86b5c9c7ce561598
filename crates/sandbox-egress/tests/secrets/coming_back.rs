//! What comes back shows the placeholder and never the value.

use hyper::body::Bytes;
use tokio::io::AsyncWriteExt;

use crate::far::{Scene, VALUE, secret, until};

fn request(path: &str, scene: &Scene) -> String {
    let placeholder = scene.placeholder("key");
    format!("GET {path} HTTP/1.1\r\nHost: a.example\r\nX-Key: {placeholder}\r\nConnection: close\r\n\r\n")
}

#[tokio::test]
async fn a_value_that_is_echoed_is_hidden_also_when_it_comes_in_two_pieces() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    let placeholder = scene.placeholder("key");
    let echoed = scene.ask("a.example", &request("/", &scene)).await;
    assert!(echoed.contains(&format!("x-echo: {placeholder}")) && echoed.contains(&format!("x-key: {placeholder}\n")));
    let split = scene.ask("a.example", &request("/split", &scene)).await;
    for answer in [&echoed, &split] {
        assert!(!answer.contains(VALUE), "{answer}");
    }
    let body: String = split.split("\r\n").skip_while(|line| !line.is_empty()).collect();
    assert!(body.contains(&placeholder) && body.contains("before ") && body.contains(" after"), "{split}");
    assert!(!split.contains("the-real"), "{split}");
}

#[tokio::test]
async fn a_program_cannot_ask_for_it_in_pieces_or_compressed() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    let more = "TE: gzip\r\nRange: bytes=0-9\r\nIf-Range: x\r\nAccept-Encoding: gzip\r\nConnection: close";
    scene.ask("a.example", &request("/", &scene).replace("Connection: close", more)).await;
    let seen = scene.far.seen().to_ascii_lowercase();
    assert!(seen.contains("accept-encoding: identity") && !seen.contains("gzip"), "{seen}");
    assert!(!seen.contains("range"), "{seen}");
}

#[tokio::test]
async fn a_redirect_carries_no_secret() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    let answer = scene.ask("a.example", &request("/redirect", &scene)).await;
    let placeholder = scene.placeholder("key");
    assert!(answer.starts_with("HTTP/1.1 302"), "{answer}");
    assert!(answer.contains(&format!("location: http://b.example/?key={placeholder}")), "{answer}");
    assert_eq!(scene.far.seen().matches(VALUE).count(), 1);
    // Whoever follows it is stopped.
    let follow = format!("GET http://b.example:{}/?key={placeholder} HTTP/1.1\r\n\r\n", scene.far.plain);
    let answer = scene.world.say(follow.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{answer}");
    assert_eq!(scene.far.seen(), "");
}

#[tokio::test]
async fn an_event_arrives_before_the_next_is_said() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    let mut stream = scene.tls("a.example").await;
    stream.write_all(request("/events", &scene).as_bytes()).await.unwrap();
    for event in ["data: one\n\n", "data: two\n\n", "data: three, the r\n\n"] {
        scene.far.say.send(Bytes::from_static(event.as_bytes())).await.unwrap();
        until(&mut stream, event).await;
    }
    scene.far.say.send(format!("data: {VALUE}\n\n").into()).await.unwrap();
    let last = until(&mut stream, "\n\n").await;
    assert!(last.contains(&scene.placeholder("key")) && !last.contains(VALUE), "{last}");
}

#[tokio::test]
async fn what_was_sent_before_is_hidden_without_tls_too() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    // It answers with the value, though nothing of it was in the request.
    let answer =
        scene.ask_plainly("a.example", b"GET /split HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains(&scene.placeholder("key")) && !answer.contains("real-value"), "{answer}");
}
