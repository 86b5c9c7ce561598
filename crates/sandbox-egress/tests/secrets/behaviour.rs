//! Clients of every kind, polite and hostile, on TLS that was opened.

use sandbox_egress::{PlainHttp, Secret, Secrets, SecretsError, Service, Trust, Value, Vault};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::far::{Scene, VALUE, begin, finish, secret, until};

async fn scene() -> Scene {
    Scene::new(vec![secret("key", "a.example")]).await
}

#[tokio::test]
async fn a_connection_is_kept_and_requests_may_come_ahead_of_answers() {
    let scene = scene().await;
    let key = scene.placeholder("key");
    let mut stream = scene.tls("a.example").await;
    for number in 0..3 {
        let request = format!("GET /{number} HTTP/1.1\r\nHost: a.example\r\nX-Key: {key}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        until(&mut stream, &format!("GET /{number}\n")).await;
    }
    let two = format!(
        "GET /one HTTP/1.1\r\nHost: a.example\r\nX-Key: {key}\r\n\r\nPOST /two HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n{key}",
        key.len()
    );
    stream.write_all(two.as_bytes()).await.unwrap();
    let answers = until(&mut stream, "POST /two\n").await;
    assert!(answers.contains("GET /one\n") && !answers.contains(VALUE), "{answers}");
    assert_eq!(scene.far.seen().matches(VALUE).count(), 5);
}

#[tokio::test]
async fn whoever_waits_to_be_asked_for_a_body_is_asked() {
    let scene = scene().await;
    let key = scene.placeholder("key");
    let mut stream = scene.tls("a.example").await;
    let head =
        format!("POST / HTTP/1.1\r\nHost: a.example\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n", key.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    until(&mut stream, "100 Continue\r\n\r\n").await;
    stream.write_all(key.as_bytes()).await.unwrap();
    until(&mut stream, &key).await;
    let seen = scene.far.seen();
    assert!(seen.contains(VALUE) && !seen.contains("expect"), "{seen}");
}

#[tokio::test]
async fn what_is_not_offered_is_refused_in_words() {
    let scene = scene().await;
    let upgrade = "GET /chat HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let answer = scene.ask("a.example", upgrade).await;
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.contains("secret_upgrade") && answer.contains("websocket"),
        "{answer}"
    );
    for request in [
        "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
    ] {
        let answer = scene.ask("a.example", request).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("http_other_host"), "{answer}");
    }
    // Somebody who speaks only another language hears so while TLS begins.
    let root = scene.world.engine.secrets().authority().unwrap().to_owned();
    let stream = scene.tunnel("a.example", scene.far.secure).await;
    assert!(begin(stream, "a.example", &root, b"h2").await.is_err());
    assert_eq!(scene.far.seen(), "");
}

#[tokio::test]
async fn nothing_grows_without_bound() {
    let scene = scene().await;
    let key = scene.placeholder("key");
    let many = key.repeat(65);
    for request in [
        format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-Key: {many}\r\n\r\n"),
        format!("GET /{many} HTTP/1.1\r\nHost: a.example\r\n\r\n"),
        format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\n\r\n{many}", many.len()),
    ] {
        let answer = scene.ask("a.example", &request).await;
        assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("too often"), "{answer}");
    }
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{many}\r\n0\r\n\r\n",
        many.len()
    );
    let answer = scene.ask("a.example", &chunked).await;
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("too often"), "{answer}");
    let long = format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-Long: {}\r\n\r\n", "x".repeat(100_000));
    assert!(!scene.ask("a.example", &long).await.contains("200 OK"));
    assert_eq!(scene.far.seen(), "");
    // A body that is too long to be held goes through as it is, and so does one that cannot be read.
    let large = "x".repeat((1 << 20) + 1);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{large}",
        large.len()
    );
    assert!(scene.ask("a.example", &request).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_far_end_that_breaks_the_rules_ends_the_connection_and_nothing_else() {
    let scene = Scene::new(vec![Secret { plain_http: PlainHttp::Allowed, ..secret("key", "a.example") }]).await;
    let endless = format!("HTTP/1.1 200 OK\r\nX-Long: {}", "x".repeat(2 << 20));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(10_000));
    for answer in [
        "",
        "SSH-2.0-x\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nanything",
        &endless,
        &many,
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let words = answer.to_owned();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = [0; 4096];
            let _ = stream.read(&mut heard).await;
            let _ = stream.write_all(words.as_bytes()).await;
        });
        let stream = scene.tunnel("a.example", port).await;
        let request = format!("GET / HTTP/1.1\r\nHost: a.example\r\nX-Key: {}\r\n\r\n", scene.placeholder("key"));
        let heard = finish(stream, request.as_bytes()).await;
        assert!(heard.len() < 1 << 20 && !heard.contains("anything"), "{:?}", &heard[..heard.len().min(200)]);
    }
    assert!(
        scene.ask("a.example", "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n").await.contains("200")
    );
}

#[test]
fn what_cannot_be_kept_is_refused_before_anything_begins() {
    let vault = |secrets| Vault { secrets, ..Vault::new(Trust::nobody()) };
    let twice = Secrets::new(vault(vec![secret("a", "a.example"), secret("a", "b.example")]));
    assert!(matches!(twice, Err(SecretsError::Twice(_))));
    let short = Secrets::new(vault(vec![Secret { value: Value::new("short"), ..secret("a", "a.example") }]));
    assert!(matches!(short, Err(SecretsError::Value(_))));
    let service = |upstream: &str, secret: &str| Service {
        name: "s".into(),
        upstream: upstream.parse().unwrap(),
        secret: secret.into(),
        within: Vec::new(),
    };
    let with = |service| Secrets::new(Vault { services: vec![service], ..vault(vec![secret("a", "a.example")]) });
    assert!(matches!(with(service("http://a.example", "a")), Err(SecretsError::Plain(_))));
    assert!(matches!(with(service("https://a.example", "b")), Err(SecretsError::NoSecret { .. })));
    assert!(with(service("https://a.example", "a")).is_ok());
    assert!(Trust::nobody().and("no certificate").is_err());
}
