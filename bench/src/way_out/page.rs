//! The section and the goals of the way out.

use std::fmt::Write;

use super::{Held, MANY, Row, WayOut, names::*};
use crate::{
    clock::Samples,
    goals::{Goal, missing, ratio},
    results::{Part, failed},
};

/// The most that a held connection may cost, in KiB.
const HELD_MOST: f64 = 64.0;
/// How many are to be held.
const HELD_COUNT: usize = 1000;

/// Which of a row's downloads.
#[derive(Clone, Copy)]
enum Downloads {
    One,
    Many,
}

/// The section.
pub fn write(page: &mut String, way_out: &Part<WayOut>) {
    page.push_str("\n## The way out\n\n");
    let way_out = match way_out {
        Ok(way_out) => way_out,
        Err(why) => return failed(page, why),
    };
    let _ = write!(
        page,
        "From a server on loopback, by the same client everywhere: {} MB in one download, as much in {MANY} at once, and \
         the time from connecting to the first byte of a reply. What is measured runs in a network namespace of its own \
         (as root), so there are no other rules on the way. HTTP without TLS is read and said again, request by request, \
         so that each is for the server that the rule names.\n\nThe load was {} before. All sandboxes together weigh a \
         tenth of one other process when processors are scarce; as root the clients outside are given the same weight, so \
         that ways are compared and not weights.\n\n",
        way_out.bytes / 1_000_000,
        way_out.load
    );
    let _ = writeln!(page, "| | one, MB/s | {MANY} at once, MB/s | connect → first byte p50, µs | p95 |");
    page.push_str("| --- | --- | --- | --- | --- |\n");
    for Row { name, one, many, connects } in &way_out.rows {
        let [one, many] = [one, many].map(|times| number(way_out.speed(times)));
        let [median, p95] = [connects.median(), connects.p95()].map(|time| number(time * 1e3));
        let _ = writeln!(page, "| {name} | {one} | {many} | {median} | {p95} |");
    }
    for (name, why) in &way_out.missing {
        let _ = writeln!(page, "| {name} | not measured: {why} | | | |");
    }
    let Held { count, transparent, tunnel, kernel } = way_out.held;
    let kernel = in_kernel(kernel);
    let _ = writeln!(
        page,
        "\n{count} connections that were held at once took {transparent:.1} KiB each in the server's process when they were \
         made transparently, {tunnel:.1} KiB through the proxy, and in the kernel, beyond what connections without a sandbox \
         take: {kernel}."
    );
}

/// The numbers to reach.
pub fn goals(way_out: &Part<WayOut>) -> Vec<Goal> {
    use Downloads::{Many, One};
    let speed =
        |what, ours, downloads, other, aim, least| by_speed(way_out, what, [ours, other], downloads, aim, least);
    vec![
        speed("a download into a sandbox, transparently, against veth", TRANSPARENT, One, VETH, "≥ 0.5×", 0.5),
        speed("the same by CONNECT to the proxy", TUNNEL, One, VETH, "≥ 0.5×", 0.5),
        speed("8 at once, transparently, against veth", TRANSPARENT, Many, VETH, "≥ 0.5×", 0.5),
        speed("8 at once by CONNECT to the proxy, against veth", TUNNEL, Many, VETH, "≥ 0.5×", 0.5),
        speed("a download, transparently, against `slirp4netns`", TRANSPARENT, One, SLIRP, "≥ 2×", 2.0),
        speed("8 at once, transparently, against `slirp4netns`", TRANSPARENT, Many, SLIRP, "≥ 2×", 2.0),
        speed("a download by CONNECT to the proxy, against `slirp4netns`", TUNNEL, One, SLIRP, "≥ 2×", 2.0),
        speed("8 at once by CONNECT to the proxy, against `slirp4netns`", TUNNEL, Many, SLIRP, "≥ 2×", 2.0),
        connect(way_out, "connect → first reply byte, transparently, against loopback", TRANSPARENT),
        connect(way_out, "the same by CONNECT to the proxy", TUNNEL),
        memory(way_out),
    ]
}

fn by_speed(
    way_out: &Part<WayOut>,
    what: &'static str,
    names: [&str; 2],
    downloads: Downloads,
    aim: &'static str,
    least: f64,
) -> Goal {
    let speed = |way_out: &WayOut, row: &Row| match downloads {
        Downloads::One => way_out.speed(&row.one),
        Downloads::Many => way_out.speed(&row.many),
    };
    compared(way_out, what, names, aim, |way_out, [ours, other]| {
        let (ours, other) = (speed(way_out, ours), speed(way_out, other));
        let seen = format!("{ours:.0} MB/s against {other:.0} MB/s");
        Goal { what, seen, reached: format!("**{:.2}×**", ours / other), aim, met: Some(ours / other >= least) }
    })
}

fn connect(way_out: &Part<WayOut>, what: &'static str, name: &str) -> Goal {
    let aim = "≤ 3×";
    compared(way_out, what, [name, LOOPBACK], aim, |_, [ours, other]| {
        let (ours, other): (&Samples, &Samples) = (&ours.connects, &other.connects);
        let seen = format!("{:.0} µs against {:.0} µs", ours.median() * 1e3, other.median() * 1e3);
        let by_median = ours.median() / other.median();
        let reached = format!("**{}** (p95 {})", ratio(by_median), ratio(ours.p95() / other.p95()));
        Goal { what, seen, reached, aim, met: Some(by_median <= 3.0) }
    })
}

fn memory(way_out: &Part<WayOut>) -> Goal {
    let (what, aim) = ("1,000 connections held at once, memory of the server for each", "< 64 KiB");
    match way_out {
        Ok(WayOut { held: Held { count, transparent, tunnel, kernel }, .. }) => {
            let most = transparent.max(*tunnel) + kernel.unwrap_or(0.0);
            let kernel = in_kernel(*kernel);
            Goal {
                what,
                seen: format!(
                    "{count} held, {transparent:.1} KiB each, {tunnel:.1} KiB by the proxy, in the kernel {kernel}"
                ),
                reached: format!("**{most:.1} KiB**"),
                aim,
                met: (*count >= HELD_COUNT).then_some(most < HELD_MOST),
            }
        }
        Err(why) => missing(what, aim, why),
    }
}

fn compared(
    way_out: &Part<WayOut>,
    what: &'static str,
    names: [&str; 2],
    aim: &'static str,
    compare: impl FnOnce(&WayOut, [&Row; 2]) -> Goal,
) -> Goal {
    let way_out = match way_out {
        Ok(way_out) => way_out,
        Err(why) => return missing(what, aim, why),
    };
    match names.map(|name| way_out.row(name)) {
        [Some(ours), Some(other)] => compare(way_out, [ours, other]),
        [_, _] => missing(what, aim, &format!("{}: {}", names[1], way_out.why_missing(names[1]))),
    }
}

fn in_kernel(each: Option<f64>) -> String {
    each.map_or("too busy to tell".to_owned(), |each| format!("{each:.1} KiB"))
}

/// Whole, or a dash where nothing was measured.
fn number(value: f64) -> String {
    if value.is_finite() { format!("{value:.0}") } else { "–".to_owned() }
}
