//! Starts the program the way a backend does, only without a sandbox around it.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::OwnedFd,
    path::{Path as HostPath, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, socketpair,
};
use sandbox_core::{
    Bytes, Channel,
    exec::{Exec, Exit, Stream},
};
use sandbox_executor::{
    boot::{Attachment, Boot, BootReport, Identity, OomCounter},
    client::{Client, ClientError, Follow, JobEvent},
    protocol::Reason,
};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Local,
    Stream,
}

pub struct Program {
    pub client: Client,
    pub child: Child,
    pub folder: TempDir,
}

/// Runs a test over both carriers.
pub async fn on_both(test: impl AsyncFn(&Program)) {
    for carrier in [Carrier::Local, Carrier::Stream] {
        let program = Program::start(carrier, |_| {}).await;
        println!("over {carrier:?}");
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, test(&program)).await.expect("the test hangs");
        program.client.shutdown().await.unwrap();
    }
}

impl Program {
    pub async fn start(carrier: Carrier, change: impl FnOnce(&mut Boot)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let workspace = folder.path().join("workspace");
        std::fs::create_dir(&workspace).unwrap();
        let mut boot = boot(&workspace);
        if carrier == Carrier::Stream {
            boot.attachment = Attachment::Streams;
        }
        change(&mut boot);
        let (input, output, channel) = match carrier {
            Carrier::Local => (listener(folder.path()), File::create("/dev/null").unwrap().into(), None),
            Carrier::Stream => {
                let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC);
                let (ours, theirs) = socketpair(kind.0, kind.1, kind.2, None).unwrap();
                (theirs.try_clone().unwrap(), theirs, Some(ours))
            }
        };
        let child = launch(folder.path(), &boot, input, output, Stdio::inherit());
        let status = folder.path().join("status");
        for _ in 0..1000 {
            if std::fs::metadata(&status).is_ok_and(|status| status.len() > 0) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let report: BootReport = rmp_serde::from_slice(&std::fs::read(&status).unwrap()).unwrap();
        assert_eq!(report, BootReport::Ready);
        let channel = match channel {
            None => Channel::Local(dial(folder.path())),
            Some(socket) => {
                let stream = std::os::unix::net::UnixStream::from(socket);
                stream.set_nonblocking(true).unwrap();
                Channel::Stream(Box::new(tokio::net::UnixStream::from_std(stream).unwrap()))
            }
        };
        let client = Client::connect(channel).await.unwrap();
        Self { client, child, folder }
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.path().join("workspace")
    }

    /// Another connection, as another server or a restarted one would make.
    pub async fn reconnect(&self) -> Client {
        Client::connect(Channel::Local(dial(self.folder.path()))).await.unwrap()
    }

    pub async fn run(&self, script: &str) -> Outcome {
        self.exec(&Exec::shell(script)).await
    }

    pub async fn exec(&self, exec: &Exec) -> Outcome {
        Outcome::of(self.client.spawn(exec).await.unwrap()).await
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn boot(workspace: &HostPath) -> Boot {
    let workspace = workspace.to_str().unwrap().to_owned();
    Boot {
        attachment: Attachment::Listen,
        user: Identity::Same,
        capabilities: 0,
        places: vec![workspace.clone()],
        workspace,
        env: BTreeMap::from([("GREETING".to_owned(), "hello".to_owned())]),
        lease: Some(Duration::from_secs(30)),
        history: Bytes::kib(256),
        pids: None,
        process_memory: None,
        file_size: None,
        descriptors: None,
        oom: OomCounter::None,
        supervised: false,
        counts: Vec::new(),
        refused_processes: false,
        die_with_parent: false,
        proxy: None,
        itself: Default::default(),
    }
}

/// A shell puts the descriptors at their numbers: nothing here needs unsafe code.
pub fn launch(folder: &HostPath, boot: &Boot, input: OwnedFd, output: OwnedFd, error: Stdio) -> Child {
    let message = folder.join("boot");
    std::fs::write(&message, rmp_serde::to_vec_named(boot).unwrap()).unwrap();
    let script = match boot.attachment {
        Attachment::Listen => r#"exec env -i "$0" 4<&0 3<"$1" 5>"$2" </dev/null"#,
        _ => r#"exec env -i "$0" 3<"$1" 5>"$2""#,
    };
    Command::new("/bin/sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_sandbox-executor")])
        .args([message, folder.join("status")])
        .env_clear()
        .stdin(input)
        .stdout(output)
        .stderr(error)
        .spawn()
        .unwrap()
}

fn listener(folder: &HostPath) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(folder.join("executor.sock")).unwrap()).unwrap();
    listen(&socket, 16).unwrap();
    socket
}

fn dial(folder: &HostPath) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(folder.join("executor.sock")).unwrap()).unwrap();
    socket
}

/// Everything that a job did.
#[derive(Debug, Default)]
pub struct Outcome {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub lost: u64,
    pub end: u64,
    pub exit: Option<Exit>,
    pub elapsed: Duration,
}

impl Outcome {
    pub async fn of(mut follow: Follow) -> Self {
        let mut outcome = Self::default();
        loop {
            let event = follow.next().await.unwrap();
            if outcome.take(event) {
                return outcome;
            }
        }
    }

    /// Whether that was the last event.
    pub fn take(&mut self, event: JobEvent) -> bool {
        match event {
            JobEvent::Output { stream, offset, data } => {
                self.end = offset + data.len() as u64;
                match stream {
                    Stream::Stdout => self.stdout.extend(data),
                    Stream::Stderr => self.stderr.extend(data),
                }
                false
            }
            JobEvent::Gap { from, to } => {
                self.lost += to - from;
                false
            }
            JobEvent::Exited { exit, elapsed } => {
                (self.exit, self.elapsed) = (Some(exit), elapsed);
                true
            }
            JobEvent::Current => true,
        }
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }
}

pub fn reason<T>(result: Result<T, ClientError>) -> Reason {
    match result {
        Err(ClientError::Refused(failure)) => failure.reason,
        Err(other) => panic!("not refused but {other}"),
        Ok(_) => panic!("not refused"),
    }
}
