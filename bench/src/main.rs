//! Measures the embedded backend against docker, `bwrap` and a plain spawn, in one run. `bench/run` starts it.

#![forbid(unsafe_code)]

mod clock;
mod engines;
mod files;
mod goals;
mod machine;
mod mcp;
mod memory;
mod model;
mod ours;
mod plot;
mod program;
mod results;
mod rivals;
mod scale;
mod starts;
mod tasks;
mod way_out;

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context, Result};
use clap::Parser;

use crate::{
    engines::Engines,
    machine::Machine,
    ours::Embedded,
    results::{NOT_HERE, Part, Results},
    rivals::Docker,
    starts::Field,
};

/// Measures, and writes RESULTS.md and results.svg.
#[derive(Parser)]
struct Arguments {
    /// The program to measure.
    #[arg(long)]
    sandbox_mcp: PathBuf,
    /// A folder for everything that is made on the way.
    #[arg(long)]
    state: PathBuf,
    /// Where the results go.
    #[arg(long)]
    out: PathBuf,
    /// Socket of a docker engine that has an image named `bench`.
    #[arg(long)]
    docker: Option<PathBuf>,
    /// Why there is none.
    #[arg(long, default_value = "not asked for")]
    no_docker: String,
    /// The engine knows gVisor as `runsc`.
    #[arg(long)]
    gvisor: bool,
    /// A folder that has Claude Code in it, as `sandbox-mcp agents install` leaves it.
    #[arg(long)]
    agents: Option<PathBuf>,
    /// Why there is none.
    #[arg(long, default_value = "not asked for")]
    no_agents: String,
    /// Few rounds and small numbers: shows that everything works, not how fast.
    #[arg(long)]
    short: bool,
    /// Measure this part only: starts, commands, "starts at once", rates, memory, crowd, files, "way out", engines, gvisor,
    /// images, loads, tasks or "claude code".
    #[arg(long)]
    only: Option<String>,
}

/// How often and how much.
struct Size {
    rounds: usize,
    rounds_at_once: usize,
    execs: usize,
    rate_turns: usize,
    idle: [usize; 2],
    crowd: usize,
    file: u64,
    file_rounds: usize,
    way_out: way_out::Size,
    engine_rounds: usize,
    loads: usize,
    tasks: usize,
    claude_code: usize,
}

const FULL: Size = Size {
    rounds: 40,
    rounds_at_once: 3,
    execs: 100,
    rate_turns: 7,
    idle: [100, 16],
    crowd: 1000,
    file: 1 << 30,
    file_rounds: 8,
    way_out: way_out::Size { rounds: 4, bytes: 500_000_000, connects: 200, held: 1000 },
    engine_rounds: 15,
    loads: 5,
    tasks: 40,
    claude_code: 10,
};
const SHORT: Size = Size {
    rounds: 5,
    rounds_at_once: 1,
    execs: 10,
    rate_turns: 1,
    idle: [30, 4],
    crowd: 100,
    file: 128 << 20,
    file_rounds: 1,
    way_out: way_out::Size { rounds: 1, bytes: 100_000_000, connects: 20, held: 200 },
    engine_rounds: 2,
    loads: 1,
    tasks: 3,
    claude_code: 1,
};

fn main() -> Result<()> {
    sandbox_linux::run_role_if_asked();
    if let Some(ended) = way_out::client::run_if_asked() {
        return ended;
    }
    let arguments = Arguments::parse();
    let results = measure(&arguments)?;
    fs::write(arguments.out.join("RESULTS.md"), results.to_markdown())?;
    fs::write(arguments.out.join("results.svg"), plot::to_svg(&results))?;
    if arguments.only.is_some() {
        return Ok(());
    }
    let failures = results.failures();
    for why in &failures {
        eprintln!("bench: {why}");
    }
    anyhow::ensure!(failures.is_empty(), "{} parts could not be measured", failures.len());
    Ok(())
}

fn measure(arguments: &Arguments) -> Result<Results> {
    let size = if arguments.short { &SHORT } else { &FULL };
    let machine = Machine::here();
    let docker = match &arguments.docker {
        Some(socket) => Docker::connect(socket, "bench").map_err(|error| error.to_string()),
        None => Err(arguments.no_docker.clone()),
    };
    let engine = docker.as_ref().ok();
    let folder = arguments.state.as_path();
    let embedded = Embedded::start(&private(folder, "library")?).context("starting the embedded backend")?;
    private(folder, "mcp")?;
    let field = Field { embedded: &embedded, sandbox_mcp: &arguments.sandbox_mcp, folder, docker: engine };
    let part = Chosen(arguments.only.as_deref());
    let engines = match engine {
        Some(docker) => {
            let field = engines::Field { sandbox_mcp: &arguments.sandbox_mcp, folder, docker };
            Engines {
                docker: part.measure("engines", || field.docker(size.engine_rounds)),
                gvisor: match arguments.gvisor {
                    true => part.measure("gvisor", || field.gvisor(size.engine_rounds)),
                    false => Err(format!("gvisor: {NOT_HERE}")),
                },
                images: part.measure("images", || field.images(size.rounds, &field.archive()?)),
                loads: part.measure("loads", || field.loads(size.loads, &field.archive()?)),
            }
        }
        None => {
            let none = || Err("engines: no docker".to_owned());
            Engines { docker: none(), gvisor: none(), images: none(), loads: none() }
        }
    };
    let agents = arguments.agents.clone().ok_or_else(|| format!("{}: {NOT_HERE}", arguments.no_agents));
    let tasks = tasks::Field { sandbox_mcp: &arguments.sandbox_mcp, folder, agents };
    Ok(Results {
        engines,
        tasks: part.measure("tasks", || tasks.own(size.tasks)),
        claude_code: part.measure("claude code", || tasks.claude_code(size.claude_code)),
        machine,
        cold: part.measure("starts", || starts::cold(&field, size.rounds)),
        live: part.measure("commands", || starts::live(&field, size.execs, size.rounds_at_once)),
        cold_at_once: part.measure("starts at once", || starts::cold_at_once(&field, size.rounds_at_once)),
        rates: part.measure("rates", || scale::rates(&embedded, engine, size.rate_turns)),
        footprints: part.measure("memory", || scale::footprints(&embedded, engine, size.idle[0], size.idle[1])),
        crowd: part.measure("crowd", || scale::crowd(&embedded, size.crowd)),
        transfers: part.measure("files", || files::transfers(&embedded, folder, size.file, size.file_rounds)),
        way_out: part.measure("way out", || way_out::measure(&arguments.sandbox_mcp, folder, &size.way_out)),
        docker: docker.and_then(|docker| docker.version().map_err(|error| error.to_string())),
    })
}

/// The part that was asked for, or all.
struct Chosen<'a>(Option<&'a str>);

impl Chosen<'_> {
    /// A failure is told in the results, and the other parts go on.
    fn measure<T>(&self, name: &str, measure: impl FnOnce() -> Result<T>) -> Part<T> {
        if self.0.is_some_and(|chosen| chosen != name) {
            return Err(format!("{name}: not asked for"));
        }
        let start = Instant::now();
        let result = measure().map_err(|error| format!("{name}: {error:#}"));
        let outcome = if result.is_ok() { "measured" } else { "failed" };
        eprintln!("bench: {name}: {outcome} in {:.0} s", start.elapsed().as_secs_f64());
        result
    }
}

fn private(folder: &Path, name: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    fs::DirBuilder::new().mode(0o700).recursive(true).create(&path)?;
    Ok(path)
}
