//! The embedded backend, used as a library: what a server does, without the server.

use std::{
    collections::BTreeMap,
    future::Future,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use sandbox_core::{
    Backend, Created, Image, Policy, SandboxSpec, SessionId, UserId,
    exec::{Exec, Exit},
};
use sandbox_executor::client::{Client, JobEvent};
use sandbox_linux::LinuxBackend;
use tokio::{runtime::Runtime, task::JoinSet};

use crate::{
    clock::{Stopwatch, Timing},
    rivals::ECHO,
};

/// The backend with a runtime to use it from. Its futures run on the runtime's own threads, as a server's would.
pub struct Embedded {
    runtime: Runtime,
    backend: Arc<LinuxBackend>,
}

/// A sandbox in which nothing runs, and the connection to it.
#[derive(Clone)]
pub struct Idle {
    sandbox: Created,
    client: Client,
}

impl Embedded {
    /// Starts the backend with its state in this folder.
    pub fn start(state: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let backend = {
            let _inside = runtime.enter();
            Arc::new(LinuxBackend::start(state)?)
        };
        Ok(Self { runtime, backend })
    }

    /// A sandbox is made, says hello, and is removed.
    pub fn time_start(&self) -> Result<Timing> {
        self.wait(start_once(self.backend.clone()))
    }

    /// The same for so many at once.
    pub fn time_starts(&self, count: usize) -> Result<Vec<Timing>> {
        self.at_once(count, |_| start_once(self.backend.clone()))
    }

    /// A sandbox to keep.
    pub fn idle(&self) -> Result<Idle> {
        self.wait(Idle::make(self.backend.clone()))
    }

    /// A command in a sandbox that is there already.
    pub fn time_exec(&self, idle: &Idle) -> Result<Timing> {
        self.wait(exec_once(idle.clone()))
    }

    /// So many commands at once in one sandbox.
    pub fn time_execs(&self, idle: &Idle, count: usize) -> Result<Vec<Timing>> {
        self.at_once(count, |_| exec_once(idle.clone()))
    }

    /// Makes so many sandboxes with this many workers; how long each took, and all together.
    pub fn make_idle(&self, count: usize, workers: usize) -> Result<(Vec<Idle>, Vec<Duration>, Duration)> {
        let start = Instant::now();
        let made = self.shared_out(count, workers, |_| {
            let backend = self.backend.clone();
            async move {
                let start = Instant::now();
                Ok((Idle::make(backend).await?, start.elapsed()))
            }
        })?;
        let all = start.elapsed();
        let (idle, each) = made.into_iter().unzip();
        Ok((idle, each, all))
    }

    /// Runs `true` in each; how long each took.
    pub fn exec_in_each(&self, idle: &[Idle], workers: usize) -> Result<Vec<Duration>> {
        self.shared_out(idle.len(), workers, |at| {
            let idle = idle[at].clone();
            async move {
                let start = Instant::now();
                run(&idle.client, &["true"], &mut Stopwatch::start()).await?;
                Ok(start.elapsed())
            }
        })
    }

    /// Ends and removes all; how long that took.
    pub fn remove(&self, idle: Vec<Idle>, workers: usize) -> Result<Duration> {
        let start = Instant::now();
        self.shared_out(idle.len(), workers, |at| {
            let idle = idle[at].clone();
            async move { Ok(idle.sandbox.destroy().await?) }
        })?;
        Ok(start.elapsed())
    }

    /// Waits for something that runs on the runtime's threads.
    pub fn wait<T: Send + 'static>(&self, future: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        self.runtime.block_on(self.runtime.spawn(future)).context("the task panicked")?
    }

    fn at_once<T, F>(&self, count: usize, make: impl Fn(usize) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.runtime.block_on(async {
            let mut tasks: JoinSet<Result<T>> = (0..count).map(make).collect();
            let mut all = Vec::with_capacity(count);
            while let Some(done) = tasks.join_next().await {
                all.push(done.context("a task panicked")??);
            }
            Ok(all)
        })
    }

    /// Each worker takes the next piece of work until none is left.
    fn shared_out<T, F>(&self, count: usize, workers: usize, make: impl Fn(usize) -> F) -> Result<Vec<T>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let next = AtomicUsize::new(0);
        let worker = || async {
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                if at >= count {
                    return Ok::<_, anyhow::Error>(done);
                }
                let result = self.runtime.spawn(make(at)).await.context("a task panicked")?;
                done.push(result.with_context(|| format!("number {} of {count}", at + 1))?);
            }
        };
        let done = self.runtime.block_on(futures::future::try_join_all((0..workers).map(|_| worker())))?;
        Ok(done.into_iter().flatten().collect())
    }
}

impl Idle {
    /// The connection to its executor.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    async fn make(backend: Arc<LinuxBackend>) -> Result<Self> {
        let sandbox = backend.create(&spec()?).await?;
        let client = Client::connect(sandbox.connect().await?).await?;
        Ok(Self { sandbox, client })
    }
}

async fn start_once(backend: Arc<LinuxBackend>) -> Result<Timing> {
    let mut watch = Stopwatch::start();
    let idle = Idle::make(backend).await?;
    run(&idle.client, &ECHO, &mut watch).await?;
    idle.sandbox.destroy().await?;
    Ok(watch.stop())
}

async fn exec_once(idle: Idle) -> Result<Timing> {
    let mut watch = Stopwatch::start();
    run(&idle.client, &ECHO, &mut watch).await?;
    Ok(watch.stop())
}

async fn run(client: &Client, argv: &[&str], watch: &mut Stopwatch) -> Result<()> {
    let mut follow = client.spawn(&Exec::argv(argv.iter().copied())).await?;
    loop {
        match follow.next().await? {
            JobEvent::Output { .. } => watch.output(),
            JobEvent::Exited { exit, .. } => {
                ensure!(exit == Exit::Code(0), "{argv:?} ended with {exit:?}");
                return Ok(());
            }
            _ => {}
        }
    }
}

fn spec() -> Result<SandboxSpec> {
    let owner = UserId::local();
    let id = SessionId::random(&owner).map_err(|error| anyhow::anyhow!("no source of chance: {error}"))?;
    let policy = Policy::default();
    Ok(SandboxSpec {
        id,
        owner,
        image: Image::Host,
        policy,
        persistent: false,
        env: BTreeMap::new(),
        certificates: None,
        tools: Vec::new(),
    })
}
