//! Carries bytes between our standard streams and a command in a sandbox, loss-free, and no descriptor with them.

use std::{io::Read, time::Duration};

use sandbox_core::exec::{Exit, Stream};
use sandbox_executor::client::{Attached, JobInput};
use serde_json::json;
use tokio::{
    io::{AsyncWrite, AsyncWriteExt},
    sync::mpsc,
};

use super::{Answer, terminal};
use crate::sandboxes::{ClientError, JobEvent, Session, State, patience};

/// Output that an answer in JSON may hold, each stream.
const CAPTURE: usize = 4 << 20;

/// Where output goes.
pub(super) enum Sink {
    /// To our own standard streams.
    Streams,
    /// Into the answer.
    Capture(Captured),
}

/// Output that was kept for the answer.
#[derive(Default)]
pub(super) struct Captured {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    cut: bool,
}

/// How the relay came to its end.
pub(super) enum Ended {
    /// With the command's own.
    Finished { exit: Exit, elapsed: Duration, captured: Option<Captured> },
    /// The sandbox was stopped for good, and the command with it.
    Frozen { why: String, captured: Option<Captured> },
    /// Whoever read our output has gone away.
    NobodyReads,
}

impl Sink {
    pub fn new(answer: Answer) -> Self {
        match answer {
            Answer::Text => Self::Streams,
            Answer::Json => Self::Capture(Captured::default()),
        }
    }

    fn captured(self) -> Option<Captured> {
        match self {
            Self::Streams => None,
            Self::Capture(captured) => Some(captured),
        }
    }
}

impl Captured {
    fn keep(&mut self, stream: Stream, data: &[u8]) {
        let kept = match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        };
        let room = CAPTURE - kept.len();
        self.cut |= data.len() > room;
        kept.extend_from_slice(&data[..data.len().min(room)]);
    }

    /// The answer in JSON.
    pub fn told(&self, exit: Exit, elapsed: Duration) -> serde_json::Value {
        let (exit_code, signal, limit) = match exit {
            Exit::Code(code) => (Some(code), None, None),
            Exit::Signal(signal) => (None, Some(signal), None),
            Exit::Limit(control) => (None, None, Some(control)),
        };
        json!({
            "exit_code": exit_code, "signal": signal, "limit": limit,
            "stdout": String::from_utf8_lossy(&self.stdout), "stderr": String::from_utf8_lossy(&self.stderr),
            "truncated": self.cut, "duration_seconds": elapsed.as_secs_f64(),
        })
    }
}

/// Runs until the command has ended and all its output has been written.
pub(super) async fn relay(session: &Session, attached: Attached, mut sink: Sink) -> anyhow::Result<Ended> {
    let job = attached.job();
    let (mut output, input) = attached.split();
    let feeding = tokio::spawn(feed(input));
    let mut resizes = terminal::resizes()?;
    let (mut stdout, mut stderr) = (tokio::io::stdout(), tokio::io::stderr());
    let mut frozen = std::pin::pin!(session.until_frozen());
    let ended = loop {
        let event = tokio::select! {
            event = output.next() => event,
            why = &mut frozen => break Ok(Ended::Frozen { why, captured: sink.captured() }),
            _ = resizes.recv() => {
                // A command without a terminal has no use for it, and says so.
                let _ = patience::soon(session.client().await?.resize(job, terminal::size())).await;
                continue;
            }
        };
        match event {
            Ok(JobEvent::Output { stream, data, .. }) => {
                let written = match (&mut sink, stream) {
                    (Sink::Capture(captured), _) => {
                        captured.keep(stream, &data);
                        Ok(())
                    }
                    (Sink::Streams, Stream::Stdout) => write(&mut stdout, &data).await,
                    (Sink::Streams, Stream::Stderr) => write(&mut stderr, &data).await,
                };
                if written.is_err() {
                    break Ok(Ended::NobodyReads);
                }
            }
            Ok(JobEvent::Exited { exit, elapsed }) => {
                break Ok(Ended::Finished { exit, elapsed, captured: sink.captured() });
            }
            Ok(JobEvent::Gap { .. } | JobEvent::Current) => {}
            Err(error) => break Err(lost(session, error).await),
        }
    };
    feeding.abort();
    ended
}

/// Sends what we read to the command. Reading happens on a thread of its own, which ends with this program.
///
/// Never returns: the command lives only as long as its input is held.
async fn feed(mut input: JobInput) {
    let (sender, mut pieces) = mpsc::channel::<Vec<u8>>(4);
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        let mut stdin = std::io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    if sender.blocking_send(buffer[..length].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    while let Some(piece) = pieces.recv().await {
        if input.send(&piece).await.is_err() {
            break;
        }
    }
    let _ = input.close().await;
    std::future::pending::<()>().await;
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> std::io::Result<()> {
    stream.write_all(data).await?;
    stream.flush().await
}

/// The sandbox knows better why it is gone than its connection.
async fn lost(session: &Session, error: ClientError) -> anyhow::Error {
    tokio::time::sleep(Duration::from_millis(200)).await;
    match session.state() {
        State::Ended { why } => anyhow::anyhow!("the sandbox ended while the command ran: {why}"),
        _ => error.into(),
    }
}
