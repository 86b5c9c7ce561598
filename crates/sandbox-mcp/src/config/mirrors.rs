//! Places of the user's own that packages come from: named in the settings, or found where this machine's package managers
//! are told of them. Sandboxes whose policy reaches package registries reach these too, and pip and npm inside are told.
//!
//! What is found by itself leads to public addresses only; who means a private network says so in the settings. Addresses with
//! anything in them that could be a password are not told to anybody inside.

use std::{collections::BTreeMap, fs, path::Path};

use configparser::ini::Ini;
use sandbox_egress::{Host, Mirror, Network, Pattern, Reach, reach};
use url::Url;

/// Where a mirror that the settings name may lead: also into a company's network.
const WITHIN: [&str; 7] =
    ["0.0.0.0/0", "::/0", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];

/// The user's own places for packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mirrors {
    /// What may be reached.
    pub places: Vec<Mirror>,
    /// What package managers inside are told.
    pub variables: BTreeMap<String, String>,
}

impl Mirrors {
    /// Those of the settings, and those that the clients of this machine know.
    pub fn find(said: &[Url]) -> Self {
        let home = std::env::var_os("HOME").unwrap_or_default();
        Self::found(said, Path::new("/etc"), Path::new(&home), |name| std::env::var(name).ok())
    }

    fn found(said: &[Url], etc: &Path, home: &Path, variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut mirrors = Self::default();
        let within: Vec<Network> = WITHIN.iter().filter_map(|block| block.parse().ok()).collect();
        said.iter().for_each(|url| mirrors.add(url, &within));
        let pip = pip(etc, home, &variable);
        let npm = npm(etc, home, &variable);
        for (name, url) in [("PIP_INDEX_URL", &pip), ("NPM_CONFIG_REGISTRY", &npm)] {
            let Some(text) = url else { continue };
            let Some(url) = address(text) else { continue };
            mirrors.add(&url, &[]);
            if is_elsewhere(&url) && holds_no_password(text) {
                mirrors.variables.insert(name.to_owned(), url.to_string());
            }
        }
        let others = cargo(home).into_iter().chain(apt(etc)).chain(variable("GOPROXY"));
        others.filter_map(|text| address(&text)).for_each(|url| mirrors.add(&url, &[]));
        mirrors
    }

    fn add(&mut self, url: &Url, within: &[Network]) {
        let host = url.host_str().and_then(|host| host.parse::<Pattern>().ok());
        let (Some(host), Some(port), true) = (host, url.port_or_known_default(), is_elsewhere(url)) else { return };
        let mirror = Mirror { host, port, within: within.to_vec() };
        // What the settings say comes first, and counts.
        if !self.places.iter().any(|known| (&known.host, known.port) == (&mirror.host, mirror.port)) {
            self.places.push(mirror);
        }
    }
}

/// An address without the name and password that may be in it.
pub fn address(text: &str) -> Option<Url> {
    let text = text.trim().trim_start_matches("sparse+");
    let mut url = Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    url.set_username("").ok()?;
    url.set_password(None).ok()?;
    Some(url)
}

/// Some have a token in the path; words that people read are shorter.
fn holds_no_password(text: &str) -> bool {
    let Ok(url) = Url::parse(text.trim()) else { return false };
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    plain && url.fragment().is_none() && url.path().split('/').all(|part| part.len() <= 20)
}

/// Inside, this machine's loopback is the sandbox's own; and nobody keeps packages at an address that is not for use.
fn is_elsewhere(url: &Url) -> bool {
    let Ok(host) = url.host_str().unwrap_or_default().parse::<Host>() else { return false };
    match host {
        Host::Name(name) => name.as_str() != "localhost" && !name.as_str().ends_with(".localhost"),
        Host::Address(address) => matches!(reach(address), Reach::Public | Reach::Private),
    }
}

fn pip(etc: &Path, home: &Path, variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let files = [home.join(".config/pip/pip.conf"), home.join(".pip/pip.conf"), etc.join("pip.conf")];
    let in_file = |file: &Path| read_ini(file)?.get("global", "index-url");
    variable("PIP_INDEX_URL").or_else(|| files.iter().find_map(|file| in_file(file)))
}

fn npm(etc: &Path, home: &Path, variable: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let files = [home.join(".npmrc"), etc.join("npmrc")];
    let said = variable("NPM_CONFIG_REGISTRY").or_else(|| variable("npm_config_registry"));
    said.or_else(|| files.iter().find_map(|file| read_ini(file)?.get("default", "registry")))
}

fn read_ini(file: &Path) -> Option<Ini> {
    let mut ini = Ini::new();
    ini.read(fs::read_to_string(file).ok()?).ok()?;
    Some(ini)
}

/// Sources that replace the usual one, and registries beside it.
fn cargo(home: &Path) -> Vec<String> {
    let text = fs::read_to_string(home.join(".cargo/config.toml")).unwrap_or_default();
    let table: toml::Table = text.parse().unwrap_or_default();
    let entries =
        |name: &str| table.get(name).and_then(toml::Value::as_table).into_iter().flat_map(|table| table.values());
    let said = entries("source").filter_map(|entry| entry.get("registry"));
    let said = said.chain(entries("registries").filter_map(|entry| entry.get("index")));
    said.filter_map(toml::Value::as_str).map(str::to_owned).collect()
}

/// Both forms: lines of words, and fields. In either an address is a word.
fn apt(etc: &Path) -> Vec<String> {
    let folder = fs::read_dir(etc.join("apt/sources.list.d")).into_iter().flatten().flatten().map(|entry| entry.path());
    let files = folder.chain([etc.join("apt/sources.list")]);
    let texts = files.filter_map(|file| fs::read_to_string(file).ok()).collect::<Vec<_>>();
    let lines = texts.iter().flat_map(|text| text.lines()).filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(str::split_whitespace).filter(|word| word.starts_with("http")).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors_are_found_where_package_managers_are_told_of_them() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let (etc, home) = (folder.path().join("etc"), folder.path().join("home"));
        for (file, text) in [
            (
                "etc/apt/sources.list",
                "# deb http://no.example/ x\ndeb [a=b] http://apt.corp.example/debian stable main\n",
            ),
            ("etc/apt/sources.list.d/x.sources", "Types: deb\nURIs: https://fields.corp.example/x\nSuites: stable\n"),
            ("home/.config/pip/pip.conf", "[global]\nindex-url = https://ann:secret@pypi.corp.example:8443/simple\n"),
            ("home/.npmrc", "//npm.corp.example/:_authToken=secret\nregistry=https://npm.corp.example/\n"),
            (
                "home/.cargo/config.toml",
                "[source.mine]\nregistry = \"sparse+https://crates.corp.example/index/\"\n[registries.x]\nindex = \"http://127.0.0.1:3000/\"\n",
            ),
        ] {
            let path = folder.path().join(file);
            path.parent().map(fs::create_dir_all).transpose().unwrap_or_else(|error| panic!("{error}"));
            fs::write(path, text).unwrap_or_else(|error| panic!("{error}"));
        }
        let said = address("http://packages.corp.example:8081/x").into_iter().collect::<Vec<_>>();
        let mirrors = Mirrors::found(&said, &etc, &home, |_| None);
        let mut places: Vec<String> =
            mirrors.places.iter().map(|mirror| format!("{}:{}", mirror.host, mirror.port)).collect();
        places.sort();
        assert_eq!(
            places,
            [
                "apt.corp.example:80",
                "crates.corp.example:443",
                "fields.corp.example:443",
                "npm.corp.example:443",
                "packages.corp.example:8081",
                "pypi.corp.example:8443"
            ]
        );
        assert!(!mirrors.variables.contains_key("PIP_INDEX_URL"), "a password was in it");
        assert_eq!(mirrors.variables["NPM_CONFIG_REGISTRY"], "https://npm.corp.example/");
        let inside: Vec<String> = mirrors
            .places
            .iter()
            .filter(|mirror| !mirror.within.is_empty())
            .map(|mirror| mirror.host.to_string())
            .collect();
        assert_eq!(inside, ["packages.corp.example"], "only what the settings name may be in a private network");
        assert!(!format!("{mirrors:?}").contains("secret"));
        let said = |name: &str| (name == "PIP_INDEX_URL").then(|| "https://other.example/simple".to_owned());
        let nowhere = Path::new("/nowhere");
        let mirrors = Mirrors::found(&[], nowhere, nowhere, said);
        assert_eq!(
            (mirrors.places.len(), mirrors.variables["PIP_INDEX_URL"].as_str()),
            (1, "https://other.example/simple")
        );
        for wrong in [
            "http://0.0.0.0:1/",
            "http://[::ffff:127.0.0.1]:1/",
            "http://169.254.1.1/",
            "http://localhost/",
            "http://[::]/",
            "http://127.1/",
        ] {
            let said = |name: &str| (name == "PIP_INDEX_URL").then(|| wrong.to_owned());
            assert_eq!(Mirrors::found(&[], nowhere, nowhere, said), Mirrors::default(), "{wrong}");
        }
        assert!(!holds_no_password("https://dl.example.com/abcdefghijklmnopqrstuvwxyz0123/simple"));
    }
}
