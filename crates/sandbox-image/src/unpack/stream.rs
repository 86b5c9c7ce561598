//! From a compressed layer to its bytes: reading, unpacking and hashing on threads of their own, while the caller writes
//! files. Bounded in every direction.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    os::unix::fs::FileExt,
    sync::{
        Arc,
        mpsc::{self, Receiver, SyncSender},
    },
    thread::JoinHandle,
};

use flate2::bufread::MultiGzDecoder;

use super::frames::Frames;
use crate::{Digest, ImageError, digest::Meter};

/// So much is passed on at once.
const CHUNK: usize = 256 << 10;
/// So many are on their way.
const QUEUE: usize = 16;

/// A piece of a file.
pub struct Piece {
    /// Which.
    pub file: File,
    /// Where it begins.
    pub offset: u64,
    /// Where it ends.
    pub end: u64,
}

/// The bytes of a layer, as they come.
pub struct Stream {
    chunks: Receiver<io::Result<Arc<Vec<u8>>>>,
    current: Arc<Vec<u8>>,
    position: usize,
    inflater: Option<JoinHandle<Option<Meter>>>,
    hasher: Option<JoinHandle<Meter>>,
}

impl Stream {
    /// Starts to unpack. With `hash_packed` the compressed bytes are hashed too.
    pub fn open(piece: Piece, most: u64, hash_packed: bool) -> io::Result<Self> {
        let (send, chunks) = mpsc::sync_channel(QUEUE);
        let (to_hash, hashed) = mpsc::sync_channel::<Arc<Vec<u8>>>(QUEUE);
        let inflater = std::thread::Builder::new().spawn(move || {
            let mut metered = Metered { piece, meter: hash_packed.then(Meter::default) };
            let ended = inflate(&mut metered, most, &send, &to_hash);
            if let Err(error) = ended {
                let _ = send.send(Err(error));
                return None;
            }
            // What follows the compressed stream belongs to what was promised as well.
            let _ = io::copy(&mut metered, &mut io::sink());
            metered.meter
        })?;
        let hasher = std::thread::Builder::new().spawn(move || {
            let mut meter = Meter::default();
            hashed.iter().for_each(|chunk| meter.update(&chunk));
            meter
        })?;
        let (inflater, hasher) = (Some(inflater), Some(hasher));
        Ok(Self { chunks, current: Arc::default(), position: 0, inflater, hasher })
    }

    /// Reads to the end and checks what it was.
    pub fn finish(mut self, packed: Option<&Digest>, unpacked: &Digest) -> Result<(), ImageError> {
        io::copy(&mut self, &mut io::sink()).map_err(super::archive::broken)?;
        let gone = || ImageError::malformed("a layer could not be read to its end");
        let of_packed = self.inflater.take().and_then(|thread| thread.join().ok()).ok_or_else(gone)?;
        let of_unpacked = self.hasher.take().and_then(|thread| thread.join().ok()).ok_or_else(gone)?;
        if let Some(digest) = packed {
            of_packed.as_ref().ok_or_else(gone)?.verify("a layer", digest)?;
        }
        of_unpacked.verify("an unpacked layer", unpacked)
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.position == self.current.len() {
            match self.chunks.recv() {
                Ok(chunk) => (self.current, self.position) = (chunk?, 0),
                Err(_) => return Ok(0),
            }
        }
        let rest = &self.current[self.position..];
        let length = rest.len().min(buffer.len());
        buffer[..length].copy_from_slice(&rest[..length]);
        self.position += length;
        Ok(length)
    }
}

/// Sends everything to both, or says what went wrong. Who has gone wants nothing more.
fn inflate(
    metered: &mut Metered,
    most: u64,
    send: &SyncSender<io::Result<Arc<Vec<u8>>>>,
    to_hash: &SyncSender<Arc<Vec<u8>>>,
) -> io::Result<()> {
    let mut head = [0; 4];
    let length = metered.piece.peek(&mut head)?;
    let mut decoder: Box<dyn Read + '_> = match &head[..length] {
        [0x1f, 0x8b, ..] => Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK, metered))),
        [0x28, 0xb5, 0x2f, 0xfd] => Box::new(Frames::new(metered)),
        [b'B', b'Z', b'h', ..] | [0xfd, b'7', b'z', b'X'] => {
            let why = "it is compressed in a way that images do not use (only gzip and zstd)";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        _ => Box::new(metered),
    };
    let mut total = 0;
    loop {
        let mut chunk = vec![0; CHUNK];
        let mut filled = 0;
        while filled < CHUNK {
            match decoder.read(&mut chunk[filled..]) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
            }
        }
        if filled == 0 {
            return Ok(());
        }
        total += filled as u64;
        if total > most {
            let why = format!(
                "it becomes larger than {} MiB, which is more than is taken of such a layer, or than the setting `image_budget` \
                 leaves for it",
                most >> 20
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        chunk.truncate(filled);
        let chunk = Arc::new(chunk);
        if to_hash.send(chunk.clone()).is_err() || send.send(Ok(chunk)).is_err() {
            return Ok(());
        }
    }
}

/// Hashes what is read, if it should.
struct Metered {
    piece: Piece,
    meter: Option<Meter>,
}

impl Read for Metered {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.piece.read(buffer)?;
        if let Some(meter) = &mut self.meter {
            meter.update(&buffer[..length]);
        }
        Ok(length)
    }
}

impl Piece {
    fn peek(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = (self.end - self.offset).min(buffer.len() as u64) as usize;
        self.file.read_at(&mut buffer[..most], self.offset)
    }
}

impl Read for Piece {
    /// At its own offset, so that several can read one file at once.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = self.end.saturating_sub(self.offset).min(buffer.len() as u64) as usize;
        let length = self.file.read_at(&mut buffer[..most], self.offset)?;
        self.offset += length as u64;
        Ok(length)
    }
}
