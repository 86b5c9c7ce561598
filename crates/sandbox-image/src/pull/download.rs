//! One blob from a registry to a file, checked on the way. What came before a connection was cut, or before a process was
//! killed, is kept and gone on with.

use std::{
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use rustix::fs::FlockOperation;

use super::bar::Bar;
use crate::{
    ImageError,
    claim::is_named,
    digest::Meter,
    error::Doing,
    faults,
    manifest::Descriptor,
    registry::{Repository, fetch},
    store::Store,
};

/// So often a connection may break without anything having come.
const ATTEMPTS: u32 = 5;
/// How often is looked whether another process is done with the same blob.
const LOOK: Duration = Duration::from_millis(100);

/// The whole blob, once it is there.
pub async fn bring(
    store: &Store,
    repository: &Repository,
    blob: &Descriptor,
    bar: &Bar<'_>,
) -> Result<File, ImageError> {
    let whole = store.blob(&blob.digest);
    let partial = whole.with_extension("partial");
    let mut file = loop {
        if let Ok(file) = File::open(&whole) {
            bar.came(blob.size);
            return Ok(file);
        }
        let file = File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(&partial);
        let file = file.doing(|| format!("opening {}", partial.display()))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            // Another may have finished between opening and locking.
            Ok(()) if is_named(&file, &partial) => break file,
            Ok(()) => {}
            // Another process brings the same; it is as good for us.
            Err(rustix::io::Errno::WOULDBLOCK) => bar.meanwhile(tokio::time::sleep(LOOK)).await,
            Err(error) => return Err(error).doing(|| format!("locking {}", partial.display())),
        }
    };
    let mut meter = known(&mut file, blob.size).doing(|| format!("reading {}", partial.display()))?;
    bar.came(meter.length);
    let mut failures = 0;
    while meter.length < blob.size {
        bar.go_on()?;
        let before = meter.length;
        match more(repository, blob, &mut file, &mut meter, bar).await {
            Ok(None) if meter.length > before => {}
            Ok(None) | Ok(Some(_)) | Err(ImageError::Unreachable { .. }) if meter.length > before => failures = 0,
            Ok(why) => failures = again(failures, why, repository_of(blob)).await?,
            Err(ImageError::Unreachable { registry, why }) => failures = again(failures, Some(why), registry).await?,
            // What came is right as far as it goes, unless the registry itself is wrong.
            Err(error) => {
                if matches!(error, ImageError::Malformed(_)) {
                    let _ = fs::remove_file(&partial);
                }
                return Err(error);
            }
        }
    }
    if let Err(error) = meter.verify("a layer", &blob.digest) {
        let _ = fs::remove_file(&partial);
        return Err(error);
    }
    faults::reach("downloaded");
    name(&partial, &whole)?;
    Ok(file)
}

fn name(partial: &Path, whole: &Path) -> Result<(), ImageError> {
    fs::rename(partial, whole).doing(|| format!("naming {}", whole.display()))
}

fn repository_of(blob: &Descriptor) -> String {
    format!("the registry of {}", blob.digest)
}

/// After a while, or never.
async fn again(failures: u32, why: Option<String>, registry: String) -> Result<u32, ImageError> {
    if failures + 1 >= ATTEMPTS {
        let why = why.unwrap_or_else(|| "it sends less than it promised".into());
        return Err(ImageError::Unreachable { registry, why: format!("{why} ({ATTEMPTS} times)") });
    }
    tokio::time::sleep(Duration::from_millis(200 << failures)).await;
    Ok(failures + 1)
}

/// What came earlier, counted and hashed. More than there should be is no good.
fn known(file: &mut File, size: u64) -> std::io::Result<Meter> {
    let mut meter = Meter::default();
    if file.metadata()?.len() > size {
        file.set_len(0)?;
    }
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(meter),
            read => meter.update(&buffer[..read]),
        }
    }
}

/// As much as comes. What cut it is told.
async fn more(
    repository: &Repository,
    blob: &Descriptor,
    file: &mut File,
    meter: &mut Meter,
    bar: &Bar<'_>,
) -> Result<Option<String>, ImageError> {
    let (response, start) = repository.blob(&blob.digest, meter.length).await?;
    if start != meter.length {
        bar.lost(meter.length);
        *meter = Meter::default();
        file.set_len(0).doing(|| "beginning a blob again".into())?;
    }
    file.seek(SeekFrom::Start(meter.length)).doing(|| "going on with a blob".into())?;
    let most = blob.size - meter.length;
    fetch::save(response, file, most, &mut |bytes| {
        meter.update(bytes);
        bar.came(bytes.len() as u64);
        bar.go_on()
    })
    .await
}
