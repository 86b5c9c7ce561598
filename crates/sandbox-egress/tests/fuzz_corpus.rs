//! What must hold for all bytes holds for the seeds of `fuzz/`, and for what comes of them in two seconds.

#![allow(clippy::unwrap_used, reason = "a test that fails should say where")]

use std::{
    panic,
    path::Path,
    time::{Duration, Instant},
};

use sandbox_egress::fuzzing;

const TIME: Duration = Duration::from_secs(2);
/// Longer inputs take longer and find less.
const LONGEST: usize = 4096;

/// Changes bytes at random, in the same way every time.
struct Mutator(u64);

impl Mutator {
    /// Numbers that look random (xorshift).
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit.max(1)
    }

    fn part<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.below(bytes.len());
        let length = self.below((bytes.len() - start).min(32) + 1);
        &bytes[start..start + length]
    }

    fn byte(&mut self) -> u8 {
        const TELLING: &[u8] = b"\0\x01\x03\x05\x14\x16\x7f\x80\xff\r\n :.@/%[]*aH0";
        if self.below(2) == 0 { TELLING[self.below(TELLING.len())] } else { self.below(256) as u8 }
    }

    /// One change: a bit, a byte, a part of itself or of another.
    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        match self.below(7) {
            0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            1 if at < bytes.len() => bytes[at] = self.byte(),
            2 if at < bytes.len() => drop(bytes.remove(at)),
            3 => bytes.truncate(at),
            4 => drop(bytes.splice(at..at, self.part(&bytes.clone()).to_vec())),
            5 => drop(bytes.splice(at..at, self.part(other).to_vec())),
            _ => bytes.insert(at, self.byte()),
        }
        bytes.truncate(LONGEST);
    }
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn hold(target: &str) {
    let (_, property) = fuzzing::ALL.into_iter().find(|(name, _)| *name == target).unwrap();
    let check = |bytes: &[u8]| {
        let held = panic::catch_unwind(|| property(bytes));
        assert!(held.is_ok(), "{target} does not hold for {}", bytes.escape_ascii());
    };
    let mut known = seeds(target);
    known.iter().for_each(|seed| check(seed));
    assert!(!known.is_empty());
    let (start, mut mutator) = (Instant::now(), Mutator(0x9e37_79b9_7f4a_7c15));
    while start.elapsed() < TIME {
        let mut bytes = known[mutator.below(known.len())].clone();
        let other = known[mutator.below(known.len())].clone();
        for _ in 0..=mutator.below(6) {
            mutator.change(&mut bytes, &other);
        }
        check(&bytes);
        // A few stay, so that changes add up.
        if mutator.below(50) == 0 && known.len() < 200 {
            known.push(bytes);
        }
    }
}

#[test]
fn targets_hold() {
    hold("target");
}

#[test]
fn heads_of_requests_hold() {
    hold("http_head");
}

#[test]
fn socks_holds() {
    hold("socks");
}

#[test]
fn hellos_hold() {
    hold("client_hello");
}

#[test]
fn questions_for_names_hold() {
    hold("dns");
}

#[test]
fn rules_hold() {
    hold("rules");
}

#[test]
fn every_target_has_seeds_and_is_run_by_the_fuzzer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
    let listed = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for (name, _) in fuzzing::ALL {
        assert!(!seeds(name).is_empty() && listed.contains(&format!("name = \"{name}\"")), "{name}");
        assert!(folder.join("targets").join(name).with_extension("rs").exists(), "{name}");
    }
}
