//! A client against executors that answer with nonsense: every answer is an error, none is a panic or a flood.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::{
    io::{ErrorKind, IoSliceMut, Write},
    mem::MaybeUninit,
    os::unix::{
        fs::FileExt,
        net::{UnixDatagram, UnixStream},
    },
    sync::Arc,
    time::Duration,
};

use proptest::{prelude::*, test_runner::TestRunner};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg, socketpair,
};
use sandbox_core::{Channel, JobId, exec::Exec};
use sandbox_executor::{
    carrier::{Connection, Side},
    client::{Client, ClientError, Until},
    frame,
    protocol::{FileInfo, FileKind, FrameKind, Hello, MAX_FRAME, PORT_FRAME, Path, Reply},
};
use tokio::io::AsyncReadExt;

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

/// Copies a file out of an executor that gives these answers; what came, and how it ended.
async fn copied(answers: Vec<Answer>) -> (u64, Result<(), ClientError>) {
    let file = Arc::new(tempfile::tempfile().unwrap());
    let mut reader = client(answers).await.read(&Path::from(b"x"), 0, None).await.unwrap();
    let ended = loop {
        match reader.next_load().await {
            Ok(Some(load)) => reader.reuse(load.write_to(&file).await.unwrap()),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    (file.metadata().unwrap().len(), ended)
}

#[tokio::test]
async fn a_copy_is_never_larger_than_announced() {
    use Answer::{Frame, Message};
    const SIZE: usize = 3 << 20;
    let announced = || Message(Reply::File(file(1, SIZE as u64)));
    let data = |length| Frame(FrameKind::Data, vec![1; length]);
    let lies = [
        vec![data(1 << 20), data(1 << 20), data(1 << 20), data(1)],
        vec![data((1 << 20) - 1), data(1 << 20), data(1 << 20), data(2)],
        vec![data(1 << 20), Frame(FrameKind::Hole, (2u64 << 20).to_be_bytes().to_vec()), data(1)],
        vec![data(1 << 20), Frame(FrameKind::Hole, u64::MAX.to_be_bytes().to_vec())],
        vec![data(1 << 20), Frame(FrameKind::Hole, 0u64.to_be_bytes().to_vec())],
        vec![data(1 << 20), Frame(FrameKind::Hole, vec![1])],
        vec![data(1 << 20), data(0)],
        vec![data(1 << 20), Frame(FrameKind::Stdout, vec![1; 100])],
        vec![data(1 << 20), Message(Reply::Done)],
    ];
    for lie in lies {
        let (written, ended) = copied([vec![announced()], lie.clone()].concat()).await;
        assert!(is_protocol(ended) && written <= SIZE as u64, "{written} bytes after {:?}", lie.last());
    }
    let (written, ended) = copied(vec![announced(), data(1 << 20), data(1)]).await;
    assert!(matches!(ended, Err(ClientError::Closed)), "{ended:?}");
    assert_eq!(written, (1 << 20) + 1, "an end without its frame is no end");
}

/// A client of an executor that does this with the socket of the first request.
async fn client_of_bare(act: impl FnOnce(UnixStream) + Send + 'static) -> Client {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    std::thread::spawn(move || {
        let theirs = UnixDatagram::from(theirs);
        theirs.recv(&mut [0; 256]).unwrap();
        theirs.send(&frame::encode(&Hello::OURS).unwrap()).unwrap();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        recvmsg(&theirs, &mut [IoSliceMut::new(&mut [0; 16])], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let passed = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut passed) => passed.next(),
            _ => None,
        });
        let flow = UnixStream::from(passed.unwrap());
        flow.set_nonblocking(false).unwrap();
        act(flow);
    });
    Client::connect(Channel::Local(ours)).await.unwrap()
}

#[tokio::test]
async fn bytes_that_come_one_by_one_do_not_stop_a_copy() {
    const SIZE: usize = 70_000;
    let client = client_of_bare(|mut flow| {
        flow.write_all(&frame::encode(&Reply::File(file(1, SIZE as u64))).unwrap()).unwrap();
        flow.write_all(&frame::header(FrameKind::Data, SIZE).unwrap()).unwrap();
        // Each takes a place in the pipe that the content goes through.
        (0..SIZE).for_each(|number| flow.write_all(&[number as u8]).unwrap());
        flow.write_all(&frame::header(FrameKind::End, 0).unwrap()).unwrap();
    })
    .await;
    let copy = async {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut reader = client.read(&Path::from(b"x"), 0, None).await.unwrap();
        while let Some(load) = reader.next_load().await.unwrap() {
            reader.reuse(load.write_to(&file).await.unwrap());
        }
        file
    };
    let file = tokio::time::timeout(Duration::from_secs(30), copy).await.expect("the copy hangs");
    let mut content = vec![0; SIZE];
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content.iter().enumerate().all(|(number, &byte)| byte == number as u8));
    assert_eq!(file.metadata().unwrap().len(), SIZE as u64);
}

#[tokio::test]
async fn whoever_stops_waiting_for_a_silent_executor_loses_nothing() {
    const HALF: usize = 100_000;
    let (go_on, told) = std::sync::mpsc::channel();
    let client = client_of_bare(move |mut flow| {
        flow.write_all(&frame::encode(&Reply::File(file(1, 2 * HALF as u64))).unwrap()).unwrap();
        flow.write_all(&frame::header(FrameKind::Data, 2 * HALF).unwrap()).unwrap();
        flow.write_all(&[1; HALF]).unwrap();
        told.recv().unwrap();
        flow.write_all(&[2; HALF]).unwrap();
        flow.write_all(&frame::header(FrameKind::End, 0).unwrap()).unwrap();
    })
    .await;
    let file = Arc::new(tempfile::tempfile().unwrap());
    let mut reader = client.read(&Path::from(b"x"), 0, None).await.unwrap();
    let mut silent = 0;
    loop {
        match tokio::time::timeout(Duration::from_millis(100), reader.next_load()).await {
            Ok(Ok(Some(load))) => reader.reuse(load.write_to(&file).await.unwrap()),
            Ok(ended) => break assert!(ended.unwrap().is_none()),
            Err(_) if silent == 3 => go_on.send(()).unwrap(),
            Err(_) => {}
        }
        silent += 1;
        assert!(silent < 100, "no end");
    }
    let mut content = vec![0; 2 * HALF];
    file.read_exact_at(&mut content, 0).unwrap();
    assert!(content[..HALF].iter().all(|&byte| byte == 1) && content[HALF..].iter().all(|&byte| byte == 2));
}

#[tokio::test]
async fn a_connection_to_a_port_takes_only_what_may_come_and_never_too_much() {
    use Answer::{Frame, Message};
    let done = || Message(Reply::Done);
    let read = async |answers: Vec<Answer>| {
        let mut stream = client(answers).await.connect_to_port(80).await.unwrap();
        let mut content = Vec::new();
        (stream.read_to_end(&mut content).await.map_err(|error| error.kind()), content)
    };
    let data = |length| Frame(FrameKind::Data, vec![1; length]);
    let end = || Frame(FrameKind::End, vec![]);
    assert_eq!(read(vec![done(), data(5), data(PORT_FRAME), end()]).await.0, Ok(5 + PORT_FRAME));
    assert_eq!(read(vec![done(), data(5), end(), data(5)]).await, (Ok(5), vec![1; 5]), "nothing comes after the end");
    let nonsense =
        [data(0), data(PORT_FRAME + 1), Frame(FrameKind::End, vec![1]), Frame(FrameKind::Stdout, vec![1]), done()];
    for bad in nonsense {
        let (ended, content) = read(vec![done(), data(5), bad.clone()]).await;
        assert_eq!((ended, content), (Err(ErrorKind::InvalidData), vec![1; 5]), "{bad:?}");
    }
    assert_eq!(read(vec![done(), data(5)]).await.0, Err(ErrorKind::ConnectionReset), "an end that was not said");
    assert!(is_protocol(client(vec![Message(Reply::Truncated)]).await.connect_to_port(80).await));
    assert!(is_protocol(client(vec![data(5)]).await.connect_to_port(80).await));
    assert!(matches!(client(vec![]).await.connect_to_port(80).await, Err(ClientError::Closed)));
}

#[tokio::test]
async fn an_announced_length_takes_no_memory() {
    let client = client_of_bare(|mut flow| {
        flow.write_all(&frame::encode(&Reply::Done).unwrap()).unwrap();
        flow.write_all(&frame::header(FrameKind::Data, MAX_FRAME).unwrap()).unwrap();
        std::thread::sleep(Duration::from_secs(5));
    })
    .await;
    let mut stream = client.connect_to_port(80).await.unwrap();
    let answered = tokio::time::timeout(Duration::from_secs(3), stream.read(&mut [0; 9])).await;
    assert_eq!(answered.expect("it is refused by its length").unwrap_err().kind(), ErrorKind::InvalidData);
}

#[tokio::test]
async fn an_older_executor_is_not_asked_for_what_it_does_not_know() {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    std::thread::spawn(move || {
        let theirs = UnixDatagram::from(theirs);
        theirs.recv(&mut [0; 256]).unwrap();
        theirs.send(&frame::encode(&Hello { version: 1, oldest: 1 }).unwrap()).unwrap();
        assert_eq!(theirs.recv(&mut [0; 256]).unwrap(), 0, "something was asked");
    });
    let client = Client::connect(Channel::Local(ours)).await.unwrap();
    let refused = client.connect_to_port(80).await.err().unwrap().to_string();
    assert!(refused.contains("older version") && refused.contains("Create a new sandbox"), "{refused}");
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
                if let Ok(mut reader) = client.read(&here, 0, None).await {
                    while let Ok(Some(_)) = reader.next_load().await {}
                }
                if let Ok(mut stream) = client.connect_to_port(80).await {
                    let _ = stream.read_to_end(&mut Vec::new()).await;
                }
                if let Ok(mut outward) = client.outward().await {
                    // Connections may be waited for as long as a sandbox lives.
                    let next = tokio::time::timeout(Duration::from_millis(20), outward.next()).await;
                    assert!(!matches!(next, Ok(Some(_))), "no connection came");
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
