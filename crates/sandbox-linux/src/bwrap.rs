//! Where this program may not make user namespaces but the system's `bwrap` may (as some distributions arrange it by
//! AppArmor profile), `bwrap` starts the sandbox: the same plan, said in its words.
//!
//! It knows no layers and no grown privileges, so only the `host` image with a read-only root is offered this way.

use std::{
    fs,
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    rc::Rc,
    time::{Duration, Instant},
};

use rustix::fs::{Mode, OFlags};
use sandbox_core::{Error, Image, Result, SandboxSpec, policy};
use sandbox_executor::boot::FIRST_FREE_FD;

use crate::{
    birth::{self, Started, Supplies, memory_file},
    enact::{self, Baggage},
    plan::Plan,
    seccomp,
    steps::{Access, Step},
    sys::{self, Cloned},
    wall::{self, Wall},
    wire,
};

/// Where bwrap finds what it needs of us; the executor closes all of them.
const EXECUTOR: i32 = FIRST_FREE_FD;
const FILTER: i32 = FIRST_FREE_FD + 1;
const INFO: i32 = FIRST_FREE_FD + 2;
/// bwrap takes milliseconds; a system that takes this long has other problems.
const PATIENCE: Duration = Duration::from_secs(10);

/// The system's bwrap, if it is there and may make user namespaces.
pub fn find() -> Option<PathBuf> {
    let program =
        ["/usr/bin/bwrap", "/usr/local/bin/bwrap", "/bin/bwrap"].into_iter().find(|path| Path::new(path).exists())?;
    let mut command = Command::new(program);
    command.args(["--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--ro-bind", "/", "/"]);
    command.args(["--proc", "/proc", "--as-pid-1", "--clearenv", "/bin/true"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success()).then(|| program.into())
}

/// Refuses what bwrap cannot start.
pub fn check(spec: &SandboxSpec) -> Result<()> {
    let plain = spec.image == Image::Host
        && spec.policy.filesystem.root == policy::Root::ReadOnly
        && spec.policy.privileges.capabilities == policy::Capabilities::NONE;
    if plain {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: format!("the policy `{}` with the image `{}`", spec.policy.name, spec.image),
        why: "this program may not make user namespaces here, and bwrap, which starts sandboxes instead, has no layers".into(),
        fix: "Use the image `host` with a read-only root (yolo-3), or run `sandbox-mcp doctor` for how to allow user namespaces".into(),
    })
}

/// Starts the sandbox. The boot message is held back until the sandbox's own `/proc` is open, because the executor lets
/// nobody look at it afterwards.
pub fn start(program: &Path, baggage: &Baggage<'_>, supplies: &mut Supplies) -> io::Result<Started> {
    let (boot, boot_writer) = pipe()?;
    let message = supplies.boot.replace(boot).ok_or(io::ErrorKind::NotFound)?;
    let (info, info_writer) = pipe()?;
    let filter = memory_file("filter", &seccomp::to_bytes(baggage.filter))?;
    match sys::clone(0, supplies.cgroup.entry().folder())? {
        Cloned::Child => {
            let extra = [(baggage.executor, EXECUTOR), (filter.as_fd(), FILTER), (info_writer.as_fd(), INFO)];
            let (processors, counts) = (baggage.plan.confinement.processors, baggage.plan.counts);
            let placements = [&baggage.placements()[..], &supplies.placements(), &extra].concat();
            let why = enact::enter_cgroup(supplies.cgroup.entry().files())
                .and_then(|()| processors.map_or(Ok(()), enact::limit_processors))
                .and_then(|()| sys::place_descriptors(&placements))
                .and_then(|()| counts.limit_process())
                .map_or_else(
                    |error| error,
                    |()| Command::new(program).args(arguments(baggage.plan)).env_clear().exec(),
                );
            enact::report_failure(baggage.status, &format!("starting {} failed: {why}", program.display()))
        }
        Cloned::Parent { pidfd: child, .. } => {
            // An executor that ends before it has read all must not leave us waiting.
            drop((supplies.boot.take(), info_writer));
            match introduce(info, baggage.sync, boot_writer, message) {
                Ok((pid, first)) => Ok(Started { pid, first: Rc::new(first), child: Rc::new(child) }),
                Err(error) => {
                    birth::end(&child);
                    Err(error)
                }
            }
        }
    }
}

/// Waits until bwrap has become the executor, passes the sandbox's own `/proc` on, and lets the executor go.
fn introduce(info: OwnedFd, sync: BorrowedFd<'_>, boot: OwnedFd, message: OwnedFd) -> io::Result<(i32, OwnedFd)> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    struct Info {
        child_pid: i32,
    }
    let mut text = String::new();
    fs::File::from(info).read_to_string(&mut text)?;
    let pid = serde_json::from_str::<Info>(&text).map_err(io::Error::other)?.child_pid;
    let number = rustix::process::Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
    let first = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
    let process = Path::new("/proc").join(pid.to_string());
    let deadline = Instant::now() + PATIENCE;
    while !fs::read_link(process.join("exe"))?.to_string_lossy().contains("memfd:executor") {
        if Instant::now() > deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let proc = rustix::fs::open(process.join("root/proc"), flags, Mode::empty())?;
    wire::send(sync, b"proc", &[proc.as_fd()])?;
    io::copy(&mut fs::File::from(message), &mut fs::File::from(boot))?;
    Ok((pid, first))
}

fn arguments(plan: &Plan) -> Vec<String> {
    let mut arguments: Vec<String> = Vec::new();
    let mut say = |words: &[&str]| arguments.extend(words.iter().map(|word| (*word).to_owned()));
    let (id, info, filter) = (plan.first_id.to_string(), INFO.to_string(), FILTER.to_string());
    say(&["--unshare-all", "--unshare-user", "--uid", &id, "--gid", &id, "--hostname", "sandbox", "--as-pid-1"]);
    say(&["--die-with-parent", "--new-session", "--clearenv", "--info-fd", &info]);
    if wall::stands(Wall::Seccomp) {
        say(&["--seccomp", &filter]);
    }
    if !plan.boot.counts.is_empty() {
        // For what the executor does first of all; then it gives it up.
        say(&["--cap-add", "CAP_SYS_RESOURCE"]);
    }
    for text in wall::for_executor() {
        let text = text.to_string_lossy();
        let (name, value) = text.split_once('=').unwrap_or((&text, ""));
        say(&["--setenv", name, value]);
    }
    for step in &plan.steps {
        match step {
            Step::Tmpfs { target, .. } if target == "dev" => say(&["--dev", "/dev"]),
            Step::Tmpfs { target, size, mode } => {
                say(&["--perms", &format!("{mode:o}"), "--size", &size.to_string(), "--tmpfs", &format!("/{target}")]);
            }
            Step::Proc => say(&["--proc", "/proc"]),
            Step::Folder { target, .. } if !target.starts_with("dev/") => say(&["--dir", &format!("/{target}")]),
            Step::Link { target, to } if !target.starts_with("dev/") => say(&["--symlink", to, &format!("/{target}")]),
            Step::Bind { source, target, access } => {
                let how = if *access == Access::Read { "--ro-bind" } else { "--bind" };
                say(&[how, &source.to_string_lossy(), &format!("/{target}")]);
            }
            Step::Place { source: Some(source), target, .. } => {
                say(&["--bind", &source.to_string_lossy(), &format!("/{target}")]);
            }
            Step::Tool { source, target } => say(&["--ro-bind", &source.to_string_lossy(), &format!("/{target}")]),
            Step::Cover { stub, target } => say(&["--ro-bind", &stub.to_string_lossy(), &format!("/{target}")]),
            Step::Zeros { source } => say(&["--ro-bind", &source.to_string_lossy(), "/dev/zero"]),
            // bwrap starts the executor through this very folder, so it cannot be covered here.
            Step::Mask { target } if target == "proc/1" => {}
            Step::Mask { target } => match fs::symlink_metadata(Path::new("/").join(target)) {
                Ok(found) if found.is_dir() => {
                    say(&["--tmpfs", &format!("/{target}"), "--remount-ro", &format!("/{target}")])
                }
                Ok(_) => say(&["--ro-bind", "/dev/null", &format!("/{target}")]),
                Err(_) => {}
            },
            Step::Freeze { target } if target == "." => say(&["--remount-ro", "/"]),
            Step::Freeze { target } if target == "dev" => say(&["--remount-ro", "/dev"]),
            Step::Freeze { target } => {
                for path in settings(target) {
                    say(&["--ro-bind", &path, &path]);
                }
            }
            // bwrap does the rest of /dev by itself; layers were refused.
            Step::Layers { .. }
            | Step::Place { .. }
            | Step::Device { .. }
            | Step::Terminals
            | Step::Folder { .. }
            | Step::Link { .. } => {}
        }
    }
    say(&["--", &format!("/proc/self/fd/{EXECUTOR}")]);
    arguments
}

/// What to freeze of `/proc`: this machine's own is bound, for settings are shown to each process by its namespaces,
/// whichever `/proc` it looks at. The executor has yet to write to `user`, where others need a capability for that.
fn settings(target: &str) -> Vec<String> {
    let path = Path::new("/").join(target);
    let inner = match fs::read_dir(&path) {
        Ok(entries) if target == "proc/sys" => entries.flatten().map(|entry| entry.path()).collect(),
        _ if path.exists() => vec![path],
        _ => Vec::new(),
    };
    let frozen = inner.into_iter().filter(|path| !path.ends_with("user"));
    frozen.map(|path| path.to_string_lossy().into_owned()).collect()
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}
