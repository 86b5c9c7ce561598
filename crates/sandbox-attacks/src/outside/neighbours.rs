//! Two sandboxes that look for each other, and one that looks for what was there before it.

use std::{net::TcpStream, time::Duration};

use futures::future::BoxFuture;

use super::{or_return, with_cell};
use crate::{
    canary::{argument, random_mark, segment_of},
    report::Finding,
    workbench::{Bench, Cell, Said},
};

/// A mark, and the arguments that tell it.
fn marked() -> Result<(String, Vec<String>), Finding> {
    let mark = random_mark().map_err(|error| Finding::failed(error.to_string()))?;
    let arguments = vec![argument(&mark), format!("segment={}", segment_of(&mark))];
    Ok((mark, arguments))
}

async fn leave(cell: &Cell, arguments: &[String]) -> Result<(), Finding> {
    match cell.attack("leave_mark", arguments).await {
        Said::Seen(_) => Ok(()),
        Said::Finding(finding) => Err(finding),
    }
}

async fn find(cell: &Cell, arguments: &[String]) -> Finding {
    match cell.attack("find_mark", arguments).await {
        Said::Finding(finding) => finding,
        Said::Seen(seen) => Finding::failed(seen),
    }
}

async fn another(bench: &Bench) -> Result<Cell, Finding> {
    bench.cell().await.map_err(|error| Finding::failed(error.to_string()))
}

/// Files, processes, shared memory, queues and sockets of a sandbox that runs at the same time.
pub(crate) fn neighbours_things(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let (_, arguments) = or_return!(marked());
        or_return!(leave(&cell, &arguments).await);
        let other = or_return!(another(&bench).await);
        find(&other, &arguments).await
    })
}

/// The abstract socket of a sandbox that runs at the same time.
pub(crate) fn neighbours_socket(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let (_, arguments) = or_return!(marked());
        or_return!(leave(&cell, &arguments).await);
        let other = or_return!(another(&bench).await);
        match other.attack("host_abstract_socket", &arguments).await {
            Said::Finding(finding) => finding,
            Said::Seen(seen) => Finding::failed(seen),
        }
    })
}

/// Sockets that are made for one sandbox, listed in another.
pub(crate) fn socket_table(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, first| async move {
        let mut cells = vec![first];
        for _ in 0..2 {
            cells.push(or_return!(another(&bench).await));
        }
        let mut last = Finding::held("no sandbox was made");
        for cell in &cells {
            last = match cell.attack("socket_table", &[]).await {
                Said::Finding(finding) => finding,
                Said::Seen(seen) => Finding::failed(seen),
            };
            if last.outcome != crate::Outcome::Held {
                break;
            }
        }
        last
    })
}

/// What a sandbox left that has ended, in those that come after it and may get its folder.
pub(crate) fn leftovers(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let (_, arguments) = or_return!(marked());
        or_return!(leave(&cell, &arguments).await);
        if let Err(error) = cell.sandbox.destroy().await {
            return Finding::failed(error.to_string());
        }
        let mut last = Finding::held("no sandbox was made");
        for _ in 0..4 {
            // Emptied folders come back after a moment.
            tokio::time::sleep(Duration::from_millis(60)).await;
            let next = or_return!(another(&bench).await);
            last = find(&next, &arguments).await;
            if last.outcome != crate::Outcome::Held {
                break;
            }
        }
        last
    })
}

/// A listener inside must not be one of this machine's.
pub(crate) fn listener_inside(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let port: u16 = match cell.attack("listen_for_host", &[]).await {
            Said::Seen(port) => port.parse().unwrap_or_default(),
            Said::Finding(finding) => return finding,
        };
        let reached = tokio::task::spawn_blocking(move || {
            use std::io::Read;
            let address = std::net::SocketAddr::from(([127, 0, 0, 1], port));
            let mut guest = TcpStream::connect_timeout(&address, Duration::from_millis(500)).ok()?;
            let _ = guest.set_read_timeout(Some(Duration::from_millis(500)));
            let mut greeting = [0; 6];
            guest.read_exact(&mut greeting).ok()?;
            (&greeting == b"inside").then_some(())
        });
        match reached.await {
            Ok(Some(())) => Finding::broke(format!("port {port} of the sandbox is a port of this machine")),
            _ => Finding::held("the port is not seen from outside"),
        }
    })
}
