//! Images that are on this machine: a folder `images` in the state folder, with one part for each way of owning files.
//!
//! ```text
//! images/OWNERS/names/NAME.json    an image: its name, digest, layers and variables; changed when it is used
//!               layers/DIGEST/     an unpacked layer: `root`, and what is known of it
//!               roots/DIGEST/      layers put together, for sandboxes to stand on
//!               blobs/DIGEST       what was fetched and is not unpacked yet; `.partial` while it comes
//!               lock               shared by whoever needs something to stay, exclusive for removing
//! ```
//! Whatever has its name is whole: it was made under another and renamed. A folder of before this machine's last start
//! counts only if the disk has had all of it (`settled`).

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustix::fs::FlockOperation;
use sandbox_core::{Reference, SessionId};
use serde::{Deserialize, Serialize};

use crate::{Digest, ImageError, Owners, error::Doing, work::Written};

/// The files themselves, in the folder of a layer or of layers put together.
pub const ROOT: &str = "root";
/// What is known of them, beside.
pub const FACTS: &str = "facts.json";
/// Beside them once the disk has everything.
pub const SETTLED: &str = "settled";
/// The link in a sandbox's folder to what it stands on.
pub const LINK: &str = "image";

/// Where images are.
#[derive(Clone, Debug)]
pub struct Store {
    state: PathBuf,
    folder: PathBuf,
}

/// An image that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Its name, in full.
    pub name: String,
    /// Of its manifest, or of its configuration where it came without one.
    pub digest: Digest,
    /// Its layers, unpacked, the lowest first.
    pub layers: Vec<Digest>,
    /// Those put together.
    pub root: Digest,
    /// Bytes of its files, shared ones included.
    pub size: u64,
    /// Variables that its commands expect.
    pub env: Vec<(String, String)>,
    /// When it came, in seconds since 1970.
    pub pulled: u64,
}

/// An image for people.
#[derive(Clone, Debug)]
pub struct Listed {
    /// What is known.
    pub record: Record,
    /// Sandboxes that stand on it.
    pub users: Vec<SessionId>,
    /// When it was used last, or came.
    pub used: SystemTime,
}

/// As long as it lives, nothing that is there is removed.
#[derive(Debug)]
pub struct Guard {
    _lock: File,
}

impl Store {
    /// The images of a state folder that these owners can have.
    pub fn open(state: &Path, owners: Owners) -> Result<Self, ImageError> {
        let store = Self::at(state, owners);
        for name in ["names", "layers", "roots", "blobs"] {
            let folder = store.folder.join(name);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder)
                .doing(|| format!("making {}", folder.display()))?;
        }
        Ok(store)
    }

    /// The same where nothing is made.
    pub fn at(state: &Path, owners: Owners) -> Self {
        let part = match owners {
            Owners::Machine => "machine",
            Owners::Subordinate => "subordinate",
            Owners::Single => "single",
        };
        Self { state: state.to_owned(), folder: state.join("images").join(part) }
    }

    /// Keeps everything from being removed.
    pub fn guard(&self) -> Result<Guard, ImageError> {
        self.lock(FlockOperation::LockShared).map(|lock| Guard { _lock: lock })
    }

    /// Nobody needs anything to stay for the moment; nothing if somebody does.
    pub(crate) fn alone(&self) -> Option<Guard> {
        self.lock(FlockOperation::NonBlockingLockExclusive).ok().map(|lock| Guard { _lock: lock })
    }

    fn lock(&self, how: FlockOperation) -> Result<File, ImageError> {
        let path = self.folder.join("lock");
        let file = File::options().create(true).truncate(false).write(true).mode(0o600).open(&path);
        let file = file.doing(|| format!("opening {}", path.display()))?;
        rustix::fs::flock(&file, how).doing(|| format!("locking {}", path.display()))?;
        Ok(file)
    }

    /// Where content that is fetched goes.
    pub fn blob(&self, digest: &Digest) -> PathBuf {
        self.folder.join("blobs").join(digest.hex())
    }

    /// The folder of an unpacked layer.
    pub fn layer(&self, digest: &Digest) -> PathBuf {
        self.folder.join("layers").join(digest.hex())
    }

    /// The folder of layers put together.
    pub fn root(&self, digest: &Digest) -> PathBuf {
        self.folder.join("roots").join(digest.hex())
    }

    /// A folder of the store by its name.
    pub(crate) fn part(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where what is removed goes first: whatever else happens, it is emptied from time to time.
    pub(crate) fn trash(&self) -> PathBuf {
        self.state.join("trash")
    }

    fn name(&self, name: &str) -> PathBuf {
        self.folder.join("names").join(format!("{}.json", &Digest::of(name.as_bytes()).hex()[..40]))
    }

    /// The image of this name, if it is there and whole.
    pub fn find(&self, image: &Reference) -> Option<Record> {
        let record = self.record(&self.name(&image.in_full()))?;
        is_whole(&self.root(&record.root)).then_some(record)
    }

    /// Notes that it was used just now.
    pub fn touch(&self, record: &Record) {
        let _ = File::open(self.name(&record.name)).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// Writes an image down: from now on it is there.
    pub(crate) fn keep(&self, record: &Record) -> Result<(), ImageError> {
        let path = self.name(&record.name);
        let draft = path.with_extension(format!("{}.new", std::process::id()));
        let text = serde_json::to_vec_pretty(record).map_err(io::Error::from).doing(|| "describing an image".into())?;
        fs::write(&draft, text).doing(|| format!("writing {}", draft.display()))?;
        fs::rename(&draft, &path).doing(|| format!("writing {}", path.display()))
    }

    /// From now on it is not there.
    pub(crate) fn forget(&self, record: &Record) -> Result<(), ImageError> {
        let path = self.name(&record.name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).doing(|| format!("removing {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// All images, by name.
    pub fn list(&self) -> Vec<Listed> {
        let users = self.users();
        let entries = fs::read_dir(self.folder.join("names")).into_iter().flatten().flatten();
        let listed = entries.filter_map(|entry| {
            let record = self.record(&entry.path())?;
            let used = entry.metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
            let users = users.get(&self.root(&record.root)).cloned().unwrap_or_default();
            Some(Listed { record, users, used })
        });
        let mut listed: Vec<Listed> = listed.collect();
        listed.sort_by(|one, other| one.record.name.cmp(&other.record.name));
        listed
    }

    /// Sandboxes, by what they stand on.
    pub(crate) fn users(&self) -> BTreeMap<PathBuf, Vec<SessionId>> {
        let mut users: BTreeMap<PathBuf, Vec<SessionId>> = BTreeMap::new();
        for entry in fs::read_dir(self.state.join("sandboxes")).into_iter().flatten().flatten() {
            let id = entry.file_name().to_str().and_then(|name| name.parse::<SessionId>().ok());
            if let (Some(id), Ok(root)) = (id, fs::read_link(entry.path().join(LINK))) {
                users.entry(root).or_default().push(id);
            }
        }
        users
    }

    fn record(&self, path: &Path) -> Option<Record> {
        if path.extension().is_none_or(|extension| extension != "json") {
            return None;
        }
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }
}

/// Whether a layer, or layers put together, are there with all that belongs to them.
pub fn is_whole(folder: &Path) -> bool {
    match written(folder) {
        Ok(written) => written.boot == boot() || folder.join(SETTLED).exists(),
        Err(_) => false,
    }
}

pub(crate) fn written(folder: &Path) -> Result<Written, ImageError> {
    let path = folder.join(FACTS);
    let text = fs::read(&path).doing(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).map_err(io::Error::from).doing(|| format!("reading {}", path.display()))
}

/// Names the time since this machine was started.
pub fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
