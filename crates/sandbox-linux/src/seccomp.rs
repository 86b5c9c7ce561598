//! The filter for system calls: an allow-list, compiled to the kernel's filter language. Pure.
//!
//! It answers EPERM for what is known and not allowed, and ENOSYS for `clone3` and for numbers that it does not know,
//! so that libraries fall back. It never kills. Foreign ABIs (32-bit, x32) get ENOSYS for everything.

use std::collections::BTreeMap;

use crate::{
    sys::Instruction,
    syscalls::{ALLOWED, DENIED},
};

/// What a filter leaves out or adds, by how the sandbox's limits are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Profile {
    /// Refuse memory that a sum over processes cannot see: shared memory without a file, System V, memfd.
    pub visible_memory_only: bool,
    /// Refuse changing which processors may be used.
    pub fixed_processors: bool,
}

/// The filter for this profile.
pub fn compile(profile: Profile) -> Vec<Instruction> {
    let mut verdicts: BTreeMap<u32, Verdict> = DENIED.iter().map(|&nr| (nr as u32, Verdict::Refuse)).collect();
    verdicts.extend(ALLOWED.iter().map(|&nr| (nr as u32, Verdict::Allow)));
    let mut set = |nr: libc::c_long, verdict| verdicts.insert(nr as u32, verdict);
    set(libc::SYS_clone3, Verdict::Unknown);
    set(libc::SYS_clone, Verdict::Check(Check::NoNamespaces));
    set(libc::SYS_socket, Verdict::Check(Check::SocketFamily));
    set(libc::SYS_socketpair, Verdict::Check(Check::LocalFamily));
    set(libc::SYS_prlimit64, Verdict::Check(Check::OwnProcess));
    set(libc::SYS_ioctl, Verdict::Check(Check::NoTerminalInjection));
    set(libc::SYS_personality, Verdict::Check(Check::UsualPersonality));
    if profile.visible_memory_only {
        let hidden =
            [libc::SYS_memfd_create, libc::SYS_memfd_secret, libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget];
        for nr in hidden {
            set(nr, Verdict::Refuse);
        }
        set(libc::SYS_mmap, Verdict::Check(Check::NoSharedMemoryWithoutFile));
    }
    if profile.fixed_processors {
        set(libc::SYS_sched_setaffinity, Verdict::Refuse);
    }
    let mut program = prologue();
    program.extend(search(&ranges(&verdicts)));
    program
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allow,
    Refuse,
    Unknown,
    Check(Check),
}

/// Conditions on arguments. Each compiles to a few instructions that end in a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Check {
    NoNamespaces,
    SocketFamily,
    LocalFamily,
    OwnProcess,
    NoTerminalInjection,
    UsualPersonality,
    NoSharedMemoryWithoutFile,
}

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const IF_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets in `struct seccomp_data`: number, architecture, instruction pointer, six 64-bit arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const fn argument_low(index: u32) -> u32 {
    16 + 8 * index + if cfg!(target_endian = "big") { 4 } else { 0 }
}

#[cfg(target_arch = "x86_64")]
const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const NATIVE: u32 = 0xc000_00b7;
/// x32 calls carry the native architecture and this bit in their number.
const X32_BIT: u32 = 0x4000_0000;

const ALLOW: Instruction = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW);
const REFUSE: Instruction = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
const UNKNOWN: Instruction = instruction(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn prologue() -> Vec<Instruction> {
    vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(IF_EQUAL, 1, 0, NATIVE),
        UNKNOWN,
        instruction(LOAD, 0, 0, NUMBER),
        instruction(IF_AT_LEAST, 0, 1, X32_BIT),
        UNKNOWN,
    ]
}

/// Neighbouring numbers with the same verdict become one range; numbers in no table are unknown.
fn ranges(verdicts: &BTreeMap<u32, Verdict>) -> Vec<(u32, Verdict)> {
    let mut ranges = vec![(0, Verdict::Unknown)];
    let mut next = 0;
    for (&number, &verdict) in verdicts {
        if number > next {
            push(&mut ranges, next, Verdict::Unknown);
        }
        push(&mut ranges, number, verdict);
        next = number + 1;
    }
    push(&mut ranges, next, Verdict::Unknown);
    ranges
}

fn push(ranges: &mut Vec<(u32, Verdict)>, start: u32, verdict: Verdict) {
    match ranges.last_mut() {
        Some((_, last)) if *last == verdict => {}
        Some((first, last)) if *first == start => *last = verdict,
        _ => ranges.push((start, verdict)),
    }
}

/// A binary search: the kernel tries the filter for every number when it is installed, so its depth is what counts.
fn search(ranges: &[(u32, Verdict)]) -> Vec<Instruction> {
    if let [(_, verdict)] = ranges {
        return leaf(*verdict);
    }
    let (left, right) = ranges.split_at(ranges.len() / 2);
    let (lower, upper) = (search(left), search(right));
    let mut program = vec![instruction(IF_AT_LEAST, 0, 1, right[0].0), instruction(JUMP, 0, 0, lower.len() as u32)];
    program.extend(lower);
    program.extend(upper);
    program
}

fn leaf(verdict: Verdict) -> Vec<Instruction> {
    match verdict {
        Verdict::Allow => vec![ALLOW],
        Verdict::Refuse => vec![REFUSE],
        Verdict::Unknown => vec![UNKNOWN],
        Verdict::Check(check) => check.compile(),
    }
}

impl Check {
    fn compile(self) -> Vec<Instruction> {
        match self {
            Self::NoNamespaces => {
                let new_namespaces = libc::CLONE_NEWNS
                    | libc::CLONE_NEWCGROUP
                    | libc::CLONE_NEWUTS
                    | libc::CLONE_NEWIPC
                    | libc::CLONE_NEWUSER
                    | libc::CLONE_NEWPID
                    | libc::CLONE_NEWNET;
                let load = instruction(LOAD, 0, 0, argument_low(0));
                vec![load, instruction(IF_ANY_BIT, 0, 1, new_namespaces as u32), REFUSE, ALLOW]
            }
            Self::SocketFamily => vec![
                instruction(LOAD, 0, 0, argument_low(0)),
                instruction(IF_EQUAL, 6, 0, libc::AF_UNIX as u32),
                instruction(IF_EQUAL, 5, 0, libc::AF_INET as u32),
                instruction(IF_EQUAL, 4, 0, libc::AF_INET6 as u32),
                instruction(IF_EQUAL, 0, 2, libc::AF_NETLINK as u32),
                instruction(LOAD, 0, 0, argument_low(2)),
                instruction(IF_EQUAL, 1, 0, libc::NETLINK_ROUTE as u32),
                REFUSE,
                ALLOW,
            ],
            Self::LocalFamily => only(0, &[libc::AF_UNIX as u32]),
            Self::OwnProcess => only(0, &[0]),
            Self::UsualPersonality => only(0, &[0, 0x0008, 0x20000, 0x20008, u32::MAX]),
            // MAP_SHARED is bit 0 also in MAP_SHARED_VALIDATE; MAP_PRIVATE is bit 1.
            Self::NoSharedMemoryWithoutFile => vec![
                instruction(LOAD, 0, 0, argument_low(3)),
                instruction(IF_ANY_BIT, 0, 2, libc::MAP_SHARED as u32),
                instruction(IF_ANY_BIT, 0, 1, libc::MAP_ANONYMOUS as u32),
                REFUSE,
                ALLOW,
            ],
            Self::NoTerminalInjection => vec![
                instruction(LOAD, 0, 0, argument_low(1)),
                instruction(IF_EQUAL, 1, 0, libc::TIOCSTI as u32),
                instruction(IF_EQUAL, 0, 1, libc::TIOCLINUX as u32),
                REFUSE,
                ALLOW,
            ],
        }
    }
}

/// Allows the call only if the low half of an argument is one of these.
fn only(argument: u32, values: &[u32]) -> Vec<Instruction> {
    let mut program = vec![instruction(LOAD, 0, 0, argument_low(argument))];
    for (index, &value) in values.iter().enumerate() {
        let to_allow = (values.len() - index) as u8;
        program.push(instruction(IF_EQUAL, to_allow, 0, value));
    }
    program.extend([REFUSE, ALLOW]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The few instructions that are used, run as the kernel runs them.
    fn run(program: &[Instruction], architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
        let mut data = [0u8; 64];
        data[0..4].copy_from_slice(&number.to_ne_bytes());
        data[4..8].copy_from_slice(&architecture.to_ne_bytes());
        for (index, argument) in arguments.iter().enumerate() {
            data[16 + 8 * index..24 + 8 * index].copy_from_slice(&argument.to_ne_bytes());
        }
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let step = program[at];
            at += 1;
            let branch = |taken: bool| usize::from(if taken { step.jt } else { step.jf });
            match step.code {
                LOAD => {
                    let start = step.k as usize;
                    accumulator = u32::from_ne_bytes(data[start..start + 4].try_into().expect("four bytes"));
                }
                JUMP => at += step.k as usize,
                IF_EQUAL => at += branch(accumulator == step.k),
                IF_AT_LEAST => at += branch(accumulator >= step.k),
                IF_ANY_BIT => at += branch(accumulator & step.k != 0),
                RETURN => return step.k,
                other => panic!("unknown instruction {other:#x}"),
            }
        }
    }

    fn native(number: libc::c_long, arguments: [u64; 6]) -> u32 {
        run(&compile(Profile::default()), NATIVE, number as u32, arguments)
    }

    #[test]
    fn socket_families_are_an_allow_list() {
        for family in 0..64u64 {
            let verdict = native(libc::SYS_socket, [family, 1, 0, 0, 0, 0]);
            let expected = if [1, 2, 10, 16].contains(&family) { ALLOW.k } else { REFUSE.k };
            assert_eq!(verdict, expected, "family {family}");
        }
        assert_eq!(native(libc::SYS_socket, [16, 3, 12, 0, 0, 0]), REFUSE.k, "netfilter netlink");
    }

    #[test]
    fn namespaces_other_processes_and_terminals_are_out_of_reach() {
        assert_eq!(native(libc::SYS_clone, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), REFUSE.k);
        assert_eq!(native(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), ALLOW.k);
        assert_eq!(native(libc::SYS_clone3, [0; 6]), UNKNOWN.k);
        assert_eq!(native(libc::SYS_prlimit64, [1, 0, 0, 0, 0, 0]), REFUSE.k);
        assert_eq!(native(libc::SYS_prlimit64, [0; 6]), ALLOW.k);
        assert_eq!(native(libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]), REFUSE.k);
        // The kernel looks at the low half only; so must we.
        assert_eq!(native(libc::SYS_ioctl, [0, libc::TIOCSTI | 1 << 32, 0, 0, 0, 0]), REFUSE.k);
        for nr in [libc::SYS_io_uring_setup, libc::SYS_bpf, libc::SYS_keyctl, libc::SYS_userfaultfd, libc::SYS_ptrace] {
            assert_eq!(native(nr, [0; 6]), REFUSE.k, "{nr}");
        }
    }

    #[test]
    fn memory_that_a_sum_would_miss_is_refused_where_memory_is_summed() {
        let program = compile(Profile { visible_memory_only: true, fixed_processors: false });
        let map = |flags: i32| run(&program, NATIVE, libc::SYS_mmap as u32, [0, 4096, 3, flags as u64, 0, 0]);
        assert_eq!(map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS), ALLOW.k);
        assert_eq!(map(libc::MAP_SHARED), ALLOW.k, "a file");
        assert_eq!(map(libc::MAP_SHARED | libc::MAP_ANONYMOUS), REFUSE.k);
        assert_eq!(map(libc::MAP_SHARED_VALIDATE | libc::MAP_ANONYMOUS), REFUSE.k);
    }

    proptest! {
        #[test]
        fn the_search_finds_what_the_tables_say(number in 0u32..1200, arch in prop_oneof![Just(NATIVE), any::<u32>()]) {
            let program = compile(Profile::default());
            let answer = run(&program, arch, number, [0; 6]);
            let nr = libc::c_long::from(number);
            let checked = [libc::SYS_clone, libc::SYS_socket, libc::SYS_socketpair, libc::SYS_prlimit64,
                libc::SYS_ioctl, libc::SYS_personality].contains(&nr);
            if arch != NATIVE {
                prop_assert_eq!(answer, UNKNOWN.k);
            } else if !checked && nr != libc::SYS_clone3 {
                let expected = if ALLOWED.contains(&nr) { ALLOW.k } else if DENIED.contains(&nr) { REFUSE.k } else { UNKNOWN.k };
                prop_assert_eq!(answer, expected);
            }
        }

        #[test]
        fn x32_numbers_are_unknown(number in X32_BIT..) {
            prop_assert_eq!(run(&compile(Profile::default()), NATIVE, number, [0; 6]), UNKNOWN.k);
        }
    }
}
