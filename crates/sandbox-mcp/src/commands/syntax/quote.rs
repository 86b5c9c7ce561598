//! Backslashes that stand for other characters: in `$'…'`, `printf` and `echo -e`.

/// The text with `\n`, `\x73`, `\163`, `\u0073` and the like replaced. NUL is left out, as shells do.
pub fn escapes(text: &str) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut plain = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(&character) = characters.get(at) {
        at += 1;
        if character != '\\' {
            plain.push(character);
            continue;
        }
        let Some(&kind) = characters.get(at) else {
            plain.push('\\');
            break;
        };
        at += 1;
        match kind {
            'n' => plain.push('\n'),
            't' => plain.push('\t'),
            'r' => plain.push('\r'),
            'a' | 'b' | 'f' | 'v' | 'c' => {}
            'e' | 'E' => plain.push('\u{1b}'),
            'x' => plain.extend(number(&characters, &mut at, 16, 2)),
            'u' => plain.extend(number(&characters, &mut at, 16, 4)),
            'U' => plain.extend(number(&characters, &mut at, 16, 8)),
            '0' => plain.extend(number(&characters, &mut at, 8, 3)),
            '1'..='7' => {
                at -= 1;
                plain.extend(number(&characters, &mut at, 8, 3));
            }
            other => plain.push(other),
        }
    }
    plain
}

/// The character with the number that is written here, if there is one that shells would keep.
fn number(characters: &[char], at: &mut usize, radix: u32, longest: usize) -> Option<char> {
    let mut value = 0;
    let mut digits = 0;
    while digits < longest
        && let Some(digit) = characters.get(*at).and_then(|digit| digit.to_digit(radix))
    {
        value = value * radix + digit;
        (*at, digits) = (*at + 1, digits + 1);
    }
    char::from_u32(value).filter(|character| *character > '\u{1}')
}

#[cfg(test)]
mod tests {
    use super::escapes;

    #[test]
    fn every_way_of_writing_a_letter_is_read() {
        for text in [r"\x73udo", r"\163udo", r"\0163udo", r"\u0073udo", r"\U00000073udo", r"s\0\x00udo", r"\s\u\d\o"] {
            let read = escapes(text);
            assert!(read == "sudo" || text == r"\s\u\d\o" && read == "sdo", "{text}: {read:?}");
        }
        assert_eq!(escapes("a\\"), "a\\");
        assert_eq!(escapes("\\U99999999x"), "x");
    }
}
