//! Frames: how a flow's bytes are cut into messages, output and file content.
//!
//! Nothing here trusts the sender: a length is checked before memory is taken for it.

use std::io;

use serde::{Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::protocol::{FRAME_HEADER, FrameKind, MAX_FRAME};

/// Bytes that are read ahead, so that small frames cost one system call and big ones go straight to their place.
const READ_AHEAD: usize = 4 << 10;

/// One frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it holds.
    pub kind: FrameKind,
    /// The bytes.
    pub body: Vec<u8>,
}

impl Frame {
    /// The message in it.
    pub fn message<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        match self.kind {
            FrameKind::Message => decode(&self.body),
            other => Err(FrameError::Unexpected(other)),
        }
    }
}

/// The other side sent something that is no frame, or not the one that had to come.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// No kind has this number.
    #[error("a frame of the unknown kind {0}")]
    UnknownKind(u8),
    /// Longer than any frame may be.
    #[error("a frame of {0} bytes; at most {MAX_FRAME} are allowed")]
    TooLong(usize),
    /// The flow ended inside a frame.
    #[error("the flow ended inside a frame")]
    CutOff,
    /// A frame of another kind was due.
    #[error("a {0:?} frame where none may be")]
    Unexpected(FrameKind),
    /// The message is not one that we know.
    #[error("a message that cannot be read: {0}")]
    Garbled(String),
    /// The carrier broke.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The five bytes before a body.
pub fn header(kind: FrameKind, length: usize) -> Result<[u8; FRAME_HEADER], FrameError> {
    if length > MAX_FRAME {
        return Err(FrameError::TooLong(length));
    }
    let [a, b, c, d] = (length as u32).to_be_bytes();
    Ok([kind as u8, a, b, c, d])
}

/// A whole message frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; FRAME_HEADER];
    rmp_serde::encode::write_named(&mut bytes, message).map_err(|error| FrameError::Garbled(error.to_string()))?;
    let header = header(FrameKind::Message, bytes.len() - FRAME_HEADER)?;
    bytes[..FRAME_HEADER].copy_from_slice(&header);
    Ok(bytes)
}

/// A message from a frame's body. Bytes after it are refused.
pub fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, FrameError> {
    let mut rest = body;
    let message = rmp_serde::from_read(&mut rest).map_err(|error| FrameError::Garbled(error.to_string()))?;
    if rest.is_empty() { Ok(message) } else { Err(FrameError::Garbled("bytes after the message".to_owned())) }
}

/// Reads frames. Where a read was cut short by cancelling, the next one goes on.
pub struct FrameReader<R> {
    source: R,
    ahead: Vec<u8>,
    used: usize,
    open: Option<(FrameKind, usize)>,
    body: Vec<u8>,
    longest: usize,
    most_ahead: usize,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Frames of this source.
    pub fn new(source: R) -> Self {
        Self::with_longest(source, MAX_FRAME)
    }

    /// Frames of this source, none longer than `longest`.
    pub fn with_longest(source: R, longest: usize) -> Self {
        // A reader of one short message must leave what follows it to others.
        let most_ahead = if longest < READ_AHEAD { FRAME_HEADER } else { READ_AHEAD };
        let longest = longest.min(MAX_FRAME);
        Self { source, ahead: Vec::new(), used: 0, open: None, body: Vec::new(), longest, most_ahead }
    }

    /// The next frame, or nothing where the flow ends. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        let Some((kind, length)) = self.open().await? else { return Ok(None) };
        self.body.reserve_exact(length - self.body.len());
        while self.body.len() < length {
            let missing = (length - self.body.len()) as u64;
            if (&mut self.source).take(missing).read_buf(&mut self.body).await? == 0 {
                return Err(FrameError::CutOff);
            }
        }
        self.open = None;
        Ok(Some(Frame { kind, body: std::mem::take(&mut self.body) }))
    }

    /// What the next frame is, and how much of it is still to be taken. Cancel-safe.
    pub(crate) async fn open(&mut self) -> Result<Option<(FrameKind, usize)>, FrameError> {
        if self.open.is_some() { Ok(self.open) } else { self.read_header().await }
    }

    /// From now on reads no more than headers, so that bodies can be taken from the source in other ways.
    pub(crate) fn read_no_bodies_ahead(&mut self) {
        self.most_ahead = FRAME_HEADER;
    }

    /// Whether some of the open frame's body was read already.
    pub(crate) fn has_begun(&self) -> bool {
        !self.body.is_empty()
    }

    /// So much of the open frame was taken from the source.
    pub(crate) fn taken(&mut self, count: usize) {
        self.open = self.open.map(|(kind, length)| (kind, length.saturating_sub(count))).filter(|open| open.1 > 0);
    }

    /// Where the frames come from.
    pub(crate) fn source(&self) -> &R {
        &self.source
    }

    /// Gives a body's memory back for a later frame.
    pub fn recycle(&mut self, mut body: Vec<u8>) {
        if self.open.is_none() && body.capacity() > self.body.capacity() {
            body.clear();
            self.body = body;
        }
    }

    /// The source again. What was read ahead is lost, so only for sources that say nothing unasked.
    pub fn into_source(self) -> R {
        self.source
    }

    async fn read_header(&mut self) -> Result<Option<(FrameKind, usize)>, FrameError> {
        while self.ahead.len() - self.used < FRAME_HEADER {
            self.ahead.drain(..self.used);
            self.used = 0;
            let room = self.most_ahead - self.ahead.len();
            self.ahead.reserve(room);
            if (&mut self.source).take(room as u64).read_buf(&mut self.ahead).await? == 0 {
                return if self.ahead.is_empty() { Ok(None) } else { Err(FrameError::CutOff) };
            }
        }
        let ready = &self.ahead[self.used..];
        let (number, length) = (ready[0], u32::from_be_bytes([ready[1], ready[2], ready[3], ready[4]]) as usize);
        let kind = FrameKind::from_number(number).ok_or(FrameError::UnknownKind(number))?;
        if length > self.longest {
            return Err(FrameError::TooLong(length));
        }
        let there = length.min(ready.len() - FRAME_HEADER);
        self.body.clear();
        self.body.extend_from_slice(&ready[FRAME_HEADER..FRAME_HEADER + there]);
        self.used += FRAME_HEADER + there;
        self.open = Some((kind, length));
        Ok(self.open)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use std::{
        pin::Pin,
        task::{Context, Poll},
    };

    use proptest::prelude::*;
    use tokio::io::ReadBuf;

    use super::*;

    /// Hands out its bytes in pieces of the given sizes, and is not ready in between.
    struct Pieces {
        bytes: Vec<u8>,
        at: usize,
        sizes: Vec<usize>,
        turn: usize,
    }

    impl AsyncRead for Pieces {
        fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            self.turn += 1;
            if self.turn.is_multiple_of(2) {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let size = self.sizes[self.turn % self.sizes.len()].max(1);
            let size = size.min(out.remaining()).min(self.bytes.len() - self.at);
            out.put_slice(&self.bytes[self.at..self.at + size]);
            self.at += size;
            Poll::Ready(Ok(()))
        }
    }

    fn reader(bytes: Vec<u8>, sizes: Vec<usize>) -> FrameReader<Pieces> {
        FrameReader::new(Pieces { bytes, at: 0, sizes, turn: 0 })
    }

    /// Drops the future after every turn that does not finish it, as a cancelling caller would.
    fn next(reader: &mut FrameReader<Pieces>) -> Result<Option<Frame>, FrameError> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        loop {
            if let Poll::Ready(frame) = std::pin::pin!(reader.next()).as_mut().poll(&mut cx) {
                return frame;
            }
        }
    }

    fn any_frame() -> impl Strategy<Value = Frame> {
        (0u8..6, prop::collection::vec(any::<u8>(), 0..9000))
            .prop_map(|(kind, body)| Frame { kind: FrameKind::from_number(kind).unwrap(), body })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn frames_survive_any_split_and_any_cancelling(
            frames in prop::collection::vec(any_frame(), 0..8),
            sizes in prop::collection::vec(1usize..5000, 1..8),
        ) {
            let mut bytes = Vec::new();
            for frame in &frames {
                bytes.extend_from_slice(&header(frame.kind, frame.body.len()).unwrap());
                bytes.extend_from_slice(&frame.body);
            }
            let mut reader = reader(bytes, sizes);
            for frame in &frames {
                let got = next(&mut reader).unwrap();
                prop_assert_eq!(got.as_ref(), Some(frame));
                reader.recycle(got.unwrap().body);
            }
            prop_assert_eq!(next(&mut reader).unwrap(), None);
        }

        #[test]
        fn garbage_ends_in_an_error_and_takes_no_memory(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
            let mut reader = reader(bytes, vec![700]);
            for _ in 0..1000 {
                match next(&mut reader) {
                    Ok(Some(frame)) => prop_assert!(frame.body.len() <= 4000),
                    Ok(None) | Err(_) => return Ok(()),
                }
            }
            prop_assert!(false, "garbage never ended");
        }
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_memory_is_taken() {
        let mut reader = reader(vec![3, 0xff, 0xff, 0xff, 0xff, 0], vec![100]);
        assert!(matches!(next(&mut reader), Err(FrameError::TooLong(0xffff_ffff))));
        assert!(reader.body.capacity() <= MAX_FRAME);
    }
}
