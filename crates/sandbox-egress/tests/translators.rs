//! A network whose translator has a prefix of its own: what looks public may lead inside.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

use std::{
    net::Ipv6Addr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use hickory_proto::{
    op::Message,
    rr::{RData, Record, RecordType, rdata},
};
use sandbox_egress::{Effect, Engine, Limits, Places, Protocol, Reason, Resolver, Rule, Rules, Setup};
use tokio::net::UdpSocket;

/// A name server of such a network: names have the IPv4 address that they begin with, as IPv6 behind its prefix.
async fn translate(socket: UdpSocket, asked: Arc<AtomicUsize>) {
    let mut buffer = [0; 1024];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let question = Message::from_vec(&buffer[..length]).unwrap();
        let query = question.queries[0].clone();
        let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
        let name = query.name().to_ascii();
        let inside = match name.as_str() {
            "ipv4only.arpa." => {
                asked.fetch_add(1, Ordering::SeqCst);
                "192.0.0.171".to_owned()
            }
            name => name.trim_end_matches(".example.").replace('-', "."),
        };
        if query.query_type() == RecordType::AAAA {
            let address: Ipv6Addr = format!("2a00:1098:2c:1::{inside}").parse().unwrap();
            reply.add_answers([Record::from_rdata(query.name().clone(), 0, RData::AAAA(rdata::AAAA(address)))]);
        }
        reply.add_query(query);
        socket.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
    }
}

fn rule(effect: Effect, host: &str) -> Rule {
    let hosts = vec![host.parse().unwrap()];
    Rule { name: host.into(), effect, hosts, ports: Vec::new(), protocol: Protocol::Tcp, within: Vec::new() }
}

#[tokio::test]
async fn an_address_behind_a_prefix_is_what_it_becomes() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let resolver = Resolver::with_server(socket.local_addr().unwrap()).unwrap();
    let asked = Arc::default();
    tokio::spawn(translate(socket, Arc::clone(&asked)));
    let engine = Engine::new(Setup {
        rules: Rules(vec![rule(Effect::Deny, "93.0.0.0/8"), rule(Effect::Allow, "*")]),
        resolver,
        limits: Limits::default(),
        places: Places::default(),
        recorder: Box::new(|_| {}),
        on_refusal: Box::new(|_| {}),
        secrets: sandbox_egress::Secrets::default(),
        reader: sandbox_egress::Reader::Model,
        own: None,
    });
    let open = async |target: &str| match engine.open(target.parse().unwrap()).await {
        Ok(_) => panic!("{target} was reached"),
        Err(refusal) => refusal.reason,
    };
    assert_eq!(open("127.0.0.1:80").await, Reason::Loopback);
    assert_eq!(asked.load(Ordering::SeqCst), 0, "for IPv4 nobody has to be asked");
    for (target, reason) in [
        ("10-0-0-1.example:80", Reason::PrivateNetwork),
        ("127-0-0-1.example:80", Reason::Loopback),
        ("169-254-169-254.example:80", Reason::LinkLocal),
        ("93-184-215-14.example:80", Reason::DeniedByRule),
        ("[2a00:1098:2c:1::10.0.0.1]:80", Reason::PrivateNetwork),
        ("[2a00:1098:2c:1::93.184.215.14]:80", Reason::DeniedByRule),
    ] {
        assert_eq!(open(target).await, reason, "{target}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}
