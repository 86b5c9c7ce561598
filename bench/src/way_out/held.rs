//! What a connection costs that is there and does nothing.

use std::{thread, time::Duration};

use anyhow::{Context, Result, anyhow};

use super::{
    client::Job,
    inside::Inside,
    traffic::Traffic,
    ways::{Way, names::*},
};
use crate::memory::{Group, Moment, resident};

const PATIENCE: Duration = Duration::from_secs(20);
const SETTLE: Duration = Duration::from_millis(500);
const TRIES: usize = 3;

/// KiB for each of so many connections.
pub struct Held {
    /// How many.
    pub count: usize,
    /// What the server process of a sandbox grew by, transparently.
    pub transparent: f64,
    /// The same through the proxy.
    pub tunnel: f64,
    /// What the kernel holds for a transparent one, above what it holds for one without a sandbox; none where the rest of
    /// the machine did more than that.
    pub kernel: Option<f64>,
}

/// Holds so many in each way. A process keeps what it once had, so all is compared with what it had before any, and the most
/// counts. What the kernel holds is known only of the whole machine, which does other things too: of that, the middle one.
pub fn measure(inside: &mut Inside, traffic: &Traffic, ways: &[Way], count: usize) -> Result<Held> {
    let before = resident(inside.server())?;
    let mut hold = |name| -> Result<(f64, f64)> {
        let way = ways.iter().find(|way| way.name == name).with_context(|| format!("no way is called {name}"))?;
        let (kernel, server) = (kernel()?, inside.server());
        let (resident, kernel_held) = thread::scope(|scope| {
            let client = scope.spawn(|| way.run(inside, Job::Hold, count, 1));
            let seen = traffic.await_held(count, PATIENCE).and_then(|()| {
                thread::sleep(SETTLE);
                Ok((resident(server)?, self::kernel()?))
            });
            traffic.release();
            let ended = client.join().map_err(|_| anyhow!("a thread panicked"))?;
            // A client that failed knows best why.
            ended.with_context(|| format!("holding connections: {name}"))?;
            seen
        })?;
        thread::sleep(SETTLE);
        Ok(((resident - before) / count as f64, (kernel_held - kernel) / count as f64))
    };
    let (mut transparent, mut differences) = (0_f64, Vec::new());
    for _ in 0..TRIES {
        let (_, plain) = hold(LOOPBACK)?;
        let (grown, kernel) = hold(TRANSPARENT)?;
        transparent = transparent.max(grown);
        differences.push(kernel - plain);
    }
    let (tunnel, _) = hold(TUNNEL)?;
    differences.sort_by(f64::total_cmp);
    // Nothing is held for less than nothing: then others have given back more.
    let kernel = differences.get(TRIES / 2).copied().filter(|middle| *middle > 0.0);
    Ok(Held { count, transparent, tunnel, kernel })
}

fn kernel() -> Result<f64> {
    Ok(Moment::now(&Group::Own)?.kernel)
}
