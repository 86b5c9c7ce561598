//! Sandboxes that are being made, by all servers: slots in one small file, so that a reservation costs two short writes
//! and no new name in a folder (making and removing names costs up to 2 ms where a file system avoids fresh inodes).

use std::{
    fs::File,
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sandbox_core::SessionId;

/// A time in milliseconds (8 bytes) and an id, padded with zeros.
const SLOT: usize = 80;
/// Nobody makes more sandboxes at once.
const MAX_SLOTS: usize = 4096;
/// A server that died while it made a sandbox leaves its slot; nothing takes as long as this.
const STALE: Duration = Duration::from_secs(300);

/// The file of slots. Whoever reads and takes holds the lock of the quota.
#[derive(Clone, Debug)]
pub(super) struct Pending(Arc<File>);

/// A slot that was taken; free again when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    file: Arc<File>,
    at: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let _ = self.file.write_all_at(&[0; SLOT], self.at);
    }
}

impl Pending {
    pub fn open(file: &Path) -> io::Result<Self> {
        let options = File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(file);
        options.map(|file| Self(Arc::new(file)))
    }

    /// What is being made now, and the number of a free slot.
    pub fn read(&self) -> io::Result<(Vec<SessionId>, usize)> {
        let mut bytes = [0; SLOT * 16];
        let mut length = self.0.read_at(&mut bytes, 0)?;
        let mut long = Vec::new();
        let bytes = if length < bytes.len() {
            &bytes[..length]
        } else {
            long.resize(SLOT * MAX_SLOTS, 0);
            length = self.0.read_at(&mut long, 0)?;
            &long[..length]
        };
        let slots: Vec<Option<SessionId>> = bytes.chunks(SLOT).map(decode).collect();
        let free = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        Ok((slots.into_iter().flatten().collect(), free))
    }

    /// Takes a free slot.
    pub fn take(&self, slot: usize, id: &SessionId) -> io::Result<Reservation> {
        if slot >= MAX_SLOTS {
            return Err(io::Error::other("too many sandboxes are being made at once; try again in a moment"));
        }
        let at = (slot * SLOT) as u64;
        self.0.write_all_at(&encode(id), at)?;
        Ok(Reservation { file: self.0.clone(), at })
    }
}

fn encode(id: &SessionId) -> [u8; SLOT] {
    let mut slot = [0; SLOT];
    let text = id.as_str().as_bytes();
    slot[..8].copy_from_slice(&now().to_le_bytes());
    slot[8..8 + text.len()].copy_from_slice(text);
    slot
}

/// Nothing if the slot is free: empty, damaged, or left behind.
fn decode(slot: &[u8]) -> Option<SessionId> {
    let (time, text) = slot.split_first_chunk()?;
    let age = now().saturating_sub(u64::from_le_bytes(*time));
    let text = text.split(|byte| *byte == 0).next()?;
    let id = std::str::from_utf8(text).ok()?.parse().ok()?;
    (age < STALE.as_millis() as u64).then_some(id)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sandbox_core::UserId;

    #[test]
    fn slots_are_used_again_and_left_ones_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let pending = Pending::open(&folder.path().join("pending")).unwrap();
        let longest: UserId = "u".repeat(64).parse().unwrap();
        let ids: Vec<SessionId> = (0..40).map(|_| SessionId::random(&longest).unwrap()).collect();
        let mut taken: Vec<Reservation> =
            ids.iter().map(|id| pending.take(pending.read().unwrap().1, id).unwrap()).collect();
        assert_eq!(pending.read().unwrap(), (ids.clone(), 40));
        drop(taken.remove(7));
        let (rest, free) = pending.read().unwrap();
        assert_eq!((rest.len(), free), (39, 7));
        pending.0.write_all_at(&0u64.to_le_bytes(), 0).unwrap();
        pending.0.write_all_at(&[0xff; 30], 2 * SLOT as u64 + 8).unwrap();
        assert_eq!(pending.read().unwrap().0.len(), 37);
    }
}
