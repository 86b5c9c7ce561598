//! From what was asked for to a process: where the program is, its variables, limits and user. What becomes of a
//! process that was not waited for is in `launch`.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ffi::CString,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    io::Errno,
    pipe::{PipeFlags, pipe_with},
    process::{Resource, WaitId, WaitIdOptions, geteuid, getrlimit, waitid},
};
use sandbox_core::exec::{Exec, Program};
use sandbox_executor::{
    boot::{Boot, Identity},
    protocol::{Failure, Reason},
};

use super::{
    failure::failed,
    hide,
    launch::Launch,
    mark::Carrier,
    sys::{self, Plan, Privileges, Session, Spawner, Step},
    tree::{Mark, Sacrifice},
    wall::{self, Wall},
};

/// The search path of commands that say none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// null(4).
const NULL_DEVICE: (u32, u32) = (1, 3);
/// Arguments and variables together; the system's own limit is near.
const MAX_ARGUMENTS: usize = 1 << 20;

/// Starts commands as the boot says.
pub struct Starter {
    spawner: RefCell<Spawner>,
    sacrifice: Sacrifice,
    nothing: OwnedFd,
}

impl Starter {
    /// Made at the start, before anything about this process changes.
    pub fn new(score: Option<OwnedFd>) -> io::Result<Self> {
        let spawner = RefCell::new(Spawner::new());
        Ok(Self { spawner, sacrifice: Sacrifice::new(score), nothing: nothing()? })
    }

    /// What commands read that get no input. Never opened anew: who is root inside may have put something else there.
    pub fn nothing(&self) -> io::Result<OwnedFd> {
        Ok(rustix::io::fcntl_dupfd_cloexec(&self.nothing, 3)?)
    }

    /// Starts a command where nobody else is, and waits until its program runs. Returns its process id.
    pub fn start_alone(
        &self,
        boot: &Boot,
        exec: &Exec,
        mark: Mark,
        stdio: [BorrowedFd<'_>; 3],
        session: Session,
    ) -> Result<i32, Failure> {
        let (plan, names) = plan(boot, exec, mark, stdio, session)?;
        let started = self.sacrifice.lend(|| self.spawner.borrow_mut().spawn(&plan));
        // Changing the user of a process that shares our memory may have made that memory readable again.
        let _ = hide();
        started.map_err(|(step, error)| Subject::new(plan, names).explain(step, &error))
    }

    /// Makes the process of a command. Returns its id, and how to learn whether its program runs. Among others it gets memory
    /// of its own, which takes longer, by many milliseconds in gVisor.
    pub fn launch(
        &self,
        boot: &Boot,
        exec: &Exec,
        mark: Mark,
        stdio: [BorrowedFd<'_>; 3],
        session: Session,
    ) -> Result<(i32, Launch), Failure> {
        if is_alone() {
            let pid = self.start_alone(boot, exec, mark, stdio, session)?;
            return Ok((pid, Launch::Runs));
        }
        let (mut plan, names) = plan(boot, exec, mark, stdio, session)?;
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).map_err(no_report)?;
        plan.report = Some(writer.as_fd());
        let forked = self.sacrifice.lend(|| sys::fork(&plan));
        let subject = Subject::new(plan, names);
        // Our own writing end closes here: from now on only the process itself keeps the pipe open.
        match forked {
            Ok(pid) => Ok((pid, Launch::OnItsWay(reader, subject))),
            Err((step, error)) => Err(subject.explain(step, &error)),
        }
    }
}

/// Whether there is no other process here: each would descend from the first one, us. So nobody could stop a process that we
/// wait for.
fn is_alone() -> bool {
    // Whatever they send at their end.
    let all = WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT | all;
    std::process::id() == 1 && matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
}

fn no_report(error: Errno) -> Failure {
    failed(Reason::System, format!("no pipe could be made to hear from the command's process: {error}"))
}

/// What a command is called, and where it is looked for.
struct Names {
    name: String,
    path: String,
}

fn plan<'a>(
    boot: &Boot,
    exec: &Exec,
    mark: Mark,
    stdio: [BorrowedFd<'a>; 3],
    session: Session,
) -> Result<(Plan<'a>, Names), Failure> {
    let env = variables(boot, exec);
    let (argv, candidates) = program(&exec.program, &env)?;
    let names = Names { name: argv[0].clone(), path: env.get("PATH").map_or(DEFAULT_PATH, String::as_str).to_owned() };
    let plan = Plan {
        candidates: strings(candidates, "program")?,
        argv: strings(argv, "argument")?,
        env: strings(env.iter().map(|(name, value)| format!("{name}={value}")), "variable")?,
        cwd: folder(boot, exec)?,
        stdio,
        session,
        limits: limits(boot, exec, mark),
        user: match boot.user {
            Identity::Drop { uid, gid } => Some((uid, gid)),
            Identity::Same => None,
        },
        privileges: privileges(boot),
        report: None,
    };
    let size: usize = plan.argv.iter().chain(&plan.env).map(|string| string.as_bytes().len() + 9).sum();
    if size > MAX_ARGUMENTS {
        let what = "the arguments and variables are too long together: put the data into a file or send it as input";
        return Err(failed(Reason::Invalid, what));
    }
    Ok((plan, names))
}

fn variables(boot: &Boot, exec: &Exec) -> BTreeMap<String, String> {
    let mut env = boot.env.clone();
    if exec.terminal.is_some() {
        env.entry("TERM".to_owned()).or_insert_with(|| "xterm-256color".to_owned());
    }
    env.extend(exec.env.clone());
    env.entry("PATH".to_owned()).or_insert_with(|| DEFAULT_PATH.to_owned());
    env
}

/// The arguments, and the paths at which the program may be.
fn program(program: &Program, env: &BTreeMap<String, String>) -> Result<(Vec<String>, Vec<String>), Failure> {
    let argv = match program {
        Program::Shell(script) => {
            let argv = ["/bin/sh", "-c", script];
            return Ok((argv.map(str::to_owned).to_vec(), vec!["/bin/sh".to_owned()]));
        }
        Program::Argv(argv) => argv.clone(),
    };
    let Some(name) = argv.first().filter(|name| !name.is_empty()) else {
        return Err(failed(Reason::Invalid, "no program was named: the first argument is the program"));
    };
    if name.contains('/') {
        return Ok((argv.clone(), vec![name.clone()]));
    }
    let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let candidates = path.split(':').map(|folder| match folder {
        "" => format!("./{name}"),
        folder => format!("{folder}/{name}"),
    });
    let candidates = candidates.collect();
    Ok((argv, candidates))
}

fn folder(boot: &Boot, exec: &Exec) -> Result<CString, Failure> {
    let folder = match &exec.cwd {
        Some(folder) => Path::new(&boot.workspace).join(folder),
        None => Path::new(&boot.workspace).to_owned(),
    };
    CString::new(folder.into_os_string().into_encoded_bytes())
        .map_err(|_| failed(Reason::Invalid, "the folder to start in holds a NUL byte"))
}

fn strings(texts: impl IntoIterator<Item = String>, what: &str) -> Result<Vec<CString>, Failure> {
    let strings: Result<_, _> = texts.into_iter().map(CString::new).collect();
    strings.map_err(|_| failed(Reason::Invalid, format!("a {what} holds a NUL byte")))
}

#[allow(clippy::unnecessary_cast, reason = "the numbers are signed in one C library and unsigned in the other")]
fn limits(boot: &Boot, exec: &Exec, mark: Mark) -> Vec<(u32, [u64; 2])> {
    let file_size = [boot.file_size.map(|size| size.0), exec.limits.file_size].into_iter().flatten().min();
    let both = |limit: Option<u64>| limit.map(|limit| (limit, limit));
    let descriptors = match (exec.limits.open_files, boot.descriptors) {
        (Some(wanted), Some((_, most))) => both(Some(wanted.min(most))),
        (wanted, usual) => both(wanted).or(usual),
    };
    let wanted = [
        (libc::RLIMIT_CORE, Resource::Core, both(Some(0))),
        (libc::RLIMIT_NPROC, Resource::Nproc, both(boot.pids.map(u64::from))),
        (libc::RLIMIT_DATA, Resource::Data, both(boot.process_memory.map(|memory| memory.0))),
        (libc::RLIMIT_FSIZE, Resource::Fsize, both(file_size)),
        (libc::RLIMIT_NOFILE, Resource::Nofile, descriptors),
        (libc::RLIMIT_CPU, Resource::Cpu, both(exec.limits.cpu_seconds)),
    ];
    let allowed = |(number, resource, limit): (_, _, Option<(u64, u64)>)| {
        let (soft, hard) = limit?;
        let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        Some((number as u32, [soft.min(most), hard.min(most)]))
    };
    let carrier = Carrier::here();
    let marked = (carrier.number(), [mark.0; 2]);
    wanted.into_iter().filter_map(allowed).chain([marked]).collect()
}

fn privileges(boot: &Boot) -> Privileges {
    let root = match boot.user {
        Identity::Drop { uid, .. } => uid == 0,
        Identity::Same => geteuid().is_root(),
    };
    let all = root || !wall::stands(Wall::CommandCapabilities);
    if all { Privileges::OfUser } else { Privileges::Only(boot.capabilities) }
}

/// What there is to say about a command that did not start.
pub struct Subject {
    /// What it is called.
    pub name: String,
    path: String,
    candidates: Vec<CString>,
    folder: CString,
}

impl Subject {
    fn new(plan: Plan<'_>, names: Names) -> Self {
        Self { name: names.name, path: names.path, candidates: plan.candidates, folder: plan.cwd }
    }

    /// Why it did not start, for who asked for it.
    pub fn explain(&self, step: Step, error: &io::Error) -> Failure {
        let Self { name, path, .. } = self;
        let errno = error.raw_os_error().unwrap_or_default();
        let folder = self.folder.to_string_lossy();
        let reason = match errno {
            libc::ENOENT | libc::ENOTDIR => Reason::NotFound,
            libc::EACCES | libc::EPERM => Reason::Denied,
            libc::EAGAIN | libc::ENOMEM | libc::ENFILE | libc::EMFILE => Reason::TooMany,
            libc::E2BIG | libc::ENAMETOOLONG | libc::ENOEXEC => Reason::Invalid,
            _ => Reason::System,
        };
        let what = match (step, errno) {
            (Step::Folder, _) => format!("cannot start in the folder `{folder}`: {error}"),
            (_, libc::EAGAIN) => {
                format!("`{name}` was not started: too many processes run in this sandbox; end some first")
            }
            (Step::Exec, libc::ENOENT) if name == "/bin/sh" && !Path::new(name).exists() => {
                "this sandbox's image has no /bin/sh: give the program and its arguments instead of a shell command"
                    .to_owned()
            }
            (Step::Exec, libc::ENOENT) if self.candidates.iter().any(|path| exists(&folder, path)) => {
                format!("`{name}` is there, but the interpreter that it names is not")
            }
            (Step::Exec, libc::ENOENT | libc::ENOTDIR) if !name.contains('/') => {
                format!("program `{name}` not found in PATH={path}")
            }
            (Step::Exec, libc::ENOENT | libc::ENOTDIR) => format!("program `{name}` not found"),
            (Step::Exec, libc::ENOEXEC) => {
                format!("`{name}` is not a program for this machine (a script needs a first line such as #!/bin/sh)")
            }
            (Step::Exec, _) => format!("program `{name}` cannot be started: {error}"),
            (step, _) => format!("`{name}` was not started: {step:?}: {error}"),
        };
        failed(reason, what)
    }
}

fn exists(folder: &str, path: &CString) -> bool {
    Path::new(folder).join(&*path.to_string_lossy()).exists()
}

/// End of file, whatever is called `/dev/null` here.
pub fn nothing() -> io::Result<OwnedFd> {
    use rustix::fs::{FileType, Mode, OFlags, fcntl_setfl, fstat, major, minor, open};
    // Nobody waits at it, were it a pipe.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    if let Ok(null) = open("/dev/null", flags, Mode::empty()) {
        let found = fstat(&null)?;
        let device = (major(found.st_rdev), minor(found.st_rdev));
        if FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice && device == NULL_DEVICE {
            fcntl_setfl(&null, OFlags::empty())?;
            return Ok(null);
        }
    }
    // An image without it: a pipe that nobody writes to.
    let (reader, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    Ok(reader)
}

/// The three streams for a command that has them all from one place.
pub fn all_from(descriptor: &OwnedFd) -> [BorrowedFd<'_>; 3] {
    [descriptor.as_fd(); 3]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_is_looked_for_along_the_path_of_the_job() {
        let env = BTreeMap::from([("PATH".to_owned(), "/a::/b".to_owned())]);
        let (argv, candidates) = program(&Program::Argv(vec!["x".to_owned(), "y".to_owned()]), &env).unwrap();
        assert_eq!(argv, ["x", "y"]);
        assert_eq!(candidates, ["/a/x", "./x", "/b/x"]);
        assert_eq!(program(&Program::Argv(vec!["./x".to_owned()]), &env).unwrap().1, ["./x"]);
        assert!(program(&Program::Argv(vec![]), &env).is_err());
    }
}
