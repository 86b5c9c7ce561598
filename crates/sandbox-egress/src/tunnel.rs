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

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    Reason, Target,
    client_hello::{self, Beginning},
    engine::{Engine, Opened},
    flow::{End, copy},
    metered::Metered,
    plain_http::{FirstLine, first_line, first_line_of_answer},
    secrets::{Alarm, Asked, Over, Passage},
};

/// Time for a hello to be whole, once it has begun.
const HELLO: Duration = Duration::from_secs(30);

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
#[derive(Clone)]
pub(crate) enum Errand {
    /// Whatever a program says.
    AsItComes,
    /// Requests to this service.
    Service(Asked),
}

/// Whom a connection is with, and where it is said if that is not to be.
#[derive(Clone, Copy)]
struct Purpose<'a> {
    target: &'a Target,
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
        mut opened: Opened,
        first: Vec<u8>,
    ) -> Carried {
        self.meter.charge(first.len());
        let target = opened.target.clone();
        let (reader, writer) = tokio::io::split(Metered::new(client, &self.meter));
        let carrying = self.carry_counted(reader, writer, &mut opened, first);
        let carried = self.while_allowed(&target, carrying).await;
        self.settle(opened, carried)
    }

    /// The same for a program's own socket. Where nothing is to be counted or seen, bytes do not pass through here.
    pub(crate) async fn carry_socket(&self, client: &mut TcpStream, mut opened: Opened, first: Vec<u8>) -> Carried {
        if self.meter.is_limited() {
            return Box::pin(self.carry(client, opened, first)).await;
        }
        let target = opened.target.clone();
        let (reader, writer) = client.split();
        let carrying = self.carry_counted(reader, writer, &mut opened, first);
        let carried = self.while_allowed(&target, carrying).await;
        self.settle(opened, carried)
    }

    /// The same for requests that a proxy was asked for.
    pub(crate) async fn carry_as<C: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        errand: Errand,
        client: C,
        mut opened: Opened,
    ) -> Carried {
        let Errand::Service(asked) = errand else { return self.carry(client, opened, Vec::new()).await };
        let counts = Arc::clone(&opened.entry.counts);
        let [sent, received] = &*counts;
        let client = Metered::new(client, &self.meter);
        let carried = self.until_over(self.carry_service(client, &mut opened, &asked, [sent, received])).await;
        self.settle(opened, carried)
    }

    /// Carries on until it is done, other rules do not allow it, or all is over.
    async fn while_allowed(&self, target: &Target, carrying: impl Future<Output = Carried>) -> Carried {
        tokio::select! {
            carried = self.until_over(carrying) => carried,
            reason = self.until_denied(target) => Carried::Denied(reason),
        }
    }

    /// Carries on until it is done, or all is over.
    async fn until_over(&self, carrying: impl Future<Output = Carried>) -> Carried {
        tokio::select! {
            carried = carrying => carried,
            () = self.until_closed() => Carried::BrokenOff,
            () = self.meter.until_used_up() => Carried::BrokenOff,
        }
    }

    /// What is to be said of it, to the far end and to whoever keeps records.
    fn settle(&self, mut opened: Opened, carried: Carried) -> Carried {
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

    async fn carry_counted(
        &self,
        mut client_reader: impl AsyncRead + End + Unpin + Send,
        mut client_writer: impl AsyncWrite + End + Unpin + Send,
        opened: &mut Opened,
        mut first: Vec<u8>,
    ) -> Carried {
        let counts = Arc::clone(&opened.entry.counts);
        let [sent, received] = &*counts;
        let ended = AtomicBool::new(false);
        let (server_reader, server_writer) = opened.stream.split();
        let inward = async { Ok(copy(server_reader, &mut client_writer, received, &ended).await?) };
        let purpose = Purpose { target: &opened.target, alarm: &opened.alarm };
        let outward = self.outward(&mut client_reader, server_writer, &mut first, purpose, [sent, received], &ended);
        let stop = match tokio::try_join!(outward, inward) {
            Ok(_) => return Carried::ToTheEnd,
            Err(stop) => stop,
        };
        let client = || tokio::io::join(io::Cursor::new(first).chain(client_reader), client_writer);
        // What takes more room than bytes that are only carried has it only when it is needed.
        match stop {
            Stop::Carried(carried) => carried,
            Stop::Http => {
                let passage = Passage::new(self.secrets(), &opened.target, Over::Plain, &opened.alarm, None);
                Box::pin(self.carry_http(client(), &mut opened.stream, &passage, [sent, received])).await
            }
            Stop::Open => Box::pin(self.carry_opened(client(), opened, [sent, received])).await,
        }
    }

    async fn outward(
        &self,
        mut from: impl AsyncRead + End + Unpin,
        mut to: impl AsyncWrite + End + Unpin,
        first: &mut Vec<u8>,
        purpose: Purpose<'_>,
        [sent, received]: [&AtomicU64; 2],
        ended: &AtomicBool,
    ) -> Result<(), Stop> {
        let (mut over, mut reader) = (false, client_hello::Reader::default());
        let beginning = loop {
            let line = match received.load(Ordering::Relaxed) {
                0 => first_line(first),
                _ => first_line_of_answer(first),
            };
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
