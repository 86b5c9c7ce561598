//! How long starts take: a whole sandbox with a first command, and a command in a sandbox that is there already; one
//! alone, and many at once.

use std::path::Path;

use anyhow::Result;

use crate::{
    clock::{Row, Variant, interleave},
    mcp::Server,
    ours::Embedded,
    program::CommandLine,
    rivals::{Docker, ECHO, bwrap, plain},
};

/// Names of what is compared.
pub mod names {
    #![allow(missing_docs, reason = "the names say it")]
    pub const PLAIN: &str = "plain spawn on the host";
    pub const LIBRARY: &str = "embedded, by library";
    pub const MCP: &str = "embedded, over MCP stdio";
    pub const ONE_SHOT: &str = "`sandbox-mcp exec -- echo`";
    pub const ONE_SHOT_TRUE: &str = "`sandbox-mcp exec -- true`";
    pub const BWRAP: &str = "`bwrap`, same namespaces";
    pub const BWRAP_TRUE: &str = "`bwrap … true`";
    pub const DOCKER: &str = "`docker run --rm`";
    pub const DOCKER_TRUE: &str = "`docker run --rm … true`";
    pub const DOCKER_EXEC: &str = "`docker exec`";
}
use names::*;

/// How many are "many at once".
pub const MANY: usize = 50;

/// What is needed to start each of them.
pub struct Field<'a> {
    /// The embedded backend.
    pub embedded: &'a Embedded,
    /// The program.
    pub sandbox_mcp: &'a Path,
    /// A folder for everything.
    pub folder: &'a Path,
    /// The engine, where there is one.
    pub docker: Option<&'a Docker>,
}

/// From nothing to the first output and to the end, each alone.
pub fn cold(field: &Field<'_>, rounds: usize) -> Result<Vec<Row>> {
    let mut server = Server::start(field.sandbox_mcp, &field.folder.join("mcp"))?;
    let bwrap = bwrap(field.folder);
    let mut variants = vec![
        timed(PLAIN, plain()),
        Variant::new(LIBRARY, || field.embedded.time_start()),
        Variant::new(MCP, || server.time_start()),
        timed(ONE_SHOT, one_shot(field, &ECHO)),
        timed(ONE_SHOT_TRUE, one_shot(field, &["true"])),
        timed(BWRAP, bwrap.with(ECHO)),
        timed(BWRAP_TRUE, bwrap.with(["true"])),
    ];
    if let Some(docker) = field.docker {
        variants.push(timed(DOCKER, docker.run(&ECHO)));
        variants.push(timed(DOCKER_TRUE, docker.run(&["true"])));
    }
    interleave(rounds, variants)
}

/// The same, many at once.
pub fn cold_at_once(field: &Field<'_>, rounds: usize) -> Result<Vec<Row>> {
    let mut variants = vec![
        many(PLAIN, plain()),
        Variant::many(LIBRARY, || field.embedded.time_starts(MANY)),
        many(ONE_SHOT, one_shot(field, &ECHO)),
        many(BWRAP, bwrap(field.folder).with(ECHO)),
    ];
    if let Some(docker) = field.docker {
        variants.push(many(DOCKER, docker.run(&ECHO)));
    }
    interleave(rounds, variants)
}

/// A command where a sandbox is there already, alone and many at once.
pub fn live(field: &Field<'_>, rounds: usize, rounds_at_once: usize) -> Result<(Vec<Row>, Vec<Row>)> {
    let idle = field.embedded.idle()?;
    let container = field.docker.map(Docker::start_idle).transpose()?;
    let docker_exec = field.docker.zip(container.as_ref()).map(|(docker, id)| docker.exec(id, &ECHO));

    let mut one = vec![timed(PLAIN, plain()), Variant::new(LIBRARY, || field.embedded.time_exec(&idle))];
    one.extend(docker_exec.clone().map(|line| timed(DOCKER_EXEC, line)));
    let one = interleave(rounds, one)?;

    let mut at_once = vec![many(PLAIN, plain()), Variant::many(LIBRARY, || field.embedded.time_execs(&idle, MANY))];
    at_once.extend(docker_exec.map(|line| many(DOCKER_EXEC, line)));
    let at_once = interleave(rounds_at_once, at_once)?;

    if let Some((docker, container)) = field.docker.zip(container) {
        docker.remove(&[container])?;
    }
    field.embedded.remove(vec![idle], 1)?;
    Ok((one, at_once))
}

fn one_shot(field: &Field<'_>, command: &[&str]) -> CommandLine {
    CommandLine::new([field.sandbox_mcp.display().to_string(), "exec".to_owned(), "--".to_owned()])
        .with(command.iter().copied())
}

fn timed(name: &'static str, line: CommandLine) -> Variant<'static> {
    Variant::new(name, move || line.time())
}

fn many(name: &'static str, line: CommandLine) -> Variant<'static> {
    Variant::many(name, move || line.time_at_once(MANY))
}
