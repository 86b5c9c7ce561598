//! Moving files in and out, piece by piece: nothing is ever held whole.

use crate::{
    carrier::Flow,
    client::{Client, ClientError, read_reply, reply, unexpected},
    frame::FrameError,
    protocol::{DATA_FRAME, FileInfo, FrameKind, NewFile, Reply},
};

/// A part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Content.
    Data(Vec<u8>),
    /// So many zeros that take no space.
    Hole(u64),
}

/// A file that is being read.
pub struct FileReader {
    _client: Client,
    flow: Flow,
    info: FileInfo,
    /// Bytes that may still come: what the file had, or what was asked for.
    left: u64,
    ended: bool,
}

impl FileReader {
    pub(crate) fn new(client: Client, flow: Flow, info: FileInfo, length: Option<u64>) -> Self {
        let left = length.unwrap_or(u64::MAX).min(info.size);
        Self { _client: client, flow, info, left, ended: false }
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
