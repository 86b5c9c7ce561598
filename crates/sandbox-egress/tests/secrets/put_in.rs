//! The real value arrives at the right host, in whatever way a program sends what stands for it.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sandbox_egress::{PlainHttp, Reason, Secret, Target, Verdict};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::far::{Scene, VALUE, begin, finish, header, secret};

/// The value as it stands in an address.
const ENCODED: &str = "the-real-value%2F1234567890%2Babc%3D";

#[tokio::test]
async fn a_placeholder_becomes_the_value_wherever_it_stands() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    let placeholder = scene.placeholder("key");
    let percent: String = placeholder.bytes().map(|byte| format!("%{byte:02x}")).collect();
    let credentials = |key: &str| STANDARD.encode(format!("user:{key}"));
    let form = format!("grant=x&key={placeholder}");
    let json = format!("{{\"key\":\"{placeholder}\"}}");
    let end = "Host: a.example\r\nConnection: close\r\n";
    for (request, arrives) in [
        (format!("GET / HTTP/1.1\r\nAuthorization: Bearer {placeholder}\r\n{end}\r\n"), format!("Bearer {VALUE}\n")),
        (
            format!("GET / HTTP/1.1\r\nAuthorization: Basic {}\r\n{end}\r\n", credentials(&placeholder)),
            format!("Basic {}\n", credentials(VALUE)),
        ),
        (format!("GET /x?key={placeholder}&y=1 HTTP/1.1\r\n{end}\r\n"), format!("GET /x?key={ENCODED}&y=1\n")),
        (format!("GET /{percent}/x HTTP/1.1\r\n{end}\r\n"), format!("GET /{ENCODED}/x\n")),
        (
            format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n{end}\r\n{placeholder}", placeholder.len()),
            format!("content-length: {}\n", VALUE.len()),
        ),
        (
            format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n{end}\r\n{placeholder}", placeholder.len()),
            format!("\n\n{VALUE}\n"),
        ),
        (
            format!(
                "POST / HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n{end}\r\n{form}",
                form.len()
            ),
            format!("\n\ngrant=x&key={ENCODED}\n"),
        ),
        (
            format!(
                "POST / HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{end}\r\n{json}",
                json.len()
            ),
            format!("\n\n{{\"key\":\"{VALUE}\"}}\n"),
        ),
        (
            format!(
                "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n{end}\r\n5\r\nkey: \r\n9\r\n{}\r\n{:x}\r\n{}\r\n0\r\n\r\n",
                &placeholder[..9],
                placeholder.len() - 9,
                &placeholder[9..]
            ),
            format!("\n\nkey: {VALUE}\n"),
        ),
    ] {
        let answer = scene.ask("a.example", &request).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{request}: {answer}");
        assert!(
            !answer.contains(VALUE) && !answer.contains(ENCODED) && !answer.contains(&credentials(VALUE)),
            "{answer}"
        );
        let seen = scene.far.seen();
        assert!(seen.contains(&arrives), "{request}: {seen}");
        assert!(!seen.contains(&placeholder) && seen.contains("accept-encoding: identity"), "{seen}");
    }
    let record = scene.world.last().await;
    assert_eq!((record.verdict, record.secret), (Verdict::Allowed, None));
    assert!(record.sent > 0 && record.received > 0);
}

#[tokio::test]
async fn a_header_is_set_whatever_a_program_sent_in_it() {
    let scene = Scene::new(vec![header("key", "*.example", "Authorization", "Bearer {}")]).await;
    assert_eq!(scene.world.engine.secrets().placeholders().count(), 0);
    let request = "GET / HTTP/1.1\r\nHost: a.example\r\nauthorization: mine\r\nAuthorization: and mine\r\nConnection: close\r\n\r\n";
    let answer = scene.ask("a.example", request).await;
    let seen = scene.far.seen();
    assert!(seen.contains(&format!("authorization: Bearer {VALUE}\n")) && !seen.contains("mine"), "{seen}");
    assert!(answer.contains("authorization: Bearer sbx_secret_key\n") && !answer.contains(VALUE), "{answer}");
}

#[tokio::test]
async fn it_works_by_socks_and_for_programs_that_know_no_proxy() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    let root = scene.world.engine.secrets().authority().unwrap().to_owned();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: a.example\r\nX-Key: {}\r\nConnection: close\r\n\r\n",
        scene.placeholder("key")
    );
    let mut stream = TcpStream::connect(scene.world.proxy).await.unwrap();
    let name = b"a.example";
    let wanted = [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name, &scene.far.secure.to_be_bytes()].concat();
    stream.write_all(&wanted).await.unwrap();
    let mut welcome = [0; 12];
    stream.read_exact(&mut welcome).await.unwrap();
    let answer = finish(begin(stream, "a.example", &root, b"http/1.1").await.unwrap(), request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains(VALUE), "{answer}");
    assert!(scene.far.seen().contains(&format!("x-key: {VALUE}\n")));
    // What is redirected to us ends in the same function.
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let target: Target = format!("a.example:{}", scene.far.secure).parse().unwrap();
    let opened = scene.world.engine.open(target).await.unwrap_or_else(|refusal| panic!("{refusal:?}"));
    let engine = std::sync::Arc::clone(&scene.world.engine);
    tokio::spawn(async move { engine.carry(theirs, opened, Vec::new()).await });
    let answer = finish(begin(ours, "a.example", &root, b"http/1.1").await.unwrap(), request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains(VALUE), "{answer}");
    assert!(scene.far.seen().contains(&format!("x-key: {VALUE}\n")));
}

#[tokio::test]
async fn without_tls_a_secret_goes_only_where_it_is_allowed_to() {
    let allowed = |secret: Secret| Secret { plain_http: PlainHttp::Allowed, ..secret };
    let scene = Scene::new(vec![
        secret("closed", "a.example"),
        allowed(secret("open", "b.example")),
        header("set", "c.example", "x-key", "{}"),
    ])
    .await;
    let ask = async |host: &str, key: &str| {
        let request = format!(
            "GET http://{host}:{}/ HTTP/1.1\r\nHost: {host}\r\nX-Key: {key}\r\nConnection: close\r\n\r\n",
            scene.far.plain
        );
        scene.world.say(request.as_bytes()).await
    };
    let answer = ask("b.example", &scene.placeholder("open")).await;
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.contains(VALUE), "{answer}");
    assert!(answer.contains(&format!("x-echo: {}", scene.placeholder("open"))), "{answer}");
    assert!(scene.far.seen().contains(&format!("x-key: {VALUE}\n")));
    for (host, key) in [("a.example", scene.placeholder("closed")), ("c.example", "mine".into())] {
        let answer = ask(host, &key).await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("secret_in_plain"), "{answer}");
        assert!(answer.contains("use https"), "{answer}");
    }
    let body =
        format!("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 60\r\n\r\n{:>60}", scene.placeholder("closed"));
    assert!(scene.ask_plainly("a.example", body.as_bytes()).await.contains("secret_in_plain"));
    assert!(ask("a.example", "nothing").await.starts_with("HTTP/1.1 200"), "others may be asked in plain");
    assert!(!scene.far.seen().contains(VALUE));
    assert_eq!(scene.leaks.lock().unwrap().len(), 0, "to its own host it is no leak");
}

#[tokio::test]
async fn tls_with_others_stays_closed_to_us() {
    let scene = Scene::new(vec![secret("key", "a.example"), header("other", "c.example", "x-key", "{}")]).await;
    let stream = scene.tunnel("b.example", scene.far.secure).await;
    // The certificate is the far end's own.
    let stream = begin(stream, "b.example", &scene.far.root, b"http/1.1").await.unwrap();
    let request = format!(
        "GET / HTTP/1.1\r\nHost: b.example\r\nX-Key: {}\r\nConnection: close\r\n\r\n",
        scene.placeholder("key")
    );
    finish(stream, request.as_bytes()).await;
    let seen = scene.far.seen();
    assert!(seen.contains(&scene.placeholder("key")) && !seen.contains(VALUE), "{seen}");
}

#[tokio::test]
async fn nothing_is_sent_to_somebody_who_cannot_prove_who_it_is() {
    let scene = Scene::with(
        vec![secret("key", "d.example"), header("set", "a.example", "x-key", "{}")],
        |_| Vec::new(),
        |vault| sandbox_egress::Vault { trust: sandbox_egress::Trust::nobody(), ..vault },
    )
    .await;
    for host in ["d.example", "a.example"] {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        let answer = scene.ask(host, &request).await;
        assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("x-sandbox-denied: tls_untrusted"), "{answer}");
        assert!(answer.contains("did not prove"), "{answer}");
    }
    assert_eq!(scene.far.seen(), "");
    assert_eq!(scene.world.last().await.verdict, Verdict::Denied(Reason::TlsUntrusted));
}

#[tokio::test]
async fn nothing_shows_the_value() {
    let scene = Scene::new(vec![secret("key", "a.example"), header("other", "c.example", "x-key", "Token {}")]).await;
    let secrets = scene.world.engine.secrets();
    let one = secret("key", "a.example");
    let vault = sandbox_egress::Vault {
        secrets: vec![one.clone()],
        ..sandbox_egress::Vault::new(sandbox_egress::Trust::nobody())
    };
    let request = format!(
        "GET / HTTP/1.1\r\nHost: a.example\r\nX-Key: {}\r\nConnection: close\r\n\r\n",
        scene.placeholder("key")
    );
    scene.ask("a.example", &request).await;
    let shown = format!("{one:?} {:?} {vault:?} {secrets:?} {:#?}", one.value, scene.world.last().await);
    assert!(shown.contains("key") && !shown.contains("real-value"), "{shown}");
    assert!(!secrets.authority().unwrap().contains("PRIVATE"));
}
