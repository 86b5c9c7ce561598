//! Every unsafe line of the program: what neither the standard library nor `rustix` offers safely.

#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_int, c_void},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    ptr,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::thread::CapabilitySets;

/// Bytes of stack for the moments between clone and exec.
const STACK: usize = 64 << 10;

/// A descriptor that whoever started us left at a fixed number. It is not passed on to commands.
pub fn take(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: F_GETFD and F_SETFD touch nothing but the descriptor's own flags, and fail for one that is not open.
    let open = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
    // SAFETY: it is open, and each number is taken once, at the start, before anything else could own it.
    open.then(|| unsafe { OwnedFd::from_raw_fd(number) })
}

/// Closes all descriptors from this number on.
pub fn close_from(first: RawFd) {
    // SAFETY: called at the start, when nothing in this process owns a descriptor at or above `first`.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
}

/// Whether the kernel knows no user for files alone, and files are used as the effective user (gVisor).
static BY_EFFECTIVE: AtomicBool = AtomicBool::new(false);

/// From now on files are opened and made with exactly this user's rights, while the process stays who it is.
pub fn become_for_files(uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain numbers; these calls change the credentials of the only thread. They report the old value, so
    // asking again with an impossible id tells whether it worked.
    let (now_gid, now_uid) = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, ptr::null::<libc::gid_t>());
        libc::setfsgid(gid);
        libc::setfsuid(uid);
        (libc::setfsgid(u32::MAX), libc::setfsuid(u32::MAX))
    };
    if now_gid as u32 == gid && now_uid as u32 == uid {
        return Ok(());
    }
    // SAFETY: plain numbers.
    let known = unsafe { libc::syscall(libc::SYS_setfsuid, u32::MAX) } != -1;
    if known {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    BY_EFFECTIVE.store(true, Ordering::Relaxed);
    // SAFETY: plain numbers; the calls change the credentials of the only thread.
    if unsafe { libc::syscall(libc::SYS_setresgid, -1, gid, -1) } != 0 {
        return Err(io::Error::last_os_error());
    }
    be_effectively(uid)
}

/// Capabilities that go with the change of user are taken back: none of them is about files. Whoever is that user has no
/// power over us, for our real and saved users stay.
fn be_effectively(uid: u32) -> io::Result<()> {
    // SAFETY: plain numbers; the call changes the credentials of the only thread.
    if unsafe { libc::syscall(libc::SYS_setresuid, -1, uid, -1) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let now = rustix::thread::capabilities(None)?;
    Ok(rustix::thread::set_capabilities(None, CapabilitySets { effective: now.permitted, ..now })?)
}

/// For files we are this user, from the moment on.
pub fn use_files_as(uid: u32) {
    if BY_EFFECTIVE.load(Ordering::Relaxed) {
        let _ = be_effectively(uid);
        return;
    }
    // SAFETY: a plain number; the call changes the credentials of the only thread.
    unsafe { libc::setfsuid(uid) };
}

/// Installs a filter for system calls for good, 8 bytes for each instruction, as the kernel reads it.
pub fn install_filter(instructions: &[u8]) -> io::Result<()> {
    let mut filter: Vec<libc::sock_filter> = instructions
        .chunks_exact(8)
        .map(|bytes| libc::sock_filter {
            code: u16::from_ne_bytes([bytes[0], bytes[1]]),
            jt: bytes[2],
            jf: bytes[3],
            k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
        })
        .collect();
    let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers, then a program of `length` instructions that outlives the call; the kernel copies and checks it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fills the buffer with bytes that cannot be guessed.
pub fn fill_with_chance(buffer: &mut [u8]) -> io::Result<()> {
    // SAFETY: the pointer and length describe the buffer; up to 256 bytes are never given in part.
    let count = unsafe { libc::getrandom(buffer.as_mut_ptr().cast(), buffer.len(), 0) };
    if count == buffer.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Blocks every signal, so that only those that are asked for are seen. Commands start with none blocked.
pub fn block_signals() {
    // SAFETY: both sets are local and initialised by sigfillset before they are read.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::sigprocmask(libc::SIG_SETMASK, &all, ptr::null_mut());
    }
}

fn child_ended() -> libc::sigset_t {
    // SAFETY: an all-zero set is valid memory for sigemptyset, which initialises it.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGCHLD);
        set
    }
}

/// A descriptor that becomes readable when a child has ended.
pub fn child_ended_descriptor() -> io::Result<OwnedFd> {
    // SAFETY: the set outlives the call; the returned descriptor is new and ours.
    unsafe {
        match libc::signalfd(-1, &child_ended(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Waits until a child has ended, or this long.
pub fn wait_for_child(patience: Duration) {
    let time = libc::timespec { tv_sec: patience.as_secs() as _, tv_nsec: patience.subsec_nanos() as _ };
    // SAFETY: set and time outlive the call; no information about the signal is asked for.
    unsafe { libc::sigtimedwait(&child_ended(), ptr::null_mut(), &time) };
}

/// Signals every process of our PID namespace but ourselves, at once: no fork slips through.
///
/// Does nothing unless we are that namespace's first process, where "every process" means the sandbox's.
pub fn signal_namespace(signal: i32) {
    if std::process::id() == 1 {
        // SAFETY: plain numbers.
        unsafe { libc::kill(-1, signal) };
    }
}

/// A command, prepared so that nothing has to be computed or allocated between clone and exec.
pub struct Plan<'a> {
    /// Paths to try, in this order.
    pub candidates: Vec<CString>,
    /// Its arguments, the name first.
    pub argv: Vec<CString>,
    /// `NAME=value` each.
    pub env: Vec<CString>,
    /// Where it starts.
    pub cwd: CString,
    /// Its standard streams.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Which session it is in.
    pub session: Session,
    /// Limits: the resource, and the value for both the soft and the hard one.
    pub limits: Vec<(u32, [u64; 2])>,
    /// Who it becomes.
    pub user: Option<(u32, u32)>,
    /// What privileges it keeps.
    pub privileges: Privileges,
    /// Where a process made by [`fork`] says why it is not the command; closes when it is.
    pub report: Option<BorrowedFd<'a>>,
}

/// The session of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Session {
    /// The executor's: only for a single command on the caller's own streams.
    Inherited,
    /// A new one without a terminal.
    New,
    /// A new one whose terminal is its standard input.
    Terminal,
}

/// The capabilities of a command.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Privileges {
    /// These and no others, as a bit set: also where its user is not root.
    Only(u64),
    /// What its user has.
    OfUser,
}

/// What could not be done for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    /// A process could not be made.
    Clone,
    /// No new session or no controlling terminal.
    Session,
    /// The standard streams could not be put in place.
    Streams,
    /// A limit could not be set.
    Limits,
    /// It could not become its user.
    User,
    /// It could not start where it should.
    Folder,
    /// The program could not be started.
    Exec,
}

impl Step {
    const ALL: [Self; 7] =
        [Self::Clone, Self::Session, Self::Streams, Self::Limits, Self::User, Self::Folder, Self::Exec];
}

/// Bytes of a report.
pub const REPORT_SIZE: usize = 8;

/// What a report says.
pub fn read_report(report: [u8; REPORT_SIZE]) -> (Step, io::Error) {
    let [a, b, c, d, rest @ ..] = report;
    let step = usize::try_from(i32::from_ne_bytes([a, b, c, d])).ok().and_then(|step| Step::ALL.get(step));
    (step.copied().unwrap_or(Step::Exec), io::Error::from_raw_os_error(i32::from_ne_bytes(rest)))
}

/// Starts the command in a process with its own copy of our memory, and returns at once: from the moment when that
/// process belongs to the commands' user, another command can stop it, and must not stop us with it.
pub fn fork(plan: &Plan<'_>) -> Result<i32, (Step, io::Error)> {
    let (argv, env) = (pointers(&plan.argv), pointers(&plan.env));
    let child = Child { plan, argv: argv.as_ptr(), env: env.as_ptr(), failed: (Step::Clone, 0), started: true };
    // SAFETY: without flags both processes go on with a memory and stack of their own. This is the only thread, so
    // nothing in the copy is half done; all signals are blocked.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        -1 => Err((Step::Clone, io::Error::last_os_error())),
        // SAFETY: we are the child that both functions are made for.
        0 => unsafe { tell_failure(plan.report, enter(&child)) },
        pid => Ok(pid as i32),
    }
}

unsafe fn tell_failure(report: Option<BorrowedFd<'_>>, (step, errno): (Step, i32)) -> ! {
    let message = [step as i32, errno];
    // SAFETY: the pointer is to eight bytes, which an empty pipe takes at once.
    unsafe {
        if let Some(report) = report {
            libc::syscall(libc::SYS_write, report.as_raw_fd(), message.as_ptr(), REPORT_SIZE);
        }
        libc::_exit(127)
    }
}

/// Starts processes that borrow our memory until they run their program, which is faster, but we sleep until then: for
/// when there is nobody who could stop them. Holds the stack that they start on.
pub struct Spawner {
    stack: Vec<u8>,
}

/// What the child needs, all of it prepared, and where it leaves word.
struct Child<'a> {
    plan: &'a Plan<'a>,
    argv: *const *const libc::c_char,
    env: *const *const libc::c_char,
    failed: (Step, i32),
    started: bool,
}

impl Spawner {
    /// A spawner with its stack.
    pub fn new() -> Self {
        Self { stack: vec![0; STACK] }
    }

    /// Starts the command. Returns when its program runs, or why it does not.
    pub fn spawn(&mut self, plan: &Plan<'_>) -> Result<i32, (Step, io::Error)> {
        let (argv, env) = (pointers(&plan.argv), pointers(&plan.env));
        let mut child = Child { plan, argv: argv.as_ptr(), env: env.as_ptr(), failed: (Step::Clone, 0), started: true };
        let top = self.stack.as_mut_ptr_range().end as usize & !15;
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let argument = ptr::from_mut(&mut child);
        // SAFETY: as with vfork this thread sleeps until the child has called exec or exit, so the child is alone with
        // everything it points to; it has its own stack, of which `top` is the aligned upper end; all signals are
        // blocked in it, so no handler runs there; and it only makes system calls on prepared data.
        let pid = unsafe { libc::clone(run_child, top as *mut c_void, flags, argument.cast()) };
        if pid == -1 {
            return Err((Step::Clone, io::Error::last_os_error()));
        }
        // SAFETY: `child` is alive; the other process wrote to it behind the compiler's back and is done.
        let child = unsafe { ptr::read_volatile(argument) };
        if child.started { Ok(pid) } else { Err((child.failed.0, io::Error::from_raw_os_error(child.failed.1))) }
    }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

extern "C" fn run_child(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passed a pointer to its `Child`, which lives on its sleeping stack.
    let child = unsafe { &mut *argument.cast::<Child<'_>>() };
    // SAFETY: we are the child that `enter` is made for.
    let failed = unsafe { enter(child) };
    // SAFETY: the same memory; the parent reads it once we are gone.
    unsafe {
        ptr::write_volatile(&mut child.failed, failed);
        ptr::write_volatile(&mut child.started, false);
        libc::_exit(127)
    }
}

/// One step of becoming the command; fails with the system's number for why.
type Enact = unsafe fn(&Plan<'_>) -> Result<(), i32>;

/// Becomes the command, or says why not.
///
/// # Safety
/// Only in a child made by `Spawner::spawn` or `fork`: raw system calls on its own process, no allocation, no locks.
unsafe fn enter(child: &Child<'_>) -> (Step, i32) {
    let plan = child.plan;
    let steps: [(Step, Enact); 5] = [
        (Step::Session, enter_session),
        (Step::Streams, place_streams),
        (Step::Limits, set_limits),
        (Step::User, become_user),
        (Step::Folder, enter_folder),
    ];
    for (step, enact) in steps {
        // SAFETY: we are in that child.
        if let Err(errno) = unsafe { enact(plan) } {
            return (step, errno);
        }
    }
    // SAFETY: as above; argv and env end with a null pointer and outlive us.
    unsafe {
        reset_signals();
        (Step::Exec, execute(&plan.candidates, child.argv, child.env))
    }
}

/// Nothing of our own treatment of signals reaches the command.
unsafe fn reset_signals() {
    // The kernel's own form of `struct sigaction`: handler, flags, restorer, mask. All zero is the default action.
    let default = [0u64; 4];
    let none = 0u64;
    for signal in 1..=64 {
        // SAFETY: both pointers are to locals of the size that the kernel reads.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), ptr::null::<u64>(), 8usize) };
    }
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const none, ptr::null::<u64>(), 8usize) };
}

unsafe fn enter_session(plan: &Plan<'_>) -> Result<(), i32> {
    if plan.session == Session::Inherited {
        return Ok(());
    }
    // SAFETY: plain numbers.
    unsafe { check(libc::syscall(libc::SYS_setsid))? };
    if plan.session == Session::Terminal {
        let terminal = plan.stdio[0].as_raw_fd();
        // SAFETY: plain numbers.
        unsafe { check(libc::syscall(libc::SYS_ioctl, terminal, libc::TIOCSCTTY, 0))? };
    }
    Ok(())
}

unsafe fn place_streams(plan: &Plan<'_>) -> Result<(), i32> {
    for (number, stream) in plan.stdio.iter().enumerate() {
        let stream = stream.as_raw_fd();
        if stream != number as RawFd {
            // SAFETY: plain numbers; sources are above 2, so none is overwritten before it is copied.
            unsafe { check(libc::syscall(libc::SYS_dup3, stream, number, 0))? };
        }
    }
    let report = plan.report.map_or(2, |report| report.as_raw_fd());
    // SAFETY: the child has its own table of descriptors. On kernels without the call they close at exec.
    unsafe {
        if report > 3 {
            libc::syscall(libc::SYS_close_range, 3, report - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, report + 1, u32::MAX, 0);
    }
    Ok(())
}

unsafe fn set_limits(plan: &Plan<'_>) -> Result<(), i32> {
    for (resource, limit) in &plan.limits {
        // SAFETY: the pointer is to two 64-bit numbers, the kernel's `struct rlimit64`.
        unsafe { check(libc::syscall(libc::SYS_prlimit64, 0, *resource, limit.as_ptr(), ptr::null::<u64>()))? };
    }
    Ok(())
}

unsafe fn become_user(plan: &Plan<'_>) -> Result<(), i32> {
    // SAFETY: plain numbers, and pointers to locals of the sizes that the kernel reads. The C library's own versions
    // would go through all threads of the parent.
    unsafe {
        libc::syscall(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, 0, 0, 0, 0);
        if matches!(plan.privileges, Privileges::Only(kept) if kept != 0) {
            // Or they would be gone with the change of user.
            check(libc::syscall(libc::SYS_prctl, libc::PR_SET_KEEPCAPS, 1, 0, 0, 0))?;
        }
        if let Some((uid, gid)) = plan.user {
            // Refused where the user namespace has only one group: then there are none to drop either.
            libc::syscall(libc::SYS_setgroups, 0, ptr::null::<u32>());
            check(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
            check(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
            // Where the system's setting makes such a process readable by its new user: it still has our memory.
            libc::syscall(libc::SYS_prctl, libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        }
        if let Privileges::Only(kept) = plan.privileges {
            libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
            // Version 3 of the header, for this process; then effective, permitted and inheritable, twice.
            let (header, low, high) = ([0x2008_0522u32, 0], kept as u32, (kept >> 32) as u32);
            let sets = [low, low, low, high, high, high];
            check(libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()))?;
            for number in (0..u64::BITS).filter(|number| kept & (1 << number) != 0) {
                // What is ambient stays over an exec by who is not root.
                let raise = libc::PR_CAP_AMBIENT_RAISE;
                match check(libc::syscall(libc::SYS_prctl, libc::PR_CAP_AMBIENT, raise, number, 0, 0)) {
                    // gVisor knows no such set; there who is not root does without.
                    Err(libc::EINVAL) => {}
                    other => other?,
                }
            }
        }
    }
    Ok(())
}

unsafe fn enter_folder(plan: &Plan<'_>) -> Result<(), i32> {
    // SAFETY: a C string that outlives the call.
    unsafe { check(libc::syscall(libc::SYS_chdir, plan.cwd.as_ptr())) }
}

/// Tries each path as a shell would: one that is missing or forbidden does not hide a later one.
unsafe fn execute(paths: &[CString], argv: *const *const libc::c_char, env: *const *const libc::c_char) -> i32 {
    let mut reason = libc::ENOENT;
    for path in paths {
        let path: &CStr = path;
        // SAFETY: C strings, and arrays of them that end with a null pointer.
        let result = unsafe { check(libc::syscall(libc::SYS_execve, path.as_ptr(), argv, env)) };
        match result {
            Ok(()) | Err(libc::ENOENT | libc::ENOTDIR) => {}
            Err(libc::EACCES) => reason = libc::EACCES,
            Err(other) => return other,
        }
    }
    reason
}

unsafe fn check(result: libc::c_long) -> Result<(), i32> {
    if result != -1 {
        return Ok(());
    }
    // SAFETY: the C library's place for the last error of this thread, ours or shared with the sleeping parent.
    Err(unsafe { *libc::__errno_location() })
}
