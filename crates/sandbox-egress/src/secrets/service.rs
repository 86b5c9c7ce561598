//! Services: model endpoints and the like, reached inside by an address on loopback, outside by their real one with a secret.
//!
//! `http://127.0.0.1:3128/services/NAME/v1/messages` becomes the base address of NAME with `/v1/messages` after it. The policy's
//! rules have no say in it: the operator who names a service means it to be reached.

use std::{str::FromStr, sync::Arc};

use hyper::{
    Request, Response, StatusCode, Uri,
    body::Incoming,
    header::{self, HeaderMap},
};

use super::{
    PlainHttp, SecretsError,
    secret::{Held, is_name},
    written::percent_decoded,
};
use crate::{
    Effect, Engine, Host, Network, Pattern, Protocol, Reach, Reason, Rule, Rules, Target, TargetError,
    places::Place,
    proxy::{self, Body},
    reach,
    tunnel::Errand,
};

/// Where services are, on our own listener.
const PREFIX: &str = "/services/";

/// Something that is reached by an address on loopback.
#[derive(Clone, Debug)]
pub struct Service {
    /// What it is called, in the address too.
    pub name: String,
    /// Where it really is.
    pub upstream: Upstream,
    /// The name of the secret that it takes.
    pub secret: String,
    /// Where its name may lead; none means to public addresses.
    pub within: Vec<Network>,
}

/// The base address of a service, such as `https://api.example.com/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// How it is spoken to.
    pub scheme: Scheme,
    /// Who it is.
    pub target: Target,
    /// What stands before every path, without a slash at its end.
    pub path: String,
}

/// How a service is spoken to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Scheme {
    Https,
    Http,
}

/// What is no base address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpstreamError {
    /// Not an address, or more than one.
    #[error("`{0}` is no base address: write one such as https://api.example.com/v1, without user, query or fragment")]
    Address(String),
    /// Nobody there.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// A service that was checked.
pub(crate) struct Serving {
    pub(crate) service: Service,
    /// The number of its secret.
    pub(crate) secret: usize,
    /// Allows it and nothing else.
    rules: Rules,
}

impl FromStr for Upstream {
    type Err = UpstreamError;

    fn from_str(text: &str) -> Result<Self, UpstreamError> {
        let wrong = || UpstreamError::Address(text.to_owned());
        let address = url::Url::parse(text).map_err(|_| wrong())?;
        let scheme = match address.scheme() {
            "https" => Scheme::Https,
            "http" => Scheme::Http,
            _ => return Err(wrong()),
        };
        let more = address.query().is_some() || address.fragment().is_some();
        if more || !address.username().is_empty() || address.password().is_some() {
            return Err(wrong());
        }
        let host: Host = address.host_str().ok_or_else(wrong)?.parse().map_err(TargetError::Host)?;
        let port = address.port_or_known_default().filter(|&port| port != 0).ok_or_else(wrong)?;
        let path = address.path().trim_end_matches('/').to_owned();
        Ok(Self { scheme, target: Target::tcp(host, port), path })
    }
}

impl Serving {
    pub(crate) fn new(service: Service, held: &[Held]) -> Result<Self, SecretsError> {
        let Service { name, upstream, secret, within } = &service;
        if !is_name(name) {
            return Err(SecretsError::Name(name.clone()));
        }
        let missing = || SecretsError::NoSecret { service: name.clone(), secret: secret.clone() };
        let number = held.iter().position(|held| held.secret.name == *secret).ok_or_else(missing)?;
        if upstream.scheme == Scheme::Http && held[number].secret.plain_http == PlainHttp::Refused {
            return Err(SecretsError::Plain(name.clone()));
        }
        let pattern: Pattern =
            upstream.target.host.to_string().parse().map_err(|_| SecretsError::Name(name.clone()))?;
        let rule = Rule {
            name: format!("service {name}"),
            effect: Effect::Allow,
            hosts: vec![pattern],
            ports: vec![upstream.target.port..=upstream.target.port],
            protocol: Protocol::Tcp,
            within: within.clone(),
        };
        Ok(Self { secret: number, rules: Rules(vec![rule]), service })
    }

    /// Where it is on our own listener.
    pub(crate) fn path(&self) -> String {
        format!("{PREFIX}{}", self.service.name)
    }
}

/// Whether a request is for a service of ours, and not for a proxy.
pub(crate) fn is_meant(request: &Request<Incoming>) -> bool {
    request.uri().authority().is_none() && request.uri().path().starts_with(PREFIX)
}

impl Engine {
    /// Passes a request on to a service.
    pub(crate) async fn serve_service(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        place: Arc<Place>,
    ) -> Response<Body> {
        // A page of somebody else whose name leads to loopback names itself here.
        if !is_own(request.headers()) {
            let words = "Services are for programs of this sandbox, by an address such as http://127.0.0.1:3128/services/NAME.\n";
            return self.no_service(StatusCode::FORBIDDEN, Reason::HttpOtherHost, words);
        }
        let Some((number, address)) = self.service_address(request.uri()) else {
            let words = format!("There is no service at {}.\n", request.uri().path());
            return self.no_service(StatusCode::NOT_FOUND, Reason::NotARequest, &words);
        };
        *request.uri_mut() = address;
        let Some(serving) = self.secrets().serving(number) else {
            return self.no_service(StatusCode::NOT_FOUND, Reason::NotARequest, "There is no such service.\n");
        };
        let target = serving.service.upstream.target.clone();
        match self.open_by(&serving.rules, target.clone()).await {
            Ok(opened) => self.fetch(request, &target, opened, Errand::Service(number), place).await,
            Err(refusal) => self.denied(&target, &refusal),
        }
    }

    fn no_service(&self, status: StatusCode, reason: Reason, words: &str) -> Response<Body> {
        self.record_refusal("a service", reason);
        proxy::page(status, reason, words)
    }

    /// Which service is meant, and what is asked of it.
    fn service_address(&self, uri: &Uri) -> Option<(usize, Uri)> {
        let rest = uri.path().strip_prefix(PREFIX)?;
        let (name, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (number, serving) = self.secrets().serving_called(name)?;
        let steps_out =
            percent_decoded(path).split(|byte| b"/\\".contains(byte)).any(|part| part == b".." || part == b".");
        if steps_out {
            return None;
        }
        let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let base = &serving.service.upstream.path;
        let slash = if base.is_empty() && path.is_empty() { "/" } else { "" };
        Some((number, format!("{base}{path}{slash}{query}").parse().ok()?))
    }
}

/// Whether whoever asks has asked for us, and is no page of somebody else.
pub(crate) fn is_own(headers: &HeaderMap) -> bool {
    let hosts = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let origins = headers.get_all(header::ORIGIN).iter().map(|origin| {
        let origin = origin.to_str().unwrap_or_default();
        origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")).unwrap_or(origin)
    });
    headers.get_all(header::HOST).iter().count() == 1 && hosts.chain(origins).all(is_loopback)
}

fn is_loopback(authority: &str) -> bool {
    match Target::from_authority(authority, Some(80)).map(|target| target.host) {
        Ok(Host::Address(address)) => reach(address) == Reach::Loopback,
        Ok(Host::Name(name)) => name.as_str() == "localhost",
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_addresses_are_read_one_way_only() {
        for (text, scheme, target, path) in [
            ("https://api.example.com", Scheme::Https, "api.example.com:443", ""),
            ("https://API.example.com:8443/v1/", Scheme::Https, "api.example.com:8443", "/v1"),
            ("http://127.0.0.1:11434/a/b", Scheme::Http, "127.0.0.1:11434", "/a/b"),
            ("http://[::1]", Scheme::Http, "[::1]:80", ""),
        ] {
            let read: Upstream = text.parse().expect(text);
            assert_eq!((read.scheme, read.target.to_string().as_str(), read.path.as_str()), (scheme, target, path));
        }
        for wrong in
            ["api.example.com", "ftp://a", "https://u:p@a", "https://a?x", "https://a#x", "https://", "https://a:0"]
        {
            assert!(wrong.parse::<Upstream>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_who_asks_for_loopback_asks_for_us() {
        for (authority, own) in [
            ("127.0.0.1:3128", true),
            ("127.0.0.1", true),
            ("localhost:3128", true),
            ("[::1]:3128", true),
            ("evil.example:3128", false),
            ("localhost.evil.example", false),
            ("10.0.0.1", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(is_loopback(authority), own, "{authority}");
        }
    }
}
