//! What Java trusts: it has a store of its own (JKS), to which a certificate is added. Entries are not encrypted; a sum at the
//! end, with a password that everybody knows, tells whether the file is whole.

use base64::{Engine, prelude::BASE64_STANDARD};
use sha1::{Digest, Sha1};

/// How the file begins: kind and version.
pub const HEAD: [u8; 8] = [0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2];
/// Length of the sum at the end.
const SUM: usize = 20;
/// The password of the store that comes with every Java.
const PASSWORD: &str = "changeit";
/// The tag of an entry that is a trusted certificate.
const TRUSTED: [u8; 4] = [0, 0, 0, 2];

/// The store with one more certificate in it, which is given in PEM form; nothing if the store is of another kind.
pub fn with_certificate(store: &[u8], pem: &str) -> Option<Vec<u8>> {
    let body = store.strip_prefix(&HEAD)?;
    let (count, entries) = body.split_first_chunk::<4>()?;
    let entries = entries.get(..entries.len().checked_sub(SUM)?)?;
    let count = u32::from_be_bytes(*count).checked_add(1)?;
    let mut made = [&HEAD[..], &count.to_be_bytes(), entries, &entry(&certificate(pem)?)?].concat();
    let mut sum = Sha1::new();
    sum.update(PASSWORD.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<u8>>());
    sum.update(b"Mighty Aphrodite");
    sum.update(&made);
    made.extend_from_slice(&sum.finalize());
    Some(made)
}

fn entry(certificate: &[u8]) -> Option<Vec<u8>> {
    let length = u32::try_from(certificate.len()).ok()?.to_be_bytes();
    // Of the year 1970: nobody asks.
    let made = [0; 8];
    Some([&TRUSTED[..], &text("sandbox-mcp")?, &made, &text("X.509")?, &length, certificate].concat())
}

/// Texts have their length before them.
fn text(text: &str) -> Option<Vec<u8>> {
    Some([&u16::try_from(text.len()).ok()?.to_be_bytes()[..], text.as_bytes()].concat())
}

/// The bytes of a certificate in PEM form.
fn certificate(pem: &str) -> Option<Vec<u8>> {
    let (_, rest) = pem.split_once("-----BEGIN CERTIFICATE-----")?;
    let (base64, _) = rest.split_once("-----END CERTIFICATE-----")?;
    BASE64_STANDARD.decode(base64.split_ascii_whitespace().collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_one_more_and_is_whole() {
        let mut empty = [&HEAD[..], &[0; 4]].concat();
        empty.extend([0; SUM]);
        let pem = "-----BEGIN CERTIFICATE-----\nAQID\nBA==\n-----END CERTIFICATE-----\n";
        let one = with_certificate(&empty, pem).expect("a store");
        assert_eq!(one[8..12], [0, 0, 0, 1]);
        assert!(one[..one.len() - SUM].ends_with(&[0, 0, 0, 4, 1, 2, 3, 4]));
        let two = with_certificate(&one, pem).expect("a store");
        assert_eq!((two[11], two.len() - one.len()), (2, one.len() - empty.len()));
        for wrong in [&b""[..], b"PK", &HEAD, &[0; 40]] {
            assert_eq!(with_certificate(wrong, pem), None);
        }
        assert_eq!(with_certificate(&empty, "no certificate"), None);
    }
}
