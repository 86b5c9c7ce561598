//! What programs inside connect to the way out's proxy, where it comes as flows. Here inside is this machine's own loopback.

use std::{io::ErrorKind, time::Duration};

use tokio::{
    io::AsyncReadExt,
    net::{TcpListener, TcpStream},
};

use crate::harness::{Carrier, Program};

/// Flows that one side of a stream has open at once.
const FLOWS: usize = 192;

#[tokio::test]
async fn a_connection_for_which_no_flow_becomes_free_is_reset_and_does_not_hang() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let program = Program::start(Carrier::Stream, |boot| boot.proxy = Some(port)).await;
    let mut outward = program.client.outward().await.unwrap();
    let mut held = Vec::new();
    for _ in 0..FLOWS {
        let (inside, outside) = tokio::join!(TcpStream::connect(("127.0.0.1", port)), outward.next());
        held.push((inside.unwrap(), outside.unwrap()));
    }
    let mut one_more = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let reset = tokio::time::timeout(Duration::from_secs(20), one_more.read(&mut [0; 1])).await;
    assert_eq!(reset.expect("it hangs").map_err(|error| error.kind()), Err(ErrorKind::ConnectionReset));
    held.pop();
    let next = tokio::join!(TcpStream::connect(("127.0.0.1", port)), outward.next());
    assert!(next.0.is_ok() && next.1.is_some(), "there is room again");
}
