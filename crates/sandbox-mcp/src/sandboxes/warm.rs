//! Sandboxes that are made before anybody asks for them: whoever asks for one like them has it at once.
//!
//! A warm sandbox is nobody's ([`UserId::nobody`]): no interface shows it, and it reaches nothing until it has an owner. It
//! is used once, by whoever it is handed to. What a server leaves behind that is still nobody's, the next one removes.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use sandbox_core::{Facts, Image, Policy, Sandbox, UserId};
use tokio::sync::Notify;

use super::{Care, Inner, Lifetime, NewSandbox, Sandboxes, SandboxesError, Session, What, folders, remains::Remains};

/// A warm sandbox that does not answer in this time is not handed out.
const HEALTH: Duration = Duration::from_secs(1);
/// After one could not be made, the next is tried no sooner. Doubled each time, up to the longest.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often those that wait are looked at.
const LOOK: Duration = Duration::from_secs(20);

/// One kind of sandbox, and how many of it are kept ready.
#[derive(Clone, Debug, PartialEq)]
pub struct Warm {
    /// Where they run; where the operator wants sandboxes, if not said.
    pub backend: Option<String>,
    /// What they start from.
    pub image: Image,
    /// What they may do.
    pub policy: Policy,
    /// How many.
    pub count: usize,
}

/// All that are ready, by kind.
#[derive(Default)]
pub(super) struct Pool {
    kinds: Vec<Kind>,
}

struct Kind {
    warm: Warm,
    ready: Mutex<VecDeque<Arc<Session>>>,
    /// Told when one was taken.
    taken: Arc<Notify>,
}

impl Warm {
    /// Whether this is what somebody asks for. Only what was not made to measure can be made before.
    fn fits(&self, new: &NewSandbox, default: &str) -> bool {
        let place = |name: &Option<String>| name.as_deref().unwrap_or(default).to_owned();
        new.lifetime == Lifetime::Temporary
            && new.env.is_empty()
            && new.tools.is_empty()
            && new.tools.is_empty()
            && place(&new.backend) == place(&self.backend)
            && new.image == self.image
            && new.policy == self.policy
    }
}

impl Pool {
    pub(super) fn new(kinds: &[Warm]) -> Self {
        let kind = |warm: &Warm| Kind { warm: warm.clone(), ready: Mutex::default(), taken: Arc::default() };
        Self { kinds: kinds.iter().map(kind).collect() }
    }

    fn ready(&self) -> impl Iterator<Item = Arc<Session>> {
        let all: Vec<_> = self.kinds.iter().flat_map(|kind| kind.lock().drain(..).collect::<Vec<_>>()).collect();
        all.into_iter()
    }
}

impl Kind {
    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Arc<Session>>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was there.
    fn remove(&self, warm: &Session) -> bool {
        let mut ready = self.lock();
        let before = ready.len();
        ready.retain(|known| known.id() != warm.id());
        ready.len() < before
    }

    /// Takes the oldest, and has another one made.
    fn take(&self) -> Option<Arc<Session>> {
        let taken = self.lock().pop_front();
        self.taken.notify_one();
        taken
    }
}

/// Keeps every kind filled, for as long as the server lives.
pub(super) fn keep_filled(sandboxes: &Sandboxes) {
    for number in 0..sandboxes.0.pool.kinds.len() {
        tokio::spawn(fill(Arc::downgrade(&sandboxes.0), number));
    }
}

async fn fill(centre: Weak<Inner>, number: usize) {
    let mut pause = PAUSE;
    loop {
        let Some(sandboxes) = centre.upgrade().map(Sandboxes) else { return };
        sandboxes.discard_unwell(number).await;
        match sandboxes.add_warm(number).await {
            Ok(Added::One) => pause = PAUSE,
            Ok(Added::Closing) => return,
            Ok(Added::Enough) => {
                // The centre is not held while nothing is done for it.
                let taken = sandboxes.0.pool.kinds[number].taken.clone();
                drop(sandboxes);
                let _ = tokio::time::timeout(LOOK, taken.notified()).await;
            }
            Err(error) => {
                let policy = &sandboxes.0.pool.kinds[number].warm.policy.name;
                tracing::warn!("no sandbox with the policy `{policy}` could be made ready: {error}");
                drop(sandboxes);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

enum Added {
    One,
    Enough,
    Closing,
}

impl Sandboxes {
    /// One that is ready and is what somebody asks for; from now on it is theirs.
    pub(super) async fn take_warm(&self, owner: &UserId, new: &NewSandbox) -> Option<Arc<Session>> {
        let began = Instant::now();
        let default = self.0.backends.as_ref()?.default();
        let kind = self.0.pool.kinds.iter().find(|kind| kind.warm.fits(new, default))?;
        while let Some(warm) = kind.take() {
            match self.hand_over(&warm, owner).await {
                Ok(session) => {
                    let spec = &session.facts().spec;
                    let (image, policy) = (spec.image.to_string(), spec.policy.name.clone());
                    session.record(What::Created { image, policy, took: began.elapsed() });
                    return Some(session);
                }
                Err(error) => {
                    tracing::warn!("{} was ready and could not be used: {error}", warm.id());
                    self.discard(&warm).await;
                }
            }
        }
        None
    }

    /// Gives up one that is ready, to make room.
    pub(super) async fn give_up_warm(&self) -> bool {
        // Without having another one made: room is what is missing.
        let warm = self.0.pool.kinds.iter().find_map(|kind| kind.lock().pop_back());
        match warm {
            Some(warm) => {
                self.discard(&warm).await;
                true
            }
            None => false,
        }
    }

    /// How many are ready; nothing where none are to be.
    pub fn warm(&self) -> Option<usize> {
        let kinds = &self.0.pool.kinds;
        (!kinds.is_empty()).then(|| kinds.iter().map(|kind| kind.lock().len()).sum())
    }

    /// Ends all that are ready.
    pub(super) async fn end_warm(&self) {
        futures::future::join_all(self.0.pool.ready().map(|warm| async move { self.discard(&warm).await })).await;
    }

    async fn hand_over(&self, warm: &Arc<Session>, owner: &UserId) -> Result<Arc<Session>, SandboxesError> {
        is_well(warm).await?;
        let mut facts = warm.facts().clone();
        facts.spec.owner = owner.clone();
        sandbox_linux::folder::describe(warm.folder(), &facts)?;
        folders::mark_used(warm.folder());
        let session = self.look_after_as(warm.sandbox().clone(), facts);
        if let Err(error) = self.reopen_way_out(&session).await {
            self.forget(session.id());
            return Err(error);
        }
        Ok(session)
    }

    async fn add_warm(&self, number: usize) -> Result<Added, SandboxesError> {
        let kind = &self.0.pool.kinds[number];
        if self.is_closing() {
            return Ok(Added::Closing);
        }
        if kind.lock().len() >= kind.warm.count {
            return Ok(Added::Enough);
        }
        let Warm { backend, image, policy, .. } = kind.warm.clone();
        let (lifetime, env, tools) = (Lifetime::Temporary, Default::default(), Vec::new());
        let new = NewSandbox { backend, image, policy, lifetime, env, tools };
        let warm = self.make_warm(new).await?;
        kind.lock().push_back(warm);
        // Whoever closes empties the pool after saying so, and may have done both before this one was in it.
        if self.is_closing() {
            self.end_warm().await;
            return Ok(Added::Closing);
        }
        Ok(Added::One)
    }

    async fn make_warm(&self, new: NewSandbox) -> Result<Arc<Session>, SandboxesError> {
        let (sandbox, _) = self.make_sandbox(UserId::nobody(), new, &|_| ()).await?;
        let facts = sandbox.facts().clone();
        let session = Arc::new(self.session(sandbox, facts, Care::Ours));
        // It holds a connection from now on, so that its lease does not end.
        if let Err(error) = is_well(&session).await {
            self.discard(&session).await;
            return Err(error);
        }
        Ok(session)
    }

    async fn discard_unwell(&self, number: usize) {
        let all: Vec<_> = self.0.pool.kinds[number].lock().iter().cloned().collect();
        for warm in all {
            if is_well(&warm).await.is_ok() {
                continue;
            }
            // It may have been handed out meanwhile, and then is no longer ours to judge.
            if self.0.pool.kinds[number].remove(&warm) {
                self.discard(&warm).await;
            }
        }
    }

    async fn discard(&self, warm: &Session) {
        warm.let_go();
        let removed = match warm.sandbox().destroy().await {
            Ok(()) => super::remains::discard(warm.folder()).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = removed {
            tracing::warn!("{} could not be removed: {error}", warm.id());
        }
    }

    /// What an earlier server had ready.
    pub(super) async fn discard_left_behind(&self, alive: Vec<Arc<dyn Sandbox>>) -> Vec<Arc<dyn Sandbox>> {
        let (warm, owned): (Vec<_>, Vec<_>) = alive.into_iter().partition(|sandbox| is_warm(sandbox.facts()));
        for sandbox in warm {
            let facts = sandbox.facts().clone();
            self.discard(&self.session(sandbox, facts, Care::Ours)).await;
        }
        for id in self.0.folders.ids() {
            let folder = self.0.folders.folder(&id);
            if let Some(facts) = self.0.folders.facts(&id).filter(is_warm)
                && !folders::is_attended(&folder)
            {
                // An engine may still have what has ended.
                let remains = Remains::new(facts, folder.clone(), "nobody took it".to_owned());
                match remains.destroy().await {
                    Ok(()) => drop(super::remains::discard(&folder)),
                    Err(error) => tracing::warn!("{id}, which was ready for nobody, could not be removed: {error}"),
                }
            }
        }
        owned
    }
}

/// Whether it is nobody's yet.
pub(super) fn is_warm(facts: &Facts) -> bool {
    facts.spec.owner == UserId::nobody()
}

/// Whether it lives, and its executor answers.
async fn is_well(session: &Session) -> Result<(), SandboxesError> {
    let ask = async { session.connected().await?.usage().await.map_err(SandboxesError::from) };
    let silent = || std::io::Error::from(std::io::ErrorKind::TimedOut);
    match tokio::time::timeout(HEALTH, ask).await {
        Ok(answer) => answer.map(drop),
        Err(_) => Err(SandboxesError::io("asking a sandbox whether it is well")(silent())),
    }
}
