//! The bars: medians on a logarithmic scale, with a mark at the 95th percentile.

use std::fmt::Write;

use crate::{clock::Row, results::Results, starts::names::*};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 330.0;
const RIGHT: f64 = 790.0;
const BAR: f64 = 18.0;
const STEP: f64 = 26.0;
/// The scale's ends, as powers of ten of a millisecond.
const DECADES: [i32; 2] = [-1, 3];

/// Follows the reader's colour scheme, on a background of its own.
const STYLE: &str = "
  .paper { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif } .title { font-weight: 600; font-size: 15px }
  .small { font-size: 11px; fill: #59636e } .grid { stroke: #d1d9e0 } .ours { fill: #0969da } .other { fill: #8c959f } .tail { stroke: #1f2328 }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #f0f6fc } .small { fill: #9198a1 } .grid { stroke: #3d444d } .ours { fill: #4493f8 } .other { fill: #656c76 }
    .tail { stroke: #f0f6fc }
  }
";

/// An SVG image of the starts and the commands.
pub fn to_svg(results: &Results) -> String {
    let cold = results.cold.as_deref().unwrap_or_default();
    let live = results.live.as_ref().map_or(&[][..], |(one, _)| one);
    let hidden = [ONE_SHOT_TRUE, BWRAP_TRUE, DOCKER_TRUE];
    let cold: Vec<&Row> = cold.iter().filter(|row| !hidden.contains(&row.name)).collect();
    let live: Vec<&Row> = live.iter().collect();

    let mut body = String::new();
    let mut y = 34.0;
    for (title, rows) in
        [("A new sandbox, until its first output", cold), ("A command in a live sandbox, until its first output", live)]
    {
        y = panel(&mut body, y, title, rows);
    }
    let _ = writeln!(
        body,
        r#"<text class="small" x="24" y="{y:.0}">milliseconds, logarithmic; bar: median, mark: 95th percentile</text>"#
    );
    let height = y + 20.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
         <title>Times of a start and of a command</title>\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\" rx=\"8\"/>\n{body}</svg>\n"
    )
}

/// One group of bars below a title; where the next one begins.
fn panel(body: &mut String, top: f64, title: &str, mut rows: Vec<&Row>) -> f64 {
    rows.sort_by(|a, b| a.first.median().total_cmp(&b.first.median()));
    let _ = writeln!(body, r#"<text class="title" x="24" y="{top:.0}">{title}</text>"#);
    let first = top + 16.0;
    let bottom = first + rows.len() as f64 * STEP;
    for decade in DECADES[0]..=DECADES[1] {
        let (x, label) = (position(10f64.powi(decade)), 10f64.powi(decade));
        let _ = writeln!(body, r#"<line class="grid" x1="{x:.1}" x2="{x:.1}" y1="{first:.0}" y2="{bottom:.0}"/>"#);
        let y = bottom + 14.0;
        let _ = writeln!(body, r#"<text class="small" x="{x:.1}" y="{y:.0}" text-anchor="middle">{label}</text>"#);
    }
    for (number, row) in rows.into_iter().enumerate() {
        bar(body, first + number as f64 * STEP + (STEP - BAR) / 2.0, row);
    }
    bottom + 48.0
}

fn bar(body: &mut String, y: f64, row: &Row) {
    let (median, p95) = (row.first.median(), row.first.p95());
    let (end, tail, base) = (position(median), position(p95), y + BAR - 5.0);
    let ours = [LIBRARY, MCP, ONE_SHOT].contains(&row.name);
    let class = if ours { "ours" } else { "other" };
    let name = row.name.replace('`', "").replace('&', "&amp;");
    let _ = writeln!(body, r#"<text x="{:.0}" y="{base:.0}" text-anchor="end">{name}</text>"#, LEFT - 10.0);
    let _ = writeln!(
        body,
        r#"<rect class="{class}" x="{LEFT}" y="{y:.0}" width="{:.1}" height="{BAR}" rx="2"/><line class="tail" stroke-width="1.5" x1="{tail:.1}" x2="{tail:.1}" y1="{:.0}" y2="{:.0}"/>"#,
        end - LEFT,
        y + 3.0,
        y + BAR - 3.0,
    );
    let x = end.max(tail) + 8.0;
    let _ = writeln!(body, r#"<text x="{x:.1}" y="{base:.0}">{}</text>"#, short(median));
}

fn position(milliseconds: f64) -> f64 {
    let [low, high] = DECADES.map(f64::from);
    let part = (milliseconds.log10() - low) / (high - low);
    LEFT + part.clamp(0.0, 1.0) * (RIGHT - LEFT)
}

fn short(milliseconds: f64) -> String {
    if milliseconds < 10.0 { format!("{milliseconds:.1} ms") } else { format!("{milliseconds:.0} ms") }
}
