//! A large file into a sandbox and out of it, against `cp` on the same disk.

use std::{
    fs::{self, File},
    io::{Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use sandbox_executor::{client::Client, protocol::NewFile};

use crate::{
    clock::{Row, Stopwatch, Timing, Variant, interleave},
    ours::Embedded,
    program::CommandLine,
};

/// Names of what is compared.
pub mod names {
    #![allow(missing_docs, reason = "the names say it")]
    pub const INTO: &str = "into a sandbox";
    pub const OUT: &str = "out of a sandbox";
    pub const COPY: &str = "`cp`";
}
use names::*;

const INSIDE: &str = "/workspace/large";
const PIECE: usize = 256 << 10;

/// Times for one file of so many bytes.
pub struct Transfers {
    /// Its size.
    pub bytes: u64,
    /// Times of the three ways.
    pub rows: Vec<Row>,
}

impl Transfers {
    /// The speed of the quickest round of one way, in MB/s.
    pub fn speed(&self, name: &str) -> f64 {
        let row = self.rows.iter().find(|row| row.name == name);
        row.map_or(f64::NAN, |row| self.bytes as f64 / 1e3 / row.total.least())
    }
}

/// Moves a file of this size, round after round. Each way has a target of its own, which is removed right before: memory
/// that was just given back is quick to have again, other memory of a virtual machine may not be, and so all get the same.
/// For the same reason what is copied was just read.
pub fn transfers(embedded: &Embedded, folder: &Path, bytes: u64, rounds: usize) -> Result<Transfers> {
    let [source, copied, fetched] = ["source", "copied", "fetched"].map(|name| folder.join(name));
    make_file(&source, bytes)?;
    let idle = embedded.idle()?;
    let first = embedded.wait(send(idle.client(), source.clone()))?;
    ensure!(first > Duration::ZERO, "nothing was sent");

    let line = CommandLine::new(["cp".to_owned(), source.display().to_string(), copied.display().to_string()]);
    let rows = interleave(
        rounds,
        vec![
            Variant::new(COPY, || {
                warm(&source)?;
                afresh(|| remove(&copied), || Ok(line.time()?.total))
            }),
            Variant::new(INTO, || {
                warm(&source)?;
                let forget = || embedded.wait(forget(idle.client()));
                afresh(forget, || embedded.wait(send(idle.client(), source.clone())))
            }),
            Variant::new(OUT, || {
                embedded.wait(fetch(idle.client(), "/dev/null".into()))?;
                let timing = afresh(|| remove(&fetched), || embedded.wait(fetch(idle.client(), fetched.clone())))?;
                ensure!(fs::metadata(&fetched)?.len() == bytes, "the copy has another size");
                Ok(timing)
            }),
        ],
    )?;
    embedded.remove(vec![idle], 1)?;
    [source, copied, fetched].iter().try_for_each(|file| remove(file))?;
    Ok(Transfers { bytes, rows })
}

/// Without an old copy and without writes of others under way.
fn afresh(remove: impl FnOnce() -> Result<()>, transfer: impl FnOnce() -> Result<Duration>) -> Result<Timing> {
    CommandLine::new(["sync"]).output()?;
    remove()?;
    let watch = Stopwatch::start();
    transfer()?;
    Ok(watch.stop())
}

fn warm(file: &Path) -> Result<()> {
    std::io::copy(&mut File::open(file)?, &mut std::io::sink())?;
    Ok(())
}

fn remove(file: &Path) -> Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

async fn send(client: Client, source: PathBuf) -> Result<Duration> {
    let start = Instant::now();
    let mut source = File::open(source)?;
    let mut piece = vec![0; PIECE];
    let mut writer = client.write().await?;
    writer.begin(&NewFile { path: INSIDE.into(), mode: None }).await?;
    loop {
        let length = source.read(&mut piece)?;
        if length == 0 {
            break;
        }
        writer.data(&piece[..length]).await?;
    }
    writer.finish().await?;
    Ok(start.elapsed())
}

async fn forget(client: Client) -> Result<()> {
    Ok(client.remove(&INSIDE.into()).await?)
}

async fn fetch(client: Client, copy: PathBuf) -> Result<Duration> {
    let start = Instant::now();
    let copy = Arc::new(File::create(copy)?);
    let mut reader = client.read(&INSIDE.into(), 0, None).await?;
    while let Some(load) = reader.next_load().await? {
        reader.reuse(load.write_to(&copy).await?);
    }
    Ok(start.elapsed())
}

/// Bytes that look random, so that nothing on the way can make them fewer.
fn make_file(path: &Path, bytes: u64) -> Result<()> {
    let mut block = vec![0; 1 << 20];
    File::open("/dev/urandom")?.read_exact(&mut block)?;
    let mut file = File::create(path)?;
    for number in 0..bytes >> 20 {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block)?;
    }
    Ok(file.sync_all()?)
}
