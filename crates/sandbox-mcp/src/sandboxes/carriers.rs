//! Threads that carry bytes between sandboxes and the world. However much that is, nobody who asks the server for
//! something waits behind it.
//!
//! Each has a runtime of its own, and a sandbox stays with one: bytes that wake another thread at every step travel half
//! as fast, and what one sandbox carries keeps one processor busy at most.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use tokio::{
    runtime::{Builder, Handle},
    sync::watch,
};

/// Threads at most.
const MOST: usize = 4;

/// All carriers of a server.
pub(super) struct Carriers {
    threads: Vec<Handle>,
    next: AtomicUsize,
    /// They end when this is gone.
    _end: watch::Sender<()>,
}

impl Carriers {
    /// Starts them.
    pub(super) fn start() -> io::Result<Self> {
        let (end, ended) = watch::channel(());
        let count = thread::available_parallelism().map_or(1, usize::from).min(MOST);
        let threads = (0..count).map(|_| carrier(ended.clone())).collect::<io::Result<_>>()?;
        Ok(Self { threads, next: AtomicUsize::new(0), _end: end })
    }

    /// The one for the next sandbox.
    pub(super) fn next(&self) -> &Handle {
        &self.threads[self.next.fetch_add(1, Ordering::Relaxed) % self.threads.len()]
    }
}

fn carrier(mut ended: watch::Receiver<()>) -> io::Result<Handle> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    thread::Builder::new().name("carrier".to_owned()).spawn(move || {
        sandbox_linux::interrupt_nobody();
        // Nobody ever sends anything: it is over when the sender is gone.
        let _ = runtime.block_on(ended.changed());
        runtime.shutdown_background();
    })?;
    Ok(handle)
}
