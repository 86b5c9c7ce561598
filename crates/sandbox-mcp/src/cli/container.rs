//! `MCP_MODE=sandbox`: in a container, this program by itself is an MCP server for that container.
//!
//! As the first process it stays small: it starts the server as a child, hands signals on, buries whatever has lost its
//! parent, and ends with the server. The server ends with its standard input.

use std::{
    ffi::OsString,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::PathBuf,
    process::Command,
    sync::Arc,
};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process};
use sandbox_core::{Bytes, Image};
use sandbox_linux::here::{self, Here};
use tokio::signal::unix::{SignalKind, signal};

use super::{exit, terminal::stop_asked};
use crate::{
    app::App,
    config::{self, Flags, Settings},
    mcp::{self, bound},
    sandboxes::{Backends, Kept, Lifetime, NewSandbox, Sandboxes},
};

/// Names the mode.
const VARIABLE: &str = "MCP_MODE";
/// The one that there is.
const SANDBOX: &str = "sandbox";
/// How the first process of a container calls the server that it starts.
const OF_FIRST: &str = "sandbox-mcp-of-container";
/// What engines leave in the containers that they make.
const MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];
/// The PID namespace of a machine's first process (PROC_PID_INIT_INO in the kernel's proc_ns.h).
const OF_MACHINE: &str = "pid:[4026531836]";
const VARIABLES: [&str; 2] = ["container", "KUBERNETES_SERVICE_HOST"];

/// Whether this program was started as a container's own server: by the variable, and with nothing else to do.
pub(super) fn is_asked() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    let said = std::env::var_os(VARIABLE).is_some_and(|mode| !mode.is_empty());
    said && matches!((arguments.next(), arguments.next()), (None, _) | (Some(_), None)) && only_serve()
}

fn only_serve() -> bool {
    std::env::args_os().nth(1).is_none_or(|word| word == "serve")
}

/// Serves until standard input ends.
pub(super) fn main() -> anyhow::Result<u8> {
    check(std::env::var_os(VARIABLE))?;
    if !is_container() {
        bail!(
            "{VARIABLE}={SANDBOX} serves the container that this runs in, but this is no container: commands would run on \
             this machine itself, with no wall around them. Use `sandbox-mcp serve` with {VARIABLE} not set"
        );
    }
    let hiding = "this process cannot be hidden from commands";
    Here::hide().context(hiding)?;
    let runtime = |threads: &mut tokio::runtime::Builder| threads.enable_all().build();
    if getpid() == Pid::INIT {
        return runtime(&mut tokio::runtime::Builder::new_current_thread())?.block_on(first());
    }
    let (settings, temporary) = settings()?;
    super::start_log(&settings);
    let runtime = runtime(&mut tokio::runtime::Builder::new_multi_thread())?;
    let code = runtime.block_on(serve(settings));
    runtime.shutdown_timeout(super::FAREWELL);
    if let Some(folder) = temporary {
        let _ = std::fs::remove_dir_all(folder);
    }
    code
}

fn check(mode: Option<OsString>) -> anyhow::Result<()> {
    match mode.unwrap_or_default().to_str() {
        Some(SANDBOX) => Ok(()),
        mode => bail!(
            "{VARIABLE} is `{}`, but must be `{SANDBOX}` (serve MCP for the container that this runs in), or not be set",
            mode.unwrap_or("no text")
        ),
    }
}

/// Nothing is served where nothing is around it. Marks alone prove little: machines that were made from an image have them too,
/// but all their processes are in the first namespace that a kernel has.
fn is_container() -> bool {
    if std::fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() == OF_MACHINE) {
        return false;
    }
    let of_first = std::env::args_os().next().is_some_and(|name| name == OF_FIRST);
    let marked = MARKS.iter().any(|mark| std::path::Path::new(mark).exists());
    getpid() == Pid::INIT || of_first || marked || VARIABLES.iter().any(|name| std::env::var_os(name).is_some())
}

/// The first process of a container: nothing but the server, its signals, and orphans.
async fn first() -> anyhow::Result<u8> {
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup(), SignalKind::quit()];
    let [mut terminate, mut interrupt, mut hangup, mut quit] = kinds.map(signal);
    let mut ended = signal(SignalKind::child())?;
    let child = Command::new(std::env::current_exe()?).arg0(OF_FIRST).args(std::env::args_os().skip(1)).spawn();
    let server = Pid::from_child(&child.context("the server cannot be started")?);
    loop {
        let forward = tokio::select! {
            _ = ended.recv() => None,
            _ = received(&mut terminate) => Some(Signal::TERM),
            _ = received(&mut interrupt) => Some(Signal::INT),
            _ = received(&mut hangup) => Some(Signal::HUP),
            _ = received(&mut quit) => Some(Signal::QUIT),
        };
        if let Some(signal) = forward {
            let _ = kill_process(server, signal);
        }
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            if pid == server {
                return Ok(code(std::process::ExitStatus::from_raw(status.as_raw())));
            }
        }
    }
}

async fn received(signal: &mut std::io::Result<tokio::signal::unix::Signal>) {
    match signal {
        Ok(signal) => drop(signal.recv().await),
        Err(_) => std::future::pending().await,
    }
}

fn code(status: std::process::ExitStatus) -> u8 {
    let killed = || status.signal().map(|signal| 128 + signal);
    status.code().or_else(killed).and_then(|code| code.try_into().ok()).unwrap_or(exit::FAILED)
}

/// The operator's, with what makes no sense in a container left out; and the folder to remove at the end.
fn settings() -> anyhow::Result<(Settings, Option<PathBuf>)> {
    let said = ["WORKSPACE_BASE", "XDG_STATE_HOME"].iter().any(|name| std::env::var_os(name).is_some());
    let state = if said { None } else { Some(place()?) };
    let mut settings = Settings::load(&Flags { state: state.clone(), ..Flags::default() })?;
    settings.idle = None;
    settings.memory_floor = Bytes(0);
    settings.warm = Vec::new();
    Ok((settings, state))
}

/// Where this process can keep what it knows while it lives: nothing of it is needed afterwards.
fn place() -> anyhow::Result<PathBuf> {
    let name = format!("sandbox-mcp-{}", std::process::id());
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let writable = |place: &PathBuf| rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok();
    let places = ["/tmp", "/dev/shm", "/var/tmp", "/run"].map(PathBuf::from).into_iter().chain(home);
    let place = places.into_iter().find(writable);
    Ok(place.context("no folder can be written: give the container a /tmp (`docker run --tmpfs /tmp …`)")?.join(name))
}

async fn serve(settings: Settings) -> anyhow::Result<u8> {
    config::prepare_state(&settings.state)?;
    let settings = Arc::new(settings);
    let backends = Backends::new(here::BACKEND).with(here::BACKEND, Arc::new(Here::new(&settings.state)));
    let sandboxes = Sandboxes::visit(settings.clone(), Some(backends), sandbox_linux::attach, Kept::Network)?;
    let (tasks, client) = (crate::agent::Tasks::default(), mcp::Client::default());
    let app = App { settings, sandboxes, tasks, caller: sandbox_core::UserId::local(), client };
    let new = NewSandbox {
        backend: None,
        image: Image::Host,
        policy: Here::policy(app.settings.max_timeout),
        lifetime: Lifetime::Temporary,
        env: Default::default(),
        tools: Vec::new(),
    };
    let session = app.sandboxes.create(&app.caller, new).await?;
    let (tools, instructions) = (&bound::IN_CONTAINER, bound::CONTAINER_INSTRUCTIONS);
    let bound = bound::Bound { session: session.id().clone(), tools, instructions, person: None };
    let served = tokio::select! {
        served = mcp::serve_one_on_stdio(app.clone(), bound) => served.map(|()| 0),
        signal = stop_asked() => Ok(128 + signal),
        why = session.until_ended() => Err(anyhow::anyhow!("{why}")),
    };
    app.sandboxes.close().await;
    served
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn another_mode_is_an_error_that_says_which_there_is() {
        assert!(check(Some("sandbox".into())).is_ok());
        for mode in ["gateway", "Sandbox", ""] {
            let told = check(Some(mode.into())).unwrap_err().to_string();
            assert!(told.contains(mode) && told.contains("`sandbox`"), "{told}");
        }
    }

    #[test]
    fn the_servers_end_is_the_containers() {
        assert_eq!(code(std::process::ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(std::process::ExitStatus::from_raw(9)), 137);
    }
}
