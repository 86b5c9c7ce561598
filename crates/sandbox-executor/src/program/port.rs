//! Connections from outside to ports inside: one flow, one connection to this sandbox's loopback.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    pin::pin,
    time::Duration,
};

use rustix::io::Errno;
use sandbox_executor::{
    carrier::{Flow, FlowReader, FlowWriter},
    frame::FrameError,
    protocol::{FRAME_HEADER, Failure, FrameKind, PORT_FRAME, Reason, Reply, WAY_OUT_PORTS},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
};

use super::failure::failed;

/// Loopback answers at once, unless whoever listens takes no more connections.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connects, and carries bytes until both directions have ended, or one side breaks it off.
pub async fn connect(port: u16, mut flow: Flow) -> Result<(), FrameError> {
    let stream = match dial(port).await {
        Ok(stream) => stream,
        Err(failure) => {
            flow.writer.message(&Reply::Failed(failure)).await?;
            return Ok(flow.writer.finish().await?);
        }
    };
    flow.writer.message(&Reply::Done).await?;
    carry(stream, &mut flow.writer, flow.reader).await?;
    Ok(flow.writer.finish().await?)
}

/// Carries bytes both ways.
pub async fn carry(stream: TcpStream, writer: &mut FlowWriter, reader: FlowReader) -> Result<(), FrameError> {
    let (source, sink) = stream.into_split();
    let (mut outward, mut inward) = (pin!(send_out(source, writer)), pin!(take_in(reader, sink)));
    tokio::select! {
        sent = &mut outward => {
            sent?;
            inward.await.map(drop)
        }
        taken = &mut inward => {
            let mut reader = taken?;
            tokio::select! {
                sent = outward => sent,
                // Nothing may come after the end, so this is the opener going away.
                _ = reader.next() => Err(FrameError::CutOff),
            }
        }
    }
}

/// What the program inside says, up to its end.
async fn send_out(mut source: OwnedReadHalf, writer: &mut FlowWriter) -> Result<(), FrameError> {
    let mut buffer = vec![0; FRAME_HEADER + PORT_FRAME];
    loop {
        match source.read(&mut buffer[FRAME_HEADER..]).await? {
            0 => return writer.frame(FrameKind::End, &[]).await,
            count => writer.prepared(FrameKind::Data, &mut buffer[..FRAME_HEADER + count]).await?,
        }
    }
}

/// What the program inside is told, up to the end. Gives the reader back.
async fn take_in(mut reader: FlowReader, sink: OwnedWriteHalf) -> Result<FlowReader, FrameError> {
    let mut sink = Some(sink);
    loop {
        let frame = reader.next().await?.ok_or(FrameError::CutOff)?;
        match frame.kind {
            FrameKind::Data => {
                // Who reads no more may still have something to say, such as why: the rest is dropped.
                if let Some(open) = &mut sink
                    && open.write_all(&frame.body).await.is_err()
                {
                    sink = None;
                }
                reader.recycle(frame.body);
            }
            FrameKind::End => {
                if let Some(mut open) = sink {
                    // Where it is closed already there is nobody to tell.
                    let _ = open.shutdown().await;
                }
                return Ok(reader);
            }
            other => return Err(FrameError::Unexpected(other)),
        }
    }
}

async fn dial(port: u16) -> Result<TcpStream, Failure> {
    if port == 0 {
        return Err(failed(Reason::Invalid, "there is no port 0: ports are 1 to 65535"));
    }
    if WAY_OUT_PORTS.contains(&port) {
        return Err(failed(Reason::Denied, format!("port {port} belongs to the sandbox's own way out")));
    }
    let refused = match dial_at(Ipv4Addr::LOCALHOST.into(), port).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    match dial_at(Ipv6Addr::LOCALHOST.into(), port).await {
        Ok(stream) => Ok(stream),
        Err(error) if refused.kind() == io::ErrorKind::ConnectionRefused => Err(not_connected(port, &error)),
        Err(_) => Err(not_connected(port, &refused)),
    }
}

fn not_connected(port: u16, error: &io::Error) -> Failure {
    use io::ErrorKind as Kind;
    let nobody = || failed(Reason::NotFound, format!("nobody listens on port {port} of the sandbox's loopback"));
    match error.kind() {
        // The others mean that there is no such family of addresses here.
        Kind::ConnectionRefused | Kind::AddrNotAvailable | Kind::Unsupported | Kind::NetworkUnreachable => nobody(),
        Kind::TimedOut => {
            let what = format!("whoever listens on port {port} takes no connections: it hangs, or has too many");
            failed(Reason::System, what)
        }
        _ => match Errno::from_io_error(error) {
            Some(Errno::AFNOSUPPORT) => nobody(),
            Some(Errno::MFILE | Errno::NFILE) => failed(Reason::TooMany, "too many open files"),
            _ => failed(Reason::System, format!("port {port} of the sandbox's loopback: {error}")),
        },
    }
}

async fn dial_at(address: IpAddr, port: u16) -> io::Result<TcpStream> {
    let dialled = tokio::time::timeout(PATIENCE, TcpStream::connect((address, port))).await;
    let stream = dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    // Where nobody listens, the kernel may choose this very port for our end, and a socket that connects to itself succeeds.
    if stream.local_addr()? == stream.peer_addr()? {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_nodelay(true)?;
    Ok(stream)
}
