//! Secrets and services as the settings file has them: what they are called, where their values come from, whom they are for,
//! and which sandboxes may use them. Values are read when a sandbox is made, never before.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use sandbox_core::Policy;
use sandbox_egress::{Network, Pattern, Placed, PlainHttp, Upstream, Usage, Value};
use serde::Deserialize;

/// One secret.
#[derive(Clone, Debug)]
pub struct SecretSetting {
    /// What it is called.
    pub name: String,
    /// Where its value comes from.
    pub source: SecretSource,
    /// Whom it is for.
    pub hosts: Vec<Pattern>,
    /// On which ports; none means all.
    pub ports: Vec<u16>,
    /// How it gets into requests.
    pub usage: Usage,
    /// The variable that holds its placeholder inside.
    pub variable: String,
    /// Where in a request its placeholder is replaced.
    pub placed: Placed,
    /// Whether it may be sent without TLS.
    pub plain_http: PlainHttp,
    policies: BTreeSet<String>,
}

/// Where the value of a secret comes from.
#[derive(Clone, Debug)]
pub enum SecretSource {
    /// The settings file itself.
    Value(Value),
    /// A variable of the server.
    Variable(String),
    /// A file.
    File(PathBuf),
    /// What a program prints.
    Command(Vec<String>),
}

/// An address on loopback inside that leads to a service, with a secret.
#[derive(Clone, Debug)]
pub struct ServiceSetting {
    /// What it is called.
    pub name: String,
    /// Where it really is.
    pub upstream: Upstream,
    /// The secret that it takes.
    pub secret: String,
    /// Variables that hold its address inside.
    pub variables: Vec<String>,
    /// Where its name may lead, if not to public addresses.
    pub within: Vec<Network>,
    policies: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSecret {
    value: Option<String>,
    env: Option<String>,
    file: Option<PathBuf>,
    command: Option<Vec<String>>,
    #[serde(default)]
    hosts: Vec<String>,
    #[serde(default)]
    ports: Vec<u16>,
    header: Option<String>,
    variable: Option<String>,
    #[serde(default)]
    anywhere: bool,
    #[serde(default)]
    plain_http: bool,
    policies: BTreeSet<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenService {
    url: String,
    secret: String,
    #[serde(default)]
    variables: Vec<String>,
    #[serde(default)]
    within: Vec<String>,
    policies: BTreeSet<String>,
}

/// All policies.
const ANY: &str = "*";

fn may(policies: &BTreeSet<String>, policy: &Policy) -> bool {
    policies.contains(ANY) || policies.contains(&policy.name)
}

impl SecretSetting {
    /// Whether sandboxes with this policy may use it.
    pub fn is_for(&self, policy: &Policy) -> bool {
        may(&self.policies, policy)
    }
}

impl ServiceSetting {
    /// Whether sandboxes with this policy may use it.
    pub fn is_for(&self, policy: &Policy) -> bool {
        may(&self.policies, policy)
    }
}

/// The table `[secrets]` of the file; or what is wrong with it.
pub(super) fn read_secrets(said: &toml::Value, file: Option<&Path>) -> Result<Vec<SecretSetting>, String> {
    let written: BTreeMap<String, WrittenSecret> = said.clone().try_into().map_err(|error| error.to_string())?;
    let in_file = written.values().any(|secret| secret.value.is_some());
    if let Some(file) = file.filter(|file| in_file && others_can_read(file)) {
        return Err(format!(
            "it holds the value of a secret, and others can read it: `chmod 600 {}`, or name the value's source with env, \
             file or command",
            file.display()
        ));
    }
    written.into_iter().map(|(name, secret)| secret.meaning(name)).collect()
}

/// The table `[services]` of the file.
pub(super) fn read_services(said: &toml::Value, secrets: &[SecretSetting]) -> Result<Vec<ServiceSetting>, String> {
    let written: BTreeMap<String, WrittenService> = said.clone().try_into().map_err(|error| error.to_string())?;
    let meaning = |(name, service): (String, WrittenService)| {
        if !secrets.iter().any(|secret| secret.name == service.secret) {
            return Err(format!("services.{name} takes the secret `{}`, which is not there", service.secret));
        }
        service.meaning(name)
    };
    written.into_iter().map(meaning).collect()
}

fn others_can_read(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
}

impl WrittenSecret {
    fn meaning(self, name: String) -> Result<SecretSetting, String> {
        let at = |what: String| format!("secrets.{name}: {what}");
        let sources = [
            self.value.map(|value| SecretSource::Value(Value::new(value))),
            self.env.map(SecretSource::Variable),
            self.file.map(SecretSource::File),
            self.command.filter(|words| !words.is_empty()).map(SecretSource::Command),
        ];
        let mut sources = sources.into_iter().flatten();
        let (Some(source), None) = (sources.next(), sources.next()) else {
            return Err(at("its value comes from one of: value, env, file, command".to_owned()));
        };
        let host = |text: &String| text.parse::<Pattern>().map_err(|error| at(format!("`{text}`: {error}")));
        let usage = match self.header.as_deref().map(|header| header.split_once(':')) {
            None => Usage::Placeholder,
            Some(Some((header, format))) => {
                Usage::Header { name: header.trim().to_owned(), format: format.trim().to_owned() }
            }
            Some(None) => return Err(at("write a header as `Authorization: Bearer {}`".to_owned())),
        };
        let variable = self.variable.unwrap_or_else(|| name.to_ascii_uppercase().replace('-', "_"));
        if !is_variable(&variable) {
            return Err(at(format!("`{variable}` is no name of a variable")));
        }
        Ok(SecretSetting {
            source,
            hosts: self.hosts.iter().map(host).collect::<Result<_, _>>()?,
            ports: self.ports,
            usage,
            variable,
            placed: if self.anywhere { Placed::Anywhere } else { Placed::Credentials },
            plain_http: if self.plain_http { PlainHttp::Allowed } else { PlainHttp::Refused },
            policies: self.policies,
            name,
        })
    }
}

impl WrittenService {
    fn meaning(self, name: String) -> Result<ServiceSetting, String> {
        let at = |what: String| format!("services.{name}: {what}");
        let block = |text: &String| text.parse::<Network>().map_err(|error| at(error.to_string()));
        if let Some(wrong) = self.variables.iter().find(|variable| !is_variable(variable)) {
            return Err(at(format!("`{wrong}` is no name of a variable")));
        }
        Ok(ServiceSetting {
            upstream: self.url.parse().map_err(|error: sandbox_egress::UpstreamError| at(error.to_string()))?,
            secret: self.secret,
            variables: self.variables,
            within: self.within.iter().map(block).collect::<Result<_, _>>()?,
            policies: self.policies,
            name,
        })
    }
}

fn is_variable(name: &str) -> bool {
    let mut letters = name.chars();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secrets(text: &str) -> Result<Vec<SecretSetting>, String> {
        let table: toml::Value = toml::from_str(text).map_err(|error| error.to_string())?;
        read_secrets(&table, None)
    }

    #[test]
    fn a_secret_is_read_and_its_value_never_shown() {
        let read = secrets(
            "[github]\nvalue = \"a-very-long-token\"\nhosts = [\"api.github.com\"]\nheader = \"Authorization: Bearer {}\"\n\
             policies = [\"yolo-3\"]\n",
        )
        .unwrap_or_else(|error| panic!("{error}"));
        let [secret] = &read[..] else { panic!("{read:?}") };
        assert_eq!(secret.variable, "GITHUB");
        assert!(
            matches!(&secret.usage, Usage::Header { name, format } if name == "Authorization" && format == "Bearer {}")
        );
        assert!(
            secret.is_for(&Policy::default()) && !Policy::preset("yolo-2").is_some_and(|other| secret.is_for(&other))
        );
        assert!(!format!("{read:?}").contains("very-long"));
    }

    #[test]
    fn what_says_too_little_or_too_much_is_refused() {
        for (text, says) in [
            ("[a]\nhosts = [\"x.example\"]\npolicies = [\"*\"]\n", "one of"),
            ("[a]\nenv = \"A\"\nfile = \"/x\"\npolicies = [\"*\"]\n", "one of"),
            ("[a]\nenv = \"A\"\n", "policies"),
            ("[a]\nenv = \"A\"\nhosts = [\"a b\"]\npolicies = [\"*\"]\n", "a b"),
            ("[a]\nenv = \"A\"\nheader = \"x\"\npolicies = [\"*\"]\n", "header"),
            ("[a]\nenv = \"A\"\nvariable = \"1\"\npolicies = [\"*\"]\n", "variable"),
            ("[a]\nenf = \"A\"\npolicies = [\"*\"]\n", "enf"),
        ] {
            let refused = secrets(text).err().unwrap_or_default();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
