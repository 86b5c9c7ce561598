//! What a registry wants to know before it answers, and the answer to that: a password, or a token that another server
//! gives for one.

use base64::{Engine, prelude::BASE64_STANDARD};
use hyper::{Method, Request, StatusCode, header};
use serde::Deserialize;
use url::Url;

use super::{
    credentials::Credentials,
    http::{Body, Client, host_of},
    onward::{self, Peer},
};
use crate::ImageError;

/// No longer answer of a token server is read.
const LONGEST: u64 = 256 << 10;

/// What was asked.
#[derive(Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A name and a password.
    Basic,
    /// A token from this server.
    Bearer {
        /// Who gives it.
        realm: String,
        /// For whom.
        service: Option<String>,
        /// For what.
        scope: Option<String>,
    },
}

impl Challenge {
    /// Reads a `WWW-Authenticate` header. Tokens are preferred.
    pub fn parse(headers: &[&str]) -> Option<Self> {
        let challenges: Vec<Self> = headers.iter().filter_map(|text| one(text)).collect();
        let bearer = |challenge: &Self| matches!(challenge, Self::Bearer { .. });
        let at = challenges.iter().position(bearer).unwrap_or(0);
        challenges.into_iter().nth(at)
    }
}

fn one(text: &str) -> Option<Challenge> {
    let (scheme, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameters = parameters(rest);
    let get = |name: &str| parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, v)| v.clone());
    Some(Challenge::Bearer { realm: get("realm")?, service: get("service"), scope: get("scope") })
}

/// `key="value", key=value`; a comma may stand between quotes.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start_matches([' ', ',']);
    while let Some((key, after)) = rest.split_once('=') {
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((key.trim().to_owned(), value.trim().to_owned()));
        rest = next.trim_start_matches([' ', ',']);
    }
    found
}

#[derive(Deserialize)]
struct Answer {
    token: Option<String>,
    access_token: Option<String>,
}

/// The value of an `Authorization` header that answers a challenge, if there is one.
pub async fn answer(
    client: &Client,
    registry: (&Url, Peer),
    challenge: &Challenge,
    credentials: Option<&Credentials>,
    repository: &str,
) -> Result<Option<String>, ImageError> {
    match (challenge, credentials) {
        (Challenge::Basic, Some(Credentials::Password(name, password))) => Ok(Some(basic(name, password))),
        (Challenge::Basic, _) => Ok(None),
        (Challenge::Bearer { realm, service, scope }, credentials) => {
            let scope = scope.clone().unwrap_or_else(|| format!("repository:{repository}:pull"));
            let mut asked: Vec<(&str, String)> = vec![("scope", scope)];
            asked.extend(service.clone().map(|service| ("service", service)));
            token(client, registry, realm, asked, credentials).await
        }
    }
}

fn basic(name: &str, password: &str) -> String {
    format!("Basic {}", BASE64_STANDARD.encode(format!("{name}:{password}")))
}

async fn token(
    client: &Client,
    (registry, peer): (&Url, Peer),
    realm: &str,
    mut asked: Vec<(&str, String)>,
    credentials: Option<&Credentials>,
) -> Result<Option<String>, ImageError> {
    let strange = |why: String| ImageError::Answer { registry: format!("the token server {realm}"), why };
    let mut url = Url::parse(realm).map_err(|error| strange(error.to_string()))?;
    // The registry chose it, and a password goes there.
    let refused = |why| ImageError::Answer {
        registry: host_of(registry),
        why: format!("that tokens are given at {why}; nobody is asked there"),
    };
    let reach = onward::allowed(registry, peer, &url).map_err(refused)?;
    let request = Request::builder();
    let request = match credentials {
        Some(Credentials::Identity(identity)) => {
            asked.extend([("grant_type", "refresh_token".to_owned()), ("client_id", "sandbox-mcp".to_owned())]);
            asked.push(("refresh_token", identity.clone()));
            let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(&asked).finish();
            let request =
                request.method(Method::POST).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
            request.body(Body::from(form))
        }
        other => {
            url.query_pairs_mut().extend_pairs(&asked);
            let request = match other {
                Some(Credentials::Password(name, password)) => {
                    request.header(header::AUTHORIZATION, basic(name, password))
                }
                _ => request,
            };
            request.body(Body::default())
        }
    };
    let request = request.map_err(|error| strange(error.to_string()))?;
    let response = client.send(&url, reach, request).await?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Ok(None),
        other => return Err(strange(format!("{other}"))),
    }
    let bytes = client.read(&url, response, LONGEST).await?;
    let answer: Answer = serde_json::from_slice(&bytes).map_err(|error| strange(error.to_string()))?;
    Ok(answer.token.or(answer.access_token).map(|token| format!("Bearer {token}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_understood() {
        let bearer = Challenge::parse(&[
            "Basic realm=\"x\"",
            "bearer realm=\"https://auth.example/token\",service=\"a, b\",scope=\"repository:x/y:pull,push\"",
        ]);
        let expected = Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: Some("a, b".into()),
            scope: Some("repository:x/y:pull,push".into()),
        };
        assert_eq!(bearer, Some(expected));
        assert_eq!(Challenge::parse(&["Basic realm=x"]), Some(Challenge::Basic));
        assert_eq!(Challenge::parse(&["Negotiate", "Bearer service=x"]), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text: String) {
            let _ = Challenge::parse(&[&text, &format!("Bearer {text}")]);
        }
    }
}
