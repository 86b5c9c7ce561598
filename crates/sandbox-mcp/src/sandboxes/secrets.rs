//! Secrets of one sandbox, made ready: values are read, placeholders and addresses are put into its variables, and what
//! programs inside have to trust is written where they look for it.

use std::{collections::BTreeMap, process::Stdio, sync::Arc, time::Duration};

use sandbox_core::{Policy, SandboxSpec};
use sandbox_egress::{Basis, Leak, Secret, Secrets, Service, Spent, Trust, Value, Vault};
use sandbox_executor::protocol::{NewFile, Path};
use tokio::sync::watch;

use super::{Journal, SandboxesError, Session, What};
use crate::config::{SecretSetting, SecretSource, Settings, TRUSTING};

/// Where the certificates are, inside.
const CERTIFICATES: &str = "/home/sandbox/.sandbox-mcp/ca.pem";
/// Where this machine keeps the certificates that it trusts.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
    "/etc/ssl/ca-bundle.pem",
];
/// A program that prints a secret may ask somebody.
const PATIENCE: Duration = Duration::from_secs(60);
/// So many letters of what it says when it fails.
const LAST_WORDS: usize = 200;
/// How placeholders begin.
const PLACEHOLDER: &str = "sbx_secret_";
/// The proxy, inside.
pub const PROXY: &str = "http://127.0.0.1:3128";

/// The secrets of one sandbox.
#[derive(Default)]
pub(super) struct Prepared {
    /// For its way out.
    pub secrets: Secrets,
    /// Told when a placeholder was on its way to where it does not belong.
    pub leaked: Arc<watch::Sender<Option<Leak>>>,
}

/// Whether sandboxes with this policy have any.
pub fn are_there(settings: &Settings, policy: &Policy) -> bool {
    policy.reaches_something()
        && (settings.secrets.iter().any(|secret| secret.is_for(policy))
            || settings.services.iter().any(|service| service.is_for(policy)))
}

/// Reads values. A sandbox that has been there before holds its placeholders already, in its variables.
pub(super) async fn prepare(
    settings: &Settings,
    spec: &SandboxSpec,
    journal: &Journal,
) -> Result<Prepared, SandboxesError> {
    let policy = &spec.policy;
    if !are_there(settings, policy) {
        return Ok(Prepared::default());
    }
    let leaked = Arc::new(watch::Sender::default());
    let mut vault = Vault::new(settings.trust());
    for secret in settings.secrets.iter().filter(|secret| secret.is_for(policy)) {
        if let Some(placeholder) = spec.env.get(&secret.variable).filter(|value| value.starts_with(PLACEHOLDER)) {
            vault.placeholders.insert(secret.name.clone(), placeholder.clone());
        }
        vault.secrets.push(read(secret).await.map_err(|why| cannot(&secret.name, &why))?);
    }
    for service in settings.services.iter().filter(|service| service.is_for(policy)) {
        let (name, secret) = (service.name.clone(), service.secret.clone());
        vault.services.push(Service {
            name,
            upstream: service.upstream.clone(),
            secret,
            within: service.within.clone(),
        });
    }
    let told = Arc::clone(&leaked);
    vault.on_leak = Box::new(move |leak: &Leak| drop(told.send_replace(Some(leak.clone()))));
    let (journal, id, owner) = (journal.clone(), spec.id.clone(), spec.owner.clone());
    vault.on_spent = Box::new(move |spent| journal.record(&id, &owner, event(spent)));
    let secrets = Secrets::new(vault).map_err(|error| cannot("", &error.to_string()))?;
    Ok(Prepared { secrets, leaked })
}

impl Prepared {
    /// What programs inside are told. What was asked for has the last word.
    pub fn tell(&self, env: &mut BTreeMap<String, String>, settings: &Settings) {
        let mut add = |name: &str, value: String| {
            env.entry(name.to_owned()).or_insert(value);
        };
        for (name, placeholder) in self.secrets.placeholders() {
            let known = settings.secrets.iter().find(|secret| secret.name == name);
            known.into_iter().for_each(|secret| add(&secret.variable, placeholder.to_owned()));
        }
        for (name, path) in self.secrets.services() {
            let known = settings.services.iter().find(|service| service.name == name);
            let variables = known.into_iter().flat_map(|service| &service.variables);
            variables.for_each(|variable| add(variable, format!("{PROXY}{path}")));
        }
        if self.secrets.authority().is_some() {
            TRUSTING.into_iter().for_each(|name| add(name, CERTIFICATES.to_owned()));
        }
    }

    /// Puts the certificates where programs inside were told that they are, and anew where an earlier server put them.
    pub async fn place_certificates(&self, session: &Session) -> Result<(), SandboxesError> {
        let Some(authority) = self.secrets.authority() else { return Ok(()) };
        let renewed = sandbox_linux::renew_certificates(session.facts(), authority, session.folder());
        renewed.map_err(SandboxesError::io("writing certificates"))?;
        let client = session.client().await?;
        let known = BUNDLES.iter().find_map(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
        let bundle = format!("{}\n{authority}", known.trim_end());
        let folder = CERTIFICATES.rsplit_once('/').map_or("", |(folder, _)| folder);
        client.make_folder(&Path::from(folder)).await?;
        let mut writer = client.write().await?;
        writer.begin(&NewFile { path: Path::from(CERTIFICATES), mode: Some(0o644) }).await?;
        writer.data(bundle.as_bytes()).await?;
        Ok(writer.finish().await?)
    }
}

/// A cost as the history has it.
pub fn event(spent: &Spent) -> What {
    What::Spent {
        service: spent.service.clone(),
        model: spent.model.clone(),
        input_tokens: spent.input,
        output_tokens: spent.output,
        cache_read_tokens: spent.cache_read,
        cache_written_tokens: spent.cache_written,
        estimated: spent.basis != Basis::Told,
    }
}

/// Whether a secret can be read and used; or why not.
pub async fn check(secret: &SecretSetting) -> Result<(), String> {
    let mut vault = Vault::new(Trust::nobody());
    vault.secrets.push(read(secret).await?);
    Secrets::new(vault).map(drop).map_err(|error| error.to_string())
}

async fn read(secret: &SecretSetting) -> Result<Secret, String> {
    Ok(Secret {
        name: secret.name.clone(),
        value: value(&secret.source).await?,
        hosts: secret.hosts.clone(),
        ports: secret.ports.iter().map(|&port| port..=port).collect(),
        usage: secret.usage.clone(),
        placed: secret.placed,
        plain_http: secret.plain_http,
    })
}

/// What a secret is, read from where it is kept; or why it cannot be.
pub async fn value(source: &SecretSource) -> Result<Value, String> {
    let text = match source {
        SecretSource::Value(value) => return Ok(value.clone()),
        SecretSource::Variable(name) => std::env::var(name).map_err(|_| format!("the variable {name} is not set"))?,
        SecretSource::File(file) => {
            let read = tokio::fs::read_to_string(file).await;
            read.map_err(|error| format!("{} cannot be read: {error}", file.display()))?
        }
        SecretSource::Command(words) => printed(words).await?,
    };
    Ok(Value::new(text.trim_end_matches(['\n', '\r'])))
}

async fn printed(words: &[String]) -> Result<String, String> {
    let (program, arguments) = words.split_first().ok_or("there is no program")?;
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = match tokio::time::timeout(PATIENCE, command.output()).await {
        Ok(ended) => ended.map_err(|error| format!("`{program}` cannot be started: {error}"))?,
        Err(_) => return Err(format!("{program} did not end within {} s", PATIENCE.as_secs())),
    };
    if !output.status.success() {
        let said = last_words(&output.stderr, &output.stdout);
        return Err(format!("`{program}` failed ({}){said}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("what {program} printed is no text"))
}

/// The last line that a program wrote about its failure, without anything that could be the secret.
fn last_words(stderr: &[u8], stdout: &[u8]) -> String {
    let (stderr, stdout) = (String::from_utf8_lossy(stderr), String::from_utf8_lossy(stdout));
    let Some(line) = stderr.lines().rev().find(|line| !line.trim().is_empty()) else { return String::new() };
    let harmless = |word: &str| {
        let letters = |kind: fn(&char) -> bool| word.chars().any(|letter| kind(&letter));
        let like_a_key = word.len() >= 16 && letters(char::is_ascii_digit) && letters(char::is_ascii_alphabetic);
        let shown =
            word.len() < 8 || !(like_a_key || stdout.contains(word.trim_matches(|c: char| !c.is_alphanumeric())));
        if shown { word.to_owned() } else { "…".to_owned() }
    };
    let line: Vec<String> = line.split_whitespace().map(harmless).collect();
    format!(": {}", line.join(" ").chars().filter(|letter| !letter.is_control()).take(LAST_WORDS).collect::<String>())
}

fn cannot(name: &str, why: &str) -> SandboxesError {
    let step = if name.is_empty() { "preparing secrets".to_owned() } else { format!("reading the secret `{name}`") };
    sandbox_core::Error::Step { step, why: why.to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_says_is_told_without_what_could_be_the_secret() {
        let said = |stderr: &str, stdout: &str| last_words(stderr.as_bytes(), stdout.as_bytes());
        assert_eq!(said("trying\nnot logged in; run gh auth login\n\n", ""), ": not logged in; run gh auth login");
        assert_eq!(said("refusing ghp_0123456789abcdef0123\n", ""), ": refusing …");
        assert_eq!(said("token correcthorse expired", "correcthorse\n"), ": token … expired");
        assert_eq!(said("", "x"), "");
    }
}
