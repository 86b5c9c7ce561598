//! The ways in which a text is written within another: in addresses, in JSON, in credentials.

use base64::{
    Engine as _,
    alphabet::STANDARD,
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};

use super::replace::Pair;

/// Clients differ in whether they pad.
const CREDENTIALS: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// As it stands in an address: only what is never special there stays as it is (RFC 3986, 2.3).
pub(crate) fn percent_encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

/// The same with small digits in its escapes.
pub(crate) fn lower_escapes(encoded: &str) -> String {
    let mut parts = encoded.split('%');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |out, part| {
        let (digits, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        out + "%" + &digits.to_ascii_lowercase() + rest
    })
}

/// As it stands between the quotes of a JSON text.
pub(crate) fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Replaces texts in an address, also where some of their characters are percent-encoded; how often that was.
pub(crate) fn replace_in_address(address: &str, pairs: &[Pair]) -> (String, usize) {
    let (mut rest, mut out, mut count) = (address, String::with_capacity(address.len()), 0);
    while let Some(next) = rest.chars().next() {
        let found = pairs.iter().find_map(|pair| Some((pair, length_of(&pair.from, rest.as_bytes())?)));
        let length = match found {
            Some((pair, length)) => {
                out.push_str(&percent_encoded(&String::from_utf8_lossy(&pair.to)));
                count += 1;
                length
            }
            None => {
                out.push(next);
                next.len_utf8()
            }
        };
        rest = rest.get(length..).unwrap_or_default();
    }
    (out, count)
}

/// How long a text is at the beginning of an address, if it stands there.
fn length_of(text: &[u8], address: &[u8]) -> Option<usize> {
    let mut at = 0;
    for &wanted in text {
        at += match address.get(at..)? {
            [byte, ..] if *byte == wanted => 1,
            [b'%', high, low, ..] if hexadecimal(*high, *low) == Some(wanted) => 3,
            _ => return None,
        };
    }
    Some(at)
}

fn hexadecimal(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    Some(digit(high)? << 4 | digit(low)?)
}

/// A path without the escapes, for looking at only.
pub(crate) fn percent_decoded(path: &str) -> Vec<u8> {
    let (mut rest, mut out) = (path.as_bytes(), Vec::new());
    while let [byte, after @ ..] = rest {
        rest = after;
        match (byte, after) {
            (b'%', [high, low, after @ ..]) if hexadecimal(*high, *low).is_some() => {
                out.extend(hexadecimal(*high, *low));
                rest = after;
            }
            _ => out.push(*byte),
        }
    }
    out
}

/// What `Authorization: Basic …` carries, if it is that.
pub(crate) fn credentials(header: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let (scheme, encoded) = header.split_at_checked(6)?;
    let encoded = encoded.trim_ascii();
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    Some((encoded, CREDENTIALS.decode(encoded).ok()?))
}

/// As they are sent.
pub(crate) fn encoded_credentials(credentials: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(credentials)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn texts_are_replaced_in_addresses_however_they_are_encoded() {
        let pairs = [Pair::new("sbx_a1", "p&q /é")];
        let put = "p%26q%20%2F%C3%A9";
        for (address, expected, times) in [
            ("/x?key=sbx_a1&y", format!("/x?key={put}&y"), 1),
            ("/%73bx%5fa%31/sbx_a1", format!("/{put}/{put}"), 2),
            ("/sbx_a2?sbx_a%3", "/sbx_a2?sbx_a%3".into(), 0),
            ("*", "*".into(), 0),
        ] {
            assert_eq!(replace_in_address(address, &pairs), (expected, times));
        }
    }

    #[test]
    fn credentials_are_read_with_and_without_padding() {
        for header in ["Basic dTpwYQ==", "basic dTpwYQ", "BASIC  dTpwYQ== "] {
            assert_eq!(credentials(header.as_bytes()).expect(header).1, b"u:pa", "{header}");
        }
        for header in ["Bearer dTpw", "Basic", "Basic %%%", "", "basi"] {
            assert!(credentials(header.as_bytes()).is_none(), "{header}");
        }
        assert_eq!(escaped("a\"b\\c"), "a\\\"b\\\\c");
        assert_eq!(percent_decoded("/%2e%2E/a%2fb%zz%"), b"/../a/b%zz%");
    }

    proptest! {
        #[test]
        fn nothing_panics_and_what_is_encoded_is_safe(text in "\\PC{0,30}", address in "[ -~é]{0,40}") {
            prop_assert!(percent_encoded(&text).bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert_eq!(percent_decoded(&percent_encoded(&text)), text.as_bytes());
            let _ = credentials(address.as_bytes());
            let (same, count) = replace_in_address(&address, &[Pair::new("\u{0}", "x")]);
            prop_assert!(same == address && count == 0);
        }
    }
}
