//! A client against executors that answer with nonsense: every answer is an error, none is a panic or a flood.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use proptest::{prelude::*, test_runner::TestRunner};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sandbox_core::{Channel, JobId, exec::Exec};
use sandbox_executor::{
    carrier::{Connection, Side},
    client::{Client, ClientError, Until},
    protocol::{FileInfo, FileKind, FrameKind, Path, Reply},
};

/// What the fake executor sends on every flow.
#[derive(Clone, Debug)]
enum Answer {
    Message(Reply),
    Frame(FrameKind, Vec<u8>),
}

/// A client of an executor that gives these answers to everything.
async fn client(answers: Vec<Answer>) -> Client {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    tokio::spawn(async move {
        let connection = Connection::establish(Channel::Local(theirs), Side::Executor).await.unwrap();
        while let Ok(Some((mut flow, _))) = connection.accept().await {
            for answer in &answers {
                let sent = match answer {
                    Answer::Message(reply) => flow.writer.message(reply).await,
                    Answer::Frame(kind, body) => flow.writer.frame(*kind, body).await,
                };
                if sent.is_err() {
                    break;
                }
            }
        }
    });
    Client::connect(Channel::Local(ours)).await.unwrap()
}

fn file(path: usize, size: u64) -> FileInfo {
    let path = Path(vec![b'x'; path]);
    FileInfo { path, kind: FileKind::File, size, mode: 0o644, modified: 0, changed: 0 }
}

fn is_protocol<T>(result: Result<T, ClientError>) -> bool {
    matches!(result, Err(ClientError::Protocol(_)))
}

#[tokio::test]
async fn nonsense_is_told_as_such() {
    use Answer::{Frame, Message};
    let here = Path::from(b".");
    let wrong = client(vec![Message(Reply::Truncated)]).await;
    assert!(is_protocol(wrong.jobs().await));
    assert!(is_protocol(wrong.spawn(&Exec::shell("x")).await));
    assert!(is_protocol(wrong.read(&here, 0, None).await));
    assert!(is_protocol(client(vec![Frame(FrameKind::Message, b"\xc1garbage".to_vec())]).await.usage().await));
    assert!(is_protocol(client(vec![Frame(FrameKind::Stdout, vec![1])]).await.stat(&here).await));
    assert!(is_protocol(client(vec![Message(Reply::File(file(9000, 0)))]).await.stat(&here).await));
    assert!(matches!(client(vec![]).await.jobs().await, Err(ClientError::Closed)));

    let flood = vec![Message(Reply::Entries(vec![file(1, 0); 100])); 100];
    assert!(is_protocol(client(flood).await.list(&here, 1, 1000).await));
    assert!(is_protocol(client(vec![Message(Reply::Entries(vec![]))]).await.list(&here, 1, 1000).await));

    for bad in [Frame(FrameKind::Data, vec![0; 11]), Frame(FrameKind::Data, vec![]), Frame(FrameKind::Hole, vec![9; 8])]
    {
        let client = client(vec![Message(Reply::File(file(1, 10))), bad]).await;
        assert!(is_protocol(client.read(&here, 0, None).await.unwrap().next().await));
    }
    for bad in [Message(Reply::Gap { offset: 5 }), Frame(FrameKind::Stdout, vec![1]), Frame(FrameKind::Hole, vec![])] {
        let client = client(vec![Message(Reply::Attached { offset: u64::MAX }), bad]).await;
        let mut follow = client.attach(JobId(1), 0, Until::Exit).await.unwrap();
        assert!(is_protocol(follow.next().await));
        assert!(matches!(follow.next().await, Err(ClientError::Closed)));
    }
}

#[test]
fn no_garbage_makes_a_client_panic_or_hang() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let garbage = prop::collection::vec((0u8..6, prop::collection::vec(any::<u8>(), 0..100)), 0..6);
    let mut runner = TestRunner::new(ProptestConfig { cases: 40, ..ProptestConfig::default() });
    let test = |frames: Vec<(u8, Vec<u8>)>| {
        let answers = frames.into_iter().map(|(kind, body)| Answer::Frame(FrameKind::from_number(kind).unwrap(), body));
        let answers: Vec<_> = answers.collect();
        let _inside = runtime.enter();
        runtime
            .block_on(tokio::time::timeout(Duration::from_secs(10), async {
                let client = client(answers).await;
                let here = Path::from(b".");
                let _ = client.jobs().await;
                let _ = client.list(&here, 1, 10).await;
                if let Ok(mut reader) = client.read(&here, 0, None).await {
                    while let Ok(Some(_)) = reader.next().await {}
                }
                if let Ok(mut follow) = client.attach(JobId(1), 0, Until::Exit).await {
                    while follow.next().await.is_ok() {}
                }
            }))
            .expect("a client hangs");
        Ok(())
    };
    runner.run(&garbage, test).unwrap();
}
