//! Tests of whole filters: they are run as the kernel runs them, and compared with what the rules say.

use super::{
    compile::{
        IF_AT_LEAST, IF_EQUAL, IF_MORE, JUMP, LOAD, LONGEST, MASK, NATIVE, RETURN, X32_BIT, compile, from_bytes,
        returned,
    },
    rules::{Compare, Rule, Test},
    *,
};
use proptest::{collection::vec, prelude::*};
use std::collections::BTreeMap;

const BUILT_IN: [BuiltIn; 3] = [BuiltIn::Minimal, BuiltIn::Standard, BuiltIn::Build];
const ALLOW: u32 = returned(Answer::Allow);
const REFUSE: u32 = returned(Answer::REFUSE);
const ABSENT: u32 = returned(Answer::ABSENT);

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
            MASK => accumulator &= step.k,
            JUMP => at += step.k as usize,
            IF_EQUAL => at += branch(accumulator == step.k),
            IF_AT_LEAST => at += branch(accumulator >= step.k),
            IF_MORE => at += branch(accumulator > step.k),
            RETURN => return step.k,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

/// A call of this architecture: nothing where it is allowed, else its error.
pub fn run_native(program: &[Instruction], number: u32, arguments: [u64; 6]) -> Option<u64> {
    match run(program, NATIVE, number, arguments) {
        ALLOW => None,
        other => Some((other & !libc::SECCOMP_RET_ERRNO).into()),
    }
}

/// The plain model: architecture, number, rules, without any search.
fn model(profile: &Profile, architecture: u32, number: u32, arguments: [u64; 6]) -> u32 {
    if architecture != NATIVE || names::all().all(|(_, known)| known != number) {
        return ABSENT;
    }
    returned(profile.answer(number, &arguments))
}

fn filtered(profile: BuiltIn, narrowing: Narrowing) -> Vec<Instruction> {
    Filters::default().instructions(&Filter::BuiltIn(profile, narrowing))
}

fn native(profile: BuiltIn, number: libc::c_long, arguments: [u64; 6]) -> u32 {
    run(&filtered(profile, Narrowing::default()), NATIVE, number as u32, arguments)
}

#[test]
fn socket_families_are_an_allow_list() {
    for (profile, family) in BUILT_IN.into_iter().flat_map(|profile| (0..64u64).map(move |family| (profile, family))) {
        let verdict = native(profile, libc::SYS_socket, [family, 1, 0, 0, 0, 0]);
        let expected = if [1, 2, 10, 16].contains(&family) { ALLOW } else { returned(Answer::NO_FAMILY) };
        assert_eq!(verdict, expected, "family {family}");
        assert_eq!(native(profile, libc::SYS_socket, [16, 3, 12, 0, 0, 0]), returned(Answer::NO_PROTOCOL), "netfilter");
    }
}

#[test]
fn namespaces_other_processes_and_terminals_are_out_of_reach() {
    for profile in BUILT_IN {
        assert_eq!(native(profile, libc::SYS_clone, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), REFUSE);
        assert_eq!(native(profile, libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]), ALLOW);
        assert_eq!(native(profile, libc::SYS_clone3, [0; 6]), ABSENT);
        assert_eq!(native(profile, libc::SYS_prlimit64, [1, 0, 0, 0, 0, 0]), REFUSE);
        assert_eq!(native(profile, libc::SYS_prlimit64, [0; 6]), ALLOW);
        assert_eq!(native(profile, libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]), REFUSE);
        // The kernel looks at the low half only; so must we.
        assert_eq!(native(profile, libc::SYS_ioctl, [0, libc::TIOCSTI | 1 << 32, 0, 0, 0, 0]), REFUSE);
        for (names, reason) in floor::NEVER {
            for number in names.iter().filter_map(|name| names::number(name)) {
                assert_eq!(native(profile, number.into(), [0; 6]), REFUSE, "{number}: {reason}");
            }
        }
    }
}

#[test]
fn only_build_looks_into_other_processes() {
    for number in [libc::SYS_ptrace, libc::SYS_process_vm_readv, libc::SYS_kcmp] {
        assert_eq!(BUILT_IN.map(|profile| native(profile, number, [0; 6])), [REFUSE, REFUSE, ALLOW]);
    }
    assert_eq!(BUILT_IN.map(|profile| native(profile, libc::SYS_shmget, [0; 6])), [REFUSE, ALLOW, ALLOW]);
    assert_eq!(BUILT_IN.map(|profile| native(profile, libc::SYS_io_setup, [0; 6])), [ABSENT; 3]);
}

#[test]
fn memory_that_a_sum_would_miss_is_refused_where_memory_is_summed() {
    for profile in BUILT_IN {
        let program = filtered(profile, Narrowing { visible_memory_only: true, ..Narrowing::default() });
        let map = |flags: i32| run(&program, NATIVE, libc::SYS_mmap as u32, [0, 4096, 3, flags as u64, 0, 0]);
        assert_eq!(map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS), ALLOW);
        assert_eq!(map(libc::MAP_SHARED), ALLOW, "a file");
        assert_eq!(map(libc::MAP_SHARED | libc::MAP_ANONYMOUS), REFUSE);
        assert_eq!(map(libc::MAP_SHARED_VALIDATE | libc::MAP_ANONYMOUS), REFUSE);
        assert_eq!(run(&program, NATIVE, libc::SYS_memfd_create as u32, [0; 6]), REFUSE);
        let affinity = |program: &[Instruction]| run(program, NATIVE, libc::SYS_sched_setaffinity as u32, [0; 6]);
        assert_eq!(affinity(&program), ALLOW);
        assert_eq!(affinity(&filtered(profile, Narrowing { fixed_processors: true, ..Narrowing::default() })), REFUSE);
    }
}

#[test]
fn what_a_lenient_kernel_grants_is_refused_without_the_capability() {
    let [device, pipe] = [libc::S_IFCHR, libc::S_IFIFO].map(|kind| [0, 0, u64::from(kind | 0o666), 0, 0, 0]);
    let [higher, lower] = [-5i32, 5].map(|priority| [0, 0, u64::from(priority as u32), 0, 0, 0]);
    let mark = [3, libc::SOL_SOCKET as u64, libc::SO_MARK as u64, 0, 4, 0];
    for profile in BUILT_IN {
        let with = |capabilities| filtered(profile, Narrowing { lenient_kernel: capabilities, ..Narrowing::default() });
        let (strict, linux) = (with(Some(0)), with(None));
        let privileged = with(Some(1 << 12 | 1 << 23 | 1 << 27));
        let signal = |first: u64| [first, 9, 9, 0, 0, 0];
        let tried = |program: &[Instruction], number: i64, arguments| run(program, NATIVE, number as u32, arguments);
        for (number, arguments) in [(libc::SYS_setpriority, higher), (libc::SYS_setsockopt, mark)] {
            assert_eq!(tried(&strict, number, arguments), REFUSE);
            assert_eq!(tried(&privileged, number, arguments), tried(&linux, number, arguments));
        }
        let owner = [3, libc::F_SETOWN as u64, 1, 0, 0, 0];
        let never = [
            (libc::SYS_mknodat, device),
            (libc::SYS_kill, signal(1)),
            (libc::SYS_tgkill, signal(1)),
            (libc::SYS_fcntl, owner),
            (libc::SYS_ioctl, [3, 0x8901, 1, 0, 0, 0]),
        ];
        for (number, arguments) in never {
            assert_eq!(tried(&strict, number, arguments), REFUSE);
            assert_eq!(tried(&privileged, number, arguments), REFUSE);
        }
        let always = [(libc::SYS_mknodat, pipe), (libc::SYS_setpriority, lower), (libc::SYS_kill, signal(2))];
        for (number, arguments) in always {
            assert_eq!(tried(&strict, number, arguments), tried(&linux, number, arguments));
        }
    }
}

#[test]
fn the_executor_can_work_under_every_built_in_profile() {
    let narrowings = [false, true].map(|all| Narrowing {
        visible_memory_only: all,
        fixed_processors: all,
        lenient_kernel: all.then_some(0),
    });
    for (profile, narrowing) in BUILT_IN.into_iter().flat_map(|profile| narrowings.map(|one| (profile, one))) {
        assert_eq!(floor::missing(&floor::beneath(profile.profile(), narrowing)), [""; 0], "{profile:?}");
    }
}

#[test]
fn a_filter_survives_its_way_to_the_launcher_and_is_short() {
    for profile in BUILT_IN {
        let program = filtered(profile, Narrowing::default());
        assert!(program.len() < LONGEST / 4, "{}", program.len());
        assert_eq!(from_bytes(&to_bytes(&program)), program);
    }
    let own = Filter::Own(vec![7; 8 * LONGEST]);
    let sent = rmp_serde::to_vec_named(&own).expect("a message");
    assert!(sent.len() < crate::wire::LONGEST / 2, "{}", sent.len());
    assert_eq!(rmp_serde::from_slice::<Filter>(&sent).expect("the same"), own);
}

#[test]
fn the_label_says_which_profile_and_how_many_calls() {
    let counts = BUILT_IN.map(|profile| {
        let text = Chosen::BuiltIn(profile).to_string();
        let rest = text.strip_prefix(&format!("seccomp allow-list `{}`, ", profile.name())).expect("its name");
        rest.strip_suffix(" calls").expect("its calls").parse::<u32>().expect("a number")
    });
    assert!(counts[0] > 150 && counts.is_sorted(), "{counts:?}");
}

/// Mostly this architecture and its numbers, else anything.
fn architectures() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(NATIVE), 1 => any::<u32>()]
}

/// Mostly calls whose arguments are looked at.
fn numbers() -> impl Strategy<Value = u32> {
    let names = ["clone", "socket", "socketpair", "prlimit64", "ioctl", "personality", "mmap", "mknodat", "clone3"];
    let checked: Vec<u32> = names.iter().filter_map(|name| names::number(name)).collect();
    prop_oneof![2 => 0..1200u32, 2 => prop::sample::select(checked), 1 => any::<u32>()]
}

/// Values that meet those of rules, in either half, more often than chance would.
fn values() -> impl Strategy<Value = u64> {
    let half = prop_oneof![0..4u32, Just(u32::MAX), Just(1 << 31), any::<u32>(), Just(16), Just(0x5412)];
    (half.clone(), half).prop_map(|(high, low)| u64::from(high) << 32 | u64::from(low))
}

fn tests() -> impl Strategy<Value = Test> {
    use Compare::*;
    let compare = prop::sample::select(vec![Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual]);
    (0..6u8, prop_oneof![Just(u64::MAX), values()], compare, values())
        .prop_map(|(argument, mask, compare, value)| Test { argument, mask, compare, value })
}

fn answers() -> impl Strategy<Value = Answer> {
    prop_oneof![Just(Answer::Allow), (0..4096u16).prop_map(Answer::Errno)]
}

fn profiles() -> impl Strategy<Value = Profile> {
    let rules = (vec(tests(), 0..6), answers()).prop_map(|(tests, answer)| Rule { tests, answer });
    let calls = prop::collection::btree_map(0..470u32, vec(rules, 1..4), 0..40);
    (calls, answers()).prop_map(|(calls, otherwise): (BTreeMap<_, _>, _)| Profile { calls, otherwise })
}

fn narrowings() -> impl Strategy<Value = Narrowing> {
    any::<(bool, bool, Option<u64>)>().prop_map(|(visible_memory_only, fixed_processors, lenient_kernel)| Narrowing {
        visible_memory_only,
        fixed_processors,
        lenient_kernel,
    })
}

proptest! {
    #[test]
    fn built_in_filters_do_what_their_rules_say(
        profile in prop::sample::select(BUILT_IN.to_vec()), narrowing in narrowings(), architecture in architectures(),
        number in numbers(), arguments in prop::array::uniform6(values()),
    ) {
        let program = filtered(profile, narrowing);
        let rules = floor::beneath(profile.profile(), narrowing);
        prop_assert_eq!(
            run(&program, architecture, number, arguments), model(&rules, architecture, number, arguments)
        );
    }

    #[test]
    fn filters_of_any_rules_do_what_those_say(
        profile in profiles(), calls in vec((architectures(), 0..480u32, prop::array::uniform6(values())), 64),
    ) {
        let program = compile(&profile);
        for (architecture, number, arguments) in calls {
            prop_assert_eq!(
                run(&program, architecture, number, arguments), model(&profile, architecture, number, arguments)
            );
        }
    }

    #[test]
    fn no_profile_opens_what_the_floor_closes(profile in profiles(), arguments in prop::array::uniform6(values())) {
        let program = compile(&floor::beneath(profile, Narrowing::default()));
        let call = |name: &str, arguments| names::number(name).map(|number| run(&program, NATIVE, number, arguments));
        for name in floor::NEVER.iter().flat_map(|(names, _)| *names) {
            prop_assert!(matches!(call(name, arguments), None | Some(REFUSE)), "{name}");
        }
        prop_assert_eq!(call("clone3", arguments), Some(ABSENT));
        let with = |index: usize, low: u32| {
            let mut changed = arguments;
            changed[index] = changed[index] & !u64::from(u32::MAX) | u64::from(low);
            changed
        };
        prop_assert_eq!(call("clone", with(0, libc::CLONE_NEWUSER as u32)), Some(REFUSE));
        prop_assert_eq!(call("prlimit64", with(0, 1)), Some(REFUSE));
        prop_assert_eq!(call("ioctl", with(1, libc::TIOCSTI as u32)), Some(REFUSE));
        prop_assert_eq!(call("ioctl", with(1, libc::TIOCLINUX as u32)), Some(REFUSE));
        prop_assert_eq!(call("socket", with(0, libc::AF_VSOCK as u32)), Some(returned(Answer::NO_FAMILY)));
        prop_assert_eq!(run(&program, NATIVE ^ 1, libc::SYS_read as u32, arguments), ABSENT);
    }

    #[test]
    fn x32_numbers_are_unknown(profile in profiles(), number in X32_BIT..) {
        prop_assert_eq!(run(&compile(&profile), NATIVE, number, [0; 6]), ABSENT);
    }
}
