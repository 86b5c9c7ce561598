//! `{a,b}` and `{1..3}`: one word that stands for several.

use super::syntax::{Part, Word};

/// How many words one word with braces may become.
const MOST_WORDS: usize = 64;

/// Longest word whose braces are opened.
const LONGEST_BRACES: usize = 1024;

/// The words that a word with braces becomes.
pub fn braces(word: &Word) -> Vec<Word> {
    let mut words = vec![word.clone()];
    let mut at = 0;
    // Each turn opens the first pair of braces of one word.
    while at < words.len() && words.len() < MOST_WORDS {
        match open_braces(&words[at]) {
            Some(opened) => drop(words.splice(at..=at, opened)),
            None => at += 1,
        }
    }
    words
}

/// A character that may be special, or a part that may not be.
#[derive(Clone)]
enum Atom {
    Character(char),
    Part(Part),
}

fn open_braces(word: &Word) -> Option<Vec<Word>> {
    let braced = |part: &Part| matches!(part, Part::Plain(text) if text.contains('{'));
    let length: usize = word.0.iter().map(|part| if let Part::Plain(text) = part { text.len() } else { 1 }).sum();
    if !word.0.iter().any(braced) || length > LONGEST_BRACES {
        return None;
    }
    let mut atoms = Vec::new();
    for part in &word.0 {
        match part {
            Part::Plain(text) => atoms.extend(text.chars().map(Atom::Character)),
            other => atoms.push(Atom::Part(other.clone())),
        }
    }
    let is = |at: usize, wanted: char| matches!(&atoms[at], Atom::Character(character) if *character == wanted);
    // One walk from the first brace that opens: if it does not close, nothing after it is opened either.
    for start in (0..atoms.len()).filter(|at| is(*at, '{')).take(8) {
        let mut depth = 0;
        let mut cuts = vec![start];
        for at in start..atoms.len() {
            match () {
                () if is(at, '{') => depth += 1,
                () if is(at, '}') => depth -= 1,
                () if is(at, ',') && depth == 1 => cuts.push(at),
                () => {}
            }
            if depth == 0 {
                cuts.push(at);
                break;
            }
        }
        if depth != 0 {
            continue;
        }
        let end = cuts.last().copied()?;
        let alternatives: Vec<Vec<Atom>> = match cuts.as_slice() {
            [_, _] => match range(&atoms[start + 1..end]) {
                Some(range) => range,
                None => continue,
            },
            cuts => cuts.windows(2).map(|pair| atoms[pair[0] + 1..pair[1]].to_vec()).collect(),
        };
        let whole = |middle: Vec<Atom>| {
            let before = atoms[..start].iter().cloned();
            assembled(before.chain(middle).chain(atoms[end + 1..].iter().cloned()))
        };
        return Some(alternatives.into_iter().take(MOST_WORDS).map(whole).collect());
    }
    None
}

/// `a..e` and `1..5`.
fn range(atoms: &[Atom]) -> Option<Vec<Vec<Atom>>> {
    let text: Option<String> = atoms
        .iter()
        .map(|atom| match atom {
            Atom::Character(character) => Some(*character),
            Atom::Part(_) => None,
        })
        .collect();
    let text = text?;
    let (from, to) = text.split_once("..")?;
    let one = |text: String| text.chars().map(Atom::Character).collect();
    if let (Ok(from), Ok(to)) = (from.parse::<i32>(), to.parse::<i32>()) {
        return Some((from.min(to)..=from.max(to)).take(MOST_WORDS).map(|number| one(number.to_string())).collect());
    }
    let mut from = from.chars();
    let mut to = to.chars();
    let (Some(first), None, Some(last), None) = (from.next(), from.next(), to.next(), to.next()) else { return None };
    Some((first.min(last)..=first.max(last)).take(MOST_WORDS).map(|letter| one(letter.to_string())).collect())
}

fn assembled(atoms: impl Iterator<Item = Atom>) -> Word {
    let mut parts: Vec<Part> = Vec::new();
    for atom in atoms {
        match (atom, parts.last_mut()) {
            (Atom::Character(character), Some(Part::Plain(text))) => text.push(character),
            (Atom::Character(character), _) => parts.push(Part::Plain(character.to_string())),
            (Atom::Part(part), _) => parts.push(part),
        }
    }
    Word(parts)
}
