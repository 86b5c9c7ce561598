//! What simple programs print, where that follows from their words and input alone.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::{
    look::Input,
    state::{File, HIDDEN, State},
    syntax::escapes,
};

/// Longest text that is followed.
const LONGEST: usize = 32 * 1024;

/// What this program prints, if that is known.
pub fn of(name: &str, words: &[String], input: &Input, state: &State) -> Option<String> {
    let input = match input {
        Input::Known(text) => Some(text.as_str()),
        Input::Hidden(_) | Input::Outside => None,
    };
    let operands: Vec<&str> = words.iter().filter(|word| !word.starts_with('-')).map(String::as_str).collect();
    let has = |options: &[&str]| words.iter().any(|word| options.contains(&word.as_str()));
    let printed = match name {
        "echo" => echo(words),
        "printf" => words.split_first().map(|(format, values)| printf(format, values)),
        "cat" | "tac" | "tee" => match operands.as_slice() {
            [] => input.map(str::to_owned),
            _ if name == "tee" => input.map(str::to_owned),
            [path] => match state.file(path) {
                Some(File::Text(text)) => Some(text.clone()),
                _ => None,
            },
            _ => None,
        },
        "base64" if has(&["-d", "-D", "--decode", "-di", "-id"]) => input.and_then(from_base64),
        "openssl" if has(&["base64", "-base64", "-a"]) && has(&["-d"]) => input.and_then(from_base64),
        "xxd" if words.iter().any(|word| word.contains('r')) => input.and_then(from_hex),
        "rev" => input.map(|text| text.lines().map(|line| line.chars().rev().collect::<String>() + "\n").collect()),
        "tr" => input.and_then(|text| translate(text, words)),
        "which" | "type" => operands.first().map(|name| (*name).to_owned()),
        "basename" => operands.first().map(|path| super::paths::base(path).to_owned()),
        "pwd" => state.folder.clone(),
        "mkdir" | "touch" | "chmod" | "rm" | "cp" | "mv" | "ln" | "sleep" => Some(String::new()),
        _ => None,
    };
    printed.filter(|text| text.len() < LONGEST)
}

fn echo(words: &[String]) -> Option<String> {
    let option = |word: &&String| matches!(word.as_str(), "-n" | "-e" | "-E" | "-ne" | "-en");
    let options = words.iter().take_while(option).count();
    let said = |letter: char| words.iter().take(options).any(|word| word.contains(letter));
    let mut text = words.get(options..).unwrap_or_default().join(" ");
    if said('e') {
        text = escapes(&text);
    } else if text.contains('\\') && escapes(&text) != text {
        // Shells differ in what they make of backslashes then.
        return None;
    }
    Some(if said('n') { text } else { text + "\n" })
}

fn printf(format: &str, values: &[String]) -> String {
    let format = escapes(format);
    let mut values = values.iter();
    let mut text = String::new();
    loop {
        let before = values.len();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            match characters.next() {
                Some('s' | 'q') => text.extend(values.next().map(String::as_str)),
                Some('b') => text.extend(values.next().map(|value| escapes(value))),
                Some('c') => text.extend(values.next().and_then(|value| value.chars().next())),
                Some('%') => text.push('%'),
                _ => {
                    values.next();
                    text.push(HIDDEN);
                }
            }
        }
        // The format is used again while there are values, and it takes some.
        if values.len() == 0 || values.len() == before || text.len() > LONGEST {
            return text;
        }
    }
}

fn from_base64(text: &str) -> Option<String> {
    let text: String = text.split_whitespace().collect();
    String::from_utf8(BASE64_STANDARD.decode(text).ok()?).ok()
}

fn from_hex(text: &str) -> Option<String> {
    let digits: Vec<u32> =
        text.chars().filter(|digit| !digit.is_whitespace()).map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let bytes = digits.chunks_exact(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).ok()).collect::<Option<_>>()?;
    String::from_utf8(bytes).ok()
}

/// `tr SET SET` and `tr -d SET`.
fn translate(text: &str, words: &[String]) -> Option<String> {
    match words {
        [option, set] if option == "-d" => {
            let set = members(set)?;
            Some(text.chars().filter(|character| !set.contains(character)).collect())
        }
        [from, to] => {
            let (from, to) = (members(from)?, members(to)?);
            let last = *to.last()?;
            let replaced = |character: char| match from.iter().position(|member| *member == character) {
                Some(at) => to.get(at).copied().unwrap_or(last),
                None => character,
            };
            Some(text.chars().map(replaced).collect())
        }
        _ => None,
    }
}

/// The characters of a set as `tr` has it, with ranges.
fn members(set: &str) -> Option<Vec<char>> {
    if set.contains("[:") || set.len() > 256 {
        return None;
    }
    let characters: Vec<char> = escapes(set).chars().collect();
    let mut members = Vec::new();
    let mut at = 0;
    while let Some(&first) = characters.get(at) {
        match (characters.get(at + 1), characters.get(at + 2)) {
            (Some('-'), Some(&last)) if last.is_ascii() && first.is_ascii() => {
                members.extend(first..=last);
                at += 3;
            }
            _ => {
                members.push(first);
                at += 1;
            }
        }
    }
    Some(members)
}
