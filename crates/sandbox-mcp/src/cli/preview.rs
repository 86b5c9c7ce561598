//! A first look at results, in the terminal: the beginning of texts, tables as tables, images by their size. Contents are hostile.

use std::path::Path;

use super::screen;

/// So much of a file is looked at.
pub(super) const LOOKED_AT: u64 = 64 << 10;
const LINES: usize = 8;
const ROWS: usize = 6;
const COLUMNS: usize = 6;
const WIDEST: usize = 24;

/// What a file is, in a few words, where its beginning tells more than its name.
pub(super) fn kind(name: &str, begins: &[u8]) -> Option<String> {
    let (width, height) = image_size(begins).or_else(|| svg_size(name, begins))?;
    Some(format!("image, {width} × {height}"))
}

/// The beginning of a text or table, line by line; nothing for everything else.
pub(super) fn lines(name: &str, begins: &[u8]) -> Vec<String> {
    let extension = Path::new(name).extension().and_then(|end| end.to_str()).unwrap_or_default().to_lowercase();
    let text = String::from_utf8_lossy(begins);
    match extension.as_str() {
        _ if begins.contains(&0) => Vec::new(),
        "csv" => table(&text, ','),
        "tsv" => table(&text, '\t'),
        "txt" | "md" | "json" | "log" | "yaml" | "yml" | "toml" | "xml" | "py" => {
            let shown =
                text.lines().take(LINES).map(|line| screen::harmless(&line.chars().take(100).collect::<String>()));
            let mut shown: Vec<String> = shown.collect();
            if text.lines().nth(LINES).is_some() {
                shown.push("…".to_owned());
            }
            shown
        }
        _ => Vec::new(),
    }
}

fn table(text: &str, divider: char) -> Vec<String> {
    let rows: Vec<Vec<String>> = text.lines().take(ROWS).map(|line| cells(line, divider)).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default().min(COLUMNS);
    let cell = |row: &Vec<String>, column: usize| -> String {
        let text = row.get(column).map(String::as_str).unwrap_or_default();
        let shown = screen::harmless(&text.chars().take(WIDEST).collect::<String>());
        if text.chars().count() > WIDEST { format!("{shown}…") } else { shown }
    };
    let width = |column: usize| rows.iter().map(|row| cell(row, column).chars().count()).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let mut line: Vec<String> = (0..columns)
            .map(|column| {
                let text = cell(row, column);
                format!("{text}{}", " ".repeat(widths[column] - text.chars().count()))
            })
            .collect();
        if row.len() > columns {
            line.push("…".to_owned());
        }
        line.join("  ").trim_end().to_owned()
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    let more = text.lines().count().saturating_sub(ROWS);
    if more > 0 {
        lines.push(format!("… {more} more rows"));
    }
    lines
}

/// The cells of one line; quotes hold dividers together.
fn cells(line: &str, divider: char) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            letter if letter == divider && !quoted => cells.push(std::mem::take(&mut cell)),
            letter => cell.push(letter),
        }
    }
    cells.push(cell);
    cells
}

/// Width and height of PNG, GIF, JPEG and WebP images.
fn image_size(begins: &[u8]) -> Option<(u32, u32)> {
    let big = |at: usize| Some(u32::from_be_bytes(begins.get(at..at + 4)?.try_into().ok()?));
    let big16 = |at: usize| Some(u32::from(u16::from_be_bytes(begins.get(at..at + 2)?.try_into().ok()?)));
    let little16 = |at: usize| Some(u32::from(u16::from_le_bytes(begins.get(at..at + 2)?.try_into().ok()?)));
    match begins {
        [0x89, b'P', b'N', b'G', ..] => Some((big(16)?, big(20)?)),
        [b'G', b'I', b'F', b'8', ..] => Some((little16(6)?, little16(8)?)),
        [0xff, 0xd8, ..] => {
            let mut at = 2;
            loop {
                let marker = *begins.get(at + 1)?;
                if begins.get(at) != Some(&0xff) {
                    return None;
                }
                if matches!(marker, 0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf) {
                    return Some((big16(at + 7)?, big16(at + 5)?));
                }
                at += 2 + usize::try_from(big16(at + 2)?.max(2)).ok()?;
            }
        }
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', b'V', b'P', b'8', b' ', ..] => {
            Some((little16(26)? & 0x3fff, little16(28)? & 0x3fff))
        }
        _ => None,
    }
}

/// Width and height as the first element of an SVG image has them.
fn svg_size(name: &str, begins: &[u8]) -> Option<(u32, u32)> {
    if !name.to_lowercase().ends_with(".svg") {
        return None;
    }
    let text = String::from_utf8_lossy(&begins[..begins.len().min(4096)]).into_owned();
    let element = text.split_once("<svg")?.1.split('>').next()?.to_owned();
    let number = |attribute: &str| {
        let value = element.split(&format!(" {attribute}=\"")).nth(1)?.split('"').next()?;
        value
            .trim_end_matches("px")
            .parse::<f64>()
            .ok()
            .filter(|size| (0.0..1e6).contains(size))
            .map(|size| size as u32)
    };
    Some((number("width")?, number("height")?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn images_are_told_by_their_size() {
        let png = [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".as_slice(), &640u32.to_be_bytes(), &480u32.to_be_bytes()].concat();
        assert_eq!(kind("a.png", &png).unwrap(), "image, 640 × 480");
        assert_eq!(kind("a.gif", b"GIF89a\x20\x00\x10\x00").unwrap(), "image, 32 × 16");
        let jpeg = [0xff, 0xd8, 0xff, 0xe0, 0, 4, 0, 0, 0xff, 0xc0, 0, 17, 8, 0, 9, 0, 7];
        assert_eq!(kind("a.jpg", &jpeg).unwrap(), "image, 7 × 9");
        assert_eq!(
            kind("a.svg", b"<?xml?><svg xmlns=\"x\" width=\"200px\" height=\"300\">").unwrap(),
            "image, 200 × 300"
        );
        assert_eq!(kind("a.txt", b"hello"), None);
    }

    #[test]
    fn tables_are_shown_as_tables() {
        let text = "name,sum,remark\n\"Smith, John\",3,\"said \"\"hi\"\"\"\nx,10,\x1b[2J\n";
        let expected = ["name         sum  remark", "Smith, John  3    said \"hi\"", "x            10   \\u{1b}[2J"];
        assert_eq!(lines("a.csv", text.as_bytes()), expected);
        let long = "a\n".repeat(20);
        assert_eq!(lines("a.csv", long.as_bytes()).last().unwrap(), "… 14 more rows");
        assert_eq!(lines("a.txt", long.as_bytes()).len(), LINES + 1);
        assert!(lines("a.bin", b"x").is_empty() && lines("a.txt", b"a\0b").is_empty());
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), first in 0usize..4) {
            let begin: [&[u8]; 4] = [b"\x89PNG", b"\xff\xd8", b"RIFFxxxxWEBPVP8 ", b"<svg width=\""];
            let all = [begin[first], &bytes].concat();
            for name in ["a.png", "a.svg", "a.csv", "a.txt"] {
                let _ = (kind(name, &all), lines(name, &all));
            }
        }
    }
}
