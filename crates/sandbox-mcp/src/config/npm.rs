//! What npm of this machine is told about its registry: where it is, with which token, and whom to trust. Read as npm reads
//! it, from its files and variables; npm itself need not be there.

use std::{collections::BTreeMap, fs, path::Path};

use sandbox_egress::Value;
use url::Url;

/// Where packages come from if nobody says.
const USUAL: &str = "https://registry.npmjs.org/";

/// A registry of npm packages.
#[derive(Clone, Debug)]
pub struct NpmRegistry {
    /// Where it is.
    pub address: Url,
    /// What it wants to see before it gives anything away.
    pub token: Option<Value>,
    /// Authorities that sign its certificate, in PEM form.
    pub authorities: Option<String>,
}

impl NpmRegistry {
    /// The one that this user's npm uses.
    pub fn find() -> Result<Self, String> {
        let home = std::env::var_os("HOME").unwrap_or_default();
        Self::found(Path::new("/etc"), Path::new(&home), |name| std::env::var(name).ok())
    }

    fn found(etc: &Path, home: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut said = BTreeMap::new();
        for file in [etc.join("npmrc"), home.join(".npmrc")] {
            said.extend(read(&fs::read_to_string(file).unwrap_or_default(), &variable));
        }
        let setting = |key: &str| {
            let names = [format!("npm_config_{key}"), format!("NPM_CONFIG_{}", key.to_uppercase())];
            names.iter().find_map(|name| variable(name)).or_else(|| said.get(key).cloned())
        };
        let text = setting("registry").unwrap_or_else(|| USUAL.to_owned());
        let address = Url::parse(text.trim()).ok().filter(|url| matches!(url.scheme(), "https" | "http"));
        let mut address =
            address.ok_or("npm's setting `registry` is no address: `npm config get registry` shows it")?;
        let _ = (address.set_username(""), address.set_password(None));
        let authorities = match setting("cafile") {
            Some(file) => Some(
                fs::read_to_string(&file).map_err(|error| format!("npm's `cafile` {file} cannot be read: {error}"))?,
            ),
            None => None,
        };
        Ok(Self { token: token(&said, &address).map(Value::new), address, authorities })
    }
}

/// Tokens are said for an address and all beneath it: `//host/path/:_authToken=…`.
fn token(said: &BTreeMap<String, String>, address: &Url) -> Option<String> {
    let place = format!("//{}{}", &address[url::Position::BeforeHost..url::Position::AfterPort], address.path());
    let mut place = place.trim_end_matches('/');
    loop {
        if let Some(token) = said.get(&format!("{place}/:_authToken")).filter(|token| !token.is_empty()) {
            return Some(token.clone());
        }
        place = place.rsplit_once('/').map(|(above, _)| above).filter(|above| above.len() > 1)?;
    }
}

/// Lines of `key=value`; `${NAME}` stands for a variable.
fn read(text: &str, variable: &impl Fn(&str) -> Option<String>) -> BTreeMap<String, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
    let pairs = lines.filter_map(|line| line.split_once('='));
    let plain = |text: &str| text.trim().trim_matches('"').to_owned();
    pairs.map(|(key, value)| (plain(key), filled(&plain(value), variable))).collect()
}

fn filled(text: &str, variable: &impl Fn(&str) -> Option<String>) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let Some((name, end)) = after.split_once('}') else { break };
        out.push_str(before);
        out.push_str(&variable(name).unwrap_or_default());
        rest = end;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_registry_is_the_one_of_npm() {
        let folder = tempfile::tempdir().unwrap();
        let found = |text: &str, variable: &dyn Fn(&str) -> Option<String>| {
            fs::write(folder.path().join(".npmrc"), text).unwrap();
            NpmRegistry::found(Path::new("/nowhere"), folder.path(), variable)
        };
        let nothing = |_: &str| None;
        let usual = found("# registry=https://no.example/\nfund=false\n", &nothing).unwrap();
        assert_eq!((usual.address.as_str(), usual.token.is_some()), (USUAL, false));
        let own = "registry = \"https://npm.corp.example/team/npm/\"\n//npm.corp.example/team/:_authToken=${TOKEN}\n";
        let variable = |name: &str| (name == "TOKEN").then(|| "secret-token".to_owned());
        let own = found(own, &variable).unwrap();
        assert_eq!(own.address.as_str(), "https://npm.corp.example/team/npm/");
        assert!(own.token == Some(Value::new("secret-token")) && !format!("{own:?}").contains("secret-token"));
        let by_variable = |name: &str| (name == "npm_config_registry").then(|| "https://other.example".to_owned());
        assert_eq!(
            found("registry=https://x.example", &by_variable).unwrap().address.as_str(),
            "https://other.example/"
        );
        assert!(found("registry=ftp://x", &nothing).unwrap_err().contains("npm config get registry"));
        assert!(found("cafile=/nowhere/ca.pem", &nothing).unwrap_err().contains("/nowhere/ca.pem"));
    }
}
