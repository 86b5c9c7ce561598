//! Starts programs of the host and takes their time. `std::process` uses `posix_spawn`, so a plain start is the floor.

use std::{
    io::Read,
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context, Result, bail, ensure};

use crate::clock::{Stopwatch, Timing};

/// A command line that can be started again and again.
#[derive(Clone, Debug)]
pub struct CommandLine(Vec<String>);

impl CommandLine {
    /// From its words.
    pub fn new<S: Into<String>>(words: impl IntoIterator<Item = S>) -> Self {
        Self(words.into_iter().map(Into::into).collect())
    }

    /// With more words at the end.
    pub fn with<S: Into<String>>(&self, words: impl IntoIterator<Item = S>) -> Self {
        let mut all = self.0.clone();
        all.extend(words.into_iter().map(Into::into));
        Self(all)
    }

    /// Its words.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Starts it, waits for its first byte and for its end.
    pub fn time(&self) -> Result<Timing> {
        let mut watch = Stopwatch::start();
        let mut command = self.command();
        let starting = || format!("starting {}", self.0[0]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().with_context(starting)?;
        let mut stdout = child.stdout.take().context("a pipe was asked for")?;
        let mut bytes = [0; 4096];
        while stdout.read(&mut bytes)? > 0 {
            watch.output();
        }
        let status = child.wait()?;
        let timing = watch.stop();
        if !status.success() {
            let mut complaint = String::new();
            child.stderr.take().context("a pipe was asked for")?.read_to_string(&mut complaint)?;
            bail!("{} ended with {status}: {}", self.0.join(" "), complaint.trim());
        }
        Ok(timing)
    }

    /// Starts so many at once, each followed by a thread of its own.
    pub fn time_at_once(&self, count: usize) -> Result<Vec<Timing>> {
        let threads: Vec<_> = (0..count)
            .map(|_| {
                let line = self.clone();
                thread::spawn(move || line.time())
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?).collect()
    }

    /// What it prints.
    pub fn output(&self) -> Result<String> {
        let output =
            self.command().stderr(Stdio::piped()).output().with_context(|| format!("starting {}", self.0[0]))?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", self.0.join(" "), complaint.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Ready to be started, with nothing to read.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.0[0]);
        command.args(&self.0[1..]).stdin(Stdio::null());
        command
    }
}
