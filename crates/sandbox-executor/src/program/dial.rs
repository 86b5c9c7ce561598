//! A server that was dialled: it passes connections here. When it is gone, whoever comes next is dialled at the same place.

use std::{io, os::fd::OwnedFd, path::PathBuf, rc::Rc, time::Duration};

use rustix::net::SocketFlags;
use sandbox_core::Channel;
use sandbox_executor::{
    boot::{PACKET_CONNECTION, PACKET_LINE},
    socket::Socket,
};

use super::{
    Executor, door, roles,
    serve::{Presence, welcome},
};

/// Between two tries to find a server.
const PAUSE: Duration = Duration::from_millis(300);

/// Where servers are found, and the one that is there.
pub struct Dialled {
    path: PathBuf,
    server: Option<OwnedFd>,
    /// A way out's listener, which every server gets.
    door: Option<OwnedFd>,
}

impl Dialled {
    /// After the first server was dialled.
    pub fn new(path: PathBuf, server: OwnedFd, door: Option<&OwnedFd>) -> Self {
        Self { path, server: Some(server), door: door.and_then(|door| door.try_clone().ok()) }
    }

    /// Takes connections for ever.
    pub async fn attend(mut self, executor: &Rc<Executor>, presence: &Rc<Presence>) {
        loop {
            if let Some(server) = self.server.take() {
                let _ = take_connections(server, executor, presence).await;
            }
            tokio::time::sleep(PAUSE).await;
            self.server = self.dial(executor).ok();
        }
    }

    /// Not blocking: who fills a server's queue must not stop us.
    fn dial(&self, executor: &Executor) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let server = executor.as_ourselves(|| roles::call(&self.path, flags))?;
        door::tell_ready(&server, self.door.as_ref());
        Ok(server)
    }
}

async fn take_connections(server: OwnedFd, executor: &Rc<Executor>, presence: &Rc<Presence>) -> io::Result<()> {
    let mut socket = Socket::new(server)?;
    loop {
        let mut packet = [0; 16];
        let (length, descriptors) = socket.receive(&mut packet).await?;
        if length == 0 {
            return Ok(());
        }
        match packet[..length] {
            [PACKET_CONNECTION] => {
                descriptors.into_iter().for_each(|connection| welcome(executor, presence, Channel::Local(connection)));
            }
            [PACKET_LINE] => {
                if let Some(line) = descriptors.into_iter().next() {
                    socket = Socket::new(line)?;
                }
            }
            _ => {}
        }
    }
}
