//! How far a pull is, for whoever waits for it: often enough to be seen moving, not more.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use sandbox_core::{Fetching, Progress, Reference};

use crate::ImageError;

const EVERY: Duration = Duration::from_millis(100);

/// Adds up what several layers report.
pub struct Bar<'a> {
    progress: Progress<'a>,
    shown: Mutex<Shown>,
    came: AtomicU64,
    unpacked: Arc<AtomicU64>,
    failed: AtomicBool,
}

struct Shown {
    name: String,
    total: u64,
    last: Option<Instant>,
}

/// What one worker has written.
pub struct Writer {
    sum: Arc<AtomicU64>,
    before: AtomicU64,
}

impl Writer {
    /// So much by now.
    pub fn at(&self, bytes: u64) {
        let before = self.before.swap(bytes, Ordering::Relaxed);
        self.sum.fetch_add(bytes.saturating_sub(before), Ordering::Relaxed);
    }
}

impl<'a> Bar<'a> {
    /// Nothing has come yet.
    pub fn new(progress: Progress<'a>) -> Self {
        let shown = Mutex::new(Shown { name: String::new(), total: 0, last: None });
        Self { progress, shown, came: AtomicU64::new(0), unpacked: Arc::default(), failed: AtomicBool::new(false) }
    }

    /// Something that is no matter of bytes.
    pub fn step(&self, step: String) {
        (self.progress)(Fetching { step, done: 0, total: None });
    }

    /// So much will come for this image.
    pub fn expect(&self, name: &Reference, total: u64) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = Shown { name: name.to_string(), total, last: None };
        self.came.store(0, Ordering::Relaxed);
        self.unpacked.store(0, Ordering::Relaxed);
    }

    /// More came.
    pub fn came(&self, bytes: u64) {
        self.came.fetch_add(bytes, Ordering::Relaxed);
        self.show();
    }

    /// What came has to come again.
    pub fn lost(&self, bytes: u64) {
        self.came.fetch_sub(bytes.min(self.came.load(Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Notes that there will be no image.
    pub fn failed_if<T>(&self, ended: &Result<T, ImageError>) {
        self.failed.fetch_or(ended.is_err(), Ordering::Relaxed);
    }

    /// An error, if there will be none anyway.
    pub fn go_on(&self) -> Result<(), ImageError> {
        match self.failed.load(Ordering::Relaxed) {
            true => Err(ImageError::NoSource("another layer could not be brought".into())),
            false => Ok(()),
        }
    }

    /// For one worker.
    pub fn writer(&self) -> Writer {
        Writer { sum: self.unpacked.clone(), before: AtomicU64::new(0) }
    }

    /// Shows what goes on while something is waited for.
    pub async fn meanwhile<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            match tokio::time::timeout(EVERY, &mut work).await {
                Ok(done) => return done,
                Err(_) => self.show(),
            }
        }
    }

    fn show(&self) {
        let fetching = {
            let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
            if shown.last.is_some_and(|last| last.elapsed() < EVERY) {
                return;
            }
            shown.last = Some(Instant::now());
            let came = self.came.load(Ordering::Relaxed).min(shown.total);
            let unpacked = self.unpacked.load(Ordering::Relaxed);
            if came < shown.total {
                Fetching { step: format!("fetching {}", shown.name), done: came, total: Some(shown.total) }
            } else {
                Fetching { step: format!("unpacking {}", shown.name), done: unpacked, total: None }
            }
        };
        (self.progress)(fetching);
    }
}
