//! The worker: a process of its own that makes and removes files with the ids that sandboxes have. It gets one order, works,
//! tells how far it is, and ends.
//!
//! Whoever starts it ([`Worker`]) decides how it gets those ids; here it is only told whose files it can make.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    Digest, ImageError, Malformed, Owners,
    claim::{Claim, claim},
    error::Doing,
    faults,
    limits::Limits,
    store::{FACTS, ROOT, SETTLED, boot},
    unpack::{
        fit::{self, Fittings},
        layer::{self, LayerFacts},
        merge,
        stream::{Piece, Stream},
        tree,
    },
};

/// Starts a worker: a command that becomes one when it is run with an order as its only argument.
pub type Worker = Arc<dyn Fn() -> Command + Send + Sync>;

/// Addresses that a worker may use, in bytes. Most of them are stacks and what the allocator sets aside.
const MEMORY: u64 = 2 << 30;

/// What a worker can be told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Only to say whose files it can make.
    Owners,
    /// Unpack what is on its standard input.
    Unpack(Unpack),
    /// Put unpacked layers together.
    Merge {
        /// The folders of unpacked layers, the lowest first.
        layers: Vec<PathBuf>,
        /// Where to.
        whole: PathBuf,
        /// What every image gets.
        fittings: Fittings,
    },
    /// Remove folders with everything in them.
    Remove(Vec<PathBuf>),
    /// Wait until the disk has everything, and note it in these folders.
    Settle(Vec<PathBuf>),
}

/// One layer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Unpack {
    /// Where it begins in the file on standard input.
    pub offset: u64,
    /// How long it is there.
    pub length: u64,
    /// What it is as it is there, if nobody has checked that yet.
    pub packed: Option<Digest>,
    /// What it is when unpacked.
    pub unpacked: Digest,
    /// Where to.
    pub whole: PathBuf,
    /// How much is taken.
    pub limits: Limits,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Saying {
    Written(u64),
    Done(Owners),
    Malformed(Malformed),
    Failed(String),
}

/// Starts a worker and waits until it is done. `tell` hears how many bytes it has taken up, and ends it where that is too much.
pub fn order(
    worker: &Worker,
    order: &Order,
    input: Option<File>,
    tell: &dyn Fn(u64) -> Result<(), ImageError>,
) -> Result<Owners, ImageError> {
    let broken = |why: &str| ImageError::Io { doing: "unpacking".into(), source: io::Error::other(why.to_owned()) };
    let text = serde_json::to_string(order).map_err(|error| broken(&error.to_string()))?;
    let mut command = worker();
    command.arg(text).stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(Stdio::piped());
    let mut child = command.spawn().doing(|| "starting a process that unpacks".into())?;
    let mut ended = Err(broken("the process that unpacks ended before it was done"));
    for line in BufReader::new(child.stdout.take().ok_or_else(|| broken("it says nothing"))?).lines() {
        let line = line.doing(|| "listening to the process that unpacks".into())?;
        match serde_json::from_str(&line) {
            Ok(Saying::Written(bytes)) => {
                if let Err(error) = tell(bytes) {
                    let _ = child.kill();
                    ended = Err(error);
                    break;
                }
            }
            Ok(Saying::Done(owners)) => ended = Ok(owners),
            Ok(Saying::Malformed(malformed)) => ended = Err(ImageError::Malformed(malformed)),
            Ok(Saying::Failed(why)) => ended = Err(broken(&why)),
            Err(_) => {}
        }
    }
    child.wait().doing(|| "waiting for the process that unpacks".into())?;
    ended
}

/// Starts a worker and leaves it alone: it goes on when this process has ended.
pub fn order_aside(worker: &Worker, order: &Order) {
    let mut command = worker();
    command.arg(serde_json::to_string(order).unwrap_or_default()).stdin(Stdio::null()).stdout(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        std::thread::spawn(move || child.wait());
    }
}

/// What a worker does. `text` is its order; it can make files of `owners`. The answer is the process's exit code.
pub fn work(text: &str, owners: Owners) -> i32 {
    bound_memory();
    let mut out = io::stdout().lock();
    let mut say = |saying: &Saying| {
        // Nobody listens any longer: whoever gave the order is gone, and will not use what is made.
        let line = serde_json::to_string(saying).unwrap_or_default();
        if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
            std::process::exit(71);
        }
    };
    let done = match serde_json::from_str(text) {
        Ok(order) => obey(order, owners, &mut |bytes| say(&Saying::Written(bytes))),
        Err(error) => Err(ImageError::Io { doing: "reading an order".into(), source: error.into() }),
    };
    let (saying, code) = match done {
        Ok(()) => (Saying::Done(owners), 0),
        Err(ImageError::Malformed(malformed)) => (Saying::Malformed(malformed), 1),
        Err(error) => (Saying::Failed(error.to_string()), 1),
    };
    say(&saying);
    code
}

/// What is unpacked is hostile: whatever it makes us remember, this machine has more. An allocation that fails ends the
/// worker, and whoever gave the order says so.
fn bound_memory() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let most = getrlimit(Resource::As).maximum.unwrap_or(u64::MAX).min(MEMORY);
    let _ = setrlimit(Resource::As, Rlimit { current: Some(most), maximum: Some(most) });
}

fn obey(order: Order, owners: Owners, tell: &mut dyn FnMut(u64)) -> Result<(), ImageError> {
    match order {
        Order::Owners => Ok(()),
        Order::Unpack(order) => unpack(order, owners, tell),
        Order::Merge { layers, whole, fittings } => merge(&layers, &whole, &fittings, owners),
        Order::Remove(folders) => folders.iter().try_for_each(|folder| remove(folder)),
        Order::Settle(folders) => settle(&folders),
    }
}

fn unpack(order: Unpack, owners: Owners, tell: &mut dyn FnMut(u64)) -> Result<(), ImageError> {
    let Some(draft) = begin(&order.whole)? else { return Ok(()) };
    let root = draft.folder.join(ROOT);
    let mut unpacked = || {
        let input = rustix::stdio::stdin().try_clone_to_owned().doing(|| "opening a layer".into())?;
        let piece = Piece { file: input.into(), offset: order.offset, end: order.offset + order.length };
        let most = order.limits.unpacked(order.length);
        let mut stream = Stream::open(piece, most, order.packed.is_some()).doing(|| "reading a layer".into())?;
        let mut told = 0;
        let facts = layer::unpack(&mut stream, &root, owners, order.limits, &mut |bytes| {
            faults::reach("unpacking");
            if bytes >= told + (4 << 20) {
                told = bytes;
                tell(bytes);
            }
        })?;
        stream.finish(order.packed.as_ref(), &order.unpacked)?;
        Ok(facts)
    };
    let facts = unpacked().inspect_err(|_| discard(&draft.folder))?;
    faults::reach("unpacked");
    write_facts(&draft.folder, &facts)?;
    draft.finish().doing(|| format!("naming {}", order.whole.display()))
}

fn merge(layers: &[PathBuf], whole: &Path, fittings: &Fittings, owners: Owners) -> Result<(), ImageError> {
    let Some(draft) = begin(whole)? else { return Ok(()) };
    let root = draft.folder.join(ROOT);
    let merged = || {
        let mut sum = LayerFacts::default();
        for layer in layers {
            let facts = read_facts(layer)?;
            merge::add(&root, &layer.join(ROOT), &facts, owners)?;
            faults::reach("merging");
            sum.size += facts.size;
            sum.taken += facts.taken;
            sum.entries += facts.entries;
            sum.devices += facts.devices;
        }
        fit::fit(&root, fittings, owners)?;
        Ok(sum)
    };
    let facts = merged().inspect_err(|_| discard(&draft.folder))?;
    write_facts(&draft.folder, &facts)?;
    faults::reach("merged");
    draft.finish().doing(|| format!("naming {}", whole.display()))
}

/// An empty draft with an empty root in it, or nothing where all is done already.
fn begin(whole: &Path) -> Result<Option<crate::claim::Draft>, ImageError> {
    // Modes are what the layers say, not what whoever started us prefers for new files.
    rustix::process::umask(rustix::fs::Mode::empty());
    match claim(whole).doing(|| format!("claiming {}", whole.display()))? {
        Claim::Made => Ok(None),
        Claim::Mine(draft) => {
            empty(&draft.folder)?;
            let root = draft.folder.join(ROOT);
            fs::create_dir(&root).doing(|| format!("making {}", root.display()))?;
            Ok(Some(draft))
        }
    }
}

/// What somebody left who was killed.
fn empty(folder: &Path) -> Result<(), ImageError> {
    let opened = rustix::fs::open(folder, tree::FOLDER, rustix::fs::Mode::empty());
    let opened = opened.doing(|| format!("opening {}", folder.display()))?;
    tree::clear(std::os::fd::AsFd::as_fd(&opened), c".").doing(|| format!("emptying {}", folder.display()))
}

fn discard(folder: &Path) {
    let _ = empty(folder);
    let _ = fs::remove_dir(folder);
}

fn remove(folder: &Path) -> Result<(), ImageError> {
    if fs::symlink_metadata(folder).is_err() {
        return Ok(());
    }
    empty(folder)?;
    fs::remove_dir(folder).doing(|| format!("removing {}", folder.display()))
}

fn settle(folders: &[PathBuf]) -> Result<(), ImageError> {
    let Some(first) = folders.first() else { return Ok(()) };
    let folder = File::open(first).doing(|| format!("opening {}", first.display()))?;
    rustix::fs::syncfs(&folder).doing(|| "waiting for the disk".into())?;
    for folder in folders {
        File::create(folder.join(SETTLED)).doing(|| format!("noting that {} is on disk", folder.display()))?;
    }
    Ok(())
}

/// What is written beside a root: what is known of it, and since which start of this machine it is there.
#[derive(Serialize, Deserialize)]
pub(crate) struct Written {
    /// See [`boot`].
    pub boot: String,
    /// What is known.
    pub facts: LayerFacts,
}

fn write_facts(folder: &Path, facts: &LayerFacts) -> Result<(), ImageError> {
    let written = Written { boot: boot(), facts: facts.clone() };
    let text = serde_json::to_vec(&written).map_err(io::Error::from).doing(|| "describing a layer".into())?;
    fs::write(folder.join(FACTS), text).doing(|| format!("describing {}", folder.display()))
}

fn read_facts(folder: &Path) -> Result<LayerFacts, ImageError> {
    crate::store::written(folder).map(|written| written.facts)
}
