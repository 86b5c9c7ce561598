//! MCP over standard streams: the tools that clients see, in both eras of the protocol.
//!
//! `transport` brings lines, `server` answers requests, `tools` says what there is, and one file for each kind of work
//! does it. Nothing here knows how a sandbox is made.

mod access;
mod answers;
mod arguments;
mod asking;
pub mod bound;
mod client;
mod error;
mod files;
mod follow;
pub mod inside;
mod line_id;
mod listing;
mod names;
mod output;
mod paths;
mod ports;
mod progress;
mod resources;
mod run;
mod schema;
mod server;
mod sessions;
mod signals;
mod task;
mod tools;
mod transport;

use std::time::Duration;

pub use client::Client;

use rmcp::{ServiceExt, service::ServerInitializeError, transport::stdio_pipes};

use crate::app::App;

/// After the end of input, calls that are under way may still answer for so long. Clients kill what takes longer.
const GRACE: Duration = Duration::from_secs(1);

/// Serves on standard input and output until the input ends. Sandboxes are the caller's to end.
pub async fn serve_stdio(app: App) -> anyhow::Result<()> {
    on_stdio(server::Server::new(app)).await
}

/// The same for one sandbox only.
pub async fn serve_one_on_stdio(app: App, bound: bound::Bound) -> anyhow::Result<()> {
    on_stdio(server::Server::new(app).bound(bound)).await
}

async fn on_stdio(server: server::Server) -> anyhow::Result<()> {
    let (input, output) = stdio_pipes();
    let lines = transport::Lines::new(input, output);
    let ended = lines.ended();
    let running = match server.serve(lines).await {
        Ok(running) => running,
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    tokio::select! {
        finished = running.waiting() => drop(finished?),
        () = async { ended.wait().await; tokio::time::sleep(GRACE).await } => {}
    }
    Ok(())
}
