//! Pseudo-terminals.

use std::{io, os::fd::OwnedFd};

use rustix::{
    pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use sandbox_core::exec::TerminalSize;

/// A terminal: our end, and the end that a command has.
pub struct Terminal {
    /// Ours.
    pub master: OwnedFd,
    /// The command's.
    pub slave: OwnedFd,
}

/// Makes one. It belongs to the user whose rights we have for files.
pub fn make(size: TerminalSize) -> io::Result<Terminal> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    // By descriptor first: a path would be looked up in whatever /dev/pts is there.
    let slave = match ioctl_tiocgptpeer(&master, flags) {
        Ok(slave) => slave,
        Err(_) => {
            let name = ptsname(&master, Vec::new())?;
            let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::CLOEXEC;
            rustix::fs::open(name.as_c_str(), flags, rustix::fs::Mode::empty())?
        }
    };
    resize(&master, size)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    Ok(Terminal { master, slave })
}

/// Gives a terminal a new size; what runs in it gets SIGWINCH.
pub fn resize(master: &OwnedFd, size: TerminalSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}
