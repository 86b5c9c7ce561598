//! What programs inside connect to the way out's proxy, where it comes as flows. Here inside is this machine's own loopback.

use std::{
    io::ErrorKind,
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Command},
    time::Duration,
};

use sandbox_core::Channel;
use sandbox_executor::{
    boot::{Attachment, Boot, BootReport, STREAMS_ROLE},
    client::Client,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::harness::boot;

/// Flows that one side of a stream has open at once.
const FLOWS: usize = 192;

/// As engines start it: all goes over its standard streams.
async fn over_streams(boot: &Boot) -> (Client, Child) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandbox-executor"));
    command
        .arg(STREAMS_ROLE)
        .env_clear()
        .stdin(OwnedFd::from(theirs.try_clone().unwrap()))
        .stdout(OwnedFd::from(theirs));
    let child = command.spawn().unwrap();
    ours.set_nonblocking(true).unwrap();
    let mut stream = tokio::net::UnixStream::from_std(ours).unwrap();
    let message = rmp_serde::to_vec_named(boot).unwrap();
    stream.write_u32(message.len() as u32).await.unwrap();
    stream.write_all(&message).await.unwrap();
    let mut report = vec![0; stream.read_u32().await.unwrap() as usize];
    stream.read_exact(&mut report).await.unwrap();
    assert_eq!(rmp_serde::from_slice::<BootReport>(&report).unwrap(), BootReport::Ready);
    (Client::connect(Channel::Stream(Box::new(stream))).await.unwrap(), child)
}

#[tokio::test]
async fn a_connection_for_which_no_flow_becomes_free_is_reset_and_does_not_hang() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let folder = tempfile::tempdir().unwrap();
    let boot = Boot { attachment: Attachment::Streams, proxy: Some(port), ..boot(folder.path()) };
    let (client, mut child) = over_streams(&boot).await;
    let mut outward = client.outward().await.unwrap();
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
    client.shutdown().await.unwrap();
    child.wait().unwrap();
}
