//! Where a registry answers: its own address, and those of its mirrors, which are asked first.

use sandbox_core::Reference;
use url::Url;

use super::{Registries, is_loopback};
use crate::ImageError;

/// Where the registry of images without one answers.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// One address that answers for a registry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Everything before `/v2/`, without a slash at its end.
    pub base: String,
    /// The name under which people log in there.
    pub registry: String,
}

impl Endpoint {
    /// All that may have this image, in the order in which they are asked.
    pub fn all(image: &Reference, registries: &Registries) -> Result<Vec<Self>, ImageError> {
        let registry = image.registry();
        let mut endpoints = Vec::new();
        // Some know it by where it answers.
        let other = (registry == DOCKER.0).then(|| registries.mirrors.get(DOCKER.1)).flatten();
        for mirror in registries.mirrors.get(registry).into_iter().chain(other).flatten() {
            endpoints.push(Self::mirror(mirror, registries)?);
        }
        endpoints.push(Self::own(registry, registries));
        Ok(endpoints)
    }

    fn own(registry: &str, registries: &Registries) -> Self {
        let host = if registry == DOCKER.0 { DOCKER.1 } else { registry };
        let (name, port) = split(host);
        // Of this machine's own registries some speak TLS. That is tried first; see `http`.
        let scheme = if registries.is_insecure(name, port.unwrap_or(443)) { "http" } else { "https" };
        Self { base: format!("{scheme}://{host}"), registry: registry.to_owned() }
    }

    fn mirror(text: &str, registries: &Registries) -> Result<Self, ImageError> {
        let bad =
            |why: &str| ImageError::NoSource(format!("the mirror `{text}` in the settings cannot be used: {why}"));
        let url = Url::parse(text).map_err(|error| bad(&error.to_string()))?;
        let host = url.host_str().ok_or_else(|| bad("it names no host"))?;
        let port = url.port_or_known_default().unwrap_or(443);
        match url.scheme() {
            "https" => {}
            "http" if registries.is_insecure(host, port) => {}
            "http" => return Err(bad("it has no TLS, and is not listed in `insecure_registries`")),
            _ => return Err(bad("it is no http address")),
        }
        let registry = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        Ok(Self { base: text.trim_end_matches('/').to_owned(), registry })
    }

    /// Something of a repository there.
    pub fn url(&self, repository: &str, kind: &str, which: &str) -> Result<Url, ImageError> {
        let text = format!("{}/v2/{repository}/{kind}/{which}", self.base);
        Url::parse(&text).map_err(|error| ImageError::NoSource(format!("{text} is no address: {error}")))
    }

    /// The same over TLS, where a registry of this machine may have it.
    pub fn with_tls(&self) -> Option<Self> {
        let rest = self.base.strip_prefix("http://")?;
        let host = rest.split('/').next().unwrap_or_default();
        is_loopback(split(host).0).then(|| Self { base: format!("https://{rest}"), registry: self.registry.clone() })
    }
}

/// Host and port.
fn split(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.ends_with(']') => (name, port.parse().ok()),
        _ => (host, None),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn bases(image: &str, registries: &Registries) -> Vec<String> {
        let endpoints = Endpoint::all(&image.parse().unwrap(), registries).unwrap();
        endpoints.into_iter().map(|endpoint| endpoint.base).collect()
    }

    #[test]
    fn only_this_machine_and_who_is_listed_does_without_tls() {
        let mut registries = Registries { insecure: vec!["plain.example:5000".into()], ..Registries::default() };
        for (image, base) in [
            ("debian", "https://registry-1.docker.io"),
            ("quay.io/x/y", "https://quay.io"),
            ("localhost:5000/x", "http://localhost:5000"),
            ("127.0.0.1:5000/x", "http://127.0.0.1:5000"),
            ("127.0.0.1.example.com/x", "https://127.0.0.1.example.com"),
            ("localhost.example.com:80/x", "https://localhost.example.com:80"),
            ("plain.example:5000/x", "http://plain.example:5000"),
            ("plain.example:5001/x", "https://plain.example:5001"),
        ] {
            assert_eq!(bases(image, &registries), [base], "{image}");
        }
        registries.mirrors.insert("docker.io".into(), vec!["https://mirror.example/hub/".into()]);
        assert_eq!(bases("debian", &registries), ["https://mirror.example/hub", "https://registry-1.docker.io"]);
        assert_eq!(bases("quay.io/x", &registries), ["https://quay.io"]);
        registries.mirrors.insert("quay.io".into(), vec!["http://mirror.example".into()]);
        let refused = Endpoint::all(&"quay.io/x".parse().unwrap(), &registries).unwrap_err().to_string();
        assert!(refused.contains("insecure_registries"), "{refused}");
    }
}
