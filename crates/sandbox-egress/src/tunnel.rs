//! Bytes between a program inside and the far end.
//!
//! What the far end says is passed on at once: some protocols begin there. What the program says first is looked at before
//! any of it leaves.

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{
    Reason,
    client_hello::{self, Beginning},
    engine::{Engine, Opened},
    record::Verdict,
};

const SMALL: usize = 4 << 10;
const LARGE: usize = 64 << 10;
/// Time for a hello to be whole, once it has begun.
const HELLO: Duration = Duration::from_secs(30);
/// Time without a byte after which one side is not waited for when the other has ended.
const AFTER_END: Duration = Duration::from_secs(60);

/// How far bytes were carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// Until both sides had said that this was all.
    ToTheEnd,
    /// Until one side broke off.
    BrokenOff,
    /// Until the program did what it may not.
    Denied(Reason),
}

impl From<io::Error> for Carried {
    fn from(_: io::Error) -> Self {
        Self::BrokenOff
    }
}

impl Engine {
    /// Carries bytes until both sides have ended, or one does what it may not. `first` was read from the program already.
    pub async fn carry<C: AsyncRead + AsyncWrite + Unpin>(
        &self,
        client: C,
        mut opened: Opened,
        first: Vec<u8>,
    ) -> Carried {
        let (sent, received) = (AtomicU64::new(0), AtomicU64::new(0));
        let (client_reader, client_writer) = tokio::io::split(client);
        let target = opened.target.clone();
        let (server_reader, server_writer) = opened.stream.split();
        let ended = AtomicBool::new(false);
        let outward = self.outward(client_reader, server_writer, first, &target, &sent, &ended);
        let inward = copy(server_reader, client_writer, &received, &ended);
        let both = async { tokio::try_join!(outward, inward).map_or_else(|end| end, |_| Carried::ToTheEnd) };
        let carried = tokio::select! {
            carried = both => carried,
            () = self.until_closed() => Carried::BrokenOff,
        };
        if carried != Carried::ToTheEnd {
            // The far end is not to take this for an orderly end.
            let _ = opened.stream.set_zero_linger();
        }
        let verdict = match carried {
            Carried::Denied(reason) => Verdict::Denied(reason),
            Carried::ToTheEnd | Carried::BrokenOff => Verdict::Allowed,
        };
        self.record_end(&opened, verdict, sent.into_inner(), received.into_inner());
        carried
    }

    async fn outward(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        mut first: Vec<u8>,
        target: &crate::Target,
        count: &AtomicU64,
        ended: &AtomicBool,
    ) -> Result<(), Carried> {
        let mut over = false;
        let beginning = loop {
            match client_hello::read(&first) {
                Beginning::Incomplete if !over => {}
                // What never became a whole hello may not leave either.
                Beginning::Incomplete if !first.is_empty() => break Beginning::Broken,
                beginning => break beginning,
            }
            let begun = !first.is_empty();
            let more = from.read_buf(&mut first);
            let length = if begun {
                tokio::time::timeout(HELLO, more).await.map_err(|_| Carried::BrokenOff)??
            } else {
                more.await?
            };
            over = length == 0;
        };
        self.check_beginning(target, &beginning).map_err(Carried::Denied)?;
        to.write_all(&first).await?;
        count.fetch_add(first.len() as u64, Ordering::Relaxed);
        drop(first);
        if over {
            ended.store(true, Ordering::Relaxed);
            return Ok(to.shutdown().await?);
        }
        copy(from, to, count, ended).await
    }
}

/// Most connections wait most of the time, so a large buffer is there only as long as it is filled.
async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    count: &AtomicU64,
    ended: &AtomicBool,
) -> Result<(), Carried> {
    let mut buffer = vec![0; SMALL];
    loop {
        // Looked at from time to time: the other side may end while we wait.
        let length = match tokio::time::timeout(AFTER_END, from.read(&mut buffer)).await {
            Ok(length) => length?,
            Err(_) if ended.load(Ordering::Relaxed) => return Err(Carried::BrokenOff),
            Err(_) => continue,
        };
        if length == 0 {
            ended.store(true, Ordering::Relaxed);
            return Ok(to.shutdown().await?);
        }
        to.write_all(&buffer[..length]).await?;
        count.fetch_add(length as u64, Ordering::Relaxed);
        if length == buffer.len() && length < LARGE {
            buffer = vec![0; LARGE];
        } else if length < SMALL && buffer.len() > SMALL {
            buffer = vec![0; SMALL];
        }
    }
}
