//! Any bytes to the proxy of a sandbox that may reach nothing, and over plain HTTP to the one server that it may reach.

use std::{
    cell::OnceCell,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Runtime,
};

use crate::{
    Engine, Places, Record, Resolver, Rules, Setup, Target, Verdict,
    plain_http::{FirstLine, first_line},
    secrets::{Alarm, Over, Passage},
};

/// Nothing that is said at once takes as long.
const TOO_LONG: Duration = Duration::from_secs(10);
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
const ALLOWED: &str = "a.example:80";

thread_local! {
    /// What takes long to make, and stays the same.
    static MADE: OnceCell<Option<(Runtime, Resolver)>> = const { OnceCell::new() };
}

/// Nothing is reached, everything is answered with a refusal and recorded; and what arrives at a server is for that server.
pub fn http_head(data: &[u8]) {
    let line = first_line(data);
    for length in 0..data.len().min(64) {
        let part = first_line(&data[..length]);
        assert!(part == FirstLine::Incomplete || part == line, "{part:?}, then {line:?}");
    }
    MADE.with(|made| {
        let Some((runtime, resolver)) = made.get_or_init(make) else { panic!("no runtime") };
        runtime.block_on(async {
            let refused = tokio::time::timeout(TOO_LONG, through_the_proxy(data, resolver)).await;
            let passed = tokio::time::timeout(TOO_LONG, through_a_tunnel(data, resolver)).await;
            assert!(refused.is_ok() && passed.is_ok(), "it never ends");
        });
    });
}

fn make() -> Option<(Runtime, Resolver)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    Some((runtime, Resolver::with_server(([127, 0, 0, 1], 9).into()).ok()?))
}

fn engine(records: &Arc<Mutex<Vec<Record>>>, resolver: &Resolver) -> Arc<Engine> {
    let records = Arc::clone(records);
    let recorder = move |record| records.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    Engine::new(Setup { places: Places::new(16), ..Setup::new(Rules::default(), resolver.clone(), recorder) })
}

async fn through_the_proxy(data: &[u8], resolver: &Resolver) {
    let records = Arc::default();
    let engine = engine(&records, resolver);
    let (mut client, proxy) = tokio::io::duplex(data.len().max(64 << 10));
    let Some(place) = engine.place() else { panic!("no place") };
    let serving = tokio::spawn(Arc::clone(&engine).serve_http(proxy, place));
    let _ = client.write_all(data).await;
    let _ = client.shutdown().await;
    let mut answer = Vec::new();
    let _ = client.read_to_end(&mut answer).await;
    assert!(serving.await.is_ok(), "the server has panicked");
    drop(engine);
    let records = records.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(records.iter().all(|record| matches!(record.verdict, Verdict::Denied(_))), "{records:?}");
    let text = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || text.starts_with("HTTP/1.1 4") || text.starts_with("HTTP/1.0 4"), "{text}");
    // What is no HTTP at all is answered by the library that reads it, and nobody wanted anything.
    let refused = text.to_ascii_lowercase().contains("\r\nx-sandbox-denied: ");
    assert_eq!(records.iter().map(|record| record.times).sum::<u64>(), u64::from(refused), "{text} {records:?}");
}

async fn through_a_tunnel(data: &[u8], resolver: &Resolver) {
    let engine = engine(&Arc::default(), resolver);
    let (Ok(target), Ok((ours, theirs))) = (ALLOWED.parse::<Target>(), UnixStream::pair()) else { panic!("no pair") };
    // To tokio they are sockets like others.
    let (Some(mut ours), Some(theirs)) = (stream(ours), stream(theirs)) else { panic!("no streams") };
    let server = tokio::spawn(serve(theirs));
    let (client, mut program) = tokio::io::duplex(data.len().max(64 << 10));
    let talking = tokio::spawn({
        let data = data.to_vec();
        async move {
            let _ = program.write_all(&data).await;
            let _ = program.shutdown().await;
            let _ = program.read_to_end(&mut Vec::new()).await;
        }
    });
    let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
    let passage = Passage::new(engine.secrets(), &target, Over::Plain, &Alarm::default(), None);
    engine.carry_http(client, &mut ours, &passage, [&sent, &received]).await;
    drop(ours);
    let Ok(arrived) = server.await else { panic!("the server has panicked") };
    assert!(talking.await.is_ok() && sent.load(Ordering::Relaxed) <= arrived.len() as u64);
    check_arrived(&arrived, &target);
}

fn stream(socket: UnixStream) -> Option<TcpStream> {
    let socket = std::net::TcpStream::from(OwnedFd::from(socket));
    socket.set_nonblocking(true).ok()?;
    TcpStream::from_std(socket).ok()
}

/// Answers whatever comes as if it were a request, and keeps it.
async fn serve(mut stream: TcpStream) -> Vec<u8> {
    let mut arrived = Vec::new();
    while let Ok(1..) = stream.read_buf(&mut arrived).await {
        // Whoever is gone may have said something before.
        let _ = stream.write_all(ANSWER).await;
    }
    arrived
}

/// Every request, read as simply as a server might, names the server that was allowed and nobody else.
fn check_arrived(mut arrived: &[u8], target: &Target) {
    while let Some(end) = arrived.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&arrived[..end]).into_owned();
        let values = |name: &str| {
            let fields = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
            let named = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
            named.map(|(_, value)| value.trim().to_owned()).collect::<Vec<_>>()
        };
        let meant =
            |authority: &str| Target::from_authority(authority, Some(80)).is_ok_and(|said| said.host == target.host);
        let hosts = values("host");
        assert!(hosts.len() == 1 && meant(&hosts[0]), "{head:?} arrived at {target}");
        let asked = head.split(' ').nth(1).unwrap_or_default();
        // A path, or somebody: in a whole address, or alone as for a tunnel.
        let named =
            asked.split_once("://").map_or(asked, |(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or(rest));
        assert!(asked.starts_with(['/', '*', '?']) || meant(named), "{head:?} arrived at {target}");
        assert!(!head.contains('\0') && !head.replace("\r\n", "").contains(['\r', '\n']), "{head:?}");
        // What has a body of no length that was said before is not looked into.
        let lengths = values("content-length");
        if !values("transfer-encoding").is_empty() || lengths.len() > 1 {
            assert!(lengths.is_empty(), "{head:?} can be read in two ways");
            return;
        }
        let length = lengths.first().map_or(Some(0), |length| length.parse::<usize>().ok());
        let Some(length) = length else { panic!("{head:?} has no length") };
        arrived = arrived.get(end + 4 + length..).unwrap_or_default();
    }
}
