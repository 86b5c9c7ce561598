//! The way out where no listener can be passed to a server: what programs inside connect to the proxy's port goes to it as
//! flows. We carry bytes and look at none of them.

use std::{io, net::TcpListener as StdListener, os::fd::OwnedFd, rc::Rc, time::Duration};

use sandbox_executor::{
    carrier::{Connection, Flow},
    frame::FrameError,
    protocol::{Reason, Reply},
};
use tokio::net::{TcpListener, TcpStream};

use super::{Executor, failure::failed, port};

/// Time for what keeps us from accepting to pass.
const BREATH: Duration = Duration::from_millis(50);
/// Time for a flow to become free. Most connections are short; whoever waits for longer is told by a reset.
const PATIENCE: Duration = Duration::from_secs(5);

/// Opens a flow on this connection for each program that connects, as long as the flow that asked for it is there.
pub async fn serve(executor: &Executor, connection: &Rc<Connection>, mut flow: Flow) -> Result<(), FrameError> {
    let listener = match executor.door.as_ref().map(listen) {
        Some(Ok(listener)) => listener,
        Some(Err(error)) => {
            let what = format!("the way out's listener cannot be used: {error}");
            return flow.writer.message(&Reply::Failed(failed(Reason::System, what))).await;
        }
        None => {
            let what = "this sandbox has no way out of this kind";
            return flow.writer.message(&Reply::Failed(failed(Reason::NotFound, what))).await;
        }
    };
    flow.writer.message(&Reply::Done).await?;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let connection = Rc::clone(connection);
                    // A connection that breaks is its own concern.
                    tokio::task::spawn_local(async move { drop(carry(&connection, stream).await) });
                }
                Err(_) => tokio::time::sleep(BREATH).await,
            },
            // Nothing may come on it, so this is its opener going away.
            _ = flow.reader.next() => return Ok(()),
        }
    }
}

async fn carry(connection: &Connection, stream: TcpStream) -> Result<(), FrameError> {
    stream.set_nodelay(true)?;
    let Ok(opened) = tokio::time::timeout(PATIENCE, connection.open(&Reply::Done, &[])).await else {
        return Ok(stream.set_zero_linger()?);
    };
    let mut flow = opened?;
    port::carry(stream, &mut flow.writer, flow.reader).await?;
    Ok(flow.writer.finish().await?)
}

fn listen(door: &OwnedFd) -> io::Result<TcpListener> {
    TcpListener::from_std(StdListener::from(door.try_clone()?))
}
