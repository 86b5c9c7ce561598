//! Real connections through the proxy, to servers on loopback that a rule of the test names. Names are asked of a name
//! server that the test runs, which lies when it is told to.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

mod support;

use std::{net::Ipv4Addr, sync::atomic::Ordering};

use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{RData, RecordType, rdata},
};
use sandbox_egress::{Limits, Reason, Rules, Verdict};
use support::{HERE, World, allow, deny};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpStream, UdpSocket},
};

/// The first message of a TLS client that wants this server.
fn hello(name: &str) -> Vec<u8> {
    let list = [&[0][..], &(name.len() as u16).to_be_bytes(), name.as_bytes()].concat();
    let names = [&(list.len() as u16).to_be_bytes()[..], &list].concat();
    let extension =
        if name.is_empty() { Vec::new() } else { [&[0, 0][..], &(names.len() as u16).to_be_bytes(), &names].concat() };
    let body = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 1, 1, 0], &(extension.len() as u16).to_be_bytes(), &extension]
        .concat();
    let message = [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat();
    [&[0x16, 3, 1][..], &(message.len() as u16).to_be_bytes(), &message].concat()
}

#[tokio::test]
async fn what_is_allowed_works_by_connect_by_whole_address_and_by_socks() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let answer = world.connect("A.Example.", b"hello\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("served: hello\n"), "{answer}");
    let record = world.last().await;
    assert_eq!((record.verdict, record.rule.as_deref()), (Verdict::Allowed, Some("a.example")));
    assert_eq!((record.sent, record.received), (6, 14));
    assert_eq!(record.address, Some((Ipv4Addr::LOCALHOST, world.port).into()));
    let request = format!(
        "GET http://a.example:{}/x?y HTTP/1.1\r\nHost: evil.example\r\nProxy-Connection: keep-alive\r\nConnection: close, X-Hop\r\nX-Hop: 1\r\nX-Kept: 1\r\n\r\n",
        world.port
    );
    let answer = world.say(request.as_bytes()).await;
    assert!(answer.contains("served: GET /x?y HTTP/1.1"), "{answer}");
    let lower = answer.to_lowercase();
    assert!(lower.contains(&format!("host: a.example:{}", world.port)) && lower.contains("x-kept: 1"), "{answer}");
    assert!(!lower.contains("evil") && !lower.contains("x-hop") && !lower.contains("proxy-connection"), "{answer}");
    let answer = world.socks("a.example", b"hello\n").await;
    assert_eq!(answer[..4], [5, 0, 5, 0]);
    assert!(answer.ends_with(b"served: hello\n"), "{answer:?}");
}

#[tokio::test]
async fn what_is_not_allowed_gets_a_page_that_says_why_and_is_never_looked_up() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    for host in
        ["b.example", "x.a.example", "127.0.0.1", "[::1]", "2130706433", "0x7f.1", "localhost", "[::ffff:127.0.0.1]"]
    {
        let answer = world.connect(host, b"hello\n").await;
        assert!(answer.starts_with("HTTP/1.1 403") && answer.contains("x-sandbox-denied: no_rule"), "{host}: {answer}");
        let advice = if host.contains(".example") { "request_access" } else { "host_ports" };
        assert!(answer.contains(advice), "{answer}");
    }
    for host in ["a.example\0.b", "user@a.example", "a.example@evil", "[fe80::1%25lo]", "a..example"] {
        let answer = world.connect(host, b"hello\n").await;
        assert!(answer.starts_with("HTTP/1.1 400") || answer.is_empty(), "{host}: {answer}");
    }
    assert_eq!(world.socks("b.example", b"hello\n").await, [5, 0, 5, 2, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!((world.arrived(), world.questions.load(Ordering::SeqCst)), (0, 0));
}

#[tokio::test]
async fn a_public_name_that_leads_inside_is_refused() {
    for (address, reason) in [
        ("127.0.0.1", "loopback"),
        ("10.0.0.1", "private_network"),
        ("169.254.169.254", "link_local"),
        ("100.64.0.1", "private_network"),
        ("0.0.0.0", "special_address"),
        ("224.0.0.1", "special_address"),
    ] {
        let world = World::new(vec![allow(&["*"], &[])], &[address]).await;
        let answer = world.connect("rebind.example", b"hello\n").await;
        assert!(answer.contains(&format!("x-sandbox-denied: {reason}")), "{address}: {answer}");
        assert_eq!(world.arrived(), 0);
    }
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_that_is_dialled() {
    // The name server says something harmless first and something else ever after.
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1", "127.0.0.2"]).await;
    let answer = world.connect("a.example", b"hello\n").await;
    assert!(answer.ends_with("served: hello\n"), "{answer}");
    assert_eq!(world.questions.load(Ordering::SeqCst), 1, "it was asked twice");
}

#[tokio::test]
async fn tls_must_name_the_server_that_was_allowed() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    for (name, reason) in
        [("b.example", Reason::TlsOtherName), ("", Reason::TlsNameHidden), ("127.0.0.1", Reason::TlsBroken)]
    {
        world.records.lock().unwrap().clear();
        let answer = world.connect("a.example", &hello(name)).await;
        assert!(!answer.contains("served"), "{answer}");
        assert_eq!(world.last().await.verdict, Verdict::Denied(reason), "{name}");
    }
    // Cut off in the middle it may not leave either.
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    world.connect("a.example", &hello("b.example")[..20]).await;
    assert_eq!(world.last().await.verdict, Verdict::Denied(Reason::TlsBroken));
    assert_eq!(world.arrived(), 0, "bytes of a denied hello arrived");
    world.connect("a.example", &hello("A.example")).await;
    assert_eq!(world.arrived(), 1);
    // A server may ask for a second hello, and might believe that one.
    let second = world.connect("a.example", &[hello("a.example"), hello("b.example")].concat()).await;
    assert!(!second.contains("b.example"), "{second}");
    let third = world
        .connect(
            "a.example",
            &[hello("a.example"), vec![0x14, 3, 3, 0, 1, 1], hello("a.example"), b"\n".to_vec()].concat(),
        )
        .await;
    assert!(third.matches("a.example").count() >= 2, "{third:?}");
}

#[tokio::test]
async fn a_name_that_is_denied_is_not_reached_by_its_address() {
    let world = World::new(vec![deny(&["*.registry.example"]), allow(&["*", "127.0.0.1"], &[])], &["127.0.0.1"]).await;
    assert!(world.connect("127.0.0.1", b"hello\n").await.contains("403"), "`*` names no addresses");
    world.engine.set_rules(Rules(vec![deny(&["*.registry.example"]), allow(&["127.0.0.1"], &[])]));
    assert!(world.connect("127.0.0.1", b"hello\n").await.ends_with("served: hello\n"));
    let arrived = world.arrived();
    for name in ["a.registry.example", ""] {
        world.connect("127.0.0.1", &hello(name)).await;
    }
    assert_eq!(world.arrived(), arrived);
    world.connect("127.0.0.1", &hello("b.example")).await;
    assert_eq!(world.arrived(), arrived + 1);
}

#[tokio::test]
async fn rules_that_change_hold_at_once() {
    let world = World::new(Vec::new(), &["127.0.0.1"]).await;
    assert!(world.connect("a.example", b"hello\n").await.contains("403"));
    world.engine.set_rules(Rules(vec![allow(&["a.example"], HERE)]));
    assert!(world.connect("a.example", b"hello\n").await.ends_with("served: hello\n"));
    world.engine.set_rules(Rules(Vec::new()));
    assert!(world.connect("a.example", b"hello\n").await.contains("403"));
}

#[tokio::test]
async fn nobody_answering_is_told_apart_from_nobody_allowed() {
    let world = World::new(vec![allow(&["*"], HERE)], &["127.0.0.1"]).await;
    let head = "CONNECT a.example:1 HTTP/1.1\r\nHost: x\r\n\r\n";
    let answer = world.say(head.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("x-sandbox-denied: refused"), "{answer}");
}

#[tokio::test]
async fn a_sandbox_that_has_ended_has_no_connections_left() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let mut held = TcpStream::connect(world.proxy).await.unwrap();
    held.write_all(format!("CONNECT a.example:{} HTTP/1.1\r\nHost: x\r\n\r\nhel", world.port).as_bytes())
        .await
        .unwrap();
    let mut answer = [0; 12];
    held.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    world.engine.close();
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(5), held.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "it is still there");
    let mut closed = false;
    for _ in 0..100 {
        closed = TcpStream::connect(world.proxy).await.is_err();
        if closed {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(closed, "somebody still listens");
}

#[tokio::test]
async fn a_tunnel_needs_no_place_beside_that_of_its_connection() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let mut held = Vec::new();
    for _ in 1..Limits::default().connections {
        held.push(TcpStream::connect(world.proxy).await.unwrap());
    }
    let answer = world.connect("a.example", b"hello\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("served: hello"), "{answer}");
}

#[tokio::test]
async fn only_so_many_connections_are_held_whatever_they_are_for() {
    let world = World::new(Vec::new(), &["127.0.0.1"]).await;
    let mut held = Vec::new();
    for _ in 0..Limits::default().connections {
        held.push(TcpStream::connect(world.proxy).await.unwrap());
    }
    // They are counted when they were accepted, which may take a moment.
    let mut refused = false;
    for _ in 0..50 {
        refused = world.say(b"CONNECT a.example:80 HTTP/1.1\r\nHost: x\r\n\r\n").await.is_empty();
        if refused {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(refused, "one more was served");
    drop(held);
    for _ in 0..100 {
        if world.say(b"CONNECT a.example:80 HTTP/1.1\r\nHost: x\r\n\r\n").await.contains("403") {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("places were not given back");
}

#[tokio::test]
async fn plain_http_in_a_tunnel_is_only_for_the_server_that_was_allowed() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let answer = world.connect("a.example", b"GET /x HTTP/1.1\r\nHost: A.example\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("served: GET /x HTTP/1.1"), "{answer}");
    assert_eq!(world.arrived(), 1);
    for request in [
        "GET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nhost: b.example\r\n\r\n",
        "FOO / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\nHost: b.example\r\n\r\n",
        "GET http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        "CONNECT b.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: user@a.example\r\n\r\n",
        "GET / RTSP/1.1\r\nHost: b.example\r\n\r\n",
        "SOURCE / ICE/1.1\r\nHost: b.example\r\n\r\n",
        "GET /\r\nHost: b.example\r\n\r\n",
        "GET http://b.example/\r\n\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        "\r\n\r\n\0\r\nQUIT\n\x20\0\0\0GET / HTTP/1.1\r\nHost: b.example\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let answer = world.connect("a.example", request.as_bytes()).await;
        let refused = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        assert!(refused.starts_with("HTTP/1.1 4") || refused.is_empty(), "{request:?}: {answer}");
        let answer = world.socks("a.example", request.as_bytes()).await;
        assert!(!String::from_utf8_lossy(&answer).contains("served"), "{request:?}");
    }
    // Servers that skip what comes first, or read lines of any length, are no reason not to look.
    for begin in
        ["\r\n".repeat(9000), format!("GET /{} HTTP/1.1\r\n", "a".repeat(20_000)), "GET /\u{1} HTTP/1.1\r\n".into()]
    {
        let request = format!("{begin}Host: b.example\r\n\r\n");
        let answer = world.connect("a.example", request.as_bytes()).await;
        assert!(!answer.contains("served"), "{} bytes: {answer}", request.len());
    }
    for broken in ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET\t/\tHTTP/1.1\r\nHost: b.example\r\n\r\n"] {
        assert!(!world.connect("a.example", broken.as_bytes()).await.contains("served"), "{broken:?}");
    }
    assert_eq!(world.arrived(), 1, "a request for another server arrived");
    // A second request on the same connection is looked at like the first.
    let two = "GET /1 HTTP/1.1\r\nHost: a.example\r\n\r\nGET /2 HTTP/1.1\r\nHost: b.example\r\n\r\n";
    let answer = world.connect("a.example", two.as_bytes()).await;
    assert!(!answer.contains("/2"), "{answer}");
}

#[tokio::test]
async fn an_offer_of_http_2_as_the_jdk_makes_it_is_passed_over_and_never_seen_by_the_server() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let offer = "Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n";
    let request = format!("GET /java HTTP/1.1\r\nHost: a.example\r\n{offer}Upgrade: h2c\r\n\r\n");
    let whole = request.replace("/java", &format!("http://a.example:{}/java", world.port));
    let tunnelled = world.connect("a.example", request.as_bytes()).await;
    let by_socks = String::from_utf8_lossy(&world.socks("a.example", request.as_bytes()).await).into_owned();
    for answer in [tunnelled, by_socks, world.say(whole.as_bytes()).await] {
        assert!(answer.contains("served: GET /java HTTP/1.1"), "{answer}");
        let seen = answer.split("served: ").nth(1).unwrap_or_default().to_lowercase();
        assert!(!seen.contains("upgrade") && !seen.contains("h2c") && !seen.contains("settings"), "{seen}");
    }
    assert_eq!(world.arrived(), 3);
    let both = request.replace("Upgrade: h2c", "Upgrade: h2c, websocket");
    let answer = world.connect("a.example", both.as_bytes()).await;
    assert!(answer.contains("x-sandbox-denied: http_upgrade"), "{answer}");
    assert_eq!(world.arrived(), 3);
}

#[tokio::test]
async fn a_request_for_a_tunnel_within_a_tunnel_is_refused() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let answer = world.connect("a.example", b"CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n").await;
    assert!(answer.contains("x-sandbox-denied: http_upgrade"), "{answer}");
    assert_eq!(world.arrived(), 0);
}

#[tokio::test]
async fn who_names_nobody_in_a_request_is_given_the_name_that_was_allowed() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let answer = world.connect("a.example", b"GET /x HTTP/1.0\r\n\r\n").await;
    assert!(answer.to_lowercase().contains("host: a.example"), "{answer}");
    // Other first lines go through as they are.
    assert!(world.connect("a.example", b"NICK somebody\n").await.ends_with("served: NICK somebody\n"));
}

#[tokio::test]
async fn a_name_is_answered_with_a_stand_in_that_leads_to_it_and_is_looked_up_outside() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let ask = async |name: &str| {
        let mut question = Message::query();
        question.add_query(Query::query(hickory_proto::rr::Name::from_ascii(name).unwrap(), RecordType::A));
        client.send_to(&question.to_vec().unwrap(), world.dns).await.unwrap();
        let mut buffer = [0; 1500];
        let length = client.recv(&mut buffer).await.unwrap();
        Message::from_vec(&buffer[..length]).unwrap()
    };
    assert_eq!(ask("secret.evil.example.").await.metadata.response_code, ResponseCode::NXDomain);
    let reply = ask("a.example.").await;
    let RData::A(rdata::A(stand_in)) = reply.answers[0].data else { panic!("{reply:?}") };
    assert_eq!(world.questions.load(Ordering::SeqCst), 0, "a question from inside went out");
    // Also for a program that asks for a name itself and then uses the proxy.
    let answer = world.connect(&stand_in.to_string(), b"hello\n").await;
    assert!(answer.ends_with("served: hello\n"), "{answer}");
    assert_eq!(world.last().await.target, format!("a.example:{}", world.port));
}

#[tokio::test]
async fn what_is_no_longer_allowed_is_ended() {
    let world = World::new(vec![allow(&["a.example"], HERE)], &["127.0.0.1"]).await;
    let mut stream = TcpStream::connect(world.proxy).await.unwrap();
    let head = format!("CONNECT a.example:{} HTTP/1.1\r\nHost: x\r\n\r\n", world.port);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    world.engine.set_rules(Rules(vec![allow(&["a.example", "b.example"], HERE)]));
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(world.records.lock().unwrap().is_empty(), "it is still allowed");
    world.engine.set_rules(Rules::default());
    let mut rest = Vec::new();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(5), stream.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "it goes on");
    assert_eq!(world.last().await.verdict, Verdict::Denied(Reason::NoRule));
}
