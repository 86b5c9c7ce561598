//! The suite is able to fail: for every wall of the embedded backend, an attack that breaks through where that wall and
//! what backs it up are left out, and that is held where all stand. Argument: a part of a wall's name.
//!
//! Walls are left out by a variable that only programs with the feature `breakable` read, once, when they start. So this
//! program starts itself again for every row of the table, with a state folder of its own.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

#[path = "missing_walls/table.rs"]
mod table;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::DirBuilderExt,
    process::{Command, ExitCode, Stdio},
    sync::{Arc, Mutex},
    time::Instant,
};

use rustix::fs::StatVfsMountFlags;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox_attacks::{Group, Outcome, Record, Subject};
use sandbox_core::{Backend, Held, Image};
use sandbox_linux::{LinuxBackend, wall};
use serde::{Deserialize, Serialize};
use table::{Notice, ROWS, Row, Where, Who};

/// A variable that the server has and no sandbox may see.
const SECRET: &str = "SECRET_OF_THE_SERVER";
/// The first argument of a program that only tries attacks.
const TRY: &str = "--try";
/// Mostly they wait for those who watch limits.
const AT_ONCE: usize = 3;

/// What one round of attacks found.
#[derive(Serialize, Deserialize)]
struct Found {
    cgroup: bool,
    records: Vec<Record>,
}

fn main() -> ExitCode {
    sandbox_linux::run_role_if_asked();
    // A machine that gives few open files to everybody would hide that a sandbox has no share of its own.
    let many = Some(100_000);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: many, maximum: many });
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.split_first() {
        Some((word, rest)) if word == TRY => try_attacks(rest),
        _ => judge(words.first().filter(|word| !word.starts_with('-')).map_or("", String::as_str)),
    }
}

/// With the walls that the variable leaves: `WHO ATTACK…`.
fn try_attacks(words: &[String]) -> ExitCode {
    let (who, names) = words.split_first().expect("who is attacked");
    let who = Who::ALL.into_iter().find(|known| format!("{known:?}") == *who).expect("a policy");
    let folder = tempfile::tempdir().expect("a folder for the state");
    let state = folder.path().join("state");
    fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let found = runtime.block_on(async {
        let backend: Arc<dyn Backend> = Arc::new(LinuxBackend::start(&state).expect("the backend starts"));
        let subject = Subject { backend, backend_name: "linux".into(), image: Image::Host, policy: who.policy() };
        let mut found = Found { cgroup: false, records: Vec::new() };
        for name in names {
            let report = sandbox_attacks::run(subject.clone(), &Group::ALL, name, &|_| {}).await;
            let report = report.unwrap_or_else(|error| panic!("{name}: {error}"));
            found.cgroup = report.memory_held == Some(Held::Kernel);
            found.records.extend(report.records.into_iter().filter(|record| record.attack == *name));
        }
        found
    });
    println!("{}", serde_json::to_string(&found).expect("text"));
    ExitCode::SUCCESS
}

/// The same in a program of its own, without these walls.
fn attack_without(walls: &[&str], who: Who, attacks: &[&str]) -> Result<Found, String> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(TRY).arg(format!("{who:?}")).args(attacks);
    command.env(SECRET, "only the server's").env(wall::VARIABLE, walls.join(",")).env("RUST_BACKTRACE", "0");
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(said.trim())
        .map_err(|_| format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

fn judge(filter: &str) -> ExitCode {
    let begun = Instant::now();
    let rows: Vec<&Row> = ROWS.iter().filter(|row| row.wall.contains(filter)).collect();
    println!("\nrunning {} tests", rows.len() + 1);
    let tally = Tally::default();
    tally.say("the_table_has_every_wall", complete(), begun);
    let here = Here::look(&rows);
    let (apart, together): (Vec<&Row>, Vec<&Row>) = rows.into_iter().partition(|row| row.is_apart());
    for (rows, at_once) in [(together, AT_ONCE), (apart, 1)] {
        let waiting = Mutex::new(rows.into_iter());
        let next = || waiting.lock().expect("nobody panicked").next();
        std::thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(row) = next() {
                        let begun = Instant::now();
                        tally.say(
                            row.wall,
                            here.as_ref().map_or_else(|why| Verdict::Bad(why.clone()), |here| here.judge(row)),
                            begun,
                        );
                    }
                });
            }
        });
    }
    tally.end(begun)
}

/// What came of a row.
enum Verdict {
    Good(String),
    Bad(String),
    /// Nothing can be seen here, and why.
    Ignored(String),
}

/// Every wall has its row, and every row is about walls and attacks that there are.
fn complete() -> Verdict {
    let walls = wall::names();
    let attacks: Vec<&str> = sandbox_attacks::all().map(|attack| attack.name).collect();
    let missing = walls.iter().filter(|wall| ROWS.iter().all(|row| row.wall != wall.as_str()));
    let mut wrong: Vec<String> = missing.map(|wall| format!("{wall} has no row")).collect();
    for row in ROWS {
        let unknown = row.walls().into_iter().filter(|name| !walls.iter().any(|wall| wall == name));
        wrong.extend(unknown.map(|name| format!("there is no wall {name}")));
        let unknown = row.attacks().iter().filter(|name| !attacks.contains(*name));
        wrong.extend(unknown.map(|name| format!("there is no attack {name}")));
    }
    if wrong.is_empty() { Verdict::Good(format!("{} walls", walls.len())) } else { Verdict::Bad(wrong.join(", ")) }
}

/// What is so on this machine, for this user, with all walls.
struct Here {
    cgroup: bool,
    several_ids: bool,
    whole: BTreeMap<(Who, &'static str), Record>,
}

impl Here {
    fn look(rows: &[&Row]) -> Result<Self, String> {
        let identity = "priority_of_first_process";
        let mut whole = BTreeMap::new();
        let mut cgroup = false;
        for who in Who::ALL {
            let mut names: Vec<&'static str> = rows
                .iter()
                .filter(|row| row.who() == Some(who))
                .flat_map(|row| row.attacks().iter().copied())
                .collect();
            if who == Who::Plain {
                names.push(identity);
            }
            names.sort_unstable();
            names.dedup();
            if names.is_empty() {
                continue;
            }
            let found = attack_without(&[], who, &names).map_err(|why| format!("with all walls: {why}"))?;
            cgroup = found.cgroup;
            let named = |record: Record| Some((*names.iter().find(|name| **name == record.attack)?, record));
            whole.extend(found.records.into_iter().filter_map(named).map(|(name, record)| ((who, name), record)));
        }
        let several_ids = whole.get(&(Who::Plain, identity)).is_some_and(|record| record.outcome == Outcome::Held);
        println!("cgroup: {cgroup}, several ids: {several_ids}");
        Ok(Self { cgroup, several_ids, whole })
    }

    fn is(&self, place: Where) -> bool {
        match place {
            Where::Anywhere => true,
            Where::WithoutCgroup => !self.cgroup,
            Where::SeveralIds => self.several_ids,
            Where::OneId => !self.several_ids,
        }
    }

    fn judge(&self, row: &Row) -> Verdict {
        let (who, attacks) = match row.notice {
            Notice::Nothing(why) => return Verdict::Ignored(why.to_owned()),
            Notice::Attacks { place, .. } if !self.is(place) => {
                return Verdict::Ignored(format!("it is there {place:?} only"));
            }
            Notice::Attacks { who, attacks, .. } => (who, attacks),
        };
        if let Some(why) = self.hidden(row.wall) {
            return Verdict::Ignored(why);
        }
        for name in attacks {
            match self.whole.get(&(who, *name)) {
                Some(record) if record.outcome == Outcome::Held => {}
                Some(record) if record.outcome == Outcome::NotApplicable => {
                    return Verdict::Ignored(format!("{name}: {}", record.detail));
                }
                // Who stops a sandbox that used its share comes late where everybody does.
                Some(record) if row.wall == "cpu_limit" && !self.cgroup && is_busy() => {
                    return Verdict::Ignored(format!("this machine is too busy to tell ({})", record.detail));
                }
                Some(record) => return Verdict::Bad(format!("with all walls {name}: {}", record.detail)),
                None => return Verdict::Bad(format!("with all walls {name} was not tried")),
            }
        }
        let found = match attack_without(&row.walls(), who, attacks) {
            Ok(found) => found,
            Err(why) => return Verdict::Bad(why),
        };
        let broke = |name: &&&str| {
            found.records.iter().any(|record| record.attack == ***name && record.outcome == Outcome::BrokeThrough)
        };
        let details = found.records.iter().map(|record| format!("{}: {}", record.attack, record.detail));
        let details = details.collect::<Vec<_>>().join("; ");
        if attacks.iter().all(|name| broke(&name)) {
            Verdict::Good(details)
        } else if row.wall == "cpu_limit" && is_busy() {
            Verdict::Ignored(format!("this machine is too busy to give more than the limit ({details})"))
        } else {
            Verdict::Bad(format!("nobody noticed: {details}"))
        }
    }

    /// Why this machine holds by itself what the wall would.
    fn hidden(&self, wall: &str) -> Option<String> {
        let files = if self.cgroup { 65_536 + 8 } else { 4096 + 8 };
        let few = getrlimit(Resource::Nofile).maximum.is_some_and(|most| most < files);
        let mount = rustix::fs::statvfs(std::env::temp_dir()).map(|found| found.f_flag).ok()?;
        match wall {
            "descriptors" if few => Some("nobody here may open more files than a sandbox".to_owned()),
            "no_devices" if mount.contains(StatVfsMountFlags::NODEV) => Some("TMPDIR has no devices either".to_owned()),
            "no_setuid" if mount.contains(StatVfsMountFlags::NOSUID) => Some("TMPDIR is nosuid itself".to_owned()),
            _ => None,
        }
    }
}

/// Whether others take so much processor time that a sandbox without a limit gets no more than one with it.
fn is_busy() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default();
    load > 1.5 * std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

/// Counts, and prints like the usual harness.
#[derive(Default)]
struct Tally(Mutex<(usize, usize, usize)>);

impl Tally {
    fn say(&self, name: &str, verdict: Verdict, begun: Instant) {
        let mut counts = self.0.lock().expect("nobody panicked");
        let took = begun.elapsed().as_millis();
        match verdict {
            Verdict::Good(detail) => {
                counts.0 += 1;
                println!("test {name} ... ok ({took} ms) {detail}");
            }
            Verdict::Bad(detail) => {
                counts.1 += 1;
                println!("test {name} ... FAILED ({took} ms)\n    {detail}");
            }
            Verdict::Ignored(why) => {
                counts.2 += 1;
                println!("test {name} ... ignored, {why}");
            }
        }
    }

    fn end(self, begun: Instant) -> ExitCode {
        let (passed, failed, ignored) = self.0.into_inner().expect("nobody panicked");
        let word = if failed == 0 { "ok" } else { "FAILED" };
        let took = begun.elapsed();
        println!("\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; finished in {took:.1?}");
        ExitCode::from(u8::from(failed > 0))
    }
}
