//! The numbers to reach, and whether they were.

use crate::{
    clock::{Row, Samples},
    engines::{self, Engines},
    files,
    results::{Part, Results},
    scale::{Crowd, Footprints, Rates},
    starts::names::*,
    tasks, way_out,
};

/// One number to reach.
pub struct Goal {
    /// What is compared.
    pub what: &'static str,
    /// Ours and the other's, with units.
    pub seen: String,
    /// The comparison by medians, and by 95th percentiles where there are any.
    pub reached: String,
    /// What was to be reached.
    pub aim: &'static str,
    /// Whether it was; `None` where it could not be measured.
    pub met: Option<bool>,
}

/// Which of a row's times.
#[derive(Clone, Copy)]
enum Time {
    First,
    Total,
}

/// All of them, in the order in which they were set.
pub fn goals(results: &Results) -> Vec<Goal> {
    use Time::{First, Total};
    let cold = results.cold.as_deref();
    let live = results.live.as_ref().map(|(one, _)| one.as_slice());
    let against =
        |what, rows, time, ours, theirs, aim, most| by_time(results, what, rows, time, [ours, theirs], aim, most);
    let mut all = vec![
        against(
            "create → first output, by library, against `docker run --rm`",
            cold,
            First,
            LIBRARY,
            DOCKER,
            "≤ 1/40",
            1.0 / 40.0,
        ),
        against("the same against `bwrap` with the same namespaces", cold, First, LIBRARY, BWRAP, "≤ 1.0×", 1.0),
        against(
            "`sandbox-mcp exec -- true` against `bwrap … true`",
            cold,
            Total,
            ONE_SHOT_TRUE,
            BWRAP_TRUE,
            "≤ 2.0×",
            2.0,
        ),
        against(
            "the same against `docker run --rm … true`",
            cold,
            Total,
            ONE_SHOT_TRUE,
            DOCKER_TRUE,
            "≤ 1/30",
            1.0 / 30.0,
        ),
        against(
            "create + first command + cleanup over MCP against `docker run --rm`",
            cold,
            Total,
            MCP,
            DOCKER,
            "≤ 1/25",
            1.0 / 25.0,
        ),
        against("command in a live sandbox against a plain spawn", live, First, LIBRARY, PLAIN, "≤ 1.5×", 1.5),
        against("the same against `docker exec`", live, First, LIBRARY, DOCKER_EXEC, "≤ 1/30", 1.0 / 30.0),
    ];
    all.push(rate(results));
    all.extend(memory(results));
    all.push(crowd(results));
    all.extend(transfers(results));
    all.extend(way_out::page::goals(&results.way_out));
    all.extend(engines(results));
    all.extend(tasks::goals(&results.tasks, &results.claude_code));
    all
}

fn engines(results: &Results) -> [Goal; 6] {
    use Time::{First, Total};
    use engines::names::*;
    let Engines { docker, gvisor, images, loads } = &results.engines;
    let against = |what, part: &Part<Vec<Row>>, time, ours, theirs, aim, most| {
        by_time(results, what, part.as_deref(), time, [ours, theirs], aim, most)
    };
    [
        against(
            "docker backend: a command in a live sandbox against `docker exec`",
            docker,
            Total,
            LIVE,
            EXEC,
            "≤ 1/10",
            0.1,
        ),
        against(
            "docker backend: create → first output against `docker run`",
            docker,
            First,
            CREATE,
            RUN,
            "≤ 1.2×",
            1.2,
        ),
        against("the same where one was ready", docker, First, WARM, RUN, "≤ 1/10", 0.1),
        against("embedded from an OCI image against embedded from `host`", images, First, IMAGE, HOST, "≤ 1.2×", 1.2),
        against(
            "`runsc` directly against `docker run --runtime=runsc`",
            gvisor,
            First,
            DIRECT_GVISOR,
            RUN_GVISOR,
            "≤ 1/2",
            0.5,
        ),
        against("taking in an archive against `docker load`", loads, Total, PULL, LOAD, "≤ 1.0×", 1.0),
    ]
}

fn by_time(
    results: &Results,
    what: &'static str,
    rows: Result<&[Row], &String>,
    time: Time,
    names: [&str; 2],
    aim: &'static str,
    most: f64,
) -> Goal {
    let rows = match rows {
        Ok(rows) => rows,
        Err(why) => return missing(what, aim, why),
    };
    let times = names.map(|name| {
        let row = rows.iter().find(|row| row.name == name)?;
        Some(match time {
            Time::First => &row.first,
            Time::Total => &row.total,
        })
    });
    let [Some(ours), Some(theirs)] = times else { return missing(what, aim, &results.no_docker()) };
    let seen = format!("{} ms against {} ms", milliseconds(ours), milliseconds(theirs));
    let by_median = ours.median() / theirs.median();
    let reached = format!("**{}** (p95 {})", ratio(by_median), ratio(ours.p95() / theirs.p95()));
    Goal { what, seen, reached, aim, met: Some(by_median <= most) }
}

fn rate(results: &Results) -> Goal {
    let (what, aim) = ("sandboxes made per second by two workers, against docker", "≥ 50×");
    match &results.rates {
        Ok(Rates { ours, docker: Some(docker) }) => Goal {
            what,
            seen: format!("{ours:.0}/s against {docker:.1}/s"),
            reached: format!("**{:.0}×**", ours / docker),
            aim,
            met: Some(ours / docker >= 50.0),
        },
        Ok(Rates { ours, docker: None }) => {
            Goal { seen: format!("{ours:.0}/s"), ..missing(what, aim, &results.no_docker()) }
        }
        Err(why) => missing(what, aim, why),
    }
}

fn memory(results: &Results) -> [Goal; 2] {
    let alone = ("memory of an idle sandbox, everything counted", "≤ 1 MiB");
    let beside = ("the same against docker", "≤ 1/4");
    let Footprints { ours, docker } = match &results.footprints {
        Ok(footprints) => footprints,
        Err(why) => return [missing(alone.0, alone.1, why), missing(beside.0, beside.1, why)],
    };
    let own = Goal {
        what: alone.0,
        seen: format!("{:.0} KiB", ours.all()),
        reached: format!("**{:.2} MiB**", ours.all() / 1024.0),
        aim: alone.1,
        met: Some(ours.all() <= 1024.0),
    };
    let compared = docker.map(|docker| Goal {
        what: beside.0,
        seen: format!("{:.0} KiB against {:.0} KiB", ours.all(), docker.all()),
        reached: format!("**{}**", ratio(ours.all() / docker.all())),
        aim: beside.1,
        met: Some(ours.all() / docker.all() <= 0.25),
    });
    [own, compared.unwrap_or_else(|| missing(beside.0, beside.1, &results.no_docker()))]
}

fn crowd(results: &Results) -> Goal {
    let (what, aim) = ("idle sandboxes at once, a command in each, all removed", "1,000 work");
    match &results.crowd {
        Ok(Crowd { count, made, execs, removed, .. }) => Goal {
            what,
            seen: format!(
                "{count} made in {:.1} s, a command p50 {:.1} ms p95 {:.1} ms, removed in {:.1} s",
                made.as_secs_f64(),
                execs.median(),
                execs.p95(),
                removed.as_secs_f64()
            ),
            reached: format!("**{count}**"),
            aim,
            met: (*count >= 1000).then_some(true),
        },
        Err(why) => missing(what, aim, why),
    }
}

fn transfers(results: &Results) -> [Goal; 2] {
    let ways = [
        ("a large file into a sandbox against `cp`", files::names::INTO),
        ("the same out of a sandbox", files::names::OUT),
    ];
    let aim = "≥ 0.5×";
    ways.map(|(what, name)| {
        let transfers = match &results.transfers {
            Ok(transfers) => transfers,
            Err(why) => return missing(what, aim, why),
        };
        let (ours, copy) = (transfers.speed(name), transfers.speed(files::names::COPY));
        Goal {
            what,
            seen: format!("{ours:.0} MB/s against {copy:.0} MB/s ({} MiB)", transfers.bytes >> 20),
            reached: format!("**{:.2}×**", ours / copy),
            aim,
            met: Some(ours / copy >= 0.5),
        }
    })
}

/// One that could not be measured.
pub fn missing(what: &'static str, aim: &'static str, why: &str) -> Goal {
    Goal { what, seen: format!("not measured: {why}"), reached: "–".to_owned(), aim, met: None }
}

fn milliseconds(samples: &Samples) -> String {
    format!("{:.2}", samples.median())
}

/// `1/52` for small ones, `0.69×` for others.
pub fn ratio(value: f64) -> String {
    if value < 0.1 { format!("1/{:.0}", 1.0 / value) } else { format!("{value:.2}×") }
}
