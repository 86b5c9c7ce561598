//! What of a request goes in and what of an answer comes out. The one place where headers are looked at.
//!
//! In goes everything but what belongs to one connection only, what is ours (cookies, tokens), and what a client says
//! about proxies: that is said by us. Out comes everything but what belongs to one connection only, cookies that a
//! sandbox may not set, and three headers that change how a browser treats a name or a port beyond this preview:
//! `Strict-Transport-Security` (there is no HTTPS here), `Alt-Svc` (leads to other listeners of this machine) and
//! `Clear-Site-Data` (what a browser takes for the site may be more than the preview).

use std::net::IpAddr;

use base64::Engine;
use hyper::{
    HeaderMap,
    header::{
        ALT_SVC, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, FORWARDED, HOST, HeaderName, HeaderValue,
        PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, STRICT_TRANSPORT_SECURITY, TRANSFER_ENCODING, UPGRADE,
    },
};

use super::cookies;

/// What every token of ours begins with.
const OUR_TOKENS: &[u8] = b"sandbox_mcp_";
/// The only protocol that a connection may change to. With HTTP/2 what follows could not be looked at.
const WEBSOCKET: &str = "websocket";

/// Headers that mean only the connection on which they come. hyper makes those of its own connections.
const OF_ONE_CONNECTION: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("http2-settings"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Whether the other side is asked to speak, or says that it speaks, WebSocket from now on.
pub(super) fn becomes_websocket(headers: &HeaderMap) -> bool {
    let asked = headers.get_all(CONNECTION).iter().any(|value| words(value).any(|word| word == "upgrade"));
    let mut protocols = headers.get_all(UPGRADE).iter();
    let only = protocols.next().filter(|_| protocols.next().is_none());
    asked && only.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(WEBSOCKET.as_bytes()))
}

/// Makes a request fit to go in.
pub(super) fn clean_request(headers: &mut HeaderMap, authority: &HeaderValue, from: IpAddr) {
    let websocket = becomes_websocket(headers);
    remove_of_one_connection(headers);
    // hyper has answered it.
    headers.remove(EXPECT);
    if headers.get_all(AUTHORIZATION).iter().any(|value| carries_ours(value.as_bytes())) {
        headers.remove(AUTHORIZATION);
    }
    cookies::clean_request(headers);
    let told =
        |name: &HeaderName| name.as_str().starts_with("x-forwarded-") || name == FORWARDED || name == "x-real-ip";
    let proxies: Vec<HeaderName> = headers.keys().filter(|name| told(name)).cloned().collect();
    proxies.iter().for_each(|name| drop(headers.remove(name)));
    headers.insert(HOST, authority.clone());
    headers.insert("x-forwarded-host", authority.clone());
    headers.insert("x-forwarded-proto", HeaderValue::from_static("http"));
    if let Ok(from) = HeaderValue::from_str(&from.to_string()) {
        headers.insert("x-forwarded-for", from);
    }
    if websocket {
        say_websocket(headers);
    }
}

/// Makes an answer fit to come out.
pub(super) fn clean_response(headers: &mut HeaderMap) {
    let websocket = becomes_websocket(headers);
    remove_of_one_connection(headers);
    headers.remove(STRICT_TRANSPORT_SECURITY);
    headers.remove(ALT_SVC);
    headers.remove("clear-site-data");
    cookies::clean_response(headers);
    if websocket {
        say_websocket(headers);
    }
}

fn say_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
}

fn remove_of_one_connection(headers: &mut HeaderMap) {
    let named: Vec<String> = headers.get_all(CONNECTION).iter().flat_map(words).collect();
    // A length beside it would be taken for the length of what is sent on.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    // How long a body is must not be forgotten because somebody calls it a matter of the connection.
    named.iter().filter(|name| *name != CONTENT_LENGTH.as_str()).for_each(|name| drop(headers.remove(name)));
    OF_ONE_CONNECTION.iter().for_each(|name| drop(headers.remove(name)));
}

/// The words of a list, in small letters.
fn words(value: &HeaderValue) -> impl Iterator<Item = String> {
    let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    let words: Vec<String> = text.split(',').map(|word| word.trim().to_owned()).collect();
    words.into_iter()
}

/// Whether credentials are, or hold, a token of ours: as they are, or as a name and a password in base64.
fn carries_ours(credentials: &[u8]) -> bool {
    let holds = |bytes: &[u8]| bytes.windows(OUR_TOKENS.len()).any(|part| part.eq_ignore_ascii_case(OUR_TOKENS));
    let last = credentials.split(|byte| *byte == b' ').next_back().unwrap_or_default();
    let decoded = base64::engine::general_purpose::STANDARD.decode(last);
    holds(credentials) || decoded.is_ok_and(|decoded| holds(&decoded))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn goes_in(pairs: &[(&str, &str)]) -> HeaderMap {
        let mut headers = map(pairs);
        clean_request(&mut headers, &HeaderValue::from_static("k.s.localhost:1"), [127, 0, 0, 1].into());
        headers
    }

    #[test]
    fn our_tokens_stay_outside_and_those_of_the_application_do_not() {
        let basic = base64::engine::general_purpose::STANDARD.encode("me:sandbox_mcp_secret");
        for ours in ["Bearer sandbox_mcp_abc", "bearer SANDBOX_MCP_abc", &format!("Basic {basic}")] {
            assert!(goes_in(&[("authorization", ours), ("proxy-authorization", ours)]).get(AUTHORIZATION).is_none());
        }
        assert_eq!(goes_in(&[("authorization", "Bearer theirs")])[AUTHORIZATION], "Bearer theirs");
        assert!(goes_in(&[("proxy-authorization", "Basic x")]).get(PROXY_AUTHORIZATION).is_none());
    }

    #[test]
    fn who_asks_from_where_is_said_by_us() {
        let told = [("forwarded", "for=1.2.3.4"), ("x-forwarded-for", "1.2.3.4"), ("x-forwarded-port", "1")];
        let headers = goes_in(&[told[0], told[1], told[2], ("x-real-ip", "1.2.3.4"), ("host", "other")]);
        assert_eq!(headers["x-forwarded-for"], "127.0.0.1");
        assert!(headers["x-forwarded-host"] == "k.s.localhost:1" && headers[HOST] == "k.s.localhost:1");
        assert!(!headers.contains_key("x-forwarded-port") && !headers.contains_key(FORWARDED));
    }

    #[test]
    fn what_is_of_one_connection_goes_no_further() {
        let headers = goes_in(&[
            ("connection", "keep-alive, X-Hop, host, content-length"),
            ("x-hop", "1"),
            ("keep-alive", "3"),
            ("content-length", "3"),
            ("x-end", "1"),
        ]);
        assert!(!headers.contains_key("x-hop") && !headers.contains_key("keep-alive"));
        assert_eq!((&headers[HOST], &headers["x-end"]), (&"k.s.localhost:1".parse().unwrap(), &"1".parse().unwrap()));
        assert_eq!(headers[CONTENT_LENGTH], "3");
        assert!(!goes_in(&[("transfer-encoding", "chunked"), ("content-length", "3")]).contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn connections_change_to_websocket_and_nothing_else() {
        let headers = goes_in(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")]);
        assert_eq!(
            (&headers[CONNECTION], &headers[UPGRADE]),
            (&"Upgrade".parse().unwrap(), &"websocket".parse().unwrap())
        );
        for other in ["h2c", "TLS/1.0", "websocket, h2c"] {
            let headers =
                goes_in(&[("connection", "Upgrade, HTTP2-Settings"), ("upgrade", other), ("http2-settings", "x")]);
            assert!(!headers.contains_key(UPGRADE) && !headers.contains_key("http2-settings"), "{other}");
        }
    }

    #[test]
    fn answers_change_nothing_beyond_the_preview() {
        let mut headers = map(&[
            ("strict-transport-security", "max-age=1"),
            ("clear-site-data", "\"*\""),
            ("alt-svc", "h2=\":80\""),
            ("set-cookie", "sandbox_mcp=1"),
            ("content-security-policy", "default-src 'self'"),
            ("location", "/next"),
        ]);
        clean_response(&mut headers);
        assert_eq!(headers, map(&[("content-security-policy", "default-src 'self'"), ("location", "/next")]));
    }
}
