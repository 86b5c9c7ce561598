//! What is left of ended sandboxes, until a process of its own has removed it or made it ready for the next.

use std::{
    collections::HashMap,
    fs,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use sandbox_core::SessionId;

use crate::{
    spare::{Shelf, Stamp},
    sys::{self, Cloned, ended},
    tree,
};

const SWEEP_AFTER: Duration = Duration::from_millis(20);
const SWEEP_AGAIN: Duration = Duration::from_secs(1);

/// The trash of one state folder.
pub struct Trash {
    state: PathBuf,
    /// Folders of sandboxes that live, as they were before those ran.
    living: HashMap<String, Stamp>,
    /// The same of those in the trash.
    dead: HashMap<String, Stamp>,
    due: Option<Instant>,
    sweeper: Option<OwnedFd>,
}

impl Trash {
    /// With what an earlier launcher left that was killed before it had removed everything.
    pub fn of(state: &Path) -> Self {
        let due = has_some(state).then(Instant::now);
        Self { state: state.into(), living: HashMap::new(), dead: HashMap::new(), due, sweeper: None }
    }

    /// When there is something to do.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Remembers the folder of a sandbox that is about to run.
    pub fn expect(&mut self, name: &str, folder: &Path) {
        self.living.extend(Stamp::of(folder).map(|stamp| (name.to_owned(), stamp)));
    }

    /// Takes the folder of an ended sandbox. Removing many files takes long, a rename does not.
    pub fn take(&mut self, folder: &Path) {
        let trash = self.state.join("trash");
        let _ = fs::create_dir(&trash);
        let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { return };
        let stamp = self.living.remove_entry(name);
        if fs::rename(folder, trash.join(name)).is_ok() {
            self.dead.extend(stamp);
            self.due = Some(Instant::now() + SWEEP_AFTER);
        }
    }

    /// Starts a process that removes everything; it goes on by itself if we end meanwhile.
    pub fn sweep(&mut self, now: Instant, serving: bool) {
        self.due = None;
        if let Some(sweeper) = self.sweeper.take() {
            if !ended(&sweeper) {
                self.sweeper = Some(sweeper);
                self.due = Some(now + SWEEP_AFTER * 5);
                return;
            }
            if !has_some(&self.state) {
                return;
            }
        }
        match sys::clone(0, None) {
            Ok(Cloned::Child) => {
                // It works with names only, and may take long.
                sys::close_from(3);
                self.empty();
                sys::exit_now(0)
            }
            Ok(Cloned::Parent { pidfd, .. }) => {
                self.sweeper = Some(pidfd);
                self.dead.clear();
                // Somebody may still have had the lock of a folder, so there is a second look.
                self.due = serving.then_some(now + SWEEP_AGAIN);
            }
            Err(_) => {}
        }
    }

    /// What has the name of a sandbox is kept if it can be, by whoever gets its lock; the rest is only ever deleted.
    fn empty(&self) {
        let mut shelf = Shelf::of(&self.state);
        for entry in fs::read_dir(self.state.join("trash")).into_iter().flatten().flatten() {
            let path = entry.path();
            if let Some(name) = entry.file_name().to_str()
                && name.parse::<SessionId>().is_ok()
            {
                shelf.retire(&path, None, self.dead.get(name).copied());
            } else if fs::remove_file(&path).is_err() {
                let _ = tree::clear(&path);
                let _ = fs::remove_dir(&path);
            }
        }
    }
}

fn has_some(state: &Path) -> bool {
    fs::read_dir(state.join("trash")).is_ok_and(|mut entries| entries.next().is_some())
}
