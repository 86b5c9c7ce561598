//! What is answered where nothing from inside is: what happened, why, and what to do next.

use http_body_util::{Either, Full};
use hyper::{
    Response, StatusCode,
    body::{Bytes, Incoming},
    header::{CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};

/// An answer's content: from inside, or ours.
pub(super) type Body = Either<Incoming, Full<Bytes>>;

/// How often the page asks again while nobody listens, in seconds.
const AGAIN: &str = "2";

/// In which form a client wants to read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Html,
    Text,
}

/// A request that does not name this preview. Says nothing that helps to guess the name.
pub(super) fn misdirected() -> Response<Body> {
    let words = "This is a preview of a sandbox. It answers only under its own whole address, as open_port or \
                 `sandbox-mcp open` told it. Use that address; if it is lost, open the port again.\n";
    let mut answer = plain(StatusCode::MISDIRECTED_REQUEST, words);
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// A method that makes no sense here.
pub(super) fn no_tunnel() -> Response<Body> {
    plain(StatusCode::METHOD_NOT_ALLOWED, "A preview is no proxy: CONNECT leads nowhere.\n")
}

/// The port could not be reached, or what answered made no sense. The words may come from inside.
pub(super) fn failed(words: &str) -> Response<Body> {
    plain(StatusCode::BAD_GATEWAY, &format!("The sandbox gave no answer: {words}.\n"))
}

/// Nobody listens on the port yet. A browser asks again by itself.
pub(super) fn nobody_listens(port: u16, form: Form) -> Response<Body> {
    let what = format!("Nobody listens on port {port} in the sandbox yet");
    let why = "The program that should answer has not been started, is still starting, has ended, or listens on \
               another port";
    let next = format!("Start it inside, on 127.0.0.1 or 0.0.0.0 and port {port}");
    let mut answer = match form {
        Form::Text => plain(StatusCode::BAD_GATEWAY, &format!("{what}. {why}. {next}.\n")),
        Form::Html => html(&what, why, &next),
    };
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(AGAIN));
    answer
}

/// Nothing in it comes from inside, so nothing has to be made harmless.
fn html(what: &str, why: &str, next: &str) -> Response<Body> {
    let page = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta http-equiv=refresh content={AGAIN}>\
         <meta name=viewport content='width=device-width'><title>{what}</title>\
         <style>body{{font:1.1rem/1.6 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;\
         color:#222;background:#fff}}h1{{font-size:1.4rem}}\
         @media(prefers-color-scheme:dark){{body{{color:#ddd;background:#181818}}}}</style>\
         <h1>{what}</h1><p>{why}.<p>{next}. This page looks again every {AGAIN} seconds.</html>\n"
    );
    let mut answer = with(StatusCode::BAD_GATEWAY, "text/html; charset=utf-8", page);
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    answer
}

fn plain(status: StatusCode, words: &str) -> Response<Body> {
    with(status, "text/plain; charset=utf-8", words.to_owned())
}

fn with(status: StatusCode, kind: &'static str, content: String) -> Response<Body> {
    let mut answer = Response::new(Either::Right(Full::from(content)));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}
