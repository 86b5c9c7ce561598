//! Times: one measurement, many of them with median and 95th percentile, and the round that keeps comparisons fair.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// One start of something.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Until the first byte of output.
    pub first: Duration,
    /// Until everything was over and cleaned up.
    pub total: Duration,
}

/// A running measurement.
pub struct Stopwatch {
    start: Instant,
    first: Option<Duration>,
}

impl Stopwatch {
    /// Starts now.
    pub fn start() -> Self {
        Self { start: Instant::now(), first: None }
    }

    /// Output was seen; only the first time counts.
    pub fn output(&mut self) {
        self.first.get_or_insert_with(|| self.start.elapsed());
    }

    /// Everything is over.
    pub fn stop(self) -> Timing {
        let total = self.start.elapsed();
        Timing { first: self.first.unwrap_or(total), total }
    }
}

/// Many measurements of one thing, in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Takes one more.
    pub fn add(&mut self, time: Duration) {
        self.0.push(time.as_secs_f64() * 1e3);
    }

    /// Half are below it.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// 19 of 20 are below it.
    pub fn p95(&self) -> f64 {
        self.quantile(0.95)
    }

    /// The smallest.
    pub fn least(&self) -> f64 {
        self.quantile(0.0)
    }

    fn quantile(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().saturating_sub(1);
        sorted.get((last as f64 * part).round() as usize).copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<Duration> for Samples {
    fn from_iter<I: IntoIterator<Item = Duration>>(times: I) -> Self {
        let mut samples = Self::default();
        times.into_iter().for_each(|time| samples.add(time));
        samples
    }
}

/// What is measured, by name.
pub struct Variant<'a> {
    /// Shown in the tables.
    pub name: &'static str,
    start: Box<dyn FnMut() -> Result<Vec<Timing>> + 'a>,
}

impl<'a> Variant<'a> {
    /// Something that is started once a round.
    pub fn new(name: &'static str, mut start: impl FnMut() -> Result<Timing> + 'a) -> Self {
        Self::many(name, move || Ok(vec![start()?]))
    }

    /// Something that is started several times at once in a round.
    pub fn many(name: &'static str, start: impl FnMut() -> Result<Vec<Timing>> + 'a) -> Self {
        Self { name, start: Box::new(start) }
    }
}

/// The times of one variant.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Times to the first output.
    pub first: Samples,
    /// Times to the end.
    pub total: Samples,
}

/// Starts every variant once a round, round after round, so that whatever else the machine does hits all alike. Each
/// round begins with another variant, and the first round is dropped.
pub fn interleave(rounds: usize, mut variants: Vec<Variant<'_>>) -> Result<Vec<Row>> {
    let empty = |v: &Variant<'_>| Row { name: v.name, first: Samples::default(), total: Samples::default() };
    let mut rows: Vec<Row> = variants.iter().map(empty).collect();
    let count = variants.len();
    for round in 0..=rounds {
        for at in (0..count).map(|step| (step + round) % count) {
            let variant = &mut variants[at];
            let timings = (variant.start)().with_context(|| format!("{} in round {round}", variant.name))?;
            for timing in timings.into_iter().filter(|_| round > 0) {
                rows[at].first.add(timing.first);
                rows[at].total.add(timing.total);
            }
        }
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn quantiles_of_a_known_row() {
        let samples: Samples = (0..=100).map(Duration::from_millis).collect();
        assert_eq!((samples.least(), samples.median(), samples.p95()), (0.0, 50.0, 95.0));
    }

    #[test]
    fn the_first_round_is_dropped() {
        let mut started = 0;
        let slow_start = Variant::new("one", || {
            started += 1;
            let time = Duration::from_millis(if started == 1 { 100 } else { 1 });
            Ok(Timing { first: time, total: time })
        });
        let rows = interleave(3, vec![slow_start]).unwrap();
        assert_eq!(rows[0].total.p95(), 1.0);
    }
}
