//! All unsafe code of this program: system calls that no library offers, because nobody in their right mind makes them.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr,
};

/// One argument of a raw call. Memory is lent for the time of the call.
pub enum Argument<'a> {
    /// A number, a flag, a descriptor. Never an address.
    Number(i64),
    /// A text that the kernel reads.
    Text(&'a CStr),
    /// Bytes that the kernel reads.
    Bytes(&'a [u8]),
    /// Bytes that the kernel may write to.
    Buffer(&'a mut [u8]),
}

/// A number as an argument.
pub fn n(number: impl Into<i64>) -> Argument<'static> {
    Argument::Number(number.into())
}

impl Argument<'_> {
    fn word(&mut self) -> libc::c_long {
        match self {
            Self::Number(number) => *number,
            Self::Text(text) => text.as_ptr() as libc::c_long,
            Self::Bytes(bytes) => bytes.as_ptr() as libc::c_long,
            Self::Buffer(bytes) => bytes.as_mut_ptr() as libc::c_long,
        }
    }
}

/// Makes a system call by number. Missing arguments are zero.
pub fn call<const N: usize>(number: libc::c_long, mut arguments: [Argument<'_>; N]) -> io::Result<i64> {
    let mut words = [0; 6];
    for (word, argument) in words.iter_mut().zip(&mut arguments) {
        *word = argument.word();
    }
    let [a, b, c, d, e, f] = words;
    // SAFETY: every address comes from a slice or a text that lives until the call has returned, and callers pass
    // buffers as large as the call may fill. Calls that would change our own memory map are made elsewhere in this file.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    checked(result)
}

/// Takes over a descriptor that a raw call gave us.
pub fn owned(descriptor: i64) -> OwnedFd {
    // SAFETY: the kernel has just given it to us, so nobody else closes it.
    unsafe { OwnedFd::from_raw_fd(descriptor as i32) }
}

/// A process whose memory is a copy of ours runs `work` and ends with the code that it returns.
pub fn fork(work: impl FnOnce() -> i32) -> io::Result<i32> {
    // SAFETY: attacks fork while they have one thread, so no lock is held by a thread that the child lacks.
    match checked(unsafe { libc::fork() }.into())? {
        0 => {
            let code = work();
            // SAFETY: ends the process at once, without running handlers that belong to the parent.
            unsafe { libc::_exit(code) }
        }
        child => Ok(child as i32),
    }
}

/// Waits for a child: its exit code, or the signal that ended it as a negative number.
pub fn wait(child: i32) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` lives for the time of the call.
    checked(unsafe { libc::waitpid(child, &mut status, 0) }.into())?;
    Ok(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) })
}

/// Ends a child that we started.
pub fn kill(child: i32) {
    // SAFETY: no memory is involved.
    let _ = unsafe { libc::kill(child, libc::SIGKILL) };
}

/// Ignores a signal.
pub fn ignore(signal: i32) {
    // SAFETY: SIG_IGN is no function of ours; nothing runs when the signal comes.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

/// Memory that was mapped, for good: attacks end soon after.
pub struct Mapping {
    start: *mut u8,
    length: usize,
}

impl Mapping {
    /// Without a file where `descriptor` is -1.
    pub fn new(length: usize, flags: i32, descriptor: i32) -> io::Result<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses the address, so no memory of ours is replaced.
        let start = unsafe { libc::mmap(ptr::null_mut(), length, access, flags, descriptor, 0) };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(Self { start: start.cast(), length })
        }
    }

    /// A System V segment.
    pub fn segment(id: i32, length: usize) -> io::Result<Self> {
        // SAFETY: the kernel chooses the address, so no memory of ours is replaced.
        let start = unsafe { libc::shmat(id, ptr::null(), 0) };
        if start as isize == -1 { Err(io::Error::last_os_error()) } else { Ok(Self { start: start.cast(), length }) }
    }

    /// Writes a byte to every `step`-th byte, so that each such page is really there.
    pub fn write_every(&self, step: usize) {
        for offset in (0..self.length).step_by(step) {
            // SAFETY: the offset lies in the mapping, which is writable and never unmapped.
            unsafe { self.start.add(offset).write_volatile(1) };
        }
    }

    /// Reads every `step`-th byte.
    pub fn read_every(&self, step: usize) -> u64 {
        let mut sum = 0;
        for offset in (0..self.length).step_by(step) {
            // SAFETY: the offset lies in the mapping, which is readable and never unmapped.
            sum += u64::from(unsafe { self.start.add(offset).read_volatile() });
        }
        sum
    }
}

/// Has a pipe keep a huge page of ours by one byte of it, and gives the page back. Says how much is kept: the kernel may
/// have had only a small page for us.
pub fn splice_huge_page(pipe: BorrowedFd<'_>) -> io::Result<u64> {
    const HUGE: usize = 2 << 20;
    let mut present = [0u8; HUGE / 4096];
    let mapping = Mapping::new(2 * HUGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
    let start = mapping.start.align_offset(HUGE);
    // SAFETY: a huge page from `start` on lies in the mapping, which nobody else uses and which is given back whole.
    unsafe {
        let page = mapping.start.add(start);
        libc::madvise(page.cast(), HUGE, libc::MADV_HUGEPAGE);
        page.write_volatile(1);
        let piece = libc::iovec { iov_base: page.cast(), iov_len: 1 };
        let spliced = checked(libc::vmsplice(pipe.as_raw_fd(), &piece, 1, libc::SPLICE_F_NONBLOCK) as libc::c_long);
        libc::mincore(page.cast(), HUGE, present.as_mut_ptr());
        libc::munmap(mapping.start.cast(), mapping.length);
        spliced?;
    }
    Ok(4096 * present.iter().filter(|page| **page & 1 == 1).count() as u64)
}

/// `getpid` as a 32-bit program calls it. A kernel without such calls ends the process by a signal.
#[cfg(target_arch = "x86_64")]
pub fn getpid_32_bit() -> i32 {
    let result: i32;
    // SAFETY: call 20 of the 32-bit table takes no argument and touches no memory; all registers that it may change
    // are named.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("eax") 20 => result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    result
}

fn checked(result: libc::c_long) -> io::Result<i64> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
