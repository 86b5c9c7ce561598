//! Moving files in and out, piece by piece: nothing is ever held whole.

use std::{
    fs::File,
    io::{self, Seek, SeekFrom, Write},
    sync::Arc,
};

use futures::FutureExt;
use tokio::io::Interest;

use crate::{
    carrier::Flow,
    client::{Client, ClientError, read_reply, reply, unexpected},
    frame::FrameError,
    passage::{Passage, WORTH_A_PASSAGE},
    protocol::{DATA_FRAME, FileInfo, FrameKind, NewFile, Reply},
};

/// What is moved at once from a flow to a file.
const LOAD: usize = 1 << 20;

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Content.
    Data(Vec<u8>),
    /// So many zeros that take no space.
    Hole(u64),
}

/// Some of a file's content on its way into another file.
pub enum Load {
    /// In memory.
    Piece(Piece),
    /// In a pipe, not copied.
    Pages(Passage),
}

impl Load {
    /// Bytes that will take space.
    pub fn data(&self) -> u64 {
        match self {
            Self::Piece(Piece::Data(data)) => data.len() as u64,
            Self::Piece(Piece::Hole(_)) => 0,
            Self::Pages(passage) => passage.holds() as u64,
        }
    }

    /// Writes it where the file stands, in a thread that may block. Returns itself for [`FileReader::reuse`]. Dropped
    /// before its end it still writes this one load, and nothing more.
    pub async fn write_to(mut self, file: &Arc<File>) -> io::Result<Self> {
        let file = Arc::clone(file);
        let write = move || {
            match &mut self {
                Self::Piece(Piece::Data(data)) => (&*file).write_all(data)?,
                Self::Piece(Piece::Hole(length)) => skip(&file, *length)?,
                Self::Pages(passage) => passage.empty_into_file(&file)?,
            }
            Ok(self)
        };
        tokio::task::spawn_blocking(write).await?
    }
}

fn skip(mut file: &File, length: u64) -> io::Result<()> {
    let end = file.seek(SeekFrom::Current(length.try_into().map_err(io::Error::other)?))?;
    // A hole at the end has no data after it that would make the file long enough.
    file.set_len(end)
}

/// A file that is being read.
pub struct FileReader {
    _client: Client,
    flow: Flow,
    info: FileInfo,
    /// Bytes that may still come: what the file had, or what was asked for.
    left: u64,
    ended: bool,
    passage: Option<Passage>,
    /// Loads come in memory: the flow has no socket, or splice(2) was refused.
    only_pieces: bool,
}

impl FileReader {
    pub(crate) fn new(client: Client, flow: Flow, info: FileInfo, length: Option<u64>) -> Self {
        let left = length.unwrap_or(u64::MAX).min(info.size);
        let only_pieces = left < WORTH_A_PASSAGE || flow.reader.source().socket().is_none();
        Self { _client: client, flow, info, left, ended: false, passage: None, only_pieces }
    }

    /// The file as it was when reading began.
    pub fn info(&self) -> &FileInfo {
        &self.info
    }

    /// The next piece; nothing at the end. Cancel-safe. Never more in all than [`FileInfo::size`] said.
    pub async fn next(&mut self) -> Result<Option<Piece>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        let frame = self.flow.reader.next().await?.ok_or(ClientError::Closed)?;
        let piece = match frame.kind {
            FrameKind::Data => {
                self.take(frame.body.len() as u64)?;
                Piece::Data(frame.body)
            }
            FrameKind::Hole => {
                let length = hole_length(&frame.body).ok_or_else(impossible)?;
                self.take(length)?;
                Piece::Hole(length)
            }
            FrameKind::End => {
                self.ended = true;
                return Ok(None);
            }
            FrameKind::Message => return Err(unexpected(&read_reply(Ok(Some(frame)))?)),
            other => return Err(FrameError::Unexpected(other).into()),
        };
        Ok(Some(piece))
    }

    /// What comes next, for writing it to a file: as much as is there, and not copied where that can be had. Cancel-safe,
    /// and checked as by [`Self::next`].
    pub async fn next_load(&mut self) -> Result<Option<Load>, ClientError> {
        if self.ended {
            return Ok(None);
        }
        if self.passage.is_none() && !self.only_pieces {
            self.passage = Passage::open(LOAD).ok();
            self.only_pieces = self.passage.is_none();
            self.flow.reader.read_no_bodies_ahead();
        }
        while self.pass_more().await {}
        match self.passage.take_if(|passage| passage.holds() > 0) {
            Some(passage) => Ok(Some(Load::Pages(passage))),
            None => Ok(self.next().await?.map(Load::Piece)),
        }
    }

    /// Moves some content into the passage. Waits only while that is empty. False where there is no more for now, or what
    /// comes next must be looked at: that is left to [`Self::next`], errors too.
    async fn pass_more(&mut self) -> bool {
        let Some(passage) = &mut self.passage else { return false };
        let (reader, holds) = (&mut self.flow.reader, passage.holds());
        let frame = if holds == 0 { Some(reader.open().await) } else { reader.open().now_or_never() };
        let Some(Ok(Some((FrameKind::Data, length)))) = frame else { return false };
        let possible = length > 0 && length as u64 <= self.left && !reader.has_begun();
        let (Some(socket), true) = (reader.source().socket(), possible) else { return false };
        let mut fill = || passage.fill_from_socket(socket, length.min(LOAD.saturating_sub(holds)));
        // A full pipe looks like an empty socket. Only with an empty one may the runtime be told to wait for the socket.
        let filled = if holds == 0 {
            socket.async_io(Interest::READABLE, || Ok(fill()?)).await
        } else {
            fill().map_err(Into::into)
        };
        match filled {
            Ok(count) if count > 0 => {
                reader.taken(count);
                self.left -= count as u64;
                true
            }
            Err(error) if holds == 0 && error.kind() == io::ErrorKind::InvalidInput => {
                self.passage = None;
                self.only_pieces = true;
                false
            }
            _ => false,
        }
    }

    /// Gives a load's memory or pipe back for the next one.
    pub fn reuse(&mut self, load: Load) {
        match load {
            Load::Piece(piece) => self.recycle(piece),
            Load::Pages(passage) if passage.holds() == 0 => self.passage = Some(passage),
            Load::Pages(_) => {}
        }
    }

    /// Gives a piece's memory back: the next piece is read into it.
    pub fn recycle(&mut self, piece: Piece) {
        if let Piece::Data(data) = piece {
            self.flow.reader.recycle(data);
        }
    }

    fn take(&mut self, length: u64) -> Result<(), ClientError> {
        self.left = self.left.checked_sub(length).filter(|_| length > 0).ok_or_else(impossible)?;
        Ok(())
    }
}

/// Files that are being written, one after the other on one flow.
pub struct FileWriter {
    _client: Client,
    flow: Flow,
}

impl FileWriter {
    pub(crate) fn new(client: Client, flow: Flow) -> Self {
        Self { _client: client, flow }
    }

    /// Begins a file. It appears under its name when [`Self::finish`] has returned.
    pub async fn begin(&mut self, file: &NewFile) -> Result<(), ClientError> {
        Ok(self.flow.writer.message(file).await?)
    }

    /// Adds content.
    pub async fn data(&mut self, data: &[u8]) -> Result<(), ClientError> {
        for piece in data.chunks(DATA_FRAME) {
            self.flow.writer.frame(FrameKind::Data, piece).await?;
        }
        Ok(())
    }

    /// Adds a hole.
    pub async fn hole(&mut self, length: u64) -> Result<(), ClientError> {
        if length == 0 {
            return Ok(());
        }
        Ok(self.flow.writer.frame(FrameKind::Hole, &length.to_be_bytes()).await?)
    }

    /// Ends the file. After a refusal the next file can be begun.
    pub async fn finish(&mut self) -> Result<(), ClientError> {
        self.flow.writer.frame(FrameKind::End, &[]).await?;
        match reply(&mut self.flow).await? {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

/// The length that a [`FrameKind::Hole`] frame says.
pub fn hole_length(body: &[u8]) -> Option<u64> {
    body.try_into().ok().map(u64::from_be_bytes)
}

fn impossible() -> ClientError {
    ClientError::Protocol("file content of no length, or more than the file has".to_owned())
}
