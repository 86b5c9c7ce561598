//! The system calls that no safe library offers. All unsafe code of this crate is in this file.

#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

use rustix::mount::MountAttrFlags;

/// Which side of [`clone`] this is.
pub enum Cloned {
    /// The new process.
    Child,
    /// The old one, with the new one's number and a descriptor for it.
    Parent {
        /// The new process.
        pid: i32,
        /// Readable when it has ended.
        pidfd: OwnedFd,
    },
}

/// `clone3` as a fork into new namespaces and, where given, straight into a cgroup (v2).
///
/// Only for a process with a single thread: the child goes on with the whole of this program.
pub fn clone(namespaces: i32, cgroup: Option<BorrowedFd<'_>>) -> io::Result<Cloned> {
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    let mut pidfd: RawFd = -1;
    // SAFETY: all-zero is a valid `clone_args`: no stack, no tls, no pointers.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = namespaces as u64 | libc::CLONE_PIDFD as u64;
    arguments.pidfd = &raw mut pidfd as u64;
    arguments.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        arguments.flags |= CLONE_INTO_CGROUP;
        arguments.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: without CLONE_VM and with no stack given this is a fork: the child has its own copy of all memory. The
    // kernel writes only to `pidfd`, which lives until after the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    match pid {
        0 => Ok(Cloned::Child),
        pid if pid > 0 => {
            // SAFETY: the kernel just gave us this descriptor, and nobody else knows it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok(Cloned::Parent { pid: pid as i32, pidfd })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// `mount_setattr` on a whole mount tree: adds attributes, and maps ids where a user namespace is given.
pub fn set_mount_attributes(
    tree: BorrowedFd<'_>,
    set: MountAttrFlags,
    map_ids: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    // SAFETY: all-zero is a valid `mount_attr`.
    let mut attributes: libc::mount_attr = unsafe { std::mem::zeroed() };
    attributes.attr_set = u64::from(set.bits());
    if let Some(namespace) = map_ids {
        attributes.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attributes.userns_fd = namespace.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH | libc::AT_RECURSIVE;
    // SAFETY: the descriptor is borrowed for the call, the path is an empty C string, and the structure is as long as
    // is said.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// One instruction of a filter, as the kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
#[allow(missing_docs, reason = "see struct sock_filter in seccomp(2)")]
pub struct Instruction {
    pub code: u16,
    pub jt: u8,
    pub jf: u8,
    pub k: u32,
}

/// Filters this process's system calls from now on, and those of all its children. Needs `no_new_privs`.
pub fn filter_system_calls(program: &[Instruction]) -> io::Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast::<libc::sock_filter>().cast_mut() };
    // SAFETY: `Instruction` has the layout of `sock_filter`, the pointer and length describe a live slice, and the
    // kernel copies it without writing to it.
    let answer = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Replaces this process by the program in a descriptor. Returns only if that failed.
pub fn execute(program: BorrowedFd<'_>, name: &CStr, environment: &[CString]) -> io::Error {
    let argv = [name.as_ptr(), std::ptr::null()];
    let envp: Vec<_> = environment.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
    // SAFETY: both arrays end with a null pointer and outlive the call; the path is an empty C string.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            envp.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    io::Error::last_os_error()
}

/// Puts copies of descriptors at fixed numbers, where they stay open over an exec.
///
/// Whatever is open at those numbers is replaced, so the caller must own all of them; it is about to exec.
pub fn place_descriptors(placements: &[(BorrowedFd<'_>, RawFd)]) -> io::Result<()> {
    // First out of the way, so that no placement overwrites the source of a later one.
    let parked =
        placements.iter().map(|(fd, _)| rustix::io::fcntl_dupfd_cloexec(fd, 64)).collect::<Result<Vec<_>, _>>()?;
    for (fd, (_, number)) in parked.iter().zip(placements) {
        // SAFETY: plain integers; this process is single-threaded and about to exec, so nothing relies on what was
        // open at `number`.
        if unsafe { libc::dup2(fd.as_fd().as_raw_fd(), *number) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes all descriptors from this number on. Only at the start of a program, when nothing owns one of them.
pub fn close_from(first: u32) {
    // SAFETY: plain numbers; by the rule above no descriptor that something relies on is closed.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// Ends this process at once, running nothing.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Leaves the namespaces that `flags` names for new ones. Only for a process with a single thread.
pub fn unshare(flags: rustix::thread::UnshareFlags) -> rustix::io::Result<()> {
    // SAFETY: the danger is in sharing descriptors or memory between threads (CLONE_FILES, CLONE_VM); our callers
    // have one thread and ask for namespaces only.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Brings the loopback interface of this process's network namespace up.
pub fn loopback_up() -> io::Result<()> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: all-zero is a valid `ifreq`: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
    // SAFETY: the request is an `ifreq` whose flags are set, as SIOCSIFFLAGS reads it (netdevice(7)).
    let answer = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as libc::Ioctl, &raw const request) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a tunnel in this process's network namespace: an interface of this name, and the descriptor at which its packets
/// come out. The interface is gone when the descriptor is.
pub fn tunnel(name: &str) -> io::Result<OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let tunnel = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: all-zero is a valid `ifreq`: an empty name and no flags.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last place stays zero, as the end of a name.
    let places = request.ifr_name.len() - 1;
    for (place, byte) in request.ifr_name[..places].iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    // SAFETY: the request is an `ifreq` whose name and flags are set, as TUNSETIFF reads it; it writes the name back.
    let answer = unsafe { libc::ioctl(tunnel.as_raw_fd(), libc::TUNSETIFF as libc::Ioctl, &raw mut request) };
    if answer == 0 { Ok(tunnel) } else { Err(io::Error::last_os_error()) }
}

/// A descriptor that the runtime watches.
pub fn watched(descriptor: OwnedFd, interest: tokio::io::Interest) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: the runtime must never see a descriptor that was closed or became another one; an `OwnedFd` stays open
    // and the same until the `AsyncFd` that owns it has taken it off the runtime again.
    unsafe { tokio::io::unix::AsyncFd::register_with_interest(descriptor, interest) }.map_err(Into::into)
}

/// When something comes for this thread, it does not take the processor from whoever has it. It has more to do at once
/// then, and less to do for each byte that it carries.
pub fn interrupt_nobody() {
    // SAFETY: it holds numbers only, and some systems have more of them; with zeros it is the usual priority.
    let ordinary: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call. Everybody may do this; and if not, all goes on as before.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const ordinary) };
}

/// How long processors have worked for this process.
pub fn processor_time() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Whether a child of ours has ended; if so it is buried.
pub fn ended(pidfd: &OwnedFd) -> bool {
    let options = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOHANG;
    !matches!(rustix::process::waitid(rustix::process::WaitId::PidFd(pidfd.as_fd()), options), Ok(None))
}
