//! Brings an image: what it consists of ([`plan`]), its content ([`download`]), and what becomes of it here.

mod bar;
mod download;
mod plan;
mod room;

use futures::{
    FutureExt,
    future::BoxFuture,
    stream::{self, StreamExt},
};
use sandbox_core::{Progress, Reference};

use bar::Bar;
use plan::{Layer, Place, Planned};
use room::Room;

use crate::{
    Digest, ImageError, Images, Source,
    error::Doing,
    faults,
    limits::Limits,
    registry::Repository,
    source::Files,
    store::{Record, is_whole, now, written},
    work::{self, Order, Unpack},
};

/// Layers that are brought at once.
const AT_ONCE: usize = 4;

impl Images {
    /// Sees to it that an image is there: fetched from its registry if it is not.
    pub async fn fetch(&self, image: &Reference, progress: Progress<'_>) -> Result<Record, ImageError> {
        if let Some(found) = self.store.find(image) {
            self.store.touch(&found);
            return Ok(found);
        }
        let mut records = self.pull(&Source::Registry(image.clone()), None, progress).await?;
        records.pop().ok_or_else(|| ImageError::Missing(image.to_string()))
    }

    /// Brings what a source has, whether it was there before or not: a tag may mean another image by now. `name` is for
    /// what has none, or should have another.
    pub async fn pull(
        &self,
        source: &Source,
        name: Option<&Reference>,
        progress: Progress<'_>,
    ) -> Result<Vec<Record>, ImageError> {
        let guard = self.store.guard()?;
        let brought = self.bring(source, name, progress).await;
        drop(guard);
        if matches!(brought, Err(ImageError::Malformed(_))) {
            // Nothing of what means harm is kept; what was only cut short is gone on with one day.
            let images = self.clone();
            blocking(move || images.collect()).await?;
        }
        let records = brought?;
        // The same process may wait for its own lock only where another thread of it is pulling; then that one cleans up.
        if let Some(last) = records.last() {
            let (images, name) = (self.clone(), last.name.clone());
            blocking(move || images.make_room(images.settings.budget, &name)).await?;
        }
        self.settle(&records);
        Ok(records)
    }

    async fn bring(
        &self,
        source: &Source,
        name: Option<&Reference>,
        progress: Progress<'_>,
    ) -> Result<Vec<Record>, ImageError> {
        let bar = Bar::new(progress);
        let (repository, planned) = match source {
            // That is where images of archives without a name are, and of built-in templates; nobody is to be asked for them.
            Source::Registry(image) if image.registry() == "localhost" => {
                return Err(ImageError::Missing(image.to_string()));
            }
            Source::Registry(image) => {
                bar.step(format!("asking {} for {image}", image.registry()));
                let repository = Repository::of(image, &self.settings.registries)?;
                let planned = plan::of_registry(&repository, image, name.unwrap_or(image)).await?;
                (Some(repository), vec![planned])
            }
            Source::Archive(path) => {
                bar.step(format!("reading {}", path.display()));
                let (path, scratch) = (path.clone(), self.store.part("blobs"));
                let stem = plan::stem(&path);
                let files = blocking(move || Files::of_archive(&path, &scratch)).await?;
                (None, plan::of_files(&files, &stem, name)?)
            }
            Source::Layout(folder) => {
                (None, plan::of_files(&Files::Folder(folder.clone()), &plan::stem(folder), name)?)
            }
        };
        for planned in &planned {
            plan::check_name(planned, self.store.find(&planned.name).map(|found| found.digest).as_ref())?;
        }
        let mut records = Vec::new();
        for planned in planned {
            records.push(self.make(repository.as_ref(), planned, &bar).await?);
        }
        Ok(records)
    }

    /// From what it consists of to an image that is there.
    async fn make(
        &self,
        repository: Option<&Repository>,
        planned: Planned,
        bar: &Bar<'_>,
    ) -> Result<Record, ImageError> {
        let Planned { name, digest, config, layers, .. } = planned;
        self.check_size(&layers)?;
        let room = Room::of(self.settings.budget);
        for digest in config.diff_ids.iter().filter(|digest| is_whole(&self.store.layer(digest))) {
            room.take(digest, written(&self.store.layer(digest))?.facts.room())?;
        }
        let missing = || layers.iter().filter(|layer| !is_whole(&self.store.layer(&layer.unpacked)));
        bar.expect(&name, missing().map(|layer| layer.size).sum());
        let mut distinct: Vec<&Layer> = missing().collect();
        distinct.sort_by(|one, other| one.unpacked.cmp(&other.unpacked));
        distinct.dedup_by(|one, other| one.unpacked == other.unpacked);
        // The largest first: it takes longest to unpack.
        distinct.sort_by_key(|layer| std::cmp::Reverse(layer.size));
        let work = distinct.into_iter().map(|layer| self.bring_layer(repository, layer, &room, bar).boxed());
        let work: Vec<BoxFuture<'_, Result<(), ImageError>>> = work.collect();
        // All of them come to an end, also when one has failed: nobody is left alone with half a layer.
        let ended: Vec<Result<(), ImageError>> = stream::iter(work).buffer_unordered(AT_ONCE).collect().await;
        ended.into_iter().min_by_key(importance).unwrap_or(Ok(()))?;
        let root = self.root_of(&config.diff_ids);
        if !is_whole(&self.store.root(&root)) {
            bar.step(format!("putting the layers of {name} together"));
            let order = Order::Merge {
                layers: config.diff_ids.iter().map(|layer| self.store.layer(layer)).collect(),
                whole: self.store.root(&root),
                fittings: self.fittings.clone(),
            };
            self.make_again(&self.store.root(&root))?;
            self.order(order, None, bar, |_| Ok(())).await?;
        }
        let size = written(&self.store.root(&root))?.facts.size;
        let record = Record {
            name: name.in_full(),
            digest,
            layers: config.diff_ids,
            root,
            size,
            env: config.env,
            pulled: now(),
        };
        faults::reach("recording");
        self.store.keep(&record)?;
        // Also those that another left who was killed before it could.
        layers.iter().for_each(|layer| self.unpacked(layer));
        bar.step(format!("{name} is there"));
        Ok(record)
    }

    /// More would not be kept.
    fn check_size(&self, layers: &[Layer]) -> Result<(), ImageError> {
        let size: u64 = layers.iter().map(|layer| layer.size).fold(0, u64::saturating_add);
        if size > self.settings.budget {
            let (size, budget) = (size >> 20, self.settings.budget >> 20);
            return Err(ImageError::malformed(format!(
                "it has {size} MiB even when compressed, and the setting `image_budget` allows {budget} MiB for all images"
            )));
        }
        Ok(())
    }

    async fn bring_layer(
        &self,
        repository: Option<&Repository>,
        layer: &Layer,
        room: &Room,
        bar: &Bar<'_>,
    ) -> Result<(), ImageError> {
        let whole = self.store.layer(&layer.unpacked);
        let (file, offset, length, packed) = match (&layer.place, repository) {
            (Place::Here(found), _) => {
                bar.came(layer.size);
                (found.file.clone(), found.offset, found.length, layer.packed.clone())
            }
            (Place::There(descriptor), Some(repository)) => {
                let file = download::bring(&self.store, repository, descriptor, bar).await;
                bar.failed_if(&file);
                let file = file?;
                (file.into(), 0, descriptor.size, None)
            }
            (Place::There(_), None) => return Err(ImageError::NoSource("there is no registry to ask".into())),
        };
        bar.go_on()?;
        self.make_again(&whole)?;
        let limits = Limits { bytes: room.left_to(&layer.unpacked), ..Limits::default() };
        let unpacked = layer.unpacked.clone();
        let order = Order::Unpack(Unpack { offset, length, packed, unpacked, whole: whole.clone(), limits });
        let file = file.try_clone().doing(|| "opening a layer".into())?;
        let (share, digest) = (room.clone(), layer.unpacked.clone());
        let done = self.order(order, Some(file), bar, move |bytes| share.take(&digest, bytes)).await;
        let done = done.and_then(|()| room.take(&layer.unpacked, written(&whole)?.facts.room()));
        bar.failed_if(&done);
        self.unpacked(layer);
        done
    }

    /// What was fetched is not needed any more, or no good.
    fn unpacked(&self, layer: &Layer) {
        if let Place::There(descriptor) = &layer.place {
            let _ = std::fs::remove_file(self.store.blob(&descriptor.digest));
        }
    }

    /// What is not whole although it has its name is of before this machine's last start, and not to be trusted.
    fn make_again(&self, folder: &std::path::Path) -> Result<(), ImageError> {
        if !folder.exists() || is_whole(folder) {
            return Ok(());
        }
        let trash = self.store.trash();
        std::fs::create_dir_all(&trash).doing(|| format!("making {}", trash.display()))?;
        let name = format!("deleted-image-{}-{}", std::process::id(), folder.file_name().unwrap_or_default().display());
        let _ = std::fs::rename(folder, trash.join(&name));
        work::order_aside(&self.worker, &Order::Remove(vec![trash.join(name)]));
        Ok(())
    }

    /// `take` hears how much room is taken up by now, and may say that it is too much.
    async fn order(
        &self,
        order: Order,
        input: Option<std::fs::File>,
        bar: &Bar<'_>,
        take: impl Fn(u64) -> Result<(), ImageError> + Send + 'static,
    ) -> Result<(), ImageError> {
        let (worker, written) = (self.worker.clone(), bar.writer());
        let tell = move |bytes| {
            written.at(bytes);
            take(bytes)
        };
        let work = blocking(move || work::order(&worker, &order, input, &tell));
        bar.meanwhile(work).await.map(drop)
    }

    /// Names layers put together with what every image gets.
    fn root_of(&self, layers: &[Digest]) -> Digest {
        let text = serde_json::to_vec(&(1, layers, &self.fittings)).unwrap_or_default();
        Digest::of(&text)
    }

    /// Nobody waits until the disk has everything; until then it counts only until this machine's next start.
    fn settle(&self, records: &[Record]) {
        let layers = records.iter().flat_map(|record| &record.layers).map(|layer| self.store.layer(layer));
        let roots = records.iter().map(|record| self.store.root(&record.root));
        let unsettled = |folder: &std::path::PathBuf| !folder.join(crate::store::SETTLED).exists();
        let folders: Vec<_> = layers.chain(roots).filter(unsettled).collect();
        if folders.is_empty() {
            return;
        }
        work::order_aside(&self.worker, &Order::Settle(folders));
    }
}

/// What was given up because of another's failure says least.
fn importance(ended: &Result<(), ImageError>) -> u8 {
    match ended {
        Err(ImageError::NoSource(_)) => 1,
        Err(_) => 0,
        Ok(()) => 2,
    }
}

/// Work that would keep others waiting is done aside.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ImageError> + Send + 'static,
) -> Result<T, ImageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ImageError::NoSource(format!("the work was given up: {error}"))),
    }
}
