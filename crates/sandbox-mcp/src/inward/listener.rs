//! A listener on this machine's loopback for one port inside. Gone, with all its connections, when it is dropped.

use std::{
    future::poll_fn,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
};

use super::{Inside, Name, proxy};

/// How often another port is tried where one is free for one family of addresses only.
const TRIES: usize = 16;
/// After a connection could not be taken: out of descriptors, most likely, and they come back.
const PAUSE: Duration = Duration::from_millis(50);

/// An open port.
pub struct Door {
    url: String,
    task: AbortHandle,
}

/// What every connection to a door needs to know.
pub(super) struct Preview {
    pub name: Name,
    /// The port on this machine.
    pub outside: u16,
    pub inside: Arc<dyn Inside>,
}

impl Door {
    /// Listens on a free port. Each connection takes one of these places; who finds none waits.
    pub fn open(name: &Name, inside: Arc<dyn Inside>, places: Arc<Semaphore>) -> io::Result<Self> {
        let (listeners, outside) = bind()?;
        let listeners = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<Vec<_>>>()?;
        let url = name.url(outside);
        let preview = Arc::new(Preview { name: name.clone(), outside, inside });
        let task = tokio::spawn(accept(listeners, preview, places)).abort_handle();
        Ok(Self { url, task })
    }

    /// Where it is opened.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Both of this machine's loopback addresses with the same port: a browser tries one and then the other, and what we do not
/// listen on somebody else could.
fn bind() -> io::Result<(Vec<StdListener>, u16)> {
    for _ in 0..TRIES {
        let four = listen(Ipv4Addr::LOCALHOST.into(), 0)?;
        let port = four.local_addr()?.port();
        match listen(Ipv6Addr::LOCALHOST.into(), port) {
            Ok(six) => return Ok((vec![four, six], port)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            // Not every machine has IPv6.
            Err(_) => return Ok((vec![four], port)),
        }
    }
    Err(ErrorKind::AddrInUse.into())
}

fn listen(address: IpAddr, port: u16) -> io::Result<StdListener> {
    let listener = StdListener::bind((address, port))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn accept(listeners: Vec<TcpListener>, preview: Arc<Preview>, places: Arc<Semaphore>) {
    // They end with this task.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = next(&listeners) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, from)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let preview = preview.clone();
        connections.spawn(async move {
            proxy::serve(stream, from.ip(), preview).await;
            drop(place);
        });
    }
}

async fn next(listeners: &[TcpListener]) -> io::Result<(TcpStream, SocketAddr)> {
    let ready = |cx: &mut std::task::Context<'_>| {
        let mut accepted = listeners.iter().map(|listener| listener.poll_accept(cx));
        accepted.find(Poll::is_ready).unwrap_or(Poll::Pending)
    };
    poll_fn(ready).await
}
