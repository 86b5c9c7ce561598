//! The network of a container on this machine, entered by us: routes, filters and listeners of the way out are made in it, as
//! the embedded backend makes them, and belong to us.

use std::{fs::File, io, os::fd::OwnedFd};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use sandbox_core::Door;
use sandbox_linux::way_out::{self, Reach};

/// The doors of a container's way out.
pub type Doors = Vec<(Door, OwnedFd)>;

/// Makes the way out of a fresh container.
pub fn wire(pid: i32) -> io::Result<(Reach, Doors)> {
    inside(pid, || {
        let (reach, tunnel) = way_out::wire()?;
        let mut doors = way_out::open_doors(&reach)?;
        doors.extend(tunnel);
        Ok((reach, doors))
    })
}

/// Opens the doors of a container again whose server is gone.
pub fn reopen(pid: i32, reach: Reach) -> io::Result<Doors> {
    if let Reach::Packets { .. } = reach {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "its tunnel went with the server that made it"));
    }
    inside(pid, move || way_out::open_doors(&reach))
}

/// On a thread of its own, which ends in that network.
fn inside<T: Send + 'static>(pid: i32, act: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let network = File::open(format!("/proc/{pid}/ns/net"))?;
    let thread = std::thread::Builder::new().name("wire".into()).spawn(move || {
        use std::os::fd::AsFd;
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        act()
    })?;
    thread.join().unwrap_or_else(|_| Err(io::Error::other("entering the network failed")))
}
