//! Connections to ports inside, over both carriers. Here inside is this machine's own loopback.

use std::time::Duration;

use sandbox_executor::protocol::{Reason, WAY_OUT_PORTS};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::harness::{Program, on_both, reason};

async fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Both ends of a connection through the executor.
async fn connected(program: &Program) -> (sandbox_executor::client::PortStream, TcpStream) {
    let (listener, port) = listener().await;
    let (outside, inside) = tokio::join!(program.client.connect_to_port(port), listener.accept());
    (outside.unwrap(), inside.unwrap().0)
}

#[tokio::test]
async fn bytes_go_both_ways_and_each_direction_ends_by_itself() {
    on_both(async |program| {
        let (mut outside, mut inside) = connected(program).await;
        outside.write_all(b"question").await.unwrap();
        outside.shutdown().await.unwrap();
        let mut heard = Vec::new();
        inside.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"question");
        inside.write_all(b"answer").await.unwrap();
        drop(inside);
        let mut answer = Vec::new();
        outside.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, b"answer");
        assert!(outside.write_all(b"more").await.is_err(), "our direction has ended");

        let (mut outside, mut inside) = connected(program).await;
        inside.shutdown().await.unwrap();
        assert_eq!(outside.read(&mut [0; 9]).await.unwrap(), 0);
        outside.write_all(b"late").await.unwrap();
        outside.shutdown().await.unwrap();
        let mut heard = Vec::new();
        inside.read_to_end(&mut heard).await.unwrap();
        assert_eq!(heard, b"late");
    })
    .await;
}

#[tokio::test]
async fn much_goes_through_whole_in_both_directions_at_once() {
    on_both(async |program| {
        let (outside, inside) = connected(program).await;
        let content: Vec<u8> =
            (0..20_000_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (mut outside_reads, mut outside_writes) = tokio::io::split(outside);
        let (mut inside_reads, mut inside_writes) = inside.into_split();
        let (mut out, mut back) = (Vec::new(), Vec::new());
        let send = async {
            outside_writes.write_all(&content).await.unwrap();
            outside_writes.shutdown().await.unwrap();
        };
        let answer = async {
            inside_writes.write_all(&content).await.unwrap();
            inside_writes.shutdown().await.unwrap();
        };
        let read = async { outside_reads.read_to_end(&mut back).await.unwrap() };
        let hear = async { inside_reads.read_to_end(&mut out).await.unwrap() };
        tokio::join!(send, answer, read, hear);
        assert!(out == content && back == content);
    })
    .await;
}

#[tokio::test]
async fn who_does_not_read_is_waited_for() {
    on_both(async |program| {
        let (mut outside, inside) = connected(program).await;
        let endless = async {
            for _ in 0..4096 {
                outside.write_all(&[7; 64 << 10]).await.unwrap();
            }
        };
        let waited = tokio::time::timeout(Duration::from_millis(700), endless).await;
        assert!(waited.is_err(), "256 MiB went to somebody who reads nothing");
        drop(inside);
    })
    .await;
}

#[tokio::test]
async fn what_is_broken_off_is_no_end() {
    on_both(async |program| {
        let (mut outside, inside) = connected(program).await;
        // With something unread in it, closing resets the connection.
        outside.write_all(b"unread").await.unwrap();
        assert_eq!(inside.peek(&mut [0; 6]).await.unwrap(), 6);
        drop(inside);
        let error = outside.read(&mut [0; 9]).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);

        let (outside, mut inside) = connected(program).await;
        drop(outside);
        let gone = tokio::time::timeout(Duration::from_secs(5), inside.read(&mut [0; 9])).await;
        assert!(matches!(gone.expect("it is told"), Ok(0) | Err(_)));
    })
    .await;
}

#[tokio::test]
async fn where_nobody_listens_is_told_and_the_way_out_is_closed() {
    on_both(async |program| {
        let (listener, port) = listener().await;
        drop(listener);
        let refused = program.client.connect_to_port(port).await;
        assert!(refused.as_ref().err().unwrap().to_string().contains(&format!("nobody listens on port {port}")));
        assert_eq!(reason(refused), Reason::NotFound);
        assert_eq!(reason(program.client.connect_to_port(0).await), Reason::Invalid);
        for port in WAY_OUT_PORTS {
            assert_eq!(reason(program.client.connect_to_port(port).await), Reason::Denied, "{port}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_program_that_listens_only_on_ipv6_is_found() {
    let Ok(listener) = TcpListener::bind("[::1]:0").await else { return };
    let port = listener.local_addr().unwrap().port();
    on_both(async |program| {
        let (outside, inside) = tokio::join!(program.client.connect_to_port(port), listener.accept());
        outside.unwrap().write_all(b"6").await.unwrap();
        assert_eq!(inside.unwrap().0.read_u8().await.unwrap(), b'6');
    })
    .await;
}

#[tokio::test]
async fn connections_that_come_and_go_leave_nothing_open() {
    on_both(async |program| {
        // An ordinary user may not read whose they are, but since Linux 6.2 how many there are.
        let folder = format!("/proc/{}/fd", program.child.id());
        let open = || match std::fs::read_dir(&folder) {
            Ok(entries) => entries.count(),
            Err(_) => std::fs::metadata(&folder).unwrap().len() as usize,
        };
        drop(connected(program).await);
        let before = open();
        for _ in 0..300 {
            drop(connected(program).await);
        }
        let until = std::time::Instant::now() + Duration::from_secs(10);
        while open() > before + 2 {
            assert!(std::time::Instant::now() < until, "{before} descriptors before, {} after", open());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
}
