//! Making sandboxes: room for one more, what its way out needs, and the backend that it is made on.

use std::{sync::Arc, time::Instant};

use sandbox_core::{Image, Progress, Sandbox, SandboxSpec, SessionId, UserId};

use super::{Lifetime, NewSandbox, Sandboxes, SandboxesError, Session, What, secrets, way_out};

impl Sandboxes {
    pub(super) async fn make(
        &self,
        owner: UserId,
        mut new: NewSandbox,
        tell: Progress<'_>,
    ) -> Result<Arc<Session>, SandboxesError> {
        let began = Instant::now();
        self.0.settings.bound(&mut new.policy);
        if let Some(session) = self.take_warm(&owner, &new).await {
            return Ok(session);
        }
        let (sandbox, prepared) = self.make_sandbox(owner, new, tell).await?;
        let session = self.look_after(sandbox);
        let spec = session.facts().spec.clone();
        if let Err(error) = self.open_way_out(&session, &spec.policy, prepared).await {
            self.end(&session, "its way out could not be opened").await?;
            return Err(error);
        }
        let (image, policy) = (spec.image.to_string(), spec.policy.name.clone());
        session.record(What::Created { image, policy, took: began.elapsed() });
        if self.is_closing() && !spec.persistent {
            self.end(&session, "its server closed").await?;
            return Err(SandboxesError::NotFound(spec.id));
        }
        Ok(session)
    }

    /// A sandbox with what its way out will need.
    pub(super) async fn make_sandbox(
        &self,
        owner: UserId,
        new: NewSandbox,
        tell: Progress<'_>,
    ) -> Result<(Arc<dyn Sandbox>, secrets::Prepared), SandboxesError> {
        let inner = &self.0;
        let backends = inner.backends.as_ref().ok_or(SandboxesError::NoBackend)?;
        let backend = backends.named(new.backend.as_deref())?;
        let no_chance = |error| std::io::Error::other(format!("{error}"));
        let id =
            SessionId::random(&owner).map_err(no_chance).map_err(SandboxesError::io("no random id could be made"))?;
        // On standard streams and at the terminal all labels are one user of this machine: they count together.
        let room = loop {
            match inner.quota.reserve(None, &id) {
                // Those that are nobody's yet stand back.
                Err(_) if owner != UserId::nobody() && self.give_up_warm().await => {}
                room => break room?,
            }
        };
        let NewSandbox { backend: _, image, mut policy, lifetime, mut env, tools } = new;
        inner.settings.bound(&mut policy);
        way_out::tell_of_mirrors(&mut env, &policy, &inner.settings);
        if inner.offer.is_some() {
            way_out::tell_of_tools(&mut env, &policy);
        }
        let persistent = lifetime == Lifetime::Persistent;
        let mut spec = SandboxSpec { id, owner, image, policy, persistent, env, certificates: None, tools };
        let prepared = secrets::prepare(&inner.settings, &spec, &inner.journal).await?;
        prepared.tell(&mut spec.env, &inner.settings);
        spec.certificates = prepared.secrets.authority().map(str::to_owned);
        // What cannot be followed is refused before anything is made.
        way_out::rules(&spec.policy, &inner.settings)?;
        if let Image::Reference(name) = &spec.image {
            let explain = |error| inner.settings.explain_missing(name, error);
            backend.fetch(name, tell).await.map_err(explain)?;
        }
        let sandbox = backend.create(&spec).await?;
        drop(room);
        Ok((sandbox, prepared))
    }
}
