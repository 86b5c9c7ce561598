//! Answering servers: connections, flows, requests, and the lease that ends us when nobody comes.

use std::{
    cell::Cell,
    os::{fd::OwnedFd, unix::net::UnixListener as StdListener},
    rc::Rc,
    time::Duration,
};

use rustix::process::Signal;
use sandbox_core::Channel;
use sandbox_executor::{
    boot::{Attachment, Carries},
    carrier::{Connection, Flow, Side},
    frame::FrameError,
    protocol::{Failure, Reason, Reply, Request, Target},
};
use tokio::{
    net::{UnixListener, unix::pipe},
    sync::Notify,
    task::LocalSet,
};

use super::{
    Executor, NotStarted, Status, bridge, call, dial::Dialled, failure::failed, files, listing, measure, output::Until,
    outward, port, removal, run, sys, terminal, tree::Members,
};

/// Servers at once.
const MAX_CONNECTIONS: usize = 64;
/// Flows at once, of all servers.
const MAX_FLOWS: usize = 1024;
/// Somebody who opens a flow says soon what for.
const FIRST_MESSAGE: Duration = Duration::from_secs(30);
/// Time for the last answer to be read before we end.
const FAREWELL: Duration = Duration::from_millis(20);

/// How servers come here.
pub struct Ways {
    /// A socket on which they are accepted.
    pub listener: Option<OwnedFd>,
    /// A server that was dialled.
    pub dialled: Option<Dialled>,
}

/// Who is there.
pub struct Presence {
    connections: Cell<usize>,
    flows: Cell<usize>,
    changed: Notify,
}

/// Serves until told to end, or until the lease lapses.
pub fn run(executor: Executor, ways: Ways, status: Status) -> Result<(), NotStarted> {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return Err(Box::new((status, format!("waiting for requests is not possible: {error}")))),
    };
    let executor = Rc::new(executor);
    let ended = LocalSet::new().block_on(&runtime, serve(&executor, ways, status));
    executor.tree.kill_everything();
    ended.map(|()| std::process::exit(0))
}

async fn serve(executor: &Rc<Executor>, ways: Ways, status: Status) -> Result<(), NotStarted> {
    if let Err(error) = reap_when_told(executor) {
        return Err(Box::new((status, format!("the ends of processes cannot be seen: {error}"))));
    }
    let presence = Rc::new(Presence { connections: Cell::new(0), flows: Cell::new(0), changed: Notify::new() });
    if let Some(limit) = executor.boot.itself.disk {
        tokio::task::spawn_local(measure::watch(Rc::clone(executor), limit));
    }
    if let Some(way) = &executor.boot.itself.outward {
        match outward::listen(way) {
            Ok(listener) => {
                drop(tokio::task::spawn_local(outward::carry(Rc::clone(executor), listener, way.path.clone())));
            }
            Err(error) => return Err(Box::new((status, format!("the proxy's port cannot be had: {error}")))),
        }
    }
    match &executor.boot.attachment {
        Attachment::Call { path, carries } => {
            status.ready();
            tokio::select! {
                () = receive(executor, &presence, path, *carries) => {}
                () = lapse(executor.boot.lease, &presence) => {}
                () = executor.ending.notified() => tokio::time::sleep(FAREWELL).await,
            }
        }
        Attachment::Streams => {
            let (Some(input), Some(output)) = (sys::take(0), sys::take(1)) else {
                return Err(Box::new((status, "standard input or output is closed".to_owned())));
            };
            let channel = match stream(input, output) {
                Ok(channel) => channel,
                Err(error) => return Err(Box::new((status, format!("the standard streams cannot be used: {error}")))),
            };
            let bridges = match bridge::listen(&executor.boot.itself.token) {
                Ok(bridges) => bridges,
                Err(error) => return Err(Box::new((status, format!("bridges cannot be waited for: {error}")))),
            };
            status.ready();
            let stream = converse(executor, &presence, channel);
            let Some(bridges) = bridges else {
                // There is no way to come back to a stream that has ended.
                tokio::select! {
                    () = stream => {}
                    () = executor.ending.notified() => tokio::time::sleep(FAREWELL).await,
                }
                return Ok(());
            };
            tokio::select! {
                ((), ()) = async { tokio::join!(stream, bridge::accept(executor, &presence, &bridges)) } => {}
                () = lapse(executor.boot.lease, &presence) => {}
                () = executor.ending.notified() => tokio::time::sleep(FAREWELL).await,
            }
        }
        Attachment::Dial => {
            let Some(dialled) = ways.dialled else {
                return Err(Box::new((status, "no server was dialled".to_owned())));
            };
            status.ready();
            tokio::select! {
                () = dialled.attend(executor, &presence) => {}
                () = lapse(executor.boot.lease, &presence) => {}
                () = executor.ending.notified() => tokio::time::sleep(FAREWELL).await,
            }
        }
        _ => {
            let Some(listener) = ways.listener.and_then(listen) else {
                return Err(Box::new((status, "no socket to listen on was passed".to_owned())));
            };
            status.ready();
            tokio::select! {
                () = accept(executor, &presence, &listener) => {}
                () = lapse(executor.boot.lease, &presence) => {}
                () = executor.ending.notified() => tokio::time::sleep(FAREWELL).await,
            }
        }
    }
    Ok(())
}

fn reap_when_told(executor: &Rc<Executor>) -> std::io::Result<()> {
    let signals = pipe::Receiver::from_owned_fd_unchecked(sys::child_ended_descriptor()?)?;
    let executor = Rc::clone(executor);
    tokio::task::spawn_local(async move {
        let mut notices = [0; 1024];
        while signals.readable().await.is_ok() {
            while signals.try_read(&mut notices).is_ok() {}
            executor.reap();
        }
    });
    Ok(())
}

/// What comes and goes on two descriptors, as one.
pub fn joined(input: OwnedFd, output: OwnedFd) -> std::io::Result<tokio::io::Join<pipe::Receiver, pipe::Sender>> {
    for end in [&input, &output] {
        rustix::io::ioctl_fionbio(end, true)?;
    }
    Ok(tokio::io::join(pipe::Receiver::from_owned_fd_unchecked(input)?, pipe::Sender::from_owned_fd_unchecked(output)?))
}

fn stream(input: OwnedFd, output: OwnedFd) -> std::io::Result<Channel> {
    // Commands must not find the carrier where their own streams go.
    let moved = [rustix::io::fcntl_dupfd_cloexec(&input, 3)?, rustix::io::fcntl_dupfd_cloexec(&output, 3)?];
    let null = super::spawn::nothing()?;
    let mut ends = [input, output];
    for end in &mut ends {
        rustix::io::dup2(&null, end)?;
    }
    // The numbers 0 and 1 stay taken for ever.
    std::mem::forget(ends);
    let [input, output] = moved;
    Ok(Channel::Stream(Box::new(joined(input, output)?)))
}

fn listen(socket: OwnedFd) -> Option<UnixListener> {
    let socket = StdListener::from(socket);
    socket.set_nonblocking(true).ok()?;
    UnixListener::from_std(socket).ok()
}

async fn accept(executor: &Rc<Executor>, presence: &Rc<Presence>, listener: &UnixListener) {
    loop {
        let Ok((socket, _)) = listener.accept().await else {
            // Out of descriptors, most likely: they come back.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Ok(socket) = socket.into_std() else { continue };
        welcome(executor, presence, Channel::Local(socket.into()));
    }
}

/// Serves one more connection, unless there are too many.
pub fn welcome(executor: &Rc<Executor>, presence: &Rc<Presence>, channel: Channel) {
    if presence.connections.get() >= MAX_CONNECTIONS {
        return;
    }
    let (executor, presence) = (Rc::clone(executor), Rc::clone(presence));
    tokio::task::spawn_local(async move { converse(&executor, &presence, channel).await });
}

/// The same where we connect, and whoever comes finds us waiting.
async fn receive(executor: &Rc<Executor>, presence: &Rc<Presence>, path: &str, carries: Carries) {
    loop {
        let channel = call::wait_for_somebody(executor, path, carries).await;
        welcome(executor, presence, channel);
    }
}

/// Returns when nobody was connected for so long.
async fn lapse(lease: Option<Duration>, presence: &Presence) {
    let Some(lease) = lease else { return std::future::pending().await };
    loop {
        let changed = presence.changed.notified();
        if presence.connections.get() > 0 {
            changed.await;
        } else if tokio::time::timeout(lease, changed).await.is_err() {
            return;
        }
    }
}

/// Serves one connection to its end.
pub async fn converse(executor: &Rc<Executor>, presence: &Rc<Presence>, channel: Channel) {
    presence.connections.set(presence.connections.get() + 1);
    presence.changed.notify_waiters();
    if let Ok(connection) = Connection::establish(channel, Side::Executor).await {
        while let Ok(Some((flow, descriptors))) = connection.accept().await {
            if presence.flows.get() >= MAX_FLOWS {
                continue;
            }
            presence.flows.set(presence.flows.get() + 1);
            let (executor, presence) = (Rc::clone(executor), Rc::clone(presence));
            tokio::task::spawn_local(async move {
                // A flow that breaks is its opener's concern; nothing else is touched by it.
                drop(answer(&executor, flow, descriptors).await);
                presence.flows.set(presence.flows.get() - 1);
            });
        }
    }
    presence.connections.set(presence.connections.get() - 1);
    presence.changed.notify_waiters();
}

async fn answer(executor: &Rc<Executor>, mut flow: Flow, descriptors: Vec<OwnedFd>) -> Result<(), FrameError> {
    let first = tokio::time::timeout(FIRST_MESSAGE, flow.reader.next()).await;
    let Ok(Some(frame)) = first.unwrap_or(Ok(None)) else { return Ok(()) };
    let request = match frame.message() {
        Ok(request) => request,
        Err(error) => {
            let what = format!("the request cannot be understood: {error}");
            return flow.writer.message(&Reply::Failed(failed(Reason::Invalid, what))).await;
        }
    };
    match request {
        Request::Spawn { exec, output } => run::spawn(executor, exec, output, flow, descriptors).await,
        Request::Attach { job, offset, follow } => {
            let until = if follow { Until::Exit } else { Until::Now };
            run::attach(executor, job, offset, until, flow).await
        }
        Request::Input { job } => run::input(executor, job, flow).await,
        Request::Read { path, offset, length } => files::read(executor, &path, offset, length, flow).await,
        Request::Write => files::write(executor, flow).await,
        Request::Connect { port } => port::connect(port, flow).await,
        Request::List { path, depth, limit } => listing::list(executor, &path, depth, limit, flow).await,
        simple => {
            let ends = simple == Request::Shutdown;
            let reply = reply(executor, simple).await.unwrap_or_else(Reply::Failed);
            flow.writer.message(&reply).await?;
            flow.writer.finish().await?;
            if ends {
                executor.ending.notify_one();
            }
            Ok(())
        }
    }
}

/// Requests with one answer.
async fn reply(executor: &Rc<Executor>, request: Request) -> Result<Reply, Failure> {
    let places = &executor.places;
    match request {
        Request::Resize { job, size } => {
            let job = executor.jobs.find(job)?;
            let no_terminal = || failed(Reason::WrongKind, format!("{} has no terminal", job.id));
            let resized = terminal::resize(job.terminal.as_ref().ok_or_else(no_terminal)?, size);
            resized.map_err(|error| failed(Reason::System, format!("the terminal was not resized: {error}")))?;
        }
        Request::Signal { target, signal } => send_signal(executor, target, signal).await?,
        Request::Jobs => return Ok(Reply::Jobs(executor.jobs.list())),
        Request::Forget { job } => executor.jobs.forget(job)?,
        Request::Stat { path } => return places.stat(&path).map(Reply::File),
        Request::Remove { path } => removal::remove(executor, &path).await?,
        Request::Rename { from, to } => {
            let (old, new) = places.entries(&from, &to)?;
            rustix::fs::renameat(&old.folder, &old.name[..], &new.folder, &new.name[..])
                .map_err(|error| super::failure::about(&from.0, error))?;
        }
        Request::MakeFolder { path } => places.make_folder(&path)?,
        Request::Usage => {
            let (processes, running_jobs) = (executor.tree.count() as u32, executor.jobs.running() as u32);
            return Ok(Reply::Usage { processes, running_jobs, kept: measure::now(executor).await });
        }
        // Shutdown is answered first and done then; all others have flows of their own.
        _ => {}
    }
    Ok(Reply::Done)
}

async fn send_signal(executor: &Rc<Executor>, target: Target, signal: i32) -> Result<(), Failure> {
    if Signal::from_named_raw(signal).is_none() {
        return Err(failed(Reason::Invalid, format!("{signal} is not the number of a signal (15 ends, 9 kills)")));
    }
    let members = match target {
        Target::Job(job) => executor.jobs.find(job)?.members(),
        Target::All => Members::All,
    };
    if signal == libc::SIGKILL {
        executor.kill(members).await;
    } else {
        executor.signal(members, signal);
    }
    Ok(())
}
