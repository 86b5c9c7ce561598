//! The person at this server's own client, for questions that come from inside a sandbox and belong to no call of that client.
//!
//! Only a client that shook hands can be asked out of turn (`elicitation/create`). With the other era of the protocol every
//! question belongs to a call, so there nobody can be asked from inside.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use rmcp::{Peer, RoleServer};

use super::asking;
use crate::sandboxes::access::{Person, Question, Reply, shown};

/// This server's client, once it has shaken hands. Clones are the same.
#[derive(Clone, Default)]
pub struct Client(Arc<Mutex<Option<Peer<RoleServer>>>>);

impl Client {
    /// It has shaken hands.
    pub fn set(&self, peer: Peer<RoleServer>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(peer);
    }

    /// Whoever sits at it, who is given so long for an answer.
    pub fn person(&self, patience: Duration) -> AtClient {
        AtClient { peer: self.0.lock().unwrap_or_else(PoisonError::into_inner).clone(), patience }
    }
}

/// Whoever sits at this server's client.
pub struct AtClient {
    peer: Option<Peer<RoleServer>>,
    patience: Duration,
}

#[async_trait]
impl Person for AtClient {
    fn name(&self) -> String {
        match self.peer.as_ref().and_then(Peer::peer_info) {
            Some(client) => format!("the user of {} (MCP)", shown(&client.client_info.name, (40, 0))),
            None => "nobody".to_owned(),
        }
    }

    fn is_there(&self) -> bool {
        let Some(peer) = self.peer.as_ref().filter(|peer| !peer.is_transport_closed()) else { return false };
        let offered = peer.peer_info().and_then(|info| info.capabilities.elicitation.clone());
        offered.is_some_and(|offered| asking::shows_forms(&offered))
    }

    async fn answer(&self, question: &Question) -> Reply {
        let Some(peer) = &self.peer else { return Reply::NoAnswer };
        let Some(mut handle) = asking::put(peer, question).await else { return Reply::NoAnswer };
        if let Ok(answer) = tokio::time::timeout(self.patience, &mut handle.rx).await {
            return asking::understood(answer, question);
        }
        let _ = handle.cancel(Some("nobody waits for the answer any more".to_owned())).await;
        Reply::NoAnswer
    }
}
