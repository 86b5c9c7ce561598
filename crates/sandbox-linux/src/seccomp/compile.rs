//! From rules to the kernel's filter language. Pure.
//!
//! First the architecture, then a binary search for the number, then the rules of that call, each of which ends in a
//! return. What is in no table answers ENOSYS.

use super::{
    names,
    rules::{Answer, Compare, Profile, Rule, Test},
};
use crate::sys::Instruction;

/// The kernel takes no longer programs; see BPF_MAXINSNS in seccomp(2).
pub const LONGEST: usize = 4096;

/// The filter for a profile.
pub fn compile(profile: &Profile) -> Vec<Instruction> {
    let mut verdicts: Vec<(u32, Verdict)> =
        names::all().map(|(_, number)| (number, Verdict::new(profile, number))).collect();
    verdicts.sort_by_key(|(number, _)| *number);
    let mut program = prologue();
    program.extend(search(&ranges(verdicts)));
    program
}

/// The filter as the kernel reads it from memory.
pub fn to_bytes(filter: &[Instruction]) -> Vec<u8> {
    let bytes = |step: &Instruction| {
        let (code, k) = (step.code.to_ne_bytes(), step.k.to_ne_bytes());
        [code[0], code[1], step.jt, step.jf, k[0], k[1], k[2], k[3]]
    };
    filter.iter().flat_map(bytes).collect()
}

/// The filter from the bytes that [`to_bytes`] makes; what is left over at the end is not an instruction.
pub fn from_bytes(bytes: &[u8]) -> Vec<Instruction> {
    let (steps, _) = bytes.as_chunks::<8>();
    let step = |&[c, d, jt, jf, k @ ..]: &[u8; 8]| Instruction {
        code: u16::from_ne_bytes([c, d]),
        jt,
        jf,
        k: u32::from_ne_bytes(k),
    };
    steps.iter().map(step).collect()
}

/// Answers one call as a kernel does that lacks it, and lets all others pass. No wall: for programs of the operator's own.
pub fn lacking(call: &str) -> Option<Vec<Instruction>> {
    let number = names::number(call)?;
    Some(vec![
        instruction(LOAD, 0, 0, NUMBER),
        instruction(IF_EQUAL, 0, 1, number),
        give(Answer::ABSENT),
        give(Answer::Allow),
    ])
}

/// What happens to calls of one number: the first rule that holds, else the last word.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Verdict {
    rules: Vec<Rule>,
    otherwise: Answer,
}

impl Verdict {
    fn new(profile: &Profile, number: u32) -> Self {
        let mut verdict = Self { rules: Vec::new(), otherwise: profile.otherwise };
        for rule in profile.rules(number) {
            if rule.tests.is_empty() {
                verdict.otherwise = rule.answer;
                break;
            }
            verdict.rules.push(rule.clone());
        }
        verdict
    }

    fn absent() -> Self {
        Self { rules: Vec::new(), otherwise: Answer::ABSENT }
    }

    fn compile(&self) -> Vec<Instruction> {
        let mut program: Vec<_> = self.rules.iter().flat_map(compile_rule).collect();
        program.push(give(self.otherwise));
        program
    }
}

pub(super) const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(super) const MASK: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
pub(super) const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
pub(super) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
pub(super) const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
pub(super) const IF_MORE: u16 = (libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K) as u16;
pub(super) const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

/// Offsets in `struct seccomp_data`: number, architecture, instruction pointer, six 64-bit arguments.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const ARGUMENTS: u32 = 16;
const LOW: u32 = if cfg!(target_endian = "big") { 4 } else { 0 };

#[cfg(target_arch = "x86_64")]
pub(super) const NATIVE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const NATIVE: u32 = 0xc000_00b7;
/// x32 calls carry the native architecture and this bit in their number.
pub(super) const X32_BIT: u32 = 0x4000_0000;

const fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> Instruction {
    Instruction { code, jt, jf, k }
}

/// What the filter returns for an answer.
pub(super) const fn returned(answer: Answer) -> u32 {
    match answer {
        Answer::Allow => libc::SECCOMP_RET_ALLOW,
        Answer::Errno(number) => libc::SECCOMP_RET_ERRNO | number as u32,
    }
}

const fn give(answer: Answer) -> Instruction {
    instruction(RETURN, 0, 0, returned(answer))
}

fn prologue() -> Vec<Instruction> {
    vec![
        instruction(LOAD, 0, 0, ARCHITECTURE),
        instruction(IF_EQUAL, 1, 0, NATIVE),
        give(Answer::ABSENT),
        instruction(LOAD, 0, 0, NUMBER),
        instruction(IF_AT_LEAST, 0, 1, X32_BIT),
        give(Answer::ABSENT),
    ]
}

/// Neighbouring numbers with the same verdict become one range; numbers in no table are absent.
fn ranges(verdicts: Vec<(u32, Verdict)>) -> Vec<(u32, Verdict)> {
    let mut ranges = vec![(0, Verdict::absent())];
    let mut next = 0;
    for (number, verdict) in verdicts {
        if number > next {
            push(&mut ranges, next, Verdict::absent());
        }
        push(&mut ranges, number, verdict);
        next = number + 1;
    }
    push(&mut ranges, next, Verdict::absent());
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
        return verdict.compile();
    }
    let (left, right) = ranges.split_at(ranges.len() / 2);
    let (lower, upper) = (search(left), search(right));
    let mut program = vec![instruction(IF_AT_LEAST, 0, 1, right[0].0), instruction(JUMP, 0, 0, lower.len() as u32)];
    program.extend(lower);
    program.extend(upper);
    program
}

/// Tests that all lead on to a return, or past it. Built from the end, so that each knows how far past is: a rule has
/// at most a dozen tests of at most seven instructions, so it is never too far for a jump.
fn compile_rule(rule: &Rule) -> Vec<Instruction> {
    let mut program = vec![give(rule.answer)];
    for test in rule.tests.iter().rev() {
        let mut code = compile_test(test, program.len() as u8);
        code.append(&mut program);
        program = code;
    }
    program
}

/// Goes on behind itself where the test holds, and `rest` instructions further where it does not.
fn compile_test(test: &Test, rest: u8) -> Vec<Instruction> {
    let (high, low) = ((test.value >> 32) as u32, test.value as u32);
    let offset = ARGUMENTS + 8 * u32::from(test.argument);
    let mut second = load(offset + LOW, test.mask as u32);
    // How far it is from the last instruction on the high half, over all that looks at the low half.
    let (holds, fails) = (second.len() as u8 + 1, second.len() as u8 + 1 + rest);
    second.push(match test.compare {
        Compare::Equal => instruction(IF_EQUAL, 0, rest, low),
        Compare::NotEqual => instruction(IF_EQUAL, rest, 0, low),
        Compare::GreaterOrEqual => instruction(IF_AT_LEAST, 0, rest, low),
        Compare::Less => instruction(IF_AT_LEAST, rest, 0, low),
        Compare::Greater => instruction(IF_MORE, 0, rest, low),
        Compare::LessOrEqual => instruction(IF_MORE, rest, 0, low),
    });
    let unseen = test.mask >> 32 == 0 && high == 0;
    let mut first = load(offset + 4 - LOW, (test.mask >> 32) as u32);
    match test.compare {
        _ if unseen => first.clear(),
        Compare::Equal => first.push(instruction(IF_EQUAL, 0, fails, high)),
        Compare::NotEqual => first.push(instruction(IF_EQUAL, 0, holds, high)),
        Compare::Greater | Compare::GreaterOrEqual => {
            first.extend([instruction(IF_MORE, holds + 1, 0, high), instruction(IF_EQUAL, 0, fails, high)]);
        }
        Compare::Less | Compare::LessOrEqual => {
            first.extend([instruction(IF_MORE, fails + 1, 0, high), instruction(IF_EQUAL, 0, holds, high)]);
        }
    }
    first.extend(second);
    first
}

/// Loads half of an argument, as far as the mask shows it.
fn load(offset: u32, mask: u32) -> Vec<Instruction> {
    let mut program = vec![instruction(LOAD, 0, 0, offset)];
    if mask != u32::MAX {
        program.push(instruction(MASK, 0, 0, mask));
    }
    program
}
