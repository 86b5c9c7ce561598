//! A profile in the form that OCI runtimes read, for engines that install filters themselves.
//!
//! Runtimes build filters with a library that takes rules of one call in no particular order, so a call is only ever
//! *allowed* under conditions, and everything else of it falls to the default: EPERM. Where we would give another number for
//! some arguments only, that number is lost; whether a call is made is not. The conditions are *cubes*: for each argument
//! some bits that are looked at, and what they must be. All comparisons can be said that way.

use serde_json::{Value, json};

use super::{
    names,
    rules::{Answer, Compare, Profile, Rule, Test},
};

/// More conditions for one call are not written down.
const MOST_CUBES: usize = 4096;

/// For each argument the bits that are looked at, and their values.
type Cube = [(u64, u64); 6];

const EVERYTHING: Cube = [(0, 0); 6];

/// The name of this architecture in such files.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: &str = "SCMP_ARCH_X86_64";
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: &str = "SCMP_ARCH_AARCH64";

/// The profile as a document; nothing where its conditions are too many to be written down.
pub fn document(profile: &Profile) -> Option<Value> {
    let (mut allowed, mut entries) = (Vec::new(), Vec::new());
    for (name, number) in names::all() {
        let rules = profile.rules(number);
        if let Some(answer) = always(&rules, profile.otherwise) {
            match answer {
                Answer::Allow => allowed.push(name),
                Answer::REFUSE => {}
                Answer::Errno(number) => {
                    entries.push(json!({"names": [name], "action": "SCMP_ACT_ERRNO", "errnoRet": number}));
                }
            }
            continue;
        }
        for cube in allowed_cubes(&rules, profile.otherwise)? {
            entries.push(json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments(&cube)}));
        }
    }
    if !allowed.is_empty() {
        entries.push(json!({"names": allowed, "action": "SCMP_ACT_ALLOW"}));
    }
    Some(json!({"defaultAction": "SCMP_ACT_ERRNO", "architectures": [ARCHITECTURE], "syscalls": entries}))
}

/// The only answer that a call can get, if there is but one.
fn always(rules: &[&Rule], otherwise: Answer) -> Option<Answer> {
    let last = rules.iter().position(|rule| rule.tests.is_empty());
    let reached = &rules[..last.map_or(rules.len(), |last| last + 1)];
    let finally = if last.is_some() { None } else { Some(otherwise) };
    let mut answers = reached.iter().map(|rule| rule.answer).chain(finally);
    let first = answers.next()?;
    answers.all(|answer| answer == first).then_some(first)
}

/// Where a call is made: what is allowed, less what is refused. Rules that refuse come first.
fn allowed_cubes(rules: &[&Rule], otherwise: Answer) -> Option<Vec<Cube>> {
    let (refusing, allowing): (Vec<&Rule>, Vec<&Rule>) = rules.iter().partition(|rule| rule.answer != Answer::Allow);
    let mut cubes = match otherwise {
        Answer::Allow => vec![EVERYTHING],
        _ => {
            let all = allowing.iter().map(|rule| within(vec![EVERYTHING], &rule.tests));
            all.collect::<Option<Vec<_>>>()?.concat()
        }
    };
    for rule in refusing {
        // Outside of a rule: where one of its tests fails.
        let outside = rule.tests.iter().map(|test| meet(&cubes, &where_holds(&opposite(test))));
        cubes = outside.collect::<Option<Vec<_>>>()?.concat();
    }
    Some(cubes)
}

fn within(mut cubes: Vec<Cube>, tests: &[Test]) -> Option<Vec<Cube>> {
    for test in tests {
        cubes = meet(&cubes, &where_holds(test))?;
    }
    Some(cubes)
}

fn meet(some: &[Cube], others: &[Cube]) -> Option<Vec<Cube>> {
    let both: Vec<Cube> =
        some.iter().flat_map(|one| others.iter().filter_map(move |other| common(one, other))).collect();
    (both.len() <= MOST_CUBES).then_some(both)
}

/// What lies in both.
fn common(one: &Cube, other: &Cube) -> Option<Cube> {
    let mut both = EVERYTHING;
    for (place, (a, b)) in both.iter_mut().zip(one.iter().zip(other)) {
        if (a.1 ^ b.1) & a.0 & b.0 != 0 {
            return None;
        }
        *place = (a.0 | b.0, a.1 | b.1);
    }
    Some(both)
}

fn opposite(test: &Test) -> Test {
    let compare = match test.compare {
        Compare::Equal => Compare::NotEqual,
        Compare::NotEqual => Compare::Equal,
        Compare::Less => Compare::GreaterOrEqual,
        Compare::LessOrEqual => Compare::Greater,
        Compare::Greater => Compare::LessOrEqual,
        Compare::GreaterOrEqual => Compare::Less,
    };
    Test { compare, ..*test }
}

/// A test in cubes. A number is less than another where it is the same down to a bit that it lacks.
fn where_holds(test: &Test) -> Vec<Cube> {
    let Test { mask, value, .. } = *test;
    let only = |bits: u64, values: u64| {
        let mut cube = EVERYTHING;
        cube[usize::from(test.argument)] = (bits, values);
        cube
    };
    // Bits that can never be seen as they would have to be.
    let reachable = value & !mask == 0;
    let equal = || if reachable { vec![only(mask, value)] } else { Vec::new() };
    let set_bits = || (0..u64::BITS).map(|bit| 1u64 << bit).filter(|bit| mask & bit != 0);
    match test.compare {
        Compare::Equal => equal(),
        Compare::NotEqual if !reachable => vec![EVERYTHING],
        Compare::NotEqual => {
            let above = |bit: u64| mask & !(bit | (bit - 1));
            set_bits().map(|bit| only(above(bit) | bit, (value & above(bit)) | (!value & bit))).collect()
        }
        Compare::Less => ordered(test, Order::Less, only),
        Compare::Greater => ordered(test, Order::Greater, only),
        Compare::LessOrEqual => [ordered(test, Order::Less, only), equal()].concat(),
        Compare::GreaterOrEqual => [ordered(test, Order::Greater, only), equal()].concat(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Less,
    Greater,
}

/// Bit by bit from the highest: equal so far, then different in the right way. What the mask hides is zero.
fn ordered(test: &Test, order: Order, only: impl Fn(u64, u64) -> Cube) -> Vec<Cube> {
    let Test { mask, value, .. } = *test;
    let (mut cubes, mut seen) = (Vec::new(), 0u64);
    for bit in (0..u64::BITS).rev().map(|bit| 1u64 << bit) {
        let (visible, set) = (mask & bit != 0, value & bit != 0);
        let differs = match order {
            Order::Less => set,
            Order::Greater => !set && visible,
        };
        if differs {
            let wanted = if order == Order::Greater { bit } else { 0 };
            cubes.push(only(seen | (mask & bit), (value & seen) | (wanted & mask)));
        }
        if set && !visible {
            // From here on nothing can be equal.
            return cubes;
        }
        seen |= mask & bit;
    }
    cubes
}

fn arguments(cube: &Cube) -> Vec<Value> {
    let looked_at = cube.iter().enumerate().filter(|(_, (mask, _))| *mask != 0);
    looked_at
        .map(|(index, (mask, value))| json!({"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::seccomp::{BuiltIn, Narrowing, floor, oci};

    fn read_back(profile: &Profile) -> Profile {
        oci::understand(document(profile).expect("not too many").to_string().as_bytes()).expect("our own words")
    }

    fn same_verdict(profile: &Profile, again: &Profile, number: u32, arguments: &[u64; 6]) {
        let (ours, theirs) = (profile.answer(number, arguments), again.answer(number, arguments));
        assert_eq!(ours == Answer::Allow, theirs == Answer::Allow, "{number} {arguments:x?}");
        if let Some(only) = always(&profile.rules(number), profile.otherwise) {
            assert_eq!(theirs, only, "{number} {arguments:x?}");
        }
    }

    /// Values that rules speak of, and those beside them.
    fn telling(profile: &Profile) -> Vec<u64> {
        let tests = profile.calls.values().flatten().flat_map(|rule| &rule.tests);
        let values = tests.flat_map(|test| [test.value, test.value | 1 << 32, test.value ^ 1]);
        let values: std::collections::BTreeSet<u64> = values.collect();
        values
            .into_iter()
            .chain([0, 1, 2, 3, 10, 16, u64::MAX, u64::from(u32::MAX), 0x5412, 0x541c, 0x1_0000_5412])
            .collect()
    }

    #[test]
    fn what_is_written_down_gives_the_same_verdicts_when_it_is_read() {
        for name in [BuiltIn::Minimal, BuiltIn::Standard, BuiltIn::Build] {
            for all in [false, true] {
                // What a kernel of its own is asked for besides is never written down: no engine's filter counts there.
                let narrowing = Narrowing { visible_memory_only: all, fixed_processors: all, lenient_kernel: None };
                let profile = floor::beneath(name.profile(), narrowing);
                let again = read_back(&profile);
                let values = telling(&profile);
                // Most calls have no conditions, and are looked at once.
                for (_, number) in names::all() {
                    same_verdict(&profile, &again, number, &[1; 6]);
                    if always(&profile.rules(number), profile.otherwise).is_some() {
                        continue;
                    }
                    for (at, value) in values.iter().enumerate() {
                        let other = values[(at * 7 + 3) % values.len()];
                        same_verdict(&profile, &again, number, &[*value, other, *value, other, 0, 0]);
                        same_verdict(&profile, &again, number, &[other, *value, other, *value, 0, 0]);
                        same_verdict(&profile, &again, number, &[*value, 0, 0, *value, 0, 0]);
                    }
                }
            }
        }
    }

    fn any_test() -> impl Strategy<Value = Test> {
        use Compare::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        let compare = prop::sample::select(vec![Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual]);
        let number = || prop_oneof![0u64..16, any::<u64>()];
        let mask = prop_oneof![Just(u64::MAX), Just(u64::from(u32::MAX)), 0u64..16, any::<u64>()];
        (0u8..3, mask, compare, number()).prop_map(|(argument, mask, compare, value)| Test {
            argument,
            mask,
            compare,
            value,
        })
    }

    proptest! {
        #[test]
        fn any_profile_is_said_in_cubes(
            tests in prop::collection::vec((prop::collection::vec(any_test(), 0..2), any::<bool>()), 0..3),
            allowed_otherwise in any::<bool>(),
            arguments in prop::collection::vec([0u64..20, 0u64..20, 0u64..20, 0u64..20, 0u64..20, 0u64..20], 40),
            wide in prop::collection::vec(any::<[u64; 6]>(), 20),
        ) {
            let mut profile = Profile {
                calls: Default::default(),
                otherwise: if allowed_otherwise { Answer::Allow } else { Answer::REFUSE },
            };
            for (tests, allows) in tests {
                profile.add(1, Rule { tests, answer: if allows { Answer::Allow } else { Answer::REFUSE } });
            }
            if document(&profile).is_some() {
                let again = read_back(&profile);
                for arguments in arguments.iter().chain(&wide) {
                    same_verdict(&profile, &again, 1, arguments);
                }
            }
        }
    }
}
