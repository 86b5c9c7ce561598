//! What programs in a sandbox are offered by the server that looks after it. What it is, the doors know; here is only where it
//! comes from.

use std::sync::{Arc, Weak};

use sandbox_core::SessionId;
use sandbox_egress::OwnTools;

use super::{Inner, Sandboxes};

/// Makes what programs in a sandbox are offered at an address on its own loopback.
pub type Offer = Arc<dyn Fn(&WeakSandboxes, &SessionId) -> OwnTools + Send + Sync>;

/// The centre, for those who do not keep it alive.
#[derive(Clone)]
pub struct WeakSandboxes(Weak<Inner>);

impl WeakSandboxes {
    /// The centre, if it is still there.
    pub fn upgrade(&self) -> Option<Sandboxes> {
        self.0.upgrade().map(Sandboxes)
    }
}

impl Sandboxes {
    /// What this sandbox is offered; nothing but by a server.
    pub(super) fn tools_for(&self, session: &SessionId) -> Option<OwnTools> {
        self.0.offer.as_ref().map(|offer| offer(&WeakSandboxes(Arc::downgrade(&self.0)), session))
    }
}
