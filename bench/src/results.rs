//! Everything that was measured, and the page that shows it.

use std::fmt::Write;

use crate::{
    clock::Row,
    engines::Engines,
    files::Transfers,
    goals::goals,
    machine::Machine,
    scale::{Crowd, Footprint, Footprints, Rates},
    starts::MANY,
    tasks::Tasks,
    way_out::{self, WayOut},
};

/// How the reason ends why something was not measured that this machine does not have.
pub const NOT_HERE: &str = "not installed";

/// A part that was measured, or why it was not.
pub type Part<T> = Result<T, String>;

/// Everything that was measured.
pub struct Results {
    /// Where.
    pub machine: Machine,
    /// Whether docker took part: its version, or why not.
    pub docker: Part<String>,
    /// From nothing to the first output, alone.
    pub cold: Part<Vec<Row>>,
    /// The same, many at once.
    pub cold_at_once: Part<Vec<Row>>,
    /// A command in a live sandbox, alone and many at once.
    pub live: Part<(Vec<Row>, Vec<Row>)>,
    /// Sandboxes per second.
    pub rates: Part<Rates>,
    /// Memory of an idle one.
    pub footprints: Part<Footprints>,
    /// A thousand of them.
    pub crowd: Part<Crowd>,
    /// Large files.
    pub transfers: Part<Transfers>,
    /// What comes in from outside.
    pub way_out: Part<WayOut>,
    /// Other engines, and images.
    pub engines: Engines,
    /// Tasks of the built-in agent.
    pub tasks: Part<Tasks>,
    /// Tasks of Claude Code.
    pub claude_code: Part<Vec<Row>>,
}

impl Results {
    /// Why there are no numbers of docker.
    pub fn no_docker(&self) -> String {
        self.docker.as_ref().err().map_or_else(|| "no docker".to_owned(), |why| format!("no docker: {why}"))
    }

    /// What could not be measured although it should.
    pub fn failures(&self) -> Vec<&String> {
        let parts = [
            self.cold.as_ref().err(),
            self.cold_at_once.as_ref().err(),
            self.live.as_ref().err(),
            self.rates.as_ref().err(),
            self.footprints.as_ref().err(),
            self.crowd.as_ref().err(),
            self.transfers.as_ref().err(),
            self.way_out.as_ref().err(),
            self.tasks.as_ref().err(),
            self.claude_code.as_ref().err().filter(|why| !why.ends_with(NOT_HERE)),
        ];
        // Without an engine there is nothing to compare these with.
        let engines = self.engines.parts().into_iter().filter_map(|(_, part)| part.as_ref().err());
        let engines = engines.filter(|why| self.docker.is_ok() && !why.ends_with(NOT_HERE));
        parts.into_iter().flatten().chain(engines).collect()
    }

    /// The page.
    pub fn to_markdown(&self) -> String {
        let mut page = String::from("# Measurements\n\n");
        let docker = self.docker.as_deref().map_or_else(|_| self.no_docker(), |version| format!("docker {version}"));
        let _ = writeln!(page, "{}; {docker}.\n", self.machine.in_words());
        page.push_str(
            "Written by `bench/run`. Everything that a table compares is started in turns, one round after the other, so that \
             whatever else the machine does hits all alike; the first round is dropped. Ratios say more than times: trust \
             those. The docker engine runs already and is asked by its command line, containers have no network; `bwrap` sets no \
             cgroup, no limits and no system call filter, an embedded sandbox has all of them.\n\n\
             ![Times of a start and of a command, as bars](results.svg)\n\n## Goals\n\n\
             | | measured (medians) | ratio | goal | |\n| --- | --- | --- | --- | --- |\n",
        );
        for goal in goals(self) {
            let met = goal.met.map_or("not measured", |met| if met { "reached" } else { "**missed**" });
            let _ = writeln!(page, "| {} | {} | {} | {} | {met} |", goal.what, goal.seen, goal.reached, goal.aim);
        }
        section(&mut page, "A sandbox and its first command, alone", self.cold.as_deref());
        section(&mut page, &format!("The same, {MANY} at once"), self.cold_at_once.as_deref());
        let live = self.live.as_ref();
        section(&mut page, "A command in a live sandbox, alone", live.map(|(one, _)| one.as_slice()));
        section(&mut page, &format!("The same, {MANY} at once"), live.map(|(_, many)| many.as_slice()));
        self.write_memory(&mut page);
        self.write_crowd(&mut page);
        self.write_transfers(&mut page);
        way_out::page::write(&mut page, &self.way_out);
        for (title, part) in self.engines.parts() {
            section(&mut page, title, part.as_deref());
        }
        let title = "Tasks of the built-in agent, whose model answers at once (first output: the model is reached)";
        section(&mut page, title, self.tasks.as_ref().map(|tasks| tasks.own.as_slice()));
        section(
            &mut page,
            "The same task for Claude Code (sandboxes yield to other work: only an idle machine tells)",
            self.claude_code.as_deref(),
        );
        page
    }

    fn write_memory(&self, page: &mut String) {
        page.push_str("\n## Memory of an idle sandbox\n\n");
        let Footprints { ours, docker } = match &self.footprints {
            Ok(footprints) => footprints,
            Err(why) => return failed(page, why),
        };
        page.push_str("| KiB each | all | processes (PSS) | kernel | loss of free memory, as a check |\n");
        page.push_str("| --- | --- | --- | --- | --- |\n");
        let mut line = |name: &str, footprint: &Footprint| {
            let processes = footprint.processes.map_or("not readable".to_owned(), |size| format!("{size:.0}"));
            let check = footprint.machine;
            let check = if check > 0.0 { format!("{check:.0}") } else { "too busy to tell".to_owned() };
            let (all, kernel) = (footprint.all(), footprint.kernel);
            let _ = writeln!(page, "| {name} | {all:.0} | {processes} | {kernel:.0} | {check} |");
        };
        line("embedded", ours);
        if let Some(docker) = docker {
            line("docker", docker);
        }
    }

    fn write_crowd(&self, page: &mut String) {
        let crowd = match &self.crowd {
            Ok(crowd) => crowd,
            Err(why) => return failed(page, why),
        };
        let rate = crowd.count as f64 / crowd.made.as_secs_f64();
        let _ = writeln!(
            page,
            "\n## {} idle sandboxes at once, two workers\n\nMade in {:.2} s ({rate:.0}/s), each ready after {:.1} ms (p95 {:.1}). A `true` \
             in each: {:.2} ms (p95 {:.2}). All removed in {:.2} s.",
            crowd.count,
            crowd.made.as_secs_f64(),
            crowd.ready.median(),
            crowd.ready.p95(),
            crowd.execs.median(),
            crowd.execs.p95(),
            crowd.removed.as_secs_f64(),
        );
    }

    fn write_transfers(&self, page: &mut String) {
        page.push_str("\n## A large file\n\n");
        let transfers = match &self.transfers {
            Ok(transfers) => transfers,
            Err(why) => return failed(page, why),
        };
        page.push_str(
            "The quickest rounds are compared: memory that a virtual machine has not used before takes its host longer to \
             give than the copying takes, `cp` and `dd` see the same, and who gets such memory is chance.\n\n",
        );
        let _ = writeln!(page, "| {} MiB | MB/s | s least | p50 | p95 |", transfers.bytes >> 20);
        page.push_str("| --- | --- | --- | --- | --- |\n");
        for Row { name, total, .. } in &transfers.rows {
            let [least, median, p95] = [total.least(), total.median(), total.p95()].map(|time| time / 1e3);
            let speed = transfers.speed(name);
            let _ = writeln!(page, "| {name} | {speed:.0} | {least:.2} | {median:.2} | {p95:.2} |");
        }
    }
}

fn section(page: &mut String, title: &str, rows: Result<&[Row], &String>) {
    let _ = writeln!(page, "\n## {title}\n");
    let rows = match rows {
        Ok(rows) => rows,
        Err(why) => return failed(page, why),
    };
    page.push_str(
        "| ms | first output p50 | p95 | least | to the end p50 | p95 |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for Row { name, first, total } in rows {
        let (median, p95, least) = (first.median(), first.p95(), first.least());
        let _ = writeln!(
            page,
            "| {name} | {median:.2} | {p95:.2} | {least:.2} | {:.2} | {:.2} |",
            total.median(),
            total.p95()
        );
    }
}

/// Why there is nothing here.
pub fn failed(page: &mut String, why: &str) {
    let _ = writeln!(page, "Not measured: {why}");
}
