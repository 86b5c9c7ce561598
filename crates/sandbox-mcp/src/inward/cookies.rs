//! Cookies on their way between a browser and a sandbox.
//!
//! A browser keeps cookies by host name, and previews have names of their own, so ours never come here by themselves.
//! Should one come all the same, it goes no further; and nothing inside can make one that looks like ours, or one for
//! more than its own name.

use hyper::{
    HeaderMap,
    header::{COOKIE, HeaderValue, SET_COOKIE},
};

/// What the names of our own cookies begin with, in any case and with `-` for `_`.
const OURS: &[u8] = b"sandbox-mcp";
/// What browsers give a meaning at the beginning of a name.
const PREFIXES: [&[u8]; 2] = [b"__host-", b"__secure-"];

/// Takes ours out of a request.
pub(super) fn clean_request(headers: &mut HeaderMap) {
    rewrite(headers, &COOKIE, |value| {
        let pairs: Vec<&[u8]> = value.split(|byte| *byte == b';').collect();
        let kept: Vec<&[u8]> = pairs.iter().copied().filter(|pair| !is_ours(pair)).collect();
        if kept.len() == pairs.len() { Kept::Whole } else { Kept::Rest(kept.join(&b';').trim_ascii().to_vec()) }
    });
}

/// Takes ours out of an answer, and `Domain` out of the others: they are then for the preview's own name.
pub(super) fn clean_response(headers: &mut HeaderMap) {
    rewrite(headers, &SET_COOKIE, |value| {
        let parts: Vec<&[u8]> = value.split(|byte| *byte == b';').collect();
        if parts.first().is_some_and(|pair| is_ours(pair)) {
            return Kept::Rest(Vec::new());
        }
        let is_domain = |part: &[u8]| {
            let name = part.split(|byte| *byte == b'=').next().unwrap_or_default();
            name.trim_ascii().eq_ignore_ascii_case(b"domain")
        };
        let kept: Vec<&[u8]> = parts
            .iter()
            .enumerate()
            .filter(|(position, part)| *position == 0 || !is_domain(part))
            .map(|(_, part)| *part)
            .collect();
        if kept.len() == parts.len() { Kept::Whole } else { Kept::Rest(kept.join(&b';')) }
    });
}

/// What is left of a header.
enum Kept {
    /// All of it, as it was.
    Whole,
    /// This; nothing if it is empty.
    Rest(Vec<u8>),
}

/// Replaces the values of a header by what is left of them.
fn rewrite(headers: &mut HeaderMap, name: &hyper::header::HeaderName, keep: impl Fn(&[u8]) -> Kept) {
    let values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    headers.remove(name);
    for value in values {
        let value = match keep(value.as_bytes()) {
            Kept::Whole => Some(value),
            Kept::Rest(rest) if rest.is_empty() => None,
            Kept::Rest(rest) => HeaderValue::from_bytes(&rest).ok(),
        };
        if let Some(value) = value {
            headers.append(name, value);
        }
    }
}

/// Whether a `name=value` is one of ours. A cookie without a name is sent as its bare value, which can look like a name
/// and a value, so what precedes the name is skipped.
fn is_ours(pair: &[u8]) -> bool {
    let start = pair.iter().position(|byte| !(byte.is_ascii_whitespace() || *byte == b'=')).unwrap_or(pair.len());
    let letter = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    let mut name = &pair[start..];
    for prefix in PREFIXES {
        if name.len() >= prefix.len() && name[..prefix.len()].eq_ignore_ascii_case(prefix) {
            name = &name[prefix.len()..];
        }
    }
    name.iter().map(letter).take(OURS.len()).eq(OURS.iter().copied())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cleaned(name: hyper::header::HeaderName, values: &[&str]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name.clone(), value.parse().unwrap());
        }
        if name == COOKIE {
            clean_request(&mut headers)
        } else {
            clean_response(&mut headers)
        }
        headers.get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn our_cookies_do_not_go_in() {
        assert_eq!(cleaned(COOKIE, &["a=1; b=sandbox_mcp"]), ["a=1; b=sandbox_mcp"]);
        assert_eq!(cleaned(COOKIE, &["a=1; sandbox_mcp_session=x; b=2"]), ["a=1; b=2"]);
        assert_eq!(cleaned(COOKIE, &["__Host-sandbox-mcp=x; a=1", "a=2"]), ["a=1", "a=2"]);
        for ours in
            ["sandbox_mcp=1", "__HOST-Sandbox_MCP=1", "__Secure-sandbox-mcp=1", " =sandbox_mcp=1", "sandbox-mcp"]
        {
            assert_eq!(cleaned(COOKIE, &[ours]), Vec::<String>::new(), "{ours}");
        }
    }

    #[test]
    fn no_cookie_of_ours_comes_out_and_none_for_other_names() {
        assert_eq!(cleaned(SET_COOKIE, &["a=1;Path=/; HttpOnly"]), ["a=1;Path=/; HttpOnly"]);
        assert_eq!(cleaned(SET_COOKIE, &["a=1; Domain=localhost; Path=/", "b=2"]), ["a=1; Path=/", "b=2"]);
        assert_eq!(cleaned(SET_COOKIE, &["a=1;\tDOMAIN =.localhost;domain"]), ["a=1"]);
        assert_eq!(cleaned(SET_COOKIE, &["domain=kept; Path=/"]), ["domain=kept; Path=/"]);
        for ours in ["sandbox_mcp=1; Path=/", "__Host-sandbox-mcp-token=1", "=sandbox_mcp=1", "= sandbox_mcp"] {
            assert_eq!(cleaned(SET_COOKIE, &[ours, "a=1"]), ["a=1"], "{ours}");
        }
    }
}
