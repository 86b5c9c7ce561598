//! The way out of a sandbox: how fast bytes come in, how long a connection takes, and what one costs that is held.
//!
//! A server on loopback is reached without a sandbox, behind a pair of virtual cards, behind `slirp4netns`, and from a
//! sandbox in every way that it has, always by the same client. Nothing leaves this machine.

pub mod client;
mod ground;
mod held;
mod inside;
pub mod page;
mod traffic;
mod ways;
mod weight;

use std::{path::Path, time::Duration};

use anyhow::{Context, Result};

use self::{
    client::Job,
    ground::Ground,
    inside::Inside,
    traffic::Traffic,
    ways::{Missing, Way, ways},
};
pub use self::{held::Held, ways::names};
use crate::{clock::Samples, machine};

/// How many downloads are "many at once".
pub const MANY: usize = 8;

/// How often and how much.
pub struct Size {
    /// Rounds of everything.
    pub rounds: usize,
    /// Bytes of one download, and of many at once together.
    pub bytes: u64,
    /// Connections one after the other in a round.
    pub connects: usize,
    /// Connections that are held at once.
    pub held: usize,
}

/// What was measured.
pub struct WayOut {
    /// Bytes of one download, and of many at once together.
    pub bytes: u64,
    /// All ways, in the order in which they are shown.
    pub rows: Vec<Row>,
    /// Connections that were held.
    pub held: Held,
    /// What the machine had to do before.
    pub load: String,
    /// What could not be compared with, and why.
    pub missing: Missing,
}

/// The times of one way. A client that does not do something has none of it.
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Of one download.
    pub one: Samples,
    /// Of many at once.
    pub many: Samples,
    /// From a connection's beginning to the first byte of the reply.
    pub connects: Samples,
}

impl WayOut {
    /// The times of one way, if it was measured.
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Times of downloads as MB/s, by their median.
    pub fn speed(&self, times: &Samples) -> f64 {
        self.bytes as f64 / 1e3 / times.median()
    }

    /// Why there is no such row.
    pub fn why_missing(&self, name: &str) -> &str {
        self.missing.iter().find(|(missing, _)| *missing == name).map_or("not measured", |(_, why)| why)
    }
}

/// Measures all ways in turns, round after round, and drops the first.
pub fn measure(sandbox_mcp: &Path, folder: &Path, size: &Size) -> Result<WayOut> {
    let load = machine::load();
    let ground = Ground::make()?;
    let traffic = Traffic::start(ground.namespace())?;
    let mut inside = Inside::make(sandbox_mcp, folder, &ground, traffic.port)?;
    let (ways, missing) = ways(&ground, traffic.port)?;
    // First of all, for memory that was used once is used again.
    let held = held::measure(&mut inside, &traffic, &ways, size.held)?;

    let empty = |way: &Way| Row {
        name: way.name,
        one: Samples::default(),
        many: Samples::default(),
        connects: Samples::default(),
    };
    let mut rows: Vec<Row> = ways.iter().map(empty).collect();
    for round in 0..=size.rounds {
        for at in (0..ways.len()).map(|step| (step + round) % ways.len()) {
            let (way, row) = (&ways[at], &mut rows[at]);
            let mut into = |samples: &mut Samples, job, count, bytes| -> Result<()> {
                let times = way.run(&mut inside, job, count, bytes);
                let times = times.with_context(|| format!("{} in round {round}", way.name))?;
                let times = times.into_iter().filter(|_| round > 0);
                times.for_each(|seconds| samples.add(Duration::from_secs_f64(seconds)));
                Ok(())
            };
            into(&mut row.one, Job::Download, 1, size.bytes)?;
            into(&mut row.many, Job::Download, MANY, size.bytes / MANY as u64)?;
            into(&mut row.connects, Job::Connect, size.connects, 1)?;
        }
    }
    Ok(WayOut { bytes: size.bytes, rows, held, load, missing })
}
