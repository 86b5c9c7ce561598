//! How an executor starts that an engine runs: nothing was passed to it, so it asks a server for what to do.

use std::{
    fs::File,
    io::{self, IoSliceMut, Read},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    time::Duration,
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, recvmsg, socket_with,
};
use sandbox_executor::boot::{
    BRIDGE_ROLE, DIAL_ROLE, FILE_ROLE, LETTER_OOM, LETTER_PIDS, PACKET_BOOT, STREAMS_ROLE, TOKEN,
};

use super::{Form, MAX_BOOT, Passed, Status, begin, bridge, sys};

/// Tries to reach a server that is about to listen, and the time between two.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
/// Descriptors 0 to 2 are ours; an engine may have left others open.
const FIRST_STRAY_FD: i32 = 3;

/// Starts as the arguments say; false if there are none, because everything was passed.
pub fn run_if_asked() -> bool {
    let mut arguments = std::env::args_os().skip(1);
    let Some(role) = arguments.next() else { return false };
    sys::close_from(FIRST_STRAY_FD);
    let started = match (role.to_str(), arguments.next()) {
        (Some(DIAL_ROLE), Some(path)) => dial(path.into()),
        (Some(STREAMS_ROLE), None) => streams(),
        (Some(FILE_ROLE), Some(path)) => file(path.into()),
        (Some(BRIDGE_ROLE), None) => bridge::cross(),
        _ => Err(io::ErrorKind::InvalidInput.into()),
    };
    if let Err(error) = started {
        eprintln!("sandbox-mcp: the executor cannot start: {error}");
        std::process::exit(1);
    }
    true
}

fn dial(path: PathBuf) -> io::Result<()> {
    let server = reach(&path)?;
    let (packet, descriptors) = receive(&server)?;
    let mut descriptors = descriptors.into_iter();
    if packet.first() != Some(&PACKET_BOOT) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut passed = Passed { boot: descriptors.next(), ..Passed::default() };
    for (letter, descriptor) in packet[1..].iter().zip(descriptors) {
        match *letter {
            LETTER_OOM => passed.oom = Some(descriptor),
            LETTER_PIDS => passed.pids = Some(descriptor),
            _ => {}
        }
    }
    let status = Status { socket: Some(server.try_clone()?), form: Form::Alone, door: None };
    passed.dialled = Some((path, server));
    begin(passed, status);
    Ok(())
}

fn reach(path: &std::path::Path) -> io::Result<OwnedFd> {
    let mut tried = 0;
    loop {
        match call(path, SocketFlags::CLOEXEC) {
            Err(error) if tried == TRIES => return Err(error),
            Err(_) => std::thread::sleep(PAUSE),
            reached => return reached,
        }
        tried += 1;
    }
}

/// Connects to a server's socket.
pub fn call(path: &std::path::Path, flags: SocketFlags) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

fn receive(socket: &OwnedFd) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let (mut packet, mut descriptors) = ([0; 16], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let message = recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = part {
            descriptors.extend(passed);
        }
    }
    Ok((packet[..message.bytes].to_vec(), descriptors))
}

/// What to do is the first that comes on standard input. It is kept in memory, as if it had been passed.
fn streams() -> io::Result<()> {
    let mut input = File::from(rustix::io::fcntl_dupfd_cloexec(io::stdin().as_fd(), FIRST_STRAY_FD)?);
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u64::from(u32::from_be_bytes(length));
    if length > MAX_BOOT {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut boot = vec![0; length as usize];
    input.read_exact(&mut boot)?;
    let output = rustix::io::fcntl_dupfd_cloexec(io::stdout().as_fd(), FIRST_STRAY_FD)?;
    let status = Status { socket: Some(output), form: Form::WithLength, door: None };
    begin(Passed { message: Some(boot), ..Passed::default() }, status);
    Ok(())
}

/// What to do lies in a file, and the word that we are known by comes on standard input. Whoever started us reads what we say on
/// standard error.
fn file(path: PathBuf) -> io::Result<()> {
    let boot = OwnedFd::from(File::open(path)?);
    let mut word = Vec::new();
    io::stdin().lock().take(TOKEN as u64).read_to_end(&mut word)?;
    begin(
        Passed { boot: Some(boot), word, ..Passed::default() },
        Status { socket: None, form: Form::Alone, door: None },
    );
    Ok(())
}
