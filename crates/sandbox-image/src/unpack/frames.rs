//! Content that was compressed with zstd: one frame after another, and between them what is to be passed over.
//!
//! The decoder is written in Rust: what it reads comes from strangers.

use std::io::{self, BufRead, BufReader, Read};

use ruzstd::decoding::{
    BlockDecodingStrategy, FrameDecoder,
    errors::{FrameDecoderError, ReadFrameHeaderError},
};

/// Reads what was compressed.
pub struct Frames<R> {
    reader: BufReader<R>,
    decoder: FrameDecoder,
    inside: bool,
}

impl<R: Read> Frames<R> {
    /// From here on.
    pub fn new(reader: R) -> Self {
        Self { reader: BufReader::with_capacity(128 << 10, reader), decoder: FrameDecoder::new(), inside: false }
    }

    /// Whether there is another frame.
    fn enter(&mut self) -> io::Result<bool> {
        while !self.reader.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.reader) {
                Ok(()) => {
                    self.inside = true;
                    return Ok(true);
                }
                // Notes of some programs, which are no content.
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let wanted = u64::from(length);
                    let passed = io::copy(&mut (&mut self.reader).take(wanted), &mut io::sink())?;
                    if passed != wanted {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(bad(error)),
            }
        }
        Ok(false)
    }
}

impl<R: Read> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !buffer.is_empty() && (self.inside || self.enter()?) {
            while self.decoder.can_collect() < buffer.len() && !self.decoder.is_finished() {
                let missing = buffer.len() - self.decoder.can_collect();
                let decoded = self.decoder.decode_blocks(&mut self.reader, BlockDecodingStrategy::UptoBytes(missing));
                decoded.map_err(bad)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.inside = false,
                length => return Ok(length),
            }
        }
        Ok(0)
    }
}

fn bad(error: FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    fn unpacked(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut content = Vec::new();
        Frames::new(bytes).read_to_end(&mut content)?;
        Ok(content)
    }

    #[test]
    fn several_frames_and_notes_between_them_are_one_content() {
        let frame = |text: &str| compress_to_vec(text.as_bytes(), CompressionLevel::Fastest);
        let note = [&0x184D_2A50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"xyz"].concat();
        let all = [note.clone(), frame("one "), note.clone(), frame(""), frame("two"), note.clone()].concat();
        assert_eq!(unpacked(&all).unwrap(), b"one two");
        assert_eq!(unpacked(b"").unwrap(), b"");
        for cut in [&all[..all.len() - 1], &all[..20], &note[..9]] {
            assert!(unpacked(cut).is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, content: Vec<u8>) {
            let _ = unpacked(&[&0xFD2F_B528_u32.to_le_bytes()[..], &bytes].concat());
            let packed = compress_to_vec(&content[..], CompressionLevel::Fastest);
            prop_assert_eq!(unpacked(&packed).unwrap(), content);
        }
    }
}
