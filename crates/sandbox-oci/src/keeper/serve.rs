//! What a keeper does while its sandbox lives: it has connections of the executor waiting, and hands them to whoever asks.

use std::{
    collections::VecDeque,
    fs, io,
    os::fd::{AsFd, OwnedFd},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use rustix::{
    net::SocketFlags,
    process::{Signal, WaitId, WaitIdOptions, pidfd_send_signal},
};
use sandbox_executor::boot::TOKEN;
use sandbox_linux::{sys, tree, wire};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::unix::pipe,
    signal::unix::{SignalKind, signal},
    sync::{Notify, Semaphore},
    task::LocalSet,
};

use super::{
    Prepared, remove_cgroups, report,
    start::{self, Started, Word},
    watch,
};
use crate::{
    explain,
    plan::Plan,
    runtime::Kind,
    talk::{Answer, Ask, Report},
};

/// Connections of the executor that wait; one is usual.
const MOST_WAITING: usize = 4;
/// What a runtime complains about, at most.
const COMPLAINTS: usize = 64 << 10;
/// How long somebody waits for a connection of an executor that is busy.
const PATIENCE: Duration = Duration::from_secs(10);
/// Who connects says at once who it is,
const INTRODUCTION: Duration = Duration::from_secs(1);
/// and so many may be asked at the same time.
const MOST_STRANGERS: usize = 16;
/// What ended may still be counted for a moment.
const GONE_AFTER: Duration = Duration::from_secs(10);

/// Connections of the executor that nobody has yet.
#[derive(Default)]
pub struct Waiting {
    connections: std::cell::RefCell<VecDeque<OwnedFd>>,
    more: Notify,
}

impl Waiting {
    /// The next one.
    pub async fn take(&self) -> Option<OwnedFd> {
        let taken = async {
            loop {
                let more = self.more.notified();
                if let Some(connection) = self.connections.borrow_mut().pop_front() {
                    return connection;
                }
                more.await;
            }
        };
        tokio::time::timeout(PATIENCE, taken).await.ok()
    }

    fn add(&self, connection: OwnedFd) {
        let mut connections = self.connections.borrow_mut();
        if connections.len() < MOST_WAITING {
            connections.push_back(connection);
            self.more.notify_one();
        }
    }
}

/// Serves until the sandbox has ended, and removes what is left of it.
pub fn run(plan: &Plan, prepared: Prepared, started: Started) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, keep(plan, prepared, started))
}

async fn keep(plan: &Plan, prepared: Prepared, started: Started) -> io::Result<()> {
    let ended = sys::watched(started.pidfd.try_clone()?, Interest::READABLE)?;
    let (inner, outer) =
        (sys::watched(prepared.inner, Interest::READABLE)?, sys::watched(prepared.outer, Interest::READABLE)?);
    let complaints = Rc::new(std::cell::RefCell::new(Vec::new()));
    tokio::task::spawn_local(listen(
        pipe::Receiver::from_owned_fd(started.complaints.try_clone()?)?,
        Rc::clone(&complaints),
    ));
    let waiting = Rc::new(Waiting::default());
    let (removal, mut told) = (Rc::new(Notify::new()), signal(SignalKind::terminate())?);
    let first = tokio::select! {
        first = accept_first(&inner, &started.word) => first.and_then(|first| begin(plan, first)).map_err(|error| format!("waiting for the executor failed: {error}")),
        _ = ended.readable() => Err("it ended".to_owned()),
        () = tokio::time::sleep(plan.patience) => Err(format!("the executor is not ready after {:?}", plan.patience)),
    };
    let mut asked_to_remove = None;
    match first {
        Ok(first) => {
            waiting.add(first);
            report(&Report::Ready)?;
            let watch = watch::Watching::new(plan, &started.pidfd, prepared.verdicts, Rc::clone(&waiting))?;
            let watch = Rc::new(watch);
            let desk = Rc::new(Desk { waiting: Rc::clone(&waiting), watch: Rc::clone(&watch), out: prepared.out });
            tokio::select! {
                _ = ended.readable() => {}
                _ = told.recv() => {}
                () = receive(&inner, &waiting, started.word) => {}
                () = answer(&outer, &desk, &removal, &mut asked_to_remove) => {}
                () = watch.go_on() => {}
            }
        }
        Err(why) => {
            // A runtime that fails says why at its end.
            let _ = tokio::time::timeout(Duration::from_millis(300), ended.readable()).await;
            tokio::time::sleep(Duration::from_millis(5)).await;
            let said = String::from_utf8_lossy(&complaints.borrow()).into_owned();
            let name = plan.runtime.name();
            report(&Report::Failed(format!("{name}: {why}: {}", explain::explain(&said))))?;
        }
    }
    let _ = pidfd_send_signal(&started.pidfd, Signal::KILL);
    let _ = tokio::time::timeout(GONE_AFTER, ended.readable()).await;
    let _ =
        rustix::process::waitid(WaitId::PidFd(started.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    if plan.runtime.kind == Kind::Plain {
        remove_cgroups(&plan.name);
    }
    prepared.cgroup.remove();
    if let Some(asking) = asked_to_remove {
        remove(plan, asking);
    }
    Ok(())
}

/// What is done once the executor runs, before anybody gets its first connection.
fn begin(plan: &Plan, first: OwnedFd) -> io::Result<OwnedFd> {
    start::weigh(plan)?;
    start::share(plan, &first)?;
    Ok(first)
}

/// Keeps what a runtime complains about, the last of it.
async fn listen(complaints: pipe::Receiver, kept: Rc<std::cell::RefCell<Vec<u8>>>) {
    let mut buffer = [0; 4096];
    while complaints.readable().await.is_ok() {
        match complaints.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                let mut kept = kept.borrow_mut();
                kept.extend_from_slice(&buffer[..length]);
                let over = kept.len().saturating_sub(COMPLAINTS);
                kept.drain(..over);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

async fn accept(listener: &AsyncFd<OwnedFd>) -> io::Result<OwnedFd> {
    let accept = |socket: &OwnedFd| Ok(rustix::net::accept_with(socket, SocketFlags::CLOEXEC)?);
    listener.async_io(Interest::READABLE, accept).await
}

/// Nobody else can be there yet.
async fn accept_first(inner: &AsyncFd<OwnedFd>, word: &Word) -> io::Result<OwnedFd> {
    loop {
        if let Some(connection) = known(accept(inner).await?, word).await {
            return Ok(connection);
        }
    }
}

/// The executor calls again whenever somebody got its last connection. Who does not say its word is somebody else.
async fn receive(inner: &AsyncFd<OwnedFd>, waiting: &Rc<Waiting>, word: Word) {
    let strangers = Arc::new(Semaphore::new(MOST_STRANGERS));
    loop {
        match accept(inner).await {
            Ok(connection) => {
                let Ok(turn) = Arc::clone(&strangers).try_acquire_owned() else { continue };
                let waiting = Rc::clone(waiting);
                tokio::task::spawn_local(async move {
                    if let Some(connection) = known(connection, &word).await {
                        waiting.add(connection);
                    }
                    drop(turn);
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// The connection, if whoever made it says the word at once.
async fn known(connection: OwnedFd, word: &Word) -> Option<OwnedFd> {
    rustix::io::ioctl_fionbio(&connection, true).ok()?;
    let connection = sys::watched(connection, Interest::READABLE).ok()?;
    let (mut said, mut length) = ([0; TOKEN], 0);
    let listen = async {
        while length < TOKEN {
            let read = |socket: &OwnedFd| Ok(rustix::io::read(socket, &mut said[length..])?);
            match connection.async_io(Interest::READABLE, read).await {
                Ok(0) | Err(_) => return,
                Ok(more) => length += more,
            }
        }
    };
    tokio::time::timeout(INTRODUCTION, listen).await.ok()?;
    let connection = connection.into_inner();
    rustix::io::ioctl_fionbio(&connection, false).ok()?;
    (said == *word).then_some(connection)
}

/// What servers can be given.
struct Desk {
    waiting: Rc<Waiting>,
    watch: Rc<watch::Watching>,
    out: Option<OwnedFd>,
}

/// Answers servers until one wants the sandbox removed.
async fn answer(
    outer: &AsyncFd<OwnedFd>,
    desk: &Rc<Desk>,
    removal: &Rc<Notify>,
    asked_to_remove: &mut Option<OwnedFd>,
) {
    let removing: Rc<std::cell::Cell<Option<OwnedFd>>> = Rc::default();
    loop {
        let asking = tokio::select! {
            asking = accept(outer) => asking,
            () = removal.notified() => {
                *asked_to_remove = removing.take();
                return;
            }
        };
        let Ok(asking) = asking else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (desk, removal, removing) = (Rc::clone(desk), Rc::clone(removal), Rc::clone(&removing));
        tokio::task::spawn_local(async move {
            let Some((ask, asking)) = heard(asking).await else { return };
            let (answer, connection) = match ask {
                Ask::Connect => match desk.waiting.take().await {
                    Some(connection) => (Answer::Connected, Some(connection)),
                    None => (Answer::Refused(format!("its executor does not call within {PATIENCE:?}")), None),
                },
                Ask::Usage => (Answer::Used(desk.watch.usage().await), None),
                Ask::Door => (Answer::Door, desk.out.as_ref().and_then(|out| out.try_clone().ok())),
                Ask::Remove => {
                    removing.set(Some(asking));
                    removal.notify_one();
                    return;
                }
            };
            let descriptors: Vec<_> = connection.iter().map(AsFd::as_fd).collect();
            let _ = wire::send_value(asking.as_fd(), &answer, &descriptors);
        });
    }
}

/// What somebody asks, who does so at once.
async fn heard(asking: OwnedFd) -> Option<(Ask, OwnedFd)> {
    rustix::io::ioctl_fionbio(&asking, true).ok()?;
    let asking = sys::watched(asking, Interest::READABLE).ok()?;
    let mut buffer = [0; 256];
    let hear = asking.async_io(Interest::READABLE, |socket| wire::receive_value(socket.as_fd(), &mut buffer));
    let heard = tokio::time::timeout(Duration::from_secs(1), hear).await.ok()?.ok()??;
    Some((heard.0, asking.into_inner()))
}

/// Its folder goes out of sight first, and nobody waits until all is gone.
fn remove(plan: &Plan, asking: OwnedFd) {
    let trash = plan.state.join("trash");
    let _ = fs::create_dir(&trash);
    let aside = trash.join(format!("deleted-{}", plan.name));
    let answer = match fs::rename(&plan.folder, &aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Answer::Refused(error.to_string()),
        _ => Answer::Removed,
    };
    let _ = wire::send_value(asking.as_fd(), &answer, &[]);
    drop(asking);
    let _ = tree::clear(&aside);
    let _ = fs::remove_dir(&aside);
}
