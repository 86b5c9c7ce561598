//! Removes what no image needs any longer, and images that nobody used for longest where there are too many.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use sandbox_core::Reference;

use crate::{
    ImageError, Images,
    claim::{self, DRAFT},
    error::Doing,
    faults,
    store::{Listed, Record, is_whole, written},
    work::{self, Order},
};

/// Folders that this process has thrown away, to name them.
static THROWN_AWAY: AtomicU64 = AtomicU64::new(0);

/// What was fetched in part is kept so long for whoever goes on with it.
const KEPT: Duration = Duration::from_secs(24 * 3600);

impl Images {
    /// Removes an image. Layers that others share stay.
    pub fn remove(&self, image: &Reference) -> Result<Record, ImageError> {
        let name = image.in_full();
        let listed = self.store.list();
        let Some(found) = listed.iter().find(|listed| listed.record.name == name) else {
            return Err(ImageError::Missing(image.to_string()));
        };
        let only = listed.iter().filter(|other| other.record.root == found.record.root).count() == 1;
        if only && !found.users.is_empty() {
            let names: Vec<String> = found.users.iter().take(3).map(ToString::to_string).collect();
            let more =
                if found.users.len() > 3 { format!(" and {} more", found.users.len() - 3) } else { String::new() };
            return Err(ImageError::InUse { image: image.to_string(), users: names.join(", ") + &more });
        }
        self.store.forget(&found.record)?;
        faults::reach("forgotten");
        self.collect()?;
        Ok(found.record.clone())
    }

    /// Removes what is left of interrupted work and what no image or sandbox needs. Where somebody is fetching, that is left
    /// to them.
    pub fn collect(&self) -> Result<(), ImageError> {
        let Some(alone) = self.store.alone() else { return Ok(()) };
        let listed = self.store.list();
        let users = self.store.users();
        let mut needed: BTreeSet<PathBuf> = users.into_keys().collect();
        for Listed { record, .. } in &listed {
            needed.insert(self.store.root(&record.root));
            needed.extend(record.layers.iter().map(|layer| self.store.layer(layer)));
        }
        let mut rubbish = Vec::new();
        for part in ["layers", "roots"] {
            rubbish.extend(entries(&self.store.part(part)).into_iter().filter(|path| match is_draft(path) {
                true => claim::abandoned(path).is_some(),
                false => !needed.contains(path),
            }));
        }
        let gone = self.throw_away(&rubbish)?;
        for blob in entries(&self.store.part("blobs")) {
            if is_old(&blob) && claim::abandoned(&blob).is_some() {
                let _ = fs::remove_file(&blob);
            }
        }
        for name in entries(&self.store.part("names")) {
            if name.extension().is_some_and(|extension| extension == "new") && is_old(&name) {
                let _ = fs::remove_file(&name);
            }
        }
        drop(alone);
        faults::reach("thrown away");
        if !gone.is_empty() {
            // Files of several owners, so a worker removes them; that may take long, and nobody has to wait. What it does
            // not get done, the trash is emptied of later.
            work::order_aside(&self.worker, &Order::Remove(gone));
        }
        Ok(())
    }

    /// Out of the way at once; emptying takes longer.
    fn throw_away(&self, folders: &[PathBuf]) -> Result<Vec<PathBuf>, ImageError> {
        let trash = self.store.trash();
        fs::create_dir_all(&trash).doing(|| format!("making {}", trash.display()))?;
        let mut gone = Vec::new();
        for folder in folders {
            // Twice in one second is not too often.
            let number = THROWN_AWAY.fetch_add(1, Ordering::Relaxed);
            let to = trash.join(format!("deleted-image-{}-{number}-{}", std::process::id(), crate::store::now()));
            if fs::rename(folder, &to).is_ok() {
                gone.push(to);
            }
        }
        Ok(gone)
    }

    /// Removes images until the rest fits, those first that were not used for longest. What sandboxes stand on stays, and so
    /// does `new`, which was just fetched.
    pub(crate) fn make_room(&self, budget: u64, new: &str) -> Result<(), ImageError> {
        let mut listed = self.store.list();
        let mut size = self.size(&listed);
        listed.sort_by_key(|image| image.used);
        while size > budget {
            let unused = |image: &Listed| image.users.is_empty() && image.record.name != new;
            let Some(at) = listed.iter().position(unused) else { break };
            let image = listed.remove(at);
            self.store.forget(&image.record)?;
            tracing::info!(name = image.record.name, "removed to make room for other images");
            size = self.size(&listed);
        }
        self.collect()
    }

    /// Bytes that all layers of these take up, each counted once.
    pub fn size(&self, listed: &[Listed]) -> u64 {
        let layers: BTreeSet<_> = listed.iter().flat_map(|image| &image.record.layers).collect();
        let size = |folder: PathBuf| {
            if is_whole(&folder) { written(&folder).map_or(0, |found| found.facts.room()) } else { 0 }
        };
        layers.into_iter().map(|layer| size(self.store.layer(layer))).sum()
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn is_draft(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(DRAFT.as_bytes())
}

fn is_old(path: &Path) -> bool {
    let changed = fs::symlink_metadata(path).and_then(|found| found.modified());
    changed.is_ok_and(|changed| SystemTime::now().duration_since(changed).is_ok_and(|age| age > KEPT))
}
