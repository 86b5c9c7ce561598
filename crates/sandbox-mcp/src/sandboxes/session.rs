//! A sandbox as a caller uses it. Using it resets its idle clock.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use sandbox_core::{
    Facts, JobId, Sandbox, SessionId, UserId,
    exec::{Ending, Exit},
};
use sandbox_executor::client::Attached;
use tokio::task::AbortHandle;

use super::{
    Allowed, Changes, Client, ClientError, Following, Journal, SandboxesError, Snapshot, State, Status, Summary, What,
    access::{Access, ActiveGrant, Admitted, Span, longest},
    folders,
    following::Watch,
    patience,
    ports::Ports,
    way_out::WayOut,
};
use crate::config::Settings;

/// Files of /workspace that are looked at to tell what changed.
const SNAPSHOT_FILES: u32 = 50_000;
/// Folders in folders that are looked at.
const SNAPSHOT_DEPTH: u32 = 64;
/// The idle clock that all servers share is not moved more often.
const CLOCK_STEP: Duration = Duration::from_secs(1);
/// A sandbox that does not answer in this time is described without its answer.
const STATUS_PATIENCE: Duration = Duration::from_secs(3);

/// How long a sandbox that is not persistent lives without a server, at most.
const LEASE: Duration = Duration::from_secs(60);

/// Who sees to it that a sandbox ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// This server.
    Ours,
    /// Another server of this user, or nobody.
    Anothers,
}

/// What bounds the time of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLimit {
    /// The policy and the operator's maximum.
    Policy,
    /// Only what the command itself asks for: a person sits at it.
    None,
}

/// One sandbox.
pub struct Session {
    sandbox: Arc<dyn Sandbox>,
    /// Those of the sandbox, but for the owner of one that was made before it had any.
    facts: Facts,
    folder: PathBuf,
    made: SystemTime,
    care: Care,
    settings: Arc<Settings>,
    journal: Journal,
    pub(super) access: Arc<Access>,
    pub(super) ports: Ports,
    client: Mutex<Option<Client>>,
    connecting: tokio::sync::Mutex<()>,
    /// Milliseconds since 1970.
    used: AtomicU64,
    ended: Mutex<Option<String>>,
    frozen: OnceLock<String>,
    /// Whether it goes on when this program ends.
    left: AtomicBool,
    pub(super) watcher: Mutex<Option<AbortHandle>>,
    pub(super) way_out: OnceLock<Arc<WayOut>>,
    /// Packets that had no route, as far as somebody was told.
    pub(super) unrouted: AtomicU64,
}

impl Session {
    pub(super) fn new(
        sandbox: Arc<dyn Sandbox>,
        facts: Facts,
        folder: PathBuf,
        care: Care,
        settings: Arc<Settings>,
        journal: Journal,
        access: Access,
    ) -> Self {
        let made = folders::made(&folder);
        Self {
            sandbox,
            facts,
            folder,
            made,
            care,
            settings,
            journal,
            access: Arc::new(access),
            ports: Ports::default(),
            client: Mutex::new(None),
            connecting: tokio::sync::Mutex::new(()),
            used: AtomicU64::new(0),
            ended: Mutex::new(None),
            frozen: OnceLock::new(),
            left: AtomicBool::new(false),
            watcher: Mutex::new(None),
            way_out: OnceLock::new(),
            unrouted: AtomicU64::new(0),
        }
    }

    /// Its handle.
    pub fn id(&self) -> &SessionId {
        &self.facts().spec.id
    }

    /// Whose it is.
    pub fn owner(&self) -> &UserId {
        &self.facts().spec.owner
    }

    /// What never changes while it lives.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Who looks after it.
    pub fn care(&self) -> Care {
        self.care
    }

    /// Its executor. Connects when first asked and again when the connection was lost.
    pub async fn client(&self) -> Result<Client, SandboxesError> {
        self.touch();
        self.connected().await
    }

    /// Nothing is started in it any more, and it reaches nothing; also when another server looks after it.
    pub(super) fn freeze(&self, why: &str) {
        let _ = self.frozen.set(why.to_owned());
        if let Err(error) = folders::freeze(&self.folder, why) {
            tracing::warn!("that {} is frozen could not be written down: {error}", self.id());
        }
        if let Some(way_out) = self.way_out.get() {
            way_out.shut();
        }
    }

    /// Why it was stopped for good, if it was; also when another server did that.
    pub fn frozen(&self) -> Option<String> {
        self.frozen.get().cloned().or_else(|| folders::frozen(&self.folder))
    }

    /// Whether it was stopped for good.
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen().is_some()
    }

    pub(super) fn check_frozen(&self) -> Result<(), SandboxesError> {
        self.frozen().map_or(Ok(()), |why| Err(SandboxesError::Frozen { id: self.id().clone(), why }))
    }

    /// Starts a command. Its timeout is lowered to what the policy and the operator allow.
    pub async fn start(self: &Arc<Self>, admitted: Admitted) -> Result<Following, SandboxesError> {
        let Admitted { mut exec, allowed, .. } = admitted;
        exec.timeout = Some(allowed.timeout);
        self.check_frozen()?;
        let client = self.client().await?;
        let follow = match patience::soon(client.spawn(&exec)).await {
            // The executor was lost between two calls; a new connection tells whether it is there.
            Err(ClientError::Closed) => patience::soon(self.client().await?.spawn(&exec)).await?,
            started => started?,
        };
        let job = follow.job();
        self.record(What::Started { job, command: shortened(&exec.program.to_string()) });
        let watch = Watch { client, session: self.clone(), job };
        Ok(Following::new(follow, watch, allowed))
    }

    /// Starts a command whose output goes only to the caller, loss-free; it ends when that is dropped.
    pub async fn start_attached(&self, admitted: Admitted, limit: TimeLimit) -> Result<Attached, SandboxesError> {
        let Admitted { mut exec, allowed, .. } = admitted;
        if limit == TimeLimit::Policy {
            exec.timeout = Some(allowed.timeout);
        }
        self.check_frozen()?;
        let attached = patience::soon(self.client().await?.spawn_attached(&exec)).await?;
        self.record(What::Started { job: attached.job(), command: shortened(&exec.program.to_string()) });
        Ok(attached)
    }

    /// How long a command may run that asks for this.
    pub fn allowed(&self, asked: Option<Duration>) -> Allowed {
        let usual = self.facts().spec.policy.limits.run.min(self.settings.max_timeout);
        let granted = self.access.run_time().unwrap_or_default().min(longest(&self.settings));
        let most = usual.max(granted);
        Allowed { timeout: asked.unwrap_or(usual).min(most), lowered_from: asked.filter(|asked| *asked > most) }
    }

    /// What a person has granted to it, and holds now.
    pub fn grants(&self) -> Vec<ActiveGrant> {
        self.access.active()
    }

    /// Its way out, where it has one and this server looks after it.
    pub fn way_out(&self) -> Option<&WayOut> {
        self.way_out.get().map(|way_out| &**way_out)
    }

    /// What was granted holds for connections from now on, and no longer than it was granted.
    pub(super) fn follow_grants(&self, span: Span) {
        let Some(way_out) = self.way_out.get().cloned() else { return };
        way_out.add_rules(self.access.network_rules());
        if let Span::Minutes(minutes) = span {
            let access = Arc::clone(&self.access);
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(u64::from(minutes) * 60) + CLOCK_STEP).await;
                way_out.add_rules(access.network_rules());
            });
        }
    }

    /// What the operator wants.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// /workspace as it stands now.
    pub async fn snapshot(&self) -> Result<Snapshot, SandboxesError> {
        let taken = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i64;
        let client = self.client().await?;
        let listing = patience::in_time(client.list(&"/workspace".into(), SNAPSHOT_DEPTH, SNAPSHOT_FILES)).await?;
        Ok(Snapshot::new(listing.entries, listing.truncated, taken))
    }

    /// What is different in /workspace since then.
    pub async fn files_changed_since(&self, mark: &Snapshot) -> Result<Changes, SandboxesError> {
        Ok(mark.compare(&self.snapshot().await?))
    }

    /// Whether this program ends without it: what is in it goes on, or waits for somebody who takes it.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Release);
    }

    /// Everything about it. Looking does not count as use.
    pub async fn status(&self) -> Status {
        let inside = async {
            let jobs = match self.connected().await {
                Ok(client) => client.jobs().await.unwrap_or_default(),
                Err(_) => Vec::new(),
            };
            (self.sandbox.usage().await.ok(), jobs)
        };
        let (usage, jobs) = tokio::time::timeout(STATUS_PATIENCE, inside).await.unwrap_or_default();
        let facts = self.facts();
        Status {
            summary: self.summary(),
            backend: facts.backend.clone(),
            usage,
            jobs,
            enforcement: facts.enforcement.clone(),
            grants: self.grants(),
            workspace: self.folder.join("workspace"),
        }
    }

    /// One line about it. Looking does not count as use.
    pub fn summary(&self) -> Summary {
        summary(self.facts(), &self.folder, self.state(), &self.settings)
    }

    /// Whether it runs.
    pub fn state(&self) -> State {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match (ended, self.frozen()) {
            (Some(why), _) => State::Ended { why },
            (None, Some(why)) => State::Frozen { why },
            (None, None) if self.care == Care::Ours || folders::is_attended(&self.folder) => State::Running,
            (None, None) => State::Unattended,
        }
    }

    /// Whether it is known to have ended.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// How long nobody has used it.
    pub fn idle(&self) -> Duration {
        folders::idle(&self.folder)
    }

    /// How long it has been there.
    pub fn age(&self) -> Duration {
        self.made.elapsed().unwrap_or_default()
    }

    /// Tells what happens in all sandboxes from now on.
    pub fn listen(&self) -> tokio::sync::broadcast::Receiver<super::Event> {
        self.journal.listen()
    }

    /// Notes what happened in it.
    pub fn record(&self, what: What) {
        self.journal.record(self.id(), self.owner(), what);
    }

    /// Notes that a command has ended, and which limit ended it, if one did.
    pub fn record_end(&self, job: JobId, exit: Exit, elapsed: Duration, ending: &Ending) {
        self.record(What::Finished { job, exit, elapsed });
        if let Exit::Limit(control) = exit {
            self.record(What::Denied { denial: Box::new(self.ended_by(control, elapsed, ending)), job: Some(job) });
        }
    }

    /// Notes that it is used now.
    pub fn touch(&self) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let last = self.used.load(Ordering::Relaxed);
        if now.saturating_sub(last) >= CLOCK_STEP.as_millis() as u64 {
            self.used.store(now, Ordering::Relaxed);
            folders::mark_used(&self.folder);
        }
    }

    /// Jobs that run now; none if it does not answer.
    pub(super) async fn running_jobs(&self) -> u32 {
        let ask = async { self.connected().await.ok()?.usage().await.ok() };
        tokio::time::timeout(STATUS_PATIENCE, ask).await.ok().flatten().map_or(0, |running| running.jobs)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    pub(super) fn mark_ended(&self, why: &str) {
        *self.ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.to_owned());
        if let Some(way_out) = self.way_out.get() {
            way_out.shut();
        }
        self.close_ports(why);
        self.drop_client();
    }

    /// Stops watching it and lets go of the connection: it is about to be removed.
    pub(super) fn let_go(&self) {
        if let Some(watcher) = self.watcher.lock().unwrap_or_else(PoisonError::into_inner).take() {
            watcher.abort();
        }
        self.close_ports("the sandbox is removed");
        self.drop_client();
    }

    fn drop_client(&self) {
        self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub(super) async fn connected(&self) -> Result<Client, SandboxesError> {
        if let Some(client) = self.live_client() {
            return Ok(client);
        }
        // The wait for others that try the same counts too: many callers wait together, not one after the other.
        patience::soon(self.connect()).await
    }

    async fn connect(&self) -> Result<Client, SandboxesError> {
        let _only_one_connects = self.connecting.lock().await;
        if let Some(client) = self.live_client() {
            return Ok(client);
        }
        if let State::Ended { why } = self.state() {
            return Err(self.over(&why));
        }
        let channel = match self.dial().await {
            Err(sandbox_core::Error::Ended { why, .. }) => return Err(self.over(&why)),
            connected => connected?,
        };
        let client = Client::connect(channel).await?;
        *self.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
        Ok(client)
    }

    /// On a thread that may wait: a frozen executor does not even take connections, and that is no await.
    async fn dial(&self) -> sandbox_core::Result<sandbox_core::Channel> {
        let (sandbox, runtime) = (self.sandbox.clone(), tokio::runtime::Handle::current());
        let dialled = tokio::task::spawn_blocking(move || runtime.block_on(sandbox.connect())).await;
        let stopped = |error: tokio::task::JoinError| sandbox_core::Error::Step {
            step: "connecting to the sandbox".to_owned(),
            why: error.to_string(),
        };
        dialled.unwrap_or_else(|error| Err(stopped(error)))
    }

    /// Where its files are while it is there, also when nothing runs in it any more.
    pub(super) fn place_of_files(&self) -> String {
        match sandbox_docker::container(&self.folder) {
            Some(container) => format!("in its container (`docker cp {container}:/workspace FOLDER` takes them out)"),
            None => format!("in {}", self.folder.join("workspace").display()),
        }
    }

    fn over(&self, why: &str) -> SandboxesError {
        let files = self.place_of_files();
        let why = format!("{why}. Its files are kept {files} until it is cleaned up. Create a new sandbox to go on");
        sandbox_core::Error::Ended { id: self.id().clone(), why }.into()
    }

    fn live_client(&self) -> Option<Client> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client.as_ref().filter(|client| !client.is_closed()).cloned()
    }
}

/// One line about a sandbox, from its facts and its folder.
pub(super) fn summary(facts: &Facts, folder: &Path, state: State, settings: &Settings) -> Summary {
    let idle = folders::idle(folder);
    let spec = &facts.spec;
    let unused = settings.idle.map(|limit| limit.saturating_sub(idle));
    let expires_in = match state {
        _ if spec.persistent => None,
        // Nobody renews its lease any more.
        State::Unattended => Some(unused.map_or(LEASE, |left| left.min(LEASE))),
        _ => unused,
    };
    Summary {
        session_id: spec.id.clone(),
        owner: spec.owner.clone(),
        state,
        image: spec.image.clone(),
        policy: spec.policy.name.clone(),
        persistent: spec.persistent,
        age: folders::made(folder).elapsed().unwrap_or_default(),
        idle,
        expires_in,
    }
}

/// Commands may be megabytes; the journal is not.
fn shortened(command: &str) -> String {
    match command.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &command[..end]),
        None => command.to_owned(),
    }
}
