//! The centre: owners, quotas, lifetimes, jobs, events.
//!
//! A sandbox is a folder in the state folder. Several servers of one user work side by side: any of them reaches a
//! sandbox through its folder, and the one that made it (or adopted it after a crash) looks after it. The folder is the
//! truth about what exists; the history only remembers.

pub mod access;
mod backends;
mod care;
mod carriers;
mod changes;
mod error;
mod event;
mod folders;
mod following;
mod history;
mod journal;
mod making;
mod new;
pub mod no_network;
mod offer;
pub mod patience;
mod pending;
mod ports;
mod quota;
mod recovery;
mod remains;
pub mod secrets;
mod session;
mod status;
mod tending;
mod warm;
pub mod way_out;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

pub use backends::Backends;
pub use changes::{ChangedFile, Changes, Snapshot};
pub use error::SandboxesError;
pub use event::{Event, What};
pub use following::{Allowed, Following};
pub use history::{History, Query, Recorded, TaskRecord};
pub use journal::{DenialCounts, Journal, Kept};
pub use new::{Lifetime, NewSandbox, check_env};
pub use offer::{Offer, WeakSandboxes};
pub use ports::{Addresses, OpenPort};
pub use quota::available_memory;
pub use recovery::RecoveryReport;
pub use sandbox_executor::{
    client::{Client, ClientError, Follow, InputEnd, JobEvent, Until},
    transfer::{FileReader, FileWriter, Piece},
};
pub use session::{Care, Session, TimeLimit};
pub use status::{State, Status, Summary};
pub use warm::Warm;

use folders::Folders;
use quota::Quota;
use remains::Remains;
use sandbox_core::{Facts, Fetching, Policy, Sandbox, SessionId, UserId};
use sandbox_egress::Reader;

use crate::config::{Ask, Settings};

/// Reaches a sandbox of another server through its folder.
pub type Attach = fn(&Path) -> sandbox_core::Result<Arc<dyn Sandbox>>;

/// All sandboxes that this server can reach. Clones are the same centre.
#[derive(Clone)]
pub struct Sandboxes(Arc<Inner>);

/// Takes what is told while an image is fetched.
pub type Tell = Arc<dyn Fn(Fetching) + Send + Sync>;

struct Inner {
    settings: Arc<Settings>,
    backends: Option<Backends>,
    attach: Attach,
    folders: Folders,
    quota: Quota,
    journal: Journal,
    outside: way_out::Outside,
    /// What programs inside are offered, by a server.
    offer: Option<Offer>,
    /// How often all of them together may ask.
    pace: Arc<access::Pace>,
    /// Those that this server looks after.
    ours: RwLock<HashMap<SessionId, Arc<Session>>>,
    /// Those of other servers that were reached from here.
    visited: RwLock<HashMap<SessionId, Arc<Session>>>,
    /// Those of them whose way out is served here, or will be when nobody else does.
    tended: Mutex<HashSet<SessionId>>,
    recovery: RecoveryReport,
    pool: warm::Pool,
    closing: AtomicBool,
}

impl Sandboxes {
    /// A server: adopts what an earlier one left, and cleans up what nobody uses.
    pub async fn open(
        settings: Arc<Settings>,
        backends: Backends,
        attach: Attach,
        offer: Offer,
    ) -> Result<Self, SandboxesError> {
        let recovered = backends.recover().await;
        let reader = if settings.ask == Ask::Never { Reader::Unheard } else { Reader::Model };
        let mut inner = Inner::new(settings, Some(backends), attach, Kept::All)?;
        inner.outside = way_out::Outside::new(reader);
        inner.offer = Some(offer);
        inner.pool = warm::Pool::new(&inner.settings.warm);
        let (recovered, failed) = recovered;
        inner.recovery.failed = failed;
        inner.recovery.ended = recovered.ended;
        inner.recovery.removed = recovered.removed;
        let owned = recovered.alive.iter().filter(|found| !warm::is_warm(found.facts()));
        inner.recovery.adopted = owned.map(|found| found.facts().spec.id.clone()).collect();
        let sandboxes = Self(Arc::new(inner));
        for sandbox in sandboxes.discard_left_behind(recovered.alive).await {
            let session = sandboxes.look_after(sandbox);
            session.record(What::Adopted);
            // Aside: nobody who does not answer keeps others from being served.
            let centre = sandboxes.clone();
            tokio::spawn(async move {
                if let Err(error) = centre.reopen_way_out(&session).await {
                    tracing::warn!("{} has no network any longer: {error}", session.id());
                }
            });
        }
        care::clean_up_when_idle(&sandboxes);
        warm::keep_filled(&sandboxes);
        Ok(sandboxes)
    }

    /// A short visit that makes at most its own sandboxes and leaves what others left to a server.
    pub fn visit(
        settings: Arc<Settings>,
        backends: Option<Backends>,
        attach: Attach,
        kept: Kept,
    ) -> Result<Self, SandboxesError> {
        Ok(Self(Arc::new(Inner::new(settings, backends, attach, kept)?)))
    }

    /// Makes a sandbox for the caller.
    pub async fn create(&self, caller: &UserId, new: NewSandbox) -> Result<Arc<Session>, SandboxesError> {
        self.create_telling(caller, new, Arc::new(|_| ())).await
    }

    /// The same; where its image has to be fetched first, how far that is is told.
    pub async fn create_telling(
        &self,
        caller: &UserId,
        new: NewSandbox,
        tell: Tell,
    ) -> Result<Arc<Session>, SandboxesError> {
        new.check()?;
        let (centre, caller) = (self.clone(), caller.clone());
        let (done, made) = tokio::sync::oneshot::channel();
        // A task of its own: a caller that goes away in the middle must not leave half a sandbox, nor a whole one.
        tokio::spawn(async move {
            if let Err(Ok(unwanted)) = done.send(centre.make(caller, new, &*tell).await) {
                let _ = centre.end(&unwanted, "whoever asked for it went away").await;
            }
        });
        let stopped = |error| SandboxesError::io("making the sandbox stopped half-way")(std::io::Error::other(error));
        made.await.unwrap_or_else(|error| Err(stopped(error)))
    }

    /// A sandbox of the caller: ours, or one of another server of this user.
    pub async fn find(&self, caller: &UserId, id: &SessionId) -> Result<Arc<Session>, SandboxesError> {
        let inner = &self.0;
        let known = |map: &RwLock<HashMap<SessionId, Arc<Session>>>| {
            map.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned()
        };
        let session = match known(&inner.ours) {
            Some(session) if session.is_ended() && !inner.folders.exists(id) => {
                // Another server removed it.
                self.end(&session, "another server removed it").await?;
                return Err(SandboxesError::NotFound(id.clone()));
            }
            Some(session) => session,
            None if !inner.folders.exists(id) => {
                inner.visited.write().unwrap_or_else(PoisonError::into_inner).remove(id);
                return Err(SandboxesError::NotFound(id.clone()));
            }
            None => match known(&inner.visited) {
                Some(session) => session,
                // Whose it will be is not said yet.
                None if self.owner_of(id).is_none() => return Err(SandboxesError::NotFound(id.clone())),
                None => self.reach(id)?,
            },
        };
        if session.owner() == caller { Ok(session) } else { Err(SandboxesError::NotFound(id.clone())) }
    }

    /// All sandboxes of the caller, oldest first.
    pub async fn list(&self, caller: &UserId) -> Vec<Summary> {
        let mut list = self.list_all().await;
        list.retain(|summary| summary.owner == *caller);
        list
    }

    /// Whose a sandbox is; nothing if there is none.
    pub fn owner_of(&self, id: &SessionId) -> Option<UserId> {
        self.0.folders.facts(id).filter(|facts| !warm::is_warm(facts)).map(|facts| facts.spec.owner)
    }

    /// All sandboxes of this state folder, whoever they belong to: for the person at the terminal, whose they all are.
    pub async fn list_all(&self) -> Vec<Summary> {
        let inner = &self.0;
        let ours: HashMap<_, _> = inner.ours.read().unwrap_or_else(PoisonError::into_inner).clone();
        let summary = |id: SessionId| match ours.get(&id) {
            Some(session) => Some(session.summary()),
            None => {
                let (facts, folder) = (inner.folders.facts(&id)?, inner.folders.folder(&id));
                if warm::is_warm(&facts) {
                    return None;
                }
                let frozen = folders::frozen(&folder);
                let state = match folders::is_attended(&folder) {
                    true => frozen.map_or(State::Running, |why| State::Frozen { why }),
                    false => match (inner.attach)(&folder) {
                        Err(sandbox_core::Error::Ended { why, .. }) => State::Ended { why },
                        _ => State::Unattended,
                    },
                };
                Some(session::summary(&facts, &folder, state, &inner.settings))
            }
        };
        let mut list: Vec<Summary> = inner.folders.ids().into_iter().filter_map(summary).collect();
        list.sort_by(|a, b| b.age.cmp(&a.age).then_with(|| a.session_id.cmp(&b.session_id)));
        list
    }

    /// Ends a sandbox and removes everything in it. Doing so twice is fine; an id that never was is not.
    pub async fn remove(&self, caller: &UserId, id: &SessionId) -> Result<(), SandboxesError> {
        match self.find(caller, id).await {
            Ok(session) => self.end(&session, "it was asked for").await,
            Err(SandboxesError::NotFound(_)) if self.history().was_removed(caller.clone(), id.clone()).await => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ends this server's sandboxes, persistent ones left out, and writes down the rest of the history.
    pub async fn close(&self) {
        self.0.closing.store(true, Ordering::Release);
        self.end_warm().await;
        let ends_now = |session: &Arc<Session>| !session.facts().spec.persistent && !session.is_left();
        let ours: Vec<_> = self.ours().into_iter().filter(ends_now).collect();
        let ends = ours.iter().map(|session| self.end(session, "its server closed"));
        for (session, ended) in ours.iter().zip(futures::future::join_all(ends).await) {
            if let Err(error) = ended {
                let id = session.id();
                tracing::warn!("{id} is still there, and `sandbox-mcp rm {id}` removes it once that works: {error}");
            }
        }
        self.close_ports();
        self.leave_ways_out().await;
        let history = self.history().clone();
        let _ = tokio::task::spawn_blocking(move || history.flush()).await;
    }

    /// Leaves a sandbox of this server alone when that closes: it ends soon by itself, and its files stay until it is cleaned
    /// up. Says where; nothing, if it is none that would end.
    pub fn leave(&self, id: &SessionId) -> Option<String> {
        let visited = self.0.visited.read().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        let session = self.ours().into_iter().find(|session| session.id() == id).or(visited)?;
        session.leave();
        if session.care() == Care::Anothers || session.facts().spec.persistent {
            return None;
        }
        let until = self.settings().idle.map(|idle| match idle.as_secs() {
            seconds @ 0..60 => format!(" for {seconds} seconds"),
            60 => " for a minute".to_owned(),
            seconds => format!(" for {} minutes", seconds / 60),
        });
        let until = until.unwrap_or_default();
        Some(format!("{}{until}; `sandbox-mcp rm {id}` removes it", session.place_of_files()))
    }

    /// Events and tasks of the past.
    pub fn history(&self) -> &History {
        self.0.journal.history()
    }

    /// Events from now on.
    pub fn journal(&self) -> &Journal {
        &self.0.journal
    }

    /// What was found at start.
    pub fn recovery(&self) -> &RecoveryReport {
        &self.0.recovery
    }

    /// What the operator wants.
    pub fn settings(&self) -> &Arc<Settings> {
        &self.0.settings
    }

    fn is_closing(&self) -> bool {
        self.0.closing.load(Ordering::Acquire)
    }

    /// From now on this server sees to it that the sandbox ends.
    fn look_after(&self, sandbox: Arc<dyn Sandbox>) -> Arc<Session> {
        let facts = sandbox.facts().clone();
        self.look_after_as(sandbox, facts)
    }

    fn look_after_as(&self, sandbox: Arc<dyn Sandbox>, facts: Facts) -> Arc<Session> {
        let session = Arc::new(self.session(sandbox, facts, Care::Ours));
        let mut ours = self.0.ours.write().unwrap_or_else(PoisonError::into_inner);
        ours.insert(session.id().clone(), session.clone());
        drop(ours);
        care::watch_end(self, &session);
        session
    }

    /// What was allowed when a sandbox was made may be too much by now.
    async fn reopen_way_out(&self, session: &Arc<Session>) -> Result<(), SandboxesError> {
        if session.is_frozen() {
            return Ok(());
        }
        let mut spec = session.facts().spec.clone();
        spec.policy = self.0.settings.bounded_now(spec.policy);
        let prepared = secrets::prepare(&self.0.settings, &spec, &self.0.journal).await?;
        self.open_way_out(session, &spec.policy, prepared).await
    }

    async fn open_way_out(
        &self,
        session: &Arc<Session>,
        policy: &Policy,
        prepared: secrets::Prepared,
    ) -> Result<(), SandboxesError> {
        let inner = &self.0;
        let secrets = prepared.secrets.clone();
        let rules = way_out::rules(policy, &inner.settings)?;
        let own = self.tools_for(session.id());
        let opened = inner.outside.open(&**session.sandbox(), rules, &inner.journal, secrets, own).await?;
        let Some(way_out) = opened else { return Ok(()) };
        let _ = session.way_out.set(Arc::new(way_out));
        if prepared.secrets.authority().is_some() {
            patience::soon(prepared.place_certificates(session)).await?;
        }
        if inner.settings.freeze_on_leak {
            care::freeze_when_told(session, &prepared.leaked);
        }
        Ok(())
    }

    fn reach(&self, id: &SessionId) -> Result<Arc<Session>, SandboxesError> {
        let folder = self.0.folders.folder(id);
        let attached = (self.0.attach)(&folder);
        let (sandbox, ended): (Arc<dyn Sandbox>, _) = match (attached, self.0.folders.facts(id)) {
            (Ok(sandbox), _) => (sandbox, None),
            (Err(sandbox_core::Error::Ended { why, .. }), Some(facts)) => {
                (Arc::new(Remains::new(facts, folder, why.clone())), Some(why))
            }
            (Err(error), _) => return Err(error.into()),
        };
        let facts = sandbox.facts().clone();
        let session = Arc::new(self.session(sandbox, facts, Care::Anothers));
        if let Some(why) = ended {
            session.mark_ended(&why);
        }
        let mut visited = self.0.visited.write().unwrap_or_else(PoisonError::into_inner);
        visited.insert(id.clone(), session.clone());
        Ok(session)
    }

    fn session(&self, sandbox: Arc<dyn Sandbox>, facts: Facts, care: Care) -> Session {
        let folder = self.0.folders.folder(&facts.spec.id);
        let access = access::Access::new(self.0.pace.clone(), self.0.outside.reader());
        Session::new(sandbox, facts, folder, care, self.0.settings.clone(), self.0.journal.clone(), access)
    }

    /// Removes a sandbox; it stays known until that has worked.
    async fn end(&self, session: &Arc<Session>, why: &str) -> Result<(), SandboxesError> {
        session.let_go();
        // Its doors are given up before its network can be anybody else's.
        if let Some(way_out) = session.way_out.get() {
            way_out.close().await;
        }
        session.sandbox().destroy().await?;
        // A backend removes the folders of its own sandboxes; those of other servers are ours to remove.
        remains::discard(session.folder())
            .map_err(SandboxesError::io(format!("removing the files of {}", session.id())))?;
        if self.forget(session.id()) {
            session.record(What::Removed { why: why.to_owned() });
        }
        Ok(())
    }

    /// Whether it was known until now.
    fn forget(&self, id: &SessionId) -> bool {
        let from = |map: &RwLock<HashMap<SessionId, Arc<Session>>>| {
            map.write().unwrap_or_else(PoisonError::into_inner).remove(id).is_some()
        };
        from(&self.0.ours) | from(&self.0.visited)
    }

    /// Ports of sandboxes that live on were opened by this server, and nobody else keeps them open.
    fn close_ports(&self) {
        let visited: Vec<_> = self.0.visited.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect();
        self.ours().iter().chain(&visited).for_each(|session| session.close_ports("its server closed"));
    }

    fn ours(&self) -> Vec<Arc<Session>> {
        self.0.ours.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }
}

impl Inner {
    fn new(
        settings: Arc<Settings>,
        backends: Option<Backends>,
        attach: Attach,
        kept: Kept,
    ) -> Result<Self, SandboxesError> {
        let state = &settings.state;
        let doing = format!("the state folder {} cannot be used", state.display());
        let (per_user, total) = (settings.max_sandboxes_per_user, settings.max_sandboxes);
        let quota = Quota::open(state, per_user, total, settings.memory_floor).map_err(SandboxesError::io(doing))?;
        Ok(Self {
            backends,
            attach,
            folders: Folders::of(state),
            quota,
            journal: Journal::new(History::new(state), kept),
            outside: way_out::Outside::new(Reader::Person),
            offer: None,
            pace: access::Access::pace_in_all(),
            ours: RwLock::default(),
            visited: RwLock::default(),
            tended: Mutex::default(),
            recovery: RecoveryReport::default(),
            pool: warm::Pool::default(),
            closing: AtomicBool::new(false),
            settings,
        })
    }
}
