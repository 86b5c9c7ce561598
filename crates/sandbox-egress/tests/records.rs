//! Every connection is written down once, however it ends, and nobody can be flooded with refusals.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

mod way;

use std::{sync::Arc, time::Duration};

use hickory_proto::{
    op::{Message, Query, ResponseCode},
    rr::{Name, RecordType},
};
use sandbox_egress::{Limits, Reason, Rules, Target, Verdict};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use way::{Way, drain, source};

/// Whatever comes late has come by then.
const LATE: Duration = Duration::from_millis(100);

fn target(text: &str) -> Target {
    text.parse().unwrap()
}

impl Way {
    /// The only record, and no other comes after it.
    async fn only(&self) -> sandbox_egress::Record {
        self.records(1).await;
        tokio::time::sleep(LATE).await;
        let records = self.records.lock().unwrap().clone();
        assert_eq!(records.len(), 1, "{records:?}");
        records[0].clone()
    }

    async fn refused(&self, host: &str) {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        stream.write_all(format!("CONNECT {host}:80 HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }

    fn times(&self) -> u64 {
        self.records.lock().unwrap().iter().map(|record| record.times).sum()
    }
}

#[tokio::test]
async fn a_client_that_breaks_off_while_a_name_is_looked_up_is_written_down() {
    let way = Way::new(Limits::default()).await;
    let mut stream = TcpStream::connect(way.proxy).await.unwrap();
    stream.write_all(b"CONNECT a.example:80 HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut questions = Vec::new();
    for _ in 0..2 {
        let mut question = [0; 512];
        let (length, from) = way.silence.recv_from(&mut question).await.unwrap();
        questions.push((Message::from_vec(&question[..length]).unwrap(), from));
    }
    stream.set_zero_linger().unwrap();
    drop(stream);
    tokio::time::sleep(LATE).await;
    for (question, from) in questions {
        let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
        reply.metadata.response_code = ResponseCode::NXDomain;
        reply.add_query(question.queries[0].clone());
        way.silence.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
    }
    let record = way.only().await;
    assert_eq!((record.target.as_str(), record.times), ("a.example:80", 1));
    let expected = [Verdict::Denied(Reason::BrokenOff), Verdict::Denied(Reason::NoSuchName)];
    assert!(expected.contains(&record.verdict), "{record:?}");
}

#[tokio::test]
async fn a_sandbox_that_ends_meanwhile_is_written_down() {
    let way = Way::new(Limits::default()).await;
    let mut stream = TcpStream::connect(way.proxy).await.unwrap();
    let name = b"a.example";
    stream.write_all(&[&[5, 1, 0, 5, 1, 0, 3, 9][..], name, &[0, 80]].concat()).await.unwrap();
    way.silence.recv(&mut [0; 512]).await.unwrap();
    way.engine.close();
    assert_eq!(way.only().await.verdict, Verdict::Denied(Reason::BrokenOff));
}

#[tokio::test]
async fn a_task_that_is_cancelled_is_written_down_before_and_after_it_has_connected() {
    let way = Way::new(Limits::default()).await;
    let engine = Arc::clone(&way.engine);
    let opening = tokio::spawn(async move { engine.open(target("a.example:80")).await.is_ok() });
    way.silence.recv(&mut [0; 512]).await.unwrap();
    opening.abort();
    assert_eq!(way.only().await.verdict, Verdict::Denied(Reason::BrokenOff));
    way.records.lock().unwrap().clear();

    let port = source(1000).await;
    let opened = way.engine.open(target(&format!("127.0.0.1:{port}"))).await.unwrap();
    let (engine, (client, mut program)) = (Arc::clone(&way.engine), tokio::io::duplex(4096));
    let carrying = tokio::spawn(async move { engine.carry(client, opened, Vec::new()).await });
    program.read_exact(&mut [0; 1000]).await.unwrap();
    tokio::time::sleep(LATE).await;
    carrying.abort();
    let record = way.only().await;
    assert_eq!((record.verdict, record.received, record.times), (Verdict::Allowed, 1000, 1));
    way.records.lock().unwrap().clear();

    drop(way.engine.open(target(&format!("127.0.0.1:{port}"))).await.unwrap());
    assert_eq!(way.only().await.verdict, Verdict::Allowed);
}

#[tokio::test]
async fn a_connection_that_goes_on_is_seen_with_its_bytes_until_it_is_written_down() {
    let way = Way::new(Limits::default()).await;
    let mut stream = way.tunnel(source(1000).await).await;
    stream.write_all(b"\0hello").await.unwrap();
    stream.read_exact(&mut [0; 1000]).await.unwrap();
    let mut open = way.engine.open_connections();
    // What has left is counted a moment after it has arrived.
    while open.iter().any(|record| (record.sent, record.received) != (6, 1000)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        open = way.engine.open_connections();
    }
    assert_eq!((open.len(), open[0].verdict, open[0].address.is_some()), (1, Verdict::Allowed, true), "{open:?}");
    assert!(way.records.lock().unwrap().is_empty());
    drop(stream);
    assert_eq!(way.only().await.target, open[0].target);
    assert_eq!(way.engine.open_connections(), []);
}

#[tokio::test]
async fn what_comes_in_bulk_is_counted_to_the_byte() {
    const MUCH: usize = 20_000_001;
    let way = Way::new(Limits::default()).await;
    let mut stream = way.tunnel(source(MUCH).await).await;
    stream.read_exact(&mut vec![0; MUCH]).await.unwrap();
    // The server ends when we do, and not before.
    stream.shutdown().await.unwrap();
    assert_eq!(drain(stream).await.0, 0);
    let record = way.only().await;
    assert_eq!((record.received, record.verdict), (MUCH as u64, Verdict::Allowed));
}

#[tokio::test]
async fn what_comes_in_bulk_is_ended_when_rules_no_longer_allow_it() {
    const ENDLESS: usize = 4_000_000_000;
    let way = Way::new(Limits::default()).await;
    let mut stream = way.tunnel(source_of_zeros(ENDLESS).await).await;
    stream.read_exact(&mut vec![0; 20_000_000]).await.unwrap();
    way.engine.set_rules(Rules::default());
    let (arrived, ended) = drain(stream).await;
    assert!(arrived < ENDLESS / 4 && ended.is_err(), "{arrived} more arrived, {ended:?}");
    assert_eq!(way.only().await.verdict, Verdict::Denied(Reason::NoRule));
}

/// The same as [`source`], without room for all of it.
async fn source_of_zeros(bytes: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let zeros = vec![0; 1 << 20];
        for _ in 0..bytes / zeros.len() {
            if stream.write_all(&zeros).await.is_err() {
                return;
            }
        }
    });
    port
}

#[tokio::test]
async fn what_never_named_a_target_is_written_down() {
    let way = Way::new(Limits::default()).await;
    let mut stream = TcpStream::connect(way.proxy).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let _ = stream.read_to_end(&mut Vec::new()).await;
    assert_eq!(way.only().await.verdict, Verdict::Denied(Reason::NotARequest));
}

#[tokio::test]
async fn refusals_that_repeat_are_told_once_in_a_while_and_none_is_lost() {
    let way = Way::new(Limits::default()).await;
    for _ in 0..300 {
        way.refused("b.test").await;
    }
    assert!(way.records(1).await.len() <= 6, "{:?}", way.records.lock().unwrap());
    way.engine.close();
    assert_eq!(way.times(), 300);
    let records = way.records.lock().unwrap().clone();
    assert!(records.iter().all(|record| record.target == "b.test:80"), "{records:?}");
}

#[tokio::test]
async fn names_that_are_made_up_do_not_flood_whoever_records() {
    let way = Way::new(Limits::default()).await;
    for number in 0..3000 {
        let mut question = Message::query();
        let name = Name::from_ascii(format!("secret-{number}.test.")).unwrap();
        question.add_query(Query::query(name, RecordType::A));
        way.engine.answer_dns(&question.to_vec().unwrap()).unwrap();
    }
    way.engine.close();
    assert_eq!(way.times(), 3000);
    assert!(way.records.lock().unwrap().len() < 300);
}
