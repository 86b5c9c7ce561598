//! What this user's Docker knows for a registry: `~/.docker/config.json`, and the helpers that it names.

use std::{
    collections::BTreeMap,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use bollard::auth::DockerCredentials;
use serde::Deserialize;

/// Docker's own registry has another name in that file.
const DOCKER_IO: &str = "https://index.docker.io/v1/";

#[derive(Default, Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: Option<String>,
}

#[derive(Default, Deserialize)]
struct Entry {
    #[serde(default)]
    auth: Option<String>,
    #[serde(default)]
    identitytoken: Option<String>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Username")]
    name: String,
    #[serde(rename = "Secret")]
    secret: String,
}

/// What is known for this registry, if anything is.
pub fn of(registry: &str) -> Option<DockerCredentials> {
    let config: Config = serde_json::from_slice(&std::fs::read(path()?).ok()?).ok()?;
    in_config(&config, registry, ask)
}

fn path() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os("DOCKER_CONFIG") {
        return Some(Path::new(&folder).join("config.json"));
    }
    Some(Path::new(&std::env::var_os("HOME")?).join(".docker/config.json"))
}

fn in_config(
    config: &Config,
    registry: &str,
    ask: impl Fn(&str, &str) -> Option<(String, String)>,
) -> Option<DockerCredentials> {
    let key = if registry == "docker.io" { DOCKER_IO } else { registry };
    let helper = config.helpers.get(key).or_else(|| config.helpers.get(registry)).or(config.store.as_ref());
    if let Some((name, secret)) = helper.and_then(|helper| ask(helper, key)) {
        // That name says that the secret is a token.
        let token = name == "<token>";
        return Some(DockerCredentials {
            identitytoken: token.then(|| secret.clone()),
            password: (!token).then_some(secret),
            username: (!token).then_some(name),
            serveraddress: Some(key.to_owned()),
            ..DockerCredentials::default()
        });
    }
    let found = config.auths.iter().find(|(name, _)| *name == key || plain(name) == registry)?.1;
    let decoded = found.auth.as_ref().and_then(|auth| String::from_utf8(STANDARD.decode(auth.trim()).ok()?).ok());
    let pair = decoded.as_ref().and_then(|text| text.split_once(':'));
    if pair.is_none() && found.identitytoken.is_none() {
        return None;
    }
    Some(DockerCredentials {
        username: pair.map(|(name, _)| name.to_owned()),
        password: pair.map(|(_, secret)| secret.trim_end_matches('\0').to_owned()),
        identitytoken: found.identitytoken.clone(),
        serveraddress: Some(key.to_owned()),
        ..DockerCredentials::default()
    })
}

/// Without the scheme and what comes after the host.
fn plain(name: &str) -> &str {
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    name.split('/').next().unwrap_or(name)
}

/// A helper is a program that is named by the operator's own file.
fn ask(helper: &str, registry: &str) -> Option<(String, String)> {
    if !helper.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.')) {
        return None;
    }
    let mut command = Command::new(format!("docker-credential-{helper}"));
    let mut child =
        command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    child.stdin.take()?.write_all(registry.as_bytes()).ok()?;
    let answer = child.wait_with_output().ok().filter(|output| output.status.success())?;
    let answer: Answer = serde_json::from_slice(&answer.stdout).ok()?;
    Some((answer.name, answer.secret))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn known(config: &str, registry: &str) -> Option<(Option<String>, Option<String>, Option<String>)> {
        let ask = |helper: &str, key: &str| match helper {
            "vault" => Some((format!("of {key}"), "held".to_owned())),
            "tokens" => Some(("<token>".to_owned(), "abc".to_owned())),
            _ => None,
        };
        let found = in_config(&serde_json::from_str(config).unwrap(), registry, ask)?;
        Some((found.username, found.password, found.identitytoken))
    }

    #[test]
    fn a_name_and_a_password_are_found_by_registry() {
        let config = r#"{"auths": {"localhost:5000": {"auth": "YW5uOnM6M2NyZXQ="},
            "https://index.docker.io/v1/": {"auth": "Ym9iOng="}, "quay.io": {}}}"#;
        let pair = |name: &str, secret: &str| Some((Some(name.to_owned()), Some(secret.to_owned()), None));
        assert_eq!(known(config, "localhost:5000"), pair("ann", "s:3cret"));
        assert_eq!(known(config, "docker.io"), pair("bob", "x"));
        assert_eq!(known(config, "quay.io"), None);
        assert_eq!(known(config, "other.example"), None);
    }

    #[test]
    fn helpers_are_asked_first() {
        let config = r#"{"auths": {"a.example": {"auth": "YW5uOng="}}, "credHelpers": {"a.example": "vault"},
            "credsStore": "tokens"}"#;
        assert_eq!(known(config, "a.example").unwrap().0.unwrap(), "of a.example");
        assert_eq!(known(config, "b.example"), Some((None, None, Some("abc".to_owned()))));
    }
}
