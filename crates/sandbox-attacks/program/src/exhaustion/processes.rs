//! Processes, threads and processor time beyond the limit, and processes that will not go.

use std::{
    fs,
    io::Write,
    time::{Duration, Instant},
};

use super::{hold, hold_breach, wait_for_watchers};
use crate::{Attack, arguments::Arguments, outcome::Outcome, sys, sys::call, sys::n};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("fork_bomb", fork_bomb),
    ("fork_tree", fork_tree),
    ("thread_bomb", thread_bomb),
    ("zombie_flood", zombie_flood),
    ("orphan_flood", orphan_flood),
    ("cpu_by_processes", |arguments| cpu(arguments, Spinner::Process)),
    ("cpu_by_threads", |arguments| cpu(arguments, Spinner::Thread)),
    ("output_flood", output_flood),
    ("ignore_signals", ignore_signals),
    ("daemon", daemon),
    ("runaway_siblings", runaway_siblings),
];

fn sleep_for_ever() -> i32 {
    wait_for_watchers(20_000);
    0
}

/// Children until no more can be made. The suite counts from outside.
fn fork_bomb(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("pids", 64);
    for made in 1..=3 * limit {
        if let Err(error) = sys::fork(sleep_for_ever) {
            return hold(format!("{made} processes, then {error}"), ());
        }
    }
    // Whoever only watches has to have had a chance to look.
    wait_for_watchers(1000);
    let alive = running();
    if alive > limit {
        hold_breach(format!("{alive} processes, {limit} are allowed"), ())
    } else {
        hold(format!("{alive} of {} are left", 3 * limit), ())
    }
}

/// What was started inside, and the executor. What an engine put here beside it has no parent, as the executor has none.
fn running() -> u64 {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let inside = numbers.filter(|number| {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let parent = stat.rsplit_once(") ").and_then(|(_, fields)| fields.split(' ').nth(1));
        parent.is_some_and(|parent| parent != "0")
    });
    1 + inside.count() as u64
}

/// Every child makes children: nobody to be killed at the top.
fn fork_tree(arguments: &Arguments) -> Outcome {
    fn grow(until: Instant) -> i32 {
        while Instant::now() < until {
            let _ = sys::fork(|| grow(until));
            std::thread::sleep(Duration::from_millis(2));
        }
        sleep_for_ever()
    }
    let until = Instant::now() + Duration::from_millis(500);
    let _ = sys::fork(|| grow(until));
    wait_for_watchers(600);
    let (alive, limit) = (running(), arguments.number("pids", 64));
    if alive > limit + 2 {
        hold_breach(format!("{alive} processes, {limit} are allowed"), ())
    } else {
        hold(format!("{alive} processes"), ())
    }
}

fn thread_bomb(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("pids", 64);
    let mut made = 1;
    while made <= 3 * limit {
        let thread =
            std::thread::Builder::new().stack_size(16 << 10).spawn(|| std::thread::sleep(Duration::from_secs(20)));
        if let Err(error) = thread {
            return hold(format!("{made} threads, then {error}"), ());
        }
        made += 1;
    }
    wait_for_watchers(1000);
    hold_breach(format!("{made} threads, {limit} are allowed"), ())
}

/// Children that have ended and that nobody takes note of.
fn zombie_flood(arguments: &Arguments) -> Outcome {
    let limit = arguments.number("pids", 64);
    for made in 1..=3 * limit {
        if let Err(error) = sys::fork(|| 0) {
            return hold(format!("{made} ended processes, then {error}"), ());
        }
    }
    let left = running();
    if left > limit + 2 {
        hold_breach(format!("{left} processes, {limit} are allowed"), ())
    } else {
        hold(format!("{left} processes"), ())
    }
}

/// Processes whose parent has gone: the executor has to take note of all of them. The suite sees whether it does.
fn orphan_flood(_: &Arguments) -> Outcome {
    let until = Instant::now() + Duration::from_millis(700);
    let mut made = 0;
    while Instant::now() < until {
        let parent = sys::fork(|| {
            let _ = sys::fork(|| 0);
            0
        });
        if let Ok(parent) = parent {
            let _ = sys::wait(parent);
            made += 1;
        }
    }
    std::thread::sleep(Duration::from_millis(300));
    match running() {
        left if left > 40 => Outcome::BrokeThrough(format!("{left} processes are left of {made} orphans")),
        left => Outcome::Held(format!("{made} orphans were taken care of, {left} processes are left")),
    }
}

enum Spinner {
    Process,
    Thread,
}

fn spin(until: Instant) {
    while Instant::now() < until {
        std::hint::black_box((0..10_000).sum::<u64>());
    }
}

/// More processor time than the share allows, over one and a half seconds.
fn cpu(arguments: &Arguments, spinner: Spinner) -> Outcome {
    let millis = arguments.number("cpu", 1000);
    let spinners = 2 * millis.div_ceil(1000) + 2;
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let begun = Instant::now();
    let until = begun + Duration::from_millis(1500);
    match spinner {
        Spinner::Process => {
            let spin_once = || {
                spin(until);
                0
            };
            let children: Vec<i32> = (0..spinners).filter_map(|_| sys::fork(spin_once).ok()).collect();
            children.into_iter().for_each(|child| drop(sys::wait(child)));
        }
        Spinner::Thread => {
            let threads: Vec<_> = (0..spinners).map(|_| std::thread::spawn(move || spin(until))).collect();
            threads.into_iter().for_each(|thread| drop(thread.join()));
        }
    }
    let used = used_milliseconds();
    let elapsed = begun.elapsed().as_millis() as u64;
    let allowed = elapsed * millis / 1000;
    // A share is held over periods, so the first one counts double; a fifth is the clock's.
    let enough = allowed * 13 / 10 + 250;
    let detail = format!("{used} ms of processor time in {elapsed} ms, {allowed} are allowed");
    if used > enough {
        Outcome::BrokeThrough(detail)
    } else if processors * 1000 <= millis {
        Outcome::NotApplicable(format!("all {processors} processors that are seen may be used"))
    } else if used < allowed / 2 {
        Outcome::NotApplicable(format!("this machine is too busy: {detail}"))
    } else {
        Outcome::Held(detail)
    }
}

/// Of ourselves and of children that have ended.
fn used_milliseconds() -> u64 {
    let times = rustix::process::getpid();
    let stat = fs::read_to_string(format!("/proc/{times}/stat")).unwrap_or_default();
    let fields: Vec<u64> =
        stat.rsplit(") ").next().unwrap_or_default().split(' ').map(|text| text.parse().unwrap_or(0)).collect();
    let ticks: u64 = fields.get(11..15).map_or(0, |fields| fields.iter().sum());
    ticks * 1000 / rustix::param::clock_ticks_per_second()
}

/// As much as can be written. The suite sees whether the executor still answers and how much is kept.
fn output_flood(_: &Arguments) -> Outcome {
    let mut out = std::io::stdout();
    let line = [b'x'; 65_536];
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        if out.write_all(&line).is_err() {
            break;
        }
    }
    Outcome::Held("the flood is over".to_owned())
}

/// Every signal that can be ignored is.
fn ignore_signals(_: &Arguments) -> Outcome {
    (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP, libc::SIGCHLD].contains(signal)).for_each(sys::ignore);
    hold("signals are ignored".to_owned(), ())
}

/// Leaves its session, its parents and its standard streams behind, and ignores what it can.
fn daemon(_: &Arguments) -> Outcome {
    let _ = sys::fork(|| {
        let _ = call(libc::SYS_setsid, []);
        let _ = sys::fork(|| {
            let _ = call(libc::SYS_setsid, []);
            (1..=64).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal)).for_each(sys::ignore);
            let _ = call(libc::SYS_close_range, [n(0), n(2), n(0)]);
            std::thread::sleep(Duration::from_secs(60));
            0
        });
        0
    })
    .and_then(sys::wait);
    Outcome::Seen("a daemon was left behind".to_owned())
}

/// Processes that start each other again as soon as one is gone, faster than one by one can be killed.
fn runaway_siblings(_: &Arguments) -> Outcome {
    fn run(until: Instant) -> i32 {
        while Instant::now() < until {
            let next = sys::fork(|| run(until));
            if next.is_ok() {
                return 0;
            }
        }
        0
    }
    let until = Instant::now() + Duration::from_secs(20);
    for _ in 0..8 {
        let _ = sys::fork(|| run(until));
    }
    hold("siblings run away".to_owned(), ())
}
