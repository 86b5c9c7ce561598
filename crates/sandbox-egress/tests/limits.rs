//! How much of the way out one sandbox gets, tried with real sockets: its speed, its bytes, its place
//! among others.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should say where")]

mod way;

use std::time::{Duration, Instant};

use sandbox_egress::{Limits, Places, Reason, Verdict};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use way::{Way, drain, source};

const MEGABYTE: usize = 1_000_000;

#[tokio::test]
async fn two_megabytes_at_one_a_second_take_two_seconds() {
    let way = Way::new(Limits { bandwidth: Some(MEGABYTE as u64), ..Limits::default() }).await;
    let port = source(2 * MEGABYTE).await;
    let start = Instant::now();
    let mut stream = way.tunnel(port).await;
    stream.shutdown().await.unwrap();
    assert_eq!(drain(stream).await.0, 2 * MEGABYTE);
    let took = start.elapsed();
    assert!((1.5..4.0).contains(&took.as_secs_f64()), "{took:?}");
}

#[tokio::test]
async fn two_connections_share_what_there_is_in_both_directions() {
    let way = Way::new(Limits { bandwidth: Some(MEGABYTE as u64), ..Limits::default() }).await;
    let port = source(MEGABYTE).await;
    let start = Instant::now();
    let (mut down, up) = (way.tunnel(port).await, way.tunnel(source(0).await).await);
    down.shutdown().await.unwrap();
    let upload = async {
        let (mut reader, mut writer) = up.into_split();
        writer.write_all(&vec![0; MEGABYTE]).await.unwrap();
        writer.shutdown().await.unwrap();
        let _ = reader.read(&mut [0]).await;
        start.elapsed()
    };
    let download = async {
        assert_eq!(drain(down).await.0, MEGABYTE);
        start.elapsed()
    };
    let (up, down) = tokio::join!(upload, download);
    // Alone each would take a second; what the kernel keeps between us is not carried yet.
    assert!((1.5..4.0).contains(&up.max(down).as_secs_f64()), "{up:?} {down:?}");
    assert!(up.min(down).as_secs_f64() > 1.0, "one had it all: {up:?} {down:?}");
}

#[tokio::test]
async fn when_all_bytes_are_used_up_everything_ends_and_nothing_begins() {
    let way = Way::new(Limits { bytes: Some(MEGABYTE as u64), ..Limits::default() }).await;
    let port = source(3 * MEGABYTE).await;
    let idle = way.tunnel(source(0).await).await;
    let (received, ended) = drain(way.tunnel(port).await).await;
    // What the kernel held of it was thrown away by the reset.
    assert!(received <= MEGABYTE, "{received}");
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let ended = drain(idle).await.1;
    assert!(ended.is_ok() || ended.unwrap_err().kind() == std::io::ErrorKind::ConnectionReset);
    let records = way.records(2).await;
    assert!(records.iter().all(|record| record.verdict == Verdict::Denied(Reason::TransferUsedUp)), "{records:?}");
    let total: u64 = records.iter().map(|record| record.sent + record.received).sum();
    assert!(total <= MEGABYTE as u64 && total > (MEGABYTE - (64 << 10)) as u64, "{total}");
    let port = source(0).await;
    let mut refused = TcpStream::connect(way.proxy).await.unwrap();
    refused.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
    let mut page = String::new();
    refused.read_to_string(&mut page).await.unwrap();
    assert!(page.starts_with("HTTP/1.1 403") && page.contains("x-sandbox-denied: transfer_used_up"), "{page}");
    assert!(page.contains("as much as it may"), "{page}");
    assert_eq!(way.records(3).await[2].verdict, Verdict::Denied(Reason::TransferUsedUp));
    way.engine.close();
}

#[tokio::test]
async fn a_connection_through_the_proxy_takes_one_place() {
    let way = Way::new(Limits { connections: 2, ..Limits::default() }).await;
    let port = source(0).await;
    let held = [way.tunnel(port).await, way.tunnel(port).await];
    let mut third = TcpStream::connect(way.proxy).await.unwrap();
    let _ = third.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await;
    assert!(third.read_u8().await.is_err());
    assert_eq!(way.records(1).await[0].verdict, Verdict::Denied(Reason::TooManyConnections));
    drop((held, third));
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop([way.tunnel(port).await, way.tunnel(port).await]);
}

#[tokio::test]
async fn a_sandbox_that_takes_all_places_leaves_some_for_others() {
    let places = Places::new(20);
    let greedy = Way::among(Limits::default(), places.clone()).await;
    let other = Way::among(Limits::default(), places).await;
    let port = source(0).await;
    let mut held = Vec::new();
    for _ in 0..50 {
        // Those that are too many may be reset before we know of them.
        held.extend(TcpStream::connect(greedy.proxy).await);
    }
    let records = greedy.records(1).await;
    assert_eq!(records[0].verdict, Verdict::Denied(Reason::TooManyConnections));
    let tunnels = [other.tunnel(port).await, other.tunnel(port).await];
    // What the greedy one gives back is there again for both.
    drop(held);
    tokio::time::sleep(Duration::from_millis(100)).await;
    let more = [greedy.tunnel(port).await, other.tunnel(port).await];
    drop((tunnels, more));
}

#[tokio::test]
async fn names_that_nobody_answers_for_take_few_descriptors_and_delay_no_other_sandbox() {
    let places = Places::new(2000);
    let silent = Way::among(Limits::default(), places.clone()).await;
    let other = Way::among(Limits::default(), places).await;
    let before = descriptors();
    let mut asked = Vec::new();
    for number in 0..200 {
        let mut stream = TcpStream::connect(silent.proxy).await.unwrap();
        let request = format!("CONNECT n{number}.example:80 HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        asked.push(stream);
    }
    // All of them are waiting for something.
    silent.silence.recv(&mut [0; 512]).await.unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    // Both ends of each are in this process; of one sandbox 64 are dialled at once. Other tests have some too.
    let taken = descriptors() - before;
    assert!(taken < 2 * 200 + 5 * 64 + 100, "{taken} descriptors");
    let start = Instant::now();
    let mut tunnel = other.tunnel(source(1).await).await;
    assert_eq!(tunnel.read(&mut [0; 9]).await.unwrap(), 1);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
