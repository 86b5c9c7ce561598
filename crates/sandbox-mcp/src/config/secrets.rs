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

use super::{ConfigError, Settings, words::in_table};

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

    /// The names of those policies, in words.
    pub fn policies_in_words(&self) -> String {
        match self.policies.contains(ANY) {
            true => "all policies".to_owned(),
            false => self.policies.iter().map(String::as_str).collect::<Vec<_>>().join(", "),
        }
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
    let written: BTreeMap<String, WrittenSecret> =
        said.clone().try_into().map_err(|error| in_table(&error, "secrets"))?;
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
    let written: BTreeMap<String, WrittenService> =
        said.clone().try_into().map_err(|error| in_table(&error, "services"))?;
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

impl SecretSource {
    /// A file that is named from the home folder, as shells do it.
    fn at_home(self) -> Self {
        match self {
            Self::File(file) => match (file.strip_prefix("~"), std::env::var_os("HOME")) {
                (Ok(rest), Some(home)) => Self::File(PathBuf::from(home).join(rest)),
                _ => Self::File(file),
            },
            other => other,
        }
    }
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
        let host = |text: &String| text.parse::<Pattern>().map_err(|error| at(error.to_string()));
        let usage = match self.header.as_deref().map(|header| header.split_once(':')) {
            None => Usage::Placeholder,
            Some(Some((header, format))) => {
                Usage::Header { name: header.trim().to_owned(), format: format.trim().to_owned() }
            }
            Some(None) => return Err(at("write a header as `Authorization: Bearer {}`".to_owned())),
        };
        let variable = self.variable.unwrap_or_else(|| name.to_ascii_uppercase().replace('-', "_"));
        check_variable(&variable).map_err(at)?;
        if self.ports.contains(&0) {
            return Err(at("0 is no port: write numbers from 1 to 65535".to_owned()));
        }
        Ok(SecretSetting {
            source: source.at_home(),
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
        self.variables.iter().try_for_each(|variable| check_variable(variable)).map_err(at)?;
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

/// What cannot be told from one secret alone: whether somebody can use it, and whether it is in another's way.
pub(super) fn check(settings: &Settings) -> Result<(), String> {
    let services = &settings.services;
    for secret in &settings.secrets {
        let at = format!("secrets.{}", secret.name);
        if secret.hosts.is_empty() && !services.iter().any(|service| service.secret == secret.name) {
            return Err(format!("{at} is for nobody: name hosts that get it, or a service that takes it"));
        }
        check_policies(&at, &secret.policies, settings)?;
    }
    for service in services {
        check_policies(&format!("services.{}", service.name), &service.policies, settings)?;
    }
    let of_secrets = settings.secrets.iter().map(|one| (format!("secrets.{}", one.name), &one.variable, &one.policies));
    let of_services = services.iter().flat_map(|one| {
        one.variables.iter().map(move |variable| (format!("services.{}", one.name), variable, &one.policies))
    });
    let all: Vec<_> = of_secrets.chain(of_services).collect();
    for (number, (at, variable, policies)) in all.iter().enumerate() {
        let meets = |other: &&(String, &String, &BTreeSet<String>)| {
            let both = policies.contains(ANY) || other.2.contains(ANY) || !policies.is_disjoint(other.2);
            other.1 == *variable && both
        };
        if let Some((other, ..)) = all[..number].iter().find(meets) {
            return Err(format!(
                "{other} and {at} both set the variable {variable}: give one of them another `variable`"
            ));
        }
    }
    Ok(())
}

/// Whether there are such policies, and one that reaches something: without a network nobody has a use for a secret.
fn check_policies(at: &str, policies: &BTreeSet<String>, settings: &Settings) -> Result<(), String> {
    if policies.is_empty() {
        return Err(format!("{at}: `policies` names none, so no sandbox could use it"));
    }
    let mut useful = policies.contains(ANY);
    for name in policies.iter().filter(|name| *name != ANY) {
        match settings.policy(name) {
            Ok(policy) => useful |= policy.reaches_something(),
            Err(ConfigError::Policy { .. }) => useful = true,
            Err(error) => return Err(format!("{at}: {error}")),
        }
    }
    match useful {
        true => Ok(()),
        false => {
            let names: Vec<&str> = policies.iter().map(String::as_str).collect();
            Err(format!("{at}: sandboxes with the policy {} have no network, so none could use it", names.join(", ")))
        }
    }
}

/// Variables that this program sets in sandboxes, or by which others load code.
const TAKEN: [&str; 40] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "TERM",
    "TMPDIR",
    "PWD",
    "OLDPWD",
    "IFS",
    "ENV",
    "BASH_ENV",
    "PROMPT_COMMAND",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "NODE_USE_ENV_PROXY",
    "NODE_OPTIONS",
    "NODE_PATH",
    "NPM_CONFIG_PREFIX",
    "NPM_CONFIG_REGISTRY",
    "PIP_INDEX_URL",
    "PIP_DISABLE_PIP_VERSION_CHECK",
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "PERL5LIB",
    "PERL5OPT",
    "RUBYLIB",
    "RUBYOPT",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "GIT_SSH_COMMAND",
    "VIRTUAL_ENV",
    "GOPROXY",
];

/// Variables that tell programs inside of certificates.
pub(crate) const TRUSTING: [&str; 11] = [
    "SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "NPM_CONFIG_CAFILE",
    "CARGO_HTTP_CAINFO",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "DENO_CERT",
    "BUNDLE_SSL_CA_CERT",
];

fn check_variable(name: &str) -> Result<(), String> {
    if !is_variable(name) {
        return Err(format!("`{name}` is no name of a variable"));
    }
    let large = name.to_ascii_uppercase();
    let taken = TAKEN.iter().chain(&TRUSTING).any(|taken| *taken == large);
    match taken || large.starts_with("LD_") {
        true => {
            Err(format!("the variable {name} has another meaning in a sandbox: choose another name with `variable`"))
        }
        false => Ok(()),
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
            ("[a]\nenf = \"A\"\npolicies = [\"*\"]\n", "did you mean `env`"),
            ("[a]\nenv = \"A\"\nports = [0]\npolicies = [\"*\"]\n", "0 is no port"),
            ("[a]\nenv = \"A\"\nports = [70000]\npolicies = [\"*\"]\n", "from 1 to 65535"),
            ("[a]\nenv = \"A\"\nhosts = [\"a.example:443\"]\npolicies = [\"*\"]\n", "the port in `ports`"),
            ("[a]\ncommand = \"gh auth\"\npolicies = [\"*\"]\n", "secrets.a.command: it is text, but must be a list"),
            ("[a]\nvalue = 12345678\npolicies = [\"*\"]\n", "secrets.a.value: it is a number"),
            ("[a]\nenv = \"A\"\nvariable = \"PATH\"\npolicies = [\"*\"]\n", "another meaning"),
            ("[a]\nenv = \"A\"\nvariable = \"LD_PRELOAD\"\npolicies = [\"*\"]\n", "another meaning"),
            ("[a]\nenv = \"A\"\nvariable = \"https_proxy\"\npolicies = [\"*\"]\n", "another meaning"),
        ] {
            let refused = secrets(text).err().unwrap_or_default();
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }

    #[test]
    fn secrets_that_nobody_could_use_are_refused() {
        let complaint = |text: &str| {
            let mut typed = crate::config::Typed::default();
            let flags = crate::config::Flags { state: Some("/state".into()), ..Default::default() };
            let added = typed.add_file(Path::new("/x.toml"), text).and_then(|()| typed.add_flags(&flags));
            match added.and_then(|()| Settings::from_typed(typed)) {
                Ok(_) => "nothing".to_owned(),
                Err(error) => error.to_string(),
            }
        };
        let a = "[secrets.a]\nenv = \"A\"\nhosts = [\"a.example\"]\n";
        let b = "[secrets.b]\nenv = \"B\"\nhosts = [\"b.example\"]\nvariable = \"A\"\n";
        for (text, says) in [
            (format!("{a}policies = [\"yolo-3\"]\n"), "nothing"),
            (format!("{a}policies = [\"yolo-33\"]\n"), "did you mean `yolo-3`"),
            (format!("{a}policies = []\n"), "names none"),
            (format!("{a}policies = [\"yolo-1\", \"full_isolation\"]\n"), "have no network"),
            (format!("{a}policies = [\"yolo-1\", \"yolo-2\"]\n"), "nothing"),
            ("[secrets.a]\nenv = \"A\"\npolicies = [\"*\"]\n".to_owned(), "is for nobody"),
            (format!("{a}policies = [\"*\"]\n{b}policies = [\"yolo-3\"]\n"), "both set the variable A"),
            (format!("{a}policies = [\"yolo-2\"]\n{b}policies = [\"yolo-3\"]\n"), "nothing"),
        ] {
            let refused = complaint(&text);
            assert!(refused.contains(says), "{text}: {refused}");
        }
    }
}
