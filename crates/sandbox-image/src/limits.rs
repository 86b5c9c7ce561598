//! How much of an image is taken. Everything in one comes from strangers.

use serde::{Deserialize, Serialize};

/// A manifest or an index, in bytes. Registries take no larger ones.
pub const MANIFEST: u64 = 4 << 20;
/// The description of how an image was made, in bytes.
pub const CONFIG: u64 = 8 << 20;
/// Layers of one image.
pub const LAYERS: usize = 512;
/// Images of one archive or layout.
pub const IMAGES: usize = 64;
/// Files of an archive that are looked at.
pub const ARCHIVE_ENTRIES: usize = 100_000;
/// A path in bytes, as the kernel has it.
pub const PATH: usize = 4095;
/// A name in bytes, as file systems have it.
pub const NAME: usize = 255;
/// All paths of one layer that are remembered until its end, in bytes. Large ones have a few million.
pub const PATHS: usize = 64 << 20;
/// What anything takes up at least, in bytes: file systems count in these.
pub const BLOCK: u64 = 4096;
/// Folders within folders.
pub const DEPTH: usize = 180;
/// What an entry of an archive may say about the next one, in bytes.
pub const EXTENSION: u64 = 1 << 20;
/// Below this nothing is called a bomb.
const NO_BOMB: u64 = 1 << 30;
/// Above it content may grow by this factor. Real layers grow by three to ten.
const RATIO: u64 = 200;

/// What unpacking may take up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes that one layer may take up.
    pub bytes: u64,
    /// Files, folders and links of one layer.
    pub entries: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 64 << 30, entries: 1_000_000 }
    }
}

impl Limits {
    /// What content of this compressed size may become.
    pub fn unpacked(&self, compressed: u64) -> u64 {
        self.bytes.min(compressed.saturating_mul(RATIO).max(NO_BOMB))
    }
}
