//! What people have already told other programs: names and passwords for registries, in the files of docker and podman.

use std::{collections::BTreeMap, env, fs, path::PathBuf};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;

/// What is known for one registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A name and a password.
    Password(String, String),
    /// A token that is exchanged for others.
    Identity(String),
}

impl Credentials {
    /// Who that is, for messages.
    pub fn who(&self) -> String {
        match self {
            Self::Password(name, _) => format!("`{name}`"),
            Self::Identity(_) => "the one who is logged in".into(),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Written {
    auths: BTreeMap<String, Auth>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// What is known for a registry (and for the repository in it, which podman can tell apart).
pub fn find(registry: &str, repository: &str) -> Option<Credentials> {
    files().iter().find_map(|file| {
        let text = fs::read(file).ok()?;
        in_file(&text, registry, repository)
    })
}

/// Whether a program keeps passwords for the registry, which is not asked.
pub fn has_helper(registry: &str) -> bool {
    files().iter().filter_map(|file| serde_json::from_slice::<Written>(&fs::read(file).ok()?).ok()).any(|written| {
        written.creds_store.is_some_and(|store| !store.is_empty()) || written.cred_helpers.contains_key(registry)
    })
}

/// In the order in which podman looks, docker's last.
fn files() -> Vec<PathBuf> {
    let folder = |variable: &str| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = folder("HOME");
    let candidates = [
        folder("REGISTRY_AUTH_FILE"),
        folder("DOCKER_CONFIG").map(|folder| folder.join("config.json")),
        folder("XDG_RUNTIME_DIR").map(|folder| folder.join("containers/auth.json")),
        folder("XDG_CONFIG_HOME").map(|folder| folder.join("containers/auth.json")),
        home.as_ref().map(|home| home.join(".config/containers/auth.json")),
        home.as_ref().map(|home| home.join(".docker/config.json")),
    ];
    candidates.into_iter().flatten().collect()
}

fn in_file(text: &[u8], registry: &str, repository: &str) -> Option<Credentials> {
    let written: Written = serde_json::from_slice(text).ok()?;
    let mut names: Vec<String> = Vec::new();
    // The longest name that fits wins.
    let mut path = format!("{registry}/{repository}");
    while let Some((shorter, _)) = path.clone().rsplit_once('/') {
        names.push(path);
        path = shorter.to_owned();
    }
    names.push(registry.to_owned());
    if registry == "docker.io" {
        names.extend(["https://index.docker.io/v1/", "index.docker.io", "registry-1.docker.io"].map(String::from));
    }
    names.extend([format!("https://{registry}"), format!("https://{registry}/v2/"), format!("http://{registry}")]);
    names.iter().find_map(|name| written.auths.get(name).and_then(Auth::credentials))
}

impl Auth {
    fn credentials(&self) -> Option<Credentials> {
        if let Some(token) = self.identitytoken.clone().filter(|token| !token.is_empty()) {
            return Some(Credentials::Identity(token));
        }
        if let (Some(name), Some(password)) = (&self.username, &self.password) {
            return Some(Credentials::Password(name.clone(), password.clone()));
        }
        let bytes = BASE64_STANDARD.decode(self.auth.as_ref()?.trim()).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (name, password) = text.trim_end_matches('\0').split_once(':')?;
        Some(Credentials::Password(name.to_owned(), password.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_nearest_name_wins() {
        let encoded = |text: &str| BASE64_STANDARD.encode(text);
        let file = serde_json::json!({"auths": {
            "https://index.docker.io/v1/": {"auth": encoded("hub:p:w")},
            "localhost:5000": {"auth": encoded("me:secret")},
            "localhost:5000/team": {"username": "team", "password": "x"},
            "id.example": {"identitytoken": "token", "auth": encoded("a:b")},
            "empty.example": {},
        }})
        .to_string();
        let who = |registry: &str, repository: &str| match in_file(file.as_bytes(), registry, repository) {
            Some(Credentials::Password(name, password)) => format!("{name}/{password}"),
            Some(Credentials::Identity(token)) => token,
            None => "nobody".into(),
        };
        assert_eq!(who("docker.io", "library/debian"), "hub/p:w");
        assert_eq!(who("localhost:5000", "other/x"), "me/secret");
        assert_eq!(who("localhost:5000", "team/x"), "team/x");
        assert_eq!(who("id.example", "x"), "token");
        assert_eq!(who("empty.example", "x"), "nobody");
        assert_eq!(who("localhost", "x"), "nobody");
        assert!(in_file(b"{", "a", "b").is_none());
    }
}
