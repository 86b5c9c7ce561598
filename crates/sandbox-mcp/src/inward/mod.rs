//! The way in: preview addresses for web servers that run in a sandbox.
//!
//! A listener on this machine's loopback, one for each opened port, speaks HTTP with whoever connects and with the
//! program inside. Any user of this machine can connect to loopback, so what keeps others out is the address itself: it
//! holds a key that cannot be guessed, and a request that does not name it exactly is refused before a byte goes in. That
//! also stops web pages of others that point a name of theirs at loopback.
//!
//! Nothing here knows what a sandbox is: [`Inside`] leads to the port.

mod cookies;
mod headers;
mod listener;
mod name;
mod page;
mod proxy;

use async_trait::async_trait;
use sandbox_core::Duplex;

pub use listener::Door;
pub use name::Name;

/// Connections at once to all open ports of a sandbox. A browser opens six for each address.
pub const MOST_CONNECTIONS: usize = 64;

/// A port in a sandbox.
#[async_trait]
pub trait Inside: Send + Sync {
    /// Its number.
    fn port(&self) -> u16;

    /// Connects to it.
    async fn dial(&self) -> Result<Box<dyn Duplex>, Unreachable>;

    /// Somebody got an answer from it.
    fn used(&self);
}

/// Why a port cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// Nobody listens on it; that may change.
    #[error("nobody listens on this port yet")]
    NobodyListens,
    /// Anything else, in words.
    #[error("{0}")]
    Failed(String),
}
