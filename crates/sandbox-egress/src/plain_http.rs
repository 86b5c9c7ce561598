//! HTTP without TLS inside a tunnel, or in TLS that was opened: every request on it must be for the server that the tunnel is for.
//!
//! Many servers share an address, and answer for whoever is named in the request. So what looks like HTTP is read and said
//! again, request by request, by the same library on both sides: what we read is what the far end gets.

use std::{
    error::Error,
    pin::pin,
    sync::{Mutex, PoisonError, atomic::AtomicU64},
};

use http_body_util::{Either, Full};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::{
    Decision, Engine, Host, Reason, Target,
    counted::Counted,
    proxy::page,
    secrets::{Answer, Outgoing, Passage, Stopped},
    tunnel::Carried,
    upgrade,
};

/// The longest head of a request.
const LONGEST_HEAD: usize = 64 << 10;
/// A first line that is longer is not waited for; as a request it will be too long.
const LONGEST_LINE: usize = 16 << 10;

/// What the first line of a program is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FirstLine {
    /// More is needed to tell.
    Incomplete,
    /// A request.
    Http,
    /// Something else.
    Other,
}

/// Reads the first bytes that a program sends. Only what begins like a word of text is waited for.
///
/// What some server would take for a request must be one here too, or its host is not looked at. So as little as possible
/// makes it something else: no word first, a line without a version and without what looks like an address after a word in
/// capitals. What was told stays so.
pub fn first_line(bytes: &[u8]) -> FirstLine {
    let bytes = &bytes[..bytes.len().min(LONGEST_LINE)];
    if bytes.starts_with(PROXY_IN_BYTES) {
        return FirstLine::Http;
    }
    let rest = bytes.iter().position(|byte| !is_blank(byte)).map_or(&[][..], |start| &bytes[start..]);
    let word = rest.iter().position(|byte| !in_word(byte)).unwrap_or(rest.len());
    let (word, after) = rest.split_at(word);
    if after.first().is_some_and(|byte| word.is_empty() || !is_blank(byte)) {
        return FirstLine::Other;
    }
    // Some servers took any byte in an address, but those take only letters before it. Other protocols begin with a digit
    // and have such bytes.
    let letters = word.iter().all(|byte| byte.is_ascii_alphabetic() || b"-_".contains(byte));
    let ends = |byte: &u8| *byte == b'\n' || (!letters && byte.is_ascii_control() && !b"\t\r".contains(byte));
    let end = after.iter().position(ends);
    let line = &after[..end.unwrap_or(after.len())];
    match says_version(line) || is_method(word) && says_address(line) || word == b"PROXY" && says_client(line) {
        true => FirstLine::Http,
        false if end.is_some() => FirstLine::Other,
        // Some servers read on for as long as it takes.
        false if bytes.len() == LONGEST_LINE => FirstLine::Http,
        false => FirstLine::Incomplete,
    }
}

/// The same where the far end has spoken first, which is no server for HTTP/1: what begins like HTTP/2, or something else.
pub fn first_line_of_answer(bytes: &[u8]) -> FirstLine {
    match HTTP2.iter().zip(bytes).all(|(expected, found)| expected == found) {
        true if bytes.len() >= HTTP2.len() => FirstLine::Http,
        true => FirstLine::Incomplete,
        false => FirstLine::Other,
    }
}

/// How HTTP/2 begins.
const HTTP2: &[u8] = b"PRI * HTTP/2";
/// What a proxy says of whom it speaks for, before the request, in its second version.
const PROXY_IN_BYTES: &[u8] = b"\r\n\r\n\0";

/// Whether some server would take the end of such a line for a version. Node takes all of these.
fn says_version(line: &[u8]) -> bool {
    let says = |version: &[u8]| line.windows(version.len()).any(|window| window.eq_ignore_ascii_case(version));
    says(b"HTTP/") || says(b"RTSP/") || says(b"ICE/")
}

/// Requests have a method in capitals, and lines that are none seldom begin so.
fn is_method(word: &[u8]) -> bool {
    word.iter().all(|byte| byte.is_ascii_uppercase() || b"-_".contains(byte))
}

/// Whether a path or an address comes next, so that it can be a request without a version.
fn says_address(after: &[u8]) -> bool {
    let next = next_word(after);
    next.starts_with(b"/") || next.starts_with(b"*") || next.windows(3).any(|window| window == b"://")
}

/// Whether a proxy says for whom it speaks, before the request, in its first version.
fn says_client(after: &[u8]) -> bool {
    let next = next_word(after);
    [&b"TCP"[..], b"UNKNOWN"].iter().any(|family| next.starts_with(family))
}

fn next_word(after: &[u8]) -> &[u8] {
    after.split(is_blank).find(|word| !word.is_empty()).unwrap_or_default()
}

/// What some server takes for a blank, in ASCII or in Latin-1 (Python's do).
fn is_blank(byte: &u8) -> bool {
    matches!(byte, b'\t'..=b'\r' | 0x1c..=b' ' | 0x85 | 0xa0)
}

/// Whether a method can have it (RFC 9110, 5.6.2).
fn in_word(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

impl Engine {
    /// Carries requests and answers until one side has ended.
    pub(crate) async fn carry_http(
        &self,
        client: impl AsyncRead + AsyncWrite + Unpin + Send,
        server: impl AsyncRead + AsyncWrite + Unpin + Send,
        passage: &Passage,
        counts: [&AtomicU64; 2],
    ) -> Carried {
        let server = TokioIo::new(Counted::new(server, counts));
        let mut builder = hyper::client::conn::http1::Builder::new();
        builder.max_buf_size(LONGEST_HEAD).preserve_header_case(true);
        let handshake = builder.handshake::<_, Outgoing>(server).await;
        let Ok((sender, connection)) = handshake else { return Carried::BrokenOff };
        let sender = tokio::sync::Mutex::new(sender);
        let denied = Mutex::new(None);
        let respond = |request| self.pass_on(request, passage, &sender, &denied);
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder.timer(TokioTimer::new()).max_buf_size(LONGEST_HEAD).preserve_header_case(true).half_close(true);
        let mut serving = pin!(builder.serve_connection(TokioIo::new(client), service_fn(respond)));
        let (mut far, mut far_ended) = (pin!(connection), false);
        let served = loop {
            tokio::select! {
                served = serving.as_mut() => break served,
                // The answer that is on its way still arrives, and then there is nobody to ask.
                _ = far.as_mut(), if !far_ended => {
                    far_ended = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        };
        let carried = if served.is_ok() { Carried::ToTheEnd } else { Carried::BrokenOff };
        let denied = *denied.lock().unwrap_or_else(PoisonError::into_inner);
        let stopped = passage.alarm.get().map(|stopped| stopped.reason);
        stopped.or(denied).map_or(carried, Carried::Denied)
    }

    async fn pass_on(
        &self,
        mut request: Request<Incoming>,
        passage: &Passage,
        sender: &tokio::sync::Mutex<hyper::client::conn::http1::SendRequest<Outgoing>>,
        denied: &Mutex<Option<Reason>>,
    ) -> hyper::Result<Response<Either<Answer, Full<Bytes>>>> {
        let refused = |stopped: &Stopped| {
            *denied.lock().unwrap_or_else(PoisonError::into_inner) = Some(stopped.reason);
            let _ = passage.alarm.set(stopped.clone());
            let advice = self.advise(&passage.target, stopped.reason, None, stopped.secret.as_deref());
            let words = format!("The request was not passed on to {}: {stopped}. {advice}.\n", passage.target);
            Ok(page(stopped.status(), stopped.reason, &words))
        };
        let checked = passage.look(&request).and_then(|()| {
            let checked = self.check_request(&mut request, &passage.target);
            checked
                .map_err(|reason| Stopped::new(if reason == Reason::HttpUpgrade { passage.upgrade() } else { reason }))
        });
        if let Err(stopped) = checked {
            return refused(&stopped);
        }
        let (request, returning) = match passage.put(request).await {
            Ok(put) => put,
            Err(stopped) => return refused(&stopped),
        };
        let mut sender = sender.lock().await;
        if let Err(error) = sender.ready().await {
            returning.failed(&error);
            return Err(error);
        }
        match sender.send_request(request).await {
            Ok(response) => Ok(returning.take(response).map(Either::Left)),
            // A body may be stopped in the middle.
            Err(error) => match error.source().and_then(|source| source.downcast_ref()) {
                Some(stopped) => refused(stopped),
                None => {
                    returning.failed(&error);
                    Err(error)
                }
            },
        }
    }

    /// Whether a request is for the target; who is not named in it is put in.
    fn check_request(&self, request: &mut Request<Incoming>, target: &Target) -> Result<(), Reason> {
        upgrade::decline_http2(request.headers_mut());
        // What comes after would not be read any more.
        if request.method() == Method::CONNECT || request.headers().contains_key(header::UPGRADE) {
            return Err(Reason::HttpUpgrade);
        }
        // Two who read the same do not always agree on where anything else ends.
        let mut codings = request.headers().get_all(header::TRANSFER_ENCODING).iter();
        if codings.any(|coding| !coding.as_bytes().eq_ignore_ascii_case(b"chunked")) {
            return Err(Reason::NotARequest);
        }
        let line = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let mut said = request.headers().get_all(header::HOST).iter().map(|value| value.to_str().map(str::to_owned));
        let said = match (said.next(), said.next()) {
            (None, _) => None,
            (Some(Ok(host)), None) => Some(host),
            _ => return Err(Reason::HttpOtherHost),
        };
        for authority in line.iter().chain(&said) {
            let named = Target::from_authority(authority, Some(target.port)).map_err(|_| Reason::HttpOtherHost)?;
            self.check_named(&named.host, target)?;
        }
        if said.is_none() {
            let host = HeaderValue::try_from(target.host.to_string()).map_err(|_| Reason::HttpOtherHost)?;
            request.headers_mut().insert(header::HOST, host);
        }
        Ok(())
    }

    fn check_named(&self, named: &Host, target: &Target) -> Result<(), Reason> {
        match &target.host {
            host if host == named => Ok(()),
            Host::Name(_) => Err(Reason::HttpOtherHost),
            Host::Address(_) => {
                let rules = self.rules();
                let decision = rules.decide(&Target { host: named.clone(), ..target.clone() });
                match decision {
                    Decision::Denied { reason: Reason::DeniedByRule, .. } => Err(Reason::DeniedByRule),
                    _ => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_are_told_from_other_first_lines_and_nothing_is_waited_for_in_vain() {
        let table: [(FirstLine, &[&str]); 3] = [
            (
                FirstLine::Http,
                &[
                    "GET / HTTP/1.1\r\n",
                    "\r\n\r\nGET / HTTP/1.0\n",
                    "FOO\t/x\thttp/1.1\n",
                    "PRI * HTTP/2.0\r\n",
                    "GET / HTTP/",
                    "GET / HTTP/\0",
                    "GET /\u{1} HTTP/1.1\r\n",
                    " \tGET / HTTP/1.1\r\n",
                    "1! / HTTP/1.1\r\n",
                    "\u{b}\u{c}\u{1c}\u{1f}GET / HTTP/1.1\r\n",
                    "GET\u{1f}/\u{1c}HTTP/1.1\r\n",
                    "GET /\0 HTTP/1.1",
                    "GET /",
                    "GET /\u{1}",
                    "GET /\r\nHost: other\r\n",
                    "GET http://other/\r\n",
                    "OPTIONS *\r\n",
                    "SOURCE x ICE/1.1\r\n",
                    "get x RTSP/1.0\r\n",
                    "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
                    "\r\n\r\n\0\r\nQUIT\n",
                ],
            ),
            (
                FirstLine::Incomplete,
                &["", "\r\n", "G", "GET", "GET ", "NICK x", "PROXY T", "SSH-2.0-x", "1 LOGIN", "get /", "\r\n\r\n"],
            ),
            (
                FirstLine::Other,
                &[
                    "SSH-2.0-x\r\n",
                    "NICK x\r\n",
                    "get /\r\n",
                    "MAIL FROM:<a@b>\r\n",
                    "*1\r\n",
                    "<stream>",
                    "\0",
                    "a\0",
                    "\u{1}a",
                    "0 \u{2}\u{1}",
                    "AMQP\0",
                    "0032git-upload-pack /x\0host=y\0",
                    "{}",
                ],
            ),
        ];
        for (expected, lines) in table {
            for line in lines {
                assert_eq!(first_line(line.as_bytes()), expected, "{line:?}");
            }
        }
    }

    #[test]
    fn a_request_is_not_hidden_behind_what_is_too_long_to_read() {
        for begin in
            [&[b'\n'; LONGEST_LINE][..], &[b'a'; LONGEST_LINE], &[b"GET a", &[b'a'; LONGEST_LINE][..]].concat()]
        {
            assert_eq!(first_line(begin), FirstLine::Http);
            assert_eq!(first_line(&[begin, b"\r\n"].concat()), FirstLine::Http);
            assert_eq!(first_line(&begin[..LONGEST_LINE - 1]), FirstLine::Incomplete);
        }
    }

    #[test]
    fn who_is_spoken_to_first_may_not_begin_http_2() {
        for (line, expected) in [
            ("", FirstLine::Incomplete),
            ("PRI *", FirstLine::Incomplete),
            ("PRI * HTTP/2.0\r\n", FirstLine::Http),
            ("PASS x\r\n", FirstLine::Other),
            ("SSH-2.0-x\r\n", FirstLine::Other),
        ] {
            assert_eq!(first_line_of_answer(line.as_bytes()), expected, "{line:?}");
        }
    }

    proptest! {
        #[test]
        fn what_was_told_stays_so(bytes in prop::collection::vec(any::<u8>(), 0..60), more in prop::collection::vec(any::<u8>(), 0..9)) {
            let before = first_line(&bytes);
            if before != FirstLine::Incomplete {
                prop_assert_eq!(first_line(&[bytes, more].concat()), before);
            }
        }
    }
}
