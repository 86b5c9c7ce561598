//! The images of one user on this machine: what is there, and how more is brought.

use std::path::{Path, PathBuf};

use sandbox_core::Reference;
use serde::{Deserialize, Serialize};

use crate::{
    Fittings, Guard, ImageError, Listed, Owners, Store,
    registry::Registries,
    store::Record,
    work::{self, Order, Worker},
};

/// What an operator says about images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageSettings {
    /// Bytes that images may take up; those that were not used for longest go first.
    pub budget: u64,
    /// How registries are reached.
    pub registries: Registries,
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self { budget: 20 << 30, registries: Registries::default() }
    }
}

/// Images of a state folder.
#[derive(Clone)]
pub struct Images {
    pub(crate) store: Store,
    pub(crate) worker: Worker,
    pub(crate) fittings: Fittings,
    pub(crate) settings: ImageSettings,
}

/// An image that a sandbox can stand on.
#[derive(Debug)]
pub struct Standing {
    /// The folder with its files.
    pub root: PathBuf,
    /// What the sandbox's link should lead to, so that it is not removed.
    pub link: PathBuf,
    /// What is known of it.
    pub record: Record,
    /// Keeps it from being removed until that link is there.
    pub guard: Guard,
}

impl Images {
    /// The images that a worker of this kind can have.
    pub fn open(
        state: &Path,
        owners: Owners,
        worker: Worker,
        fittings: Fittings,
        settings: ImageSettings,
    ) -> Result<Self, ImageError> {
        Ok(Self { store: Store::open(state, owners)?, worker, fittings, settings })
    }

    /// The same, after asking a worker whose files it can make.
    pub fn with_worker(
        state: &Path,
        worker: Worker,
        fittings: Fittings,
        settings: ImageSettings,
    ) -> Result<Self, ImageError> {
        let owners = work::order(&worker, &Order::Owners, None, &|_| Ok(()))?;
        Self::open(state, owners, worker, fittings, settings)
    }

    /// All images.
    pub fn list(&self) -> Vec<Listed> {
        self.store.list()
    }

    /// Whether it is there.
    pub fn has(&self, image: &Reference) -> bool {
        self.store.find(image).is_some()
    }
}

/// What a sandbox with this image stands on.
pub fn stand(state: &Path, owners: Owners, image: &Reference) -> Result<Standing, ImageError> {
    let store = Store::at(state, owners);
    let missing = || ImageError::Missing(image.to_string());
    // Nothing was ever fetched where there is not even a lock.
    let guard = store.guard().map_err(|_| missing())?;
    let record = store.find(image).ok_or_else(missing)?;
    store.touch(&record);
    let link = store.root(&record.root);
    Ok(Standing { root: link.join(crate::ROOT), link, record, guard })
}
