//! Services at a loopback address: the secret is added, what they cost is counted, and can be limited.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use hyper::body::Bytes;
use sandbox_egress::{
    Basis, Budget, Follower, Leave, Leaving, NoLeave, PlainHttp, Question, Secret, Service, Spent, Trust, Upstream,
    Vault,
};
use tokio::{io::AsyncWriteExt, net::TcpStream};

use crate::{
    far::{Far, Scene, VALUE, header, secret, until},
    support::HERE,
};

/// A secret that only services take.
fn key() -> Secret {
    Secret { hosts: Vec::new(), plain_http: PlainHttp::Allowed, ..header("key", "a.example", "x-key", "{}") }
}

fn services(far: &Far) -> Vec<Service> {
    let within = HERE.iter().map(|block| block.parse().unwrap()).collect::<Vec<_>>();
    let service = |name: &str, upstream: String| Service {
        name: name.into(),
        upstream: upstream.parse().unwrap(),
        secret: "key".into(),
        within: within.clone(),
    };
    vec![
        service("model", format!("https://a.example:{}/base", far.secure)),
        service("local", format!("http://127.0.0.1:{}", far.plain)),
        service("stranger", format!("https://d.example:{}", far.secure)),
    ]
}

async fn scene() -> Scene {
    Scene::with(vec![key()], services, |vault| vault).await
}

impl Scene {
    async fn get(&self, path: &str, more: &str) -> String {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1:3128\r\nConnection: close\r\n{more}\r\n");
        self.world.say(request.as_bytes()).await
    }
}

#[tokio::test]
async fn a_service_is_asked_with_its_secret() {
    let scene = scene().await;
    let listed: Vec<_> = scene.world.engine.secrets().services().map(|(_, path)| path).collect();
    assert_eq!(listed[0], "/services/model");
    assert!(scene.world.engine.secrets().authority().is_none(), "no TLS is opened for programs");
    for (path, host, arrives) in [
        ("/services/model/v1/x?y=1", "host: a.example:", "GET /base/v1/x?y=1\n"),
        ("/services/model", "host: a.example:", "GET /base\n"),
        ("/services/local/x", "host: 127.0.0.1:", "GET /x\n"),
        ("/services/local", "host: 127.0.0.1:", "GET /\n"),
    ] {
        let answer = scene.get(path, "X-Key: mine\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains(VALUE), "{answer}");
        let seen = scene.far.seen();
        assert!(seen.contains(arrives) && seen.contains(host), "{seen}");
        assert!(seen.contains(&format!("x-key: {VALUE}\n")) && !seen.contains("mine"), "{seen}");
    }
    let record = scene.world.last().await;
    assert_eq!(record.rule.as_deref(), Some("service local"));
}

#[tokio::test]
async fn only_programs_of_the_sandbox_reach_a_service_and_nothing_beside_it() {
    let scene = scene().await;
    for path in [
        "/services/model/../x",
        "/services/model/%2e%2e/x",
        "/services/model/a/..%5cx",
        "/services/nobody/",
        "/services/",
        "/services/model2/x",
    ] {
        let answer = scene.get(path, "").await;
        assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
    }
    for more in ["Host: evil.example\r\n", "Origin: http://evil.example\r\n", "Origin: null\r\n"] {
        let answer = scene.get("/services/model/x", more).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{more}: {answer}");
    }
    let rebound = "GET /services/model/x HTTP/1.1\r\nHost: evil.example:3128\r\n\r\n";
    assert!(scene.world.say(rebound.as_bytes()).await.starts_with("HTTP/1.1 403"));
    assert!(scene.world.say(b"GET /services/model/x HTTP/1.0\r\n\r\n").await.starts_with("HTTP/1.0 403"));
    let answer = scene.get("/services/stranger/x", "").await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("tls_untrusted"), "{answer}");
    assert_eq!(scene.far.seen(), "");
    assert!(scene.get("/other", "").await.starts_with("HTTP/1.1 400"));
}

#[tokio::test]
async fn what_an_answer_costs_is_counted_and_a_budget_ends_it() {
    let spent = Arc::new(AtomicBool::new(false));
    let budget = {
        let spent = Arc::clone(&spent);
        Budget::asked_of(
            move |_| if spent.load(Ordering::SeqCst) { Err("10 of 10 tokens are spent".into()) } else { Ok(()) },
        )
    };
    let scene = Scene::with(vec![key()], services, |vault| Vault { budget, ..vault }).await;
    assert!(scene.get("/services/model/message", "").await.contains("input_tokens"));
    let cost = scene.spent.lock().unwrap().pop().unwrap();
    assert_eq!((cost.service.as_str(), cost.model.as_deref()), ("model", Some("m-1")));
    assert_eq!((cost.input, cost.output, cost.basis), (11, 22, Basis::Told));
    spent.store(true, Ordering::SeqCst);
    scene.far.seen();
    let answer = scene.get("/services/model/message", "").await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("budget_spent"), "{answer}");
    assert!(answer.contains("10 of 10 tokens are spent"), "{answer}");
    assert_eq!(scene.far.seen(), "");
}

#[tokio::test]
async fn events_of_a_service_stay_events() {
    let scene = scene().await;
    let mut stream = TcpStream::connect(scene.world.proxy).await.unwrap();
    stream
        .write_all(b"POST /services/model/events HTTP/1.1\r\nHost: localhost:3128\r\nContent-Length: 40\r\n\r\n")
        .await
        .unwrap();
    stream.write_all(&[b'x'; 40]).await.unwrap();
    for event in [
        "data: {\"type\":\"message_start\",\"message\":{\"model\":\"m-2\",\"usage\":{\"input_tokens\":7,\"output_tokens\":1}}}\n\n",
        "data: {\"type\":\"content_block_delta\"}\n\n",
    ] {
        scene.far.say.send(Bytes::from_static(event.as_bytes())).await.unwrap();
        until(&mut stream, event).await;
    }
    // Whoever goes before the end pays too, as soon as it is noticed.
    drop(stream);
    for _ in 0..100 {
        if let Some(cost) = scene.spent.lock().unwrap().pop() {
            assert_eq!((cost.input, cost.basis), (7, Basis::Estimated));
            assert!(cost.output >= 2, "{cost:?}");
            return;
        }
        let _ = scene.far.say.try_send(Bytes::from_static(b"data: {}\n\n"));
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("nothing was counted");
}

#[tokio::test]
async fn whoever_goes_to_its_real_address_pays_too_and_has_only_what_is_bound_to_it() {
    let own = header("own", "a.example", "x-own", "{}");
    let scene = Scene::with(vec![key(), own, secret("foreign", "b.example")], services, |vault| vault).await;
    let request = "GET /message HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n";
    assert!(scene.ask("a.example", request).await.contains("input_tokens"));
    assert_eq!(scene.spent.lock().unwrap().pop().unwrap().output, 22);
    let seen = scene.far.seen();
    assert!(seen.contains(&format!("x-own: {VALUE}")) && !seen.contains("x-key"), "{seen}");
    scene.get("/services/model/x", "").await;
    let seen = scene.far.seen();
    assert!(seen.contains(&format!("x-key: {VALUE}")) && !seen.contains("x-own"), "{seen}");
    let answer = scene.get(&format!("/services/model/{}", scene.placeholder("foreign")), "").await;
    assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_leaving"), "{answer}");
    assert_eq!((scene.far.seen().as_str(), scene.leaks.lock().unwrap().len()), ("", 1));
}

/// Writes down what happens to a service that is lent.
#[derive(Default)]
struct Notes {
    empty: AtomicBool,
    said: std::sync::Mutex<Vec<String>>,
}

impl Notes {
    fn add(&self, word: impl Into<String>) {
        self.said.lock().unwrap().push(word.into());
    }

    fn all(&self) -> Vec<String> {
        self.said.lock().unwrap().clone()
    }
}

impl Follower for Notes {
    fn ask<'a>(&'a self, question: Question<'a>) -> Leaving<'a> {
        let answer = match self.empty.load(Ordering::Relaxed) {
            true => Err(NoLeave::TooDear("nothing is left".to_owned())),
            false => {
                self.add(format!("{} {} {}", question.method, question.path, String::from_utf8_lossy(question.body)));
                let body = (!question.body.is_empty()).then(|| b"something else".to_vec());
                Ok(Leave { number: 7, body })
            }
        };
        Box::pin(async { answer })
    }

    fn answered(&self, number: u64, status: u16) {
        self.add(format!("{number}: {status}"));
    }

    fn heard(&self, _: u64, _: usize) {}

    fn spent(&self, number: u64, spent: &Spent) {
        self.add(format!("{number}: {} tokens", spent.output));
    }

    fn failed(&self, number: u64, _: &str) {
        self.add(format!("{number} failed"));
    }

    fn over(&self, number: u64) {
        self.add(format!("{number} over"));
    }

    fn unreached(&self, _: &str) {
        self.add("unreached");
    }
}

#[tokio::test]
async fn a_service_is_lent_for_a_while_and_followed() {
    let scene = scene().await;
    let (notes, nowhere) = (Arc::new(Notes::default()), Arc::new(Notes::default()));
    let lend = |upstream: Upstream, follower: &Arc<Notes>| {
        let mut vault = Vault::new(Trust::nobody());
        vault.secrets.push(key());
        vault.services.push(Service { upstream, ..services(&scene.far)[1].clone() });
        vault.follower = Some(follower.clone());
        scene.world.engine.lend(vault).unwrap()
    };
    let loan = lend(services(&scene.far)[1].upstream.clone(), &notes);
    let other = lend("http://127.0.0.1:1".parse().unwrap(), &nowhere);
    assert_ne!(loan.path(), other.path(), "nobody guesses it");
    let path = format!("{}/x", loan.path());
    let answer = scene.get(&path, "X-Key: mine\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains(VALUE), "{answer}");
    assert!(scene.far.seen().contains(&format!("x-key: {VALUE}\n")));
    while notes.all().len() < 3 {
        tokio::task::yield_now().await;
    }
    assert_eq!(notes.all(), ["GET /x ", "7: 200", "7 over"]);
    let asked = "Host: 127.0.0.1:3128\r\nConnection: close\r\n";
    for sent in ["Content-Length: 5\r\n\r\nhello", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"] {
        notes.said.lock().unwrap().clear();
        let request = format!("POST {}/message HTTP/1.1\r\n{asked}{sent}", loan.path());
        assert!(scene.world.say(request.as_bytes()).await.contains("input_tokens"));
        let seen = scene.far.seen();
        assert!(
            seen.contains("something else") && seen.contains("content-length: 14") && !seen.contains("hello"),
            "{seen}"
        );
        while notes.all().len() < 4 {
            tokio::task::yield_now().await;
        }
        assert_eq!(notes.all(), ["POST /message hello", "7: 200", "7: 22 tokens", "7 over"]);
    }
    notes.said.lock().unwrap().clear();
    notes.empty.store(true, Ordering::Relaxed);
    let answer = scene.get(&path, "").await;
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("nothing is left"), "{answer}");
    assert_eq!(notes.all().len(), 0);
    scene.get(&format!("{}/x", other.path()), "").await;
    assert_eq!(nowhere.all(), ["unreached"]);
    drop(loan);
    assert!(scene.get(&path, "").await.starts_with("HTTP/1.1 404"), "it was only lent");
    scene.get(&format!("{}/x", other.path()), "").await;
    assert_eq!(nowhere.all().len(), 2, "the other one still is");
}
