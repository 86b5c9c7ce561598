//! Making one container, step by step. Whatever fails on the way, nothing of it stays.

use std::{
    fs::File,
    io::{self, Write},
    os::{fd::OwnedFd, unix::fs::PermissionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::query_parameters::{CreateContainerOptionsBuilder, InspectContainerOptions, StartContainerOptions};
use rustix::fs::MemfdFlags;
use sandbox_core::{Created, Duplex, Error, Facts, Result, SandboxSpec};
use sandbox_executor::boot::{Boot, LETTER_OOM, LETTER_PIDS, OomCounter, TOKEN};
use sandbox_linux::{
    executor_image,
    folder::{self, Lock},
    seccomp::{Chosen, Narrowing},
};

use crate::{
    boot,
    engine::Engine,
    failure, fault, holdings, labels,
    line::Line,
    meeting::{Arrived, Guests, Host, Meeting},
    nature::{Kind, Reach},
    network,
    plan::{self, Filter, Ground, Image, Source},
    program,
    record::{self, Record},
    removal,
    sandbox::{self, DockerSandbox},
    secrets, streams, trouble,
    usage::Cgroup,
    volumes,
};

/// What a policy's own time to start is at least, because engines take theirs.
const LEAST_TIME: Duration = Duration::from_secs(30);

/// All that is known before anything is made.
pub struct Making<'a> {
    /// Who makes it.
    pub engine: &'a Engine,
    /// What it will be.
    pub facts: Facts,
    /// Its folder.
    pub folder: PathBuf,
    /// What it starts from.
    pub image: Image,
    /// Which system calls may be made in it.
    pub calls: Chosen,
    /// Programs that are covered.
    pub covered: Vec<String>,
    /// The state folder, and what tells it from others.
    pub state: &'a Path,
    /// See above.
    pub state_id: &'a str,
    /// How long it waits for a server.
    pub lease: Duration,
}

/// A container with an executor that is ready.
struct Ready {
    record: Record,
    line: Line,
    doors: Option<network::Doors>,
}

impl Making<'_> {
    /// Makes it, or leaves nothing.
    pub async fn make(self, lock: Lock) -> Result<Created> {
        let patience = self.spec().policy.limits.start.max(LEAST_TIME);
        let made = match tokio::time::timeout(patience, self.steps(&lock)).await {
            Ok(made) => made,
            Err(_) => Err(Error::Step { step: "starting".into(), why: format!("not ready after {patience:?}") }),
        };
        let sandbox = made.and_then(|ready| {
            let (facts, folder, engine) = (self.facts.clone(), self.folder.clone(), self.engine.clone());
            let sandbox = DockerSandbox::new(facts, folder, ready.record, None, ready.line)?;
            Ok(sandbox.with_engine(engine).with_doors(ready.doors))
        });
        match sandbox {
            Ok(sandbox) => Ok(sandbox::shared(sandbox.with_lock(lock))),
            Err(error) => {
                self.undo().await;
                lock.release();
                Err(error)
            }
        }
    }

    fn spec(&self) -> &SandboxSpec {
        &self.facts.spec
    }

    fn reach(&self) -> Reach {
        self.engine.nature.reach(self.spec().policy.privileges.runtime.as_deref())
    }

    async fn steps(&self, lock: &Lock) -> Result<Ready> {
        fault::point("folder_made");
        folder::describe(&self.folder, &self.facts)?;
        let container = labels::container(&self.spec().id);
        let volumes = plan::kept(self.spec()).into_iter().map(|kept| kept.volume).collect();
        let line = match self.reach() {
            Reach::Socket => record::Line::Socket { pid: 0, our_user: self.guests() == Guests::OurUser },
            Reach::Streams => {
                record::Line::Streams { token: secrets::random(TOKEN).map_err(Error::io("choosing a token"))? }
            }
        };
        let address = self.engine.nature.address.clone();
        let record = Record { address, container, volumes, line, wired: None };
        record.write(&self.folder)?;
        if let Some(own) = &self.spec().certificates {
            let writing = Error::io("writing certificates");
            sandbox_linux::renew_certificates(&self.facts, own, &self.folder).map_err(writing)?;
        }
        match self.reach() {
            Reach::Socket => self.with_socket(record, lock).await,
            Reach::Streams => self.with_streams(record).await,
        }
    }

    /// Root inside is our user where we are root too, or where our own engine maps it so.
    fn guests(&self) -> Guests {
        let nature = &self.engine.nature;
        let ours = if nature.user_namespaces { nature.rootless } else { rustix::process::geteuid().is_root() };
        if ours { Guests::OurUser } else { Guests::Anybody }
    }

    async fn with_socket(&self, mut record: Record, lock: &Lock) -> Result<Ready> {
        let meeting = Meeting::open(&self.folder, self.guests()).map_err(Error::io("listening for the executor"))?;
        let taken = || Error::Step { step: "listening for the executor".into(), why: "somebody else does".into() };
        let meeting = meeting.ok_or_else(taken)?;
        let caching = Error::io("putting the executor into the cache");
        let program = executor_image::cached(&self.state.join("cache")).map_err(caching)?;
        let ours =
            Meeting::bring(&self.folder, &program).map_err(Error::io("putting the executor beside its socket"))?;
        self.create(&record.container, Source::Folder(ours)).await?;
        self.start(&record.container).await?;
        let pid = self.pid(&record.container).await?;
        record.line = record::Line::Socket { pid, our_user: self.guests() == Guests::OurUser };
        lock.note(pid, 0)?;
        let doors = match holdings::is_transparent(self.spec(), &self.engine.nature) {
            true => {
                let wired = tokio::task::spawn_blocking(move || network::wire(pid)).await;
                let wired = wired.unwrap_or_else(|error| Err(io::Error::other(error)));
                let (reach, doors) = wired.map_err(Error::io("making the way out in the container's network"))?;
                record.wired = Some(reach);
                Some(doors)
            }
            false => None,
        };
        record.write(&self.folder)?;
        fault::point("before_boot");
        let host = self.boot(meeting, pid, &record).await?;
        fault::point("booted");
        let line = Line::to(&self.folder, &record).with_host(host);
        Ok(Ready { record, line, doors })
    }

    async fn boot(&self, meeting: Meeting, pid: i32, record: &Record) -> Result<Host> {
        let booting = || Error::io("starting the executor");
        let cgroup = Cgroup::of(pid).map_err(booting())?;
        // Where the engine holds nothing, that cgroup is others' too.
        let holds = self.engine.nature.holds;
        let oom = holds.memory.then(|| cgroup.oom_kills()).flatten();
        let pids = holds.pids.then(|| cgroup.refused_processes()).flatten();
        let mut message = self.message(Vec::new());
        message.oom = if oom.is_some() { OomCounter::Cgroup } else { OomCounter::None };
        message.refused_processes = pids.is_some();
        let more: Vec<(u8, OwnedFd)> =
            oom.map(|oom| (LETTER_OOM, oom)).into_iter().chain(pids.map(|pids| (LETTER_PIDS, pids))).collect();
        let message = in_memory(&encoded(&message)?).map_err(booting())?;
        let arrive = async {
            let socket = meeting.first(pid).await?;
            Arrived::boot(socket, &message, &more).await
        };
        let arrived = tokio::select! {
            arrived = arrive => arrived.map_err(booting())?,
            why = self.early_end(&record.container) => return Err(why),
        };
        Ok(meeting.host(pid, Some(arrived)))
    }

    async fn with_streams(&self, record: Record) -> Result<Ready> {
        let docker = &self.engine.docker;
        let record::Line::Streams { token } = &record.line else {
            return Err(Error::Step { step: "starting".into(), why: "there is no token".into() });
        };
        self.create(&record.container, Source::Volume(program::volume())).await?;
        program::provide(docker, &record.container, &self.image.id, self.state_id).await?;
        let mut stream: Box<dyn Duplex> = streams::attach(docker, &record.container).await?;
        self.start(&record.container).await?;
        fault::point("before_boot");
        let message = encoded(&self.message(token.clone()))?;
        tokio::select! {
            booted = streams::boot(&mut stream, &message) => match booted {
                Ok(()) => {}
                // Where its container has ended, that says more.
                Err(error) => return Err(match tokio::time::timeout(Duration::from_secs(2), self.early_end(&record.container)).await {
                    Ok(why) => why,
                    Err(_) => Error::io("starting the executor")(error),
                }),
            },
            why = self.early_end(&record.container) => return Err(why),
        }
        fault::point("booted");
        let line = Line::to(&self.folder, &record).with_stream(&record, stream);
        Ok(Ready { record, line, doors: None })
    }

    fn message(&self, token: Vec<u8>) -> Boot {
        let privileges = &self.spec().policy.privileges;
        let gvisor = self.engine.nature.is_gvisor(privileges.runtime.as_deref());
        let lenient_kernel = gvisor.then_some(privileges.capabilities.bits());
        let filter = self.calls.instructions(Narrowing { lenient_kernel, ..Narrowing::default() });
        boot::message(self.spec(), &self.engine.nature, &self.image, self.lease, filter, token)
    }

    async fn create(&self, name: &str, program: Source) -> Result<()> {
        let certificates = self.folder.join("certificates.pem");
        let stub = self.state.join("cache").join(crate::programs::STUB);
        let hosts = self.hosts()?;
        let ground = Ground {
            state: self.state_id,
            image: &self.image,
            program,
            hosts: hosts.as_deref(),
            certificates: (self.engine.nature.here && certificates.exists()).then_some(&certificates),
            covered: (!self.covered.is_empty()).then_some((&stub, &self.covered)),
            filter: self.filter()?,
        };
        let mut body = plan::body(self.spec(), &self.engine.nature, &ground);
        let options = CreateContainerOptionsBuilder::default().name(name).build();
        fault::point("before_create");
        let mut created = self.engine.docker.create_container(Some(options.clone()), body.clone()).await;
        // Its layer is watched anyway.
        if created.as_ref().is_err_and(trouble::is_no_quota)
            && let Some(host) = &mut body.host_config
        {
            host.storage_opt = None;
            created = self.engine.docker.create_container(Some(options), body.clone()).await;
        }
        created
            .map_err(|error| trouble::explain("making the container", &failure::words(&error), &self.engine.nature))?;
        let planned = body.host_config.unwrap_or_default();
        fault::point("created");
        let found = self.engine.docker.inspect_container(name, None::<InspectContainerOptions>).await;
        let found = found.map_err(failure::step("looking at the container"))?;
        volumes::check_made(&found.mounts.unwrap_or_default(), &planned)
    }

    /// Podman writes the machine's own name into the file that it makes.
    fn hosts(&self) -> Result<Option<PathBuf>> {
        let nature = &self.engine.nature;
        if nature.kind != Kind::Podman || !nature.here {
            return Ok(None);
        }
        let path = self.folder.join("hosts");
        let text = "127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost ip6-loopback\n";
        std::fs::write(&path, text).map_err(Error::io(format!("writing {}", path.display())))?;
        let readable = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, readable).map_err(Error::io(format!("writing {}", path.display())))?;
        Ok(Some(path))
    }

    /// Podman reads it from a file of its machine, Docker from the request.
    fn filter(&self) -> Result<Filter> {
        let nature = &self.engine.nature;
        if !nature.is_told_filters(self.spec().policy.privileges.runtime.as_deref()) {
            return Ok(Filter::Engines);
        }
        let text = self.calls.document(Narrowing::default())?.to_string();
        match nature.kind {
            Kind::Docker => Ok(Filter::Document(text)),
            Kind::Podman => {
                let path = self.folder.join("seccomp.json");
                std::fs::write(&path, text).map_err(Error::io(format!("writing {}", path.display())))?;
                Ok(Filter::File(path))
            }
        }
    }

    async fn start(&self, name: &str) -> Result<()> {
        let started = self.engine.docker.start_container(name, None::<StartContainerOptions>).await;
        started.map_err(|error| {
            trouble::explain("starting the container", &failure::words(&error), &self.engine.nature)
        })?;
        fault::point("started");
        Ok(())
    }

    async fn pid(&self, name: &str) -> Result<i32> {
        let found = self.engine.docker.inspect_container(name, None::<InspectContainerOptions>).await;
        let state = found.map_err(failure::step("looking at the container"))?.state.unwrap_or_default();
        match state.pid.and_then(|pid| i32::try_from(pid).ok()).filter(|pid| *pid > 0) {
            Some(pid) => Ok(pid),
            None => Err(trouble::ended(&state, &self.engine.nature)),
        }
    }

    /// Returns if the container ends before its executor is ready.
    async fn early_end(&self, name: &str) -> Error {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            let found = self.engine.docker.inspect_container(name, None::<InspectContainerOptions>).await;
            let state = found.ok().and_then(|found| found.state).unwrap_or_default();
            if state.running == Some(false) && state.exit_code.is_some() {
                return trouble::ended(&state, &self.engine.nature);
            }
        }
    }

    async fn undo(&self) {
        let docker = &self.engine.docker;
        let _ = removal::container(docker, &labels::container(&self.spec().id)).await;
        for kept in plan::kept(self.spec()) {
            let _ = removal::volume(docker, &kept.volume).await;
        }
        let _ = removal::folder(self.state, &self.folder);
    }
}

fn encoded(message: &Boot) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(message).map_err(io::Error::other).map_err(Error::io("writing what the executor is told"))
}

fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = rustix::fs::memfd_create("boot", MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    io::Seek::rewind(&mut file)?;
    Ok(file.into())
}
