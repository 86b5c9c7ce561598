//! What programs inside connect to the way out's proxy, one connection after the other.

use crate::{
    carrier::Flow,
    protocol::{Reply, Request},
};

use super::{Client, ClientError, PortStream};

/// Connections that come from inside, until this is dropped.
pub struct Outward {
    client: Client,
    /// The executor stops when it ends.
    _asked: Flow,
}

impl Outward {
    pub(super) async fn ask(client: &Client) -> Result<Self, ClientError> {
        let mut flow = client.connection.open(&Request::Outward, &[]).await?;
        let frame = flow.reader.next().await?.ok_or(ClientError::Closed)?;
        match frame.message()? {
            Reply::Done => Ok(Self { client: client.clone(), _asked: flow }),
            Reply::Failed(failure) => Err(failure.into()),
            other => Err(super::unexpected(&other)),
        }
    }

    /// The next connection; nothing when the executor is gone. What it opens that is none is passed over.
    pub async fn next(&mut self) -> Option<PortStream> {
        loop {
            let (mut flow, _) = self.client.connection.accept().await.ok()??;
            let Ok(Some(frame)) = flow.reader.next().await else { continue };
            if let Ok(Reply::Done) = frame.message() {
                return Some(PortStream::new(self.client.clone(), flow));
            }
        }
    }
}
