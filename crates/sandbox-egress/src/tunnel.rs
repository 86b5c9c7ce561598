//! Bytes between a program inside and the far end.
//!
//! What the far end says is passed on at once: some protocols begin there. What the program says first is looked at before
//! any of it leaves.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{
    Reason,
    client_hello::{self, Beginning},
    engine::{Engine, Opened},
    metered::Metered,
    plain_http::{FirstLine, first_line},
    secrets::{Alarm, Over, Passage},
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

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errand {
    /// Whatever a program says.
    AsItComes,
    /// Requests to the service of this number.
    Service(usize),
}

/// Whom a connection is with, and where it is said if that is not to be.
#[derive(Clone, Copy)]
struct Purpose<'a> {
    target: &'a crate::Target,
    alarm: &'a Alarm,
}

/// Why bytes are not moved any longer as they come.
enum Stop {
    Carried(Carried),
    /// They are requests, to be read one by one.
    Http,
    /// They are TLS with somebody whom a secret is for.
    Open,
}

impl From<Carried> for Stop {
    fn from(carried: Carried) -> Self {
        Self::Carried(carried)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Carried(error.into())
    }
}

impl From<io::Error> for Carried {
    fn from(_: io::Error) -> Self {
        Self::BrokenOff
    }
}

impl Engine {
    /// Carries bytes until both sides have ended, or one does what it may not. `first` was read from the program already.
    pub async fn carry<C: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        client: C,
        opened: Opened,
        first: Vec<u8>,
    ) -> Carried {
        self.carry_as(Errand::AsItComes, client, opened, first).await
    }

    pub(crate) async fn carry_as<C: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        errand: Errand,
        client: C,
        mut opened: Opened,
        first: Vec<u8>,
    ) -> Carried {
        let counts = Arc::clone(&opened.entry.counts);
        let [sent, received] = &*counts;
        self.meter.charge(first.len());
        let client = Metered::new(client, &self.meter);
        let wanted = opened.target.clone();
        let carrying = async {
            match errand {
                Errand::AsItComes => self.carry_counted(client, &mut opened, first, [sent, received]).await,
                Errand::Service(number) => self.carry_service(client, &mut opened, number, [sent, received]).await,
            }
        };
        let carried = tokio::select! {
            carried = carrying => carried,
            reason = self.until_denied(&wanted), if errand == Errand::AsItComes => Carried::Denied(reason),
            () = self.until_closed() => Carried::BrokenOff,
            () = self.meter.until_used_up() => Carried::BrokenOff,
        };
        let carried = match carried {
            Carried::BrokenOff if self.meter.is_used_up() => Carried::Denied(Reason::TransferUsedUp),
            carried => carried,
        };
        if carried != Carried::ToTheEnd {
            // The far end is not to take this for an orderly end.
            let _ = opened.stream.set_zero_linger();
        }
        if let Carried::Denied(reason) = carried {
            opened.entry.denied(reason, opened.alarm.get().and_then(|stopped| stopped.secret.clone()));
        }
        carried
    }

    async fn carry_counted<C: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        client: C,
        opened: &mut Opened,
        mut first: Vec<u8>,
        [sent, received]: [&AtomicU64; 2],
    ) -> Carried {
        let (mut client_reader, mut client_writer) = tokio::io::split(client);
        let ended = AtomicBool::new(false);
        let (server_reader, server_writer) = opened.stream.split();
        let inward = async { Ok(copy(server_reader, &mut client_writer, received, &ended).await?) };
        let purpose = Purpose { target: &opened.target, alarm: &opened.alarm };
        let outward = self.outward(&mut client_reader, server_writer, &mut first, purpose, [sent, received], &ended);
        match tokio::try_join!(outward, inward) {
            Ok(_) => Carried::ToTheEnd,
            Err(Stop::Carried(carried)) => carried,
            Err(Stop::Http) => {
                let client = tokio::io::join(io::Cursor::new(first).chain(client_reader), client_writer);
                let passage = Passage::new(self.secrets(), &opened.target, Over::Plain, &opened.alarm, None);
                self.carry_http(client, &mut opened.stream, &passage, [sent, received]).await
            }
            Err(Stop::Open) => {
                let client = tokio::io::join(io::Cursor::new(first).chain(client_reader), client_writer);
                self.carry_opened(client, opened, [sent, received]).await
            }
        }
    }

    async fn outward(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        first: &mut Vec<u8>,
        purpose: Purpose<'_>,
        [sent, received]: [&AtomicU64; 2],
        ended: &AtomicBool,
    ) -> Result<(), Stop> {
        let (mut over, mut reader) = (false, client_hello::Reader::default());
        let beginning = loop {
            // Who is spoken to first speaks no HTTP.
            let line = if received.load(Ordering::Relaxed) == 0 { first_line(first) } else { FirstLine::Other };
            match reader.read(first) {
                Beginning::Incomplete if !over => {}
                Beginning::Other if line == FirstLine::Incomplete && !over => {}
                Beginning::Other if line == FirstLine::Http => return Err(Stop::Http),
                // What never became a whole hello may not leave either.
                Beginning::Incomplete if !first.is_empty() => break Beginning::Broken,
                beginning => break beginning,
            }
            let begun = !first.is_empty();
            let more = from.read_buf(first);
            let length = if begun {
                tokio::time::timeout(HELLO, more).await.map_err(|_| Carried::BrokenOff)??
            } else {
                more.await?
            };
            over = length == 0;
        };
        self.check_said(purpose, &beginning)?;
        if let Beginning::Hello { .. } = beginning {
            if self.secrets().opens(purpose.target) {
                return Err(Stop::Open);
            }
            let hello = reader.end();
            to.write_all(&first[..hello]).await?;
            sent.fetch_add(hello as u64, Ordering::Relaxed);
            first.drain(..hello);
            over = self.check_second_hello(&mut from, first, purpose).await?;
        }
        to.write_all(first).await?;
        sent.fetch_add(first.len() as u64, Ordering::Relaxed);
        *first = Vec::new();
        if over {
            ended.store(true, Ordering::Relaxed);
            return Ok(to.shutdown().await?);
        }
        Ok(copy(from, to, sent, ended).await?)
    }
}

impl Engine {
    /// Whether what a program says first may be said.
    fn check_said(&self, purpose: Purpose<'_>, beginning: &Beginning) -> Result<(), Carried> {
        let Purpose { target, alarm } = purpose;
        if let Beginning::Hello { server: Some(name), .. } = beginning
            && let Some(refusal) = self.secrets().leaving_in(name, target)
        {
            let reason = refusal.reason;
            let _ = alarm.set(refusal.into());
            return Err(Carried::Denied(reason));
        }
        self.check_beginning(target, beginning).map_err(Carried::Denied)
    }

    /// Reads on until it is clear that no other hello comes, or that it may. True if nothing more comes at all.
    async fn check_second_hello(
        &self,
        mut from: impl AsyncRead + Unpin,
        read: &mut Vec<u8>,
        purpose: Purpose<'_>,
    ) -> Result<bool, Carried> {
        let mut reader = client_hello::Reader::default();
        loop {
            match reader.read_next(read) {
                Beginning::Incomplete if from.read_buf(read).await? == 0 => {
                    return if read.is_empty() { Ok(true) } else { Err(Carried::Denied(Reason::TlsBroken)) };
                }
                Beginning::Incomplete => {}
                beginning => {
                    self.check_said(purpose, &beginning)?;
                    return Ok(false);
                }
            }
        }
    }
}

/// Most connections wait most of the time, so a large buffer is there only as long as it is filled.
pub(crate) async fn copy(
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
        // TLS may keep something back otherwise.
        to.flush().await?;
        count.fetch_add(length as u64, Ordering::Relaxed);
        if length == buffer.len() && length < LARGE {
            buffer = vec![0; LARGE];
        } else if length < SMALL && buffer.len() > SMALL {
            buffer = vec![0; SMALL];
        }
    }
}
