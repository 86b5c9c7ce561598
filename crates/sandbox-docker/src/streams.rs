//! Reaching an executor through its engine: the standard streams of its container, attached before it starts, and bridges
//! that the engine starts beside it. Works wherever the engine is, and whatever kernel its runtime has.

use std::{
    io,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use bollard::{
    Docker, container::LogOutput, exec::StartExecResults, models::ExecConfig,
    query_parameters::AttachContainerOptionsBuilder,
};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use sandbox_core::{Duplex, Error, Result};
use sandbox_executor::boot::{BRIDGE_ROLE, BootReport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_util::io::StreamReader;

use crate::{failure, plan};

/// Longest report of an executor.
const REPORT: u32 = 64 << 10;
/// A bridge stands soon.
const PATIENCE: Duration = Duration::from_secs(30);

/// The line to one executor.
pub struct Line {
    container: String,
    token: Vec<u8>,
    /// The container's own streams, until somebody wants them.
    first: Mutex<Option<Box<dyn Duplex>>>,
}

impl Line {
    /// To an executor that runs.
    pub fn new(container: String, token: Vec<u8>, first: Option<Box<dyn Duplex>>) -> Self {
        Self { container, token, first: Mutex::new(first) }
    }

    /// A new connection.
    pub async fn connect(&self, docker: &Docker) -> Result<Box<dyn Duplex>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first {
            Some(first) => Ok(first),
            None => tokio::time::timeout(PATIENCE, self.bridge(docker)).await.unwrap_or_else(|_| {
                Err(Error::Step { step: "building a bridge".into(), why: "the engine did not start it in time".into() })
            }),
        }
    }

    /// A bridge of its own.
    pub async fn bridge(&self, docker: &Docker) -> Result<Box<dyn Duplex>> {
        let building = || failure::step(format!("building a bridge into {}", self.container));
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(false),
            tty: Some(false),
            user: Some("0:0".into()),
            working_dir: Some("/".into()),
            cmd: Some(vec![plan::program(&self.container), BRIDGE_ROLE.into()]),
            ..ExecConfig::default()
        };
        let exec = docker.create_exec(&self.container, config).await.map_err(building())?;
        let StartExecResults::Attached { output, input } =
            docker.start_exec(&exec.id, None).await.map_err(building())?
        else {
            return Err(Error::Step { step: "building a bridge".into(), why: "the engine did not attach it".into() });
        };
        let mut stream = duplex(output, input);
        let told = async {
            stream.write_all(&self.token).await?;
            stream.flush().await
        };
        told.await.map_err(Error::io("crossing a bridge"))?;
        Ok(Box::new(stream))
    }
}

/// Attaches to the streams of a container that is about to start.
pub async fn attach(docker: &Docker, container: &str) -> Result<Box<dyn Duplex>> {
    let options = AttachContainerOptionsBuilder::default().stdin(true).stdout(true).stream(true).build();
    let attached = docker.attach_container(container, Some(options)).await;
    let attached = attached.map_err(failure::step(format!("attaching to {container}")))?;
    Ok(Box::new(duplex(attached.output, attached.input)))
}

/// Tells an executor what to do, and waits until it is ready.
pub async fn boot(stream: &mut Box<dyn Duplex>, message: &[u8]) -> io::Result<()> {
    let length = u32::try_from(message.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes()[..], message].concat()).await?;
    stream.flush().await?;
    let length = stream.read_u32().await?;
    if length > REPORT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut report = vec![0; length as usize];
    stream.read_exact(&mut report).await?;
    match rmp_serde::from_slice(&report).map_err(io::Error::other)? {
        BootReport::Ready => Ok(()),
        BootReport::Failed(why) => Err(io::Error::other(why)),
    }
}

type Output = std::pin::Pin<Box<dyn Stream<Item = std::result::Result<LogOutput, bollard::errors::Error>> + Send>>;
type Input = std::pin::Pin<Box<dyn AsyncWrite + Send>>;

fn duplex(output: Output, input: Input) -> impl AsyncRead + AsyncWrite + Send + Unpin {
    let bytes = output.filter_map(|piece| {
        let said = match piece {
            Ok(LogOutput::StdOut { message } | LogOutput::Console { message }) => Some(Ok::<Bytes, io::Error>(message)),
            // Nobody writes there but an executor that cannot start.
            Ok(_) => None,
            Err(error) => Some(Err(io::Error::other(failure::words(&error)))),
        };
        std::future::ready(said)
    });
    tokio::io::join(StreamReader::new(bytes), input)
}
