//! What was said, checked, and turned into what it means. Later code never sees a raw string.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use sandbox_core::{Bytes, Control, Image, Policy};
use sandbox_egress::{Trust, Upstream};
use sandbox_image::ImageSettings;
use serde::{Deserialize, de::IntoDeserializer};
use url::Url;

use crate::sandboxes::Warm;

use super::{
    Ask, ConfigError, EngineImages, Mirrors, ModelApi, ModelSetting, NamePattern, SecretSetting, ServiceSetting,
    Source, Template, ceiling, engines, images, mirrors, model, paths, secrets, templates,
    typed::{Said, Typed},
    warm,
};

/// What the operator wants.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where sandboxes and their history live.
    pub state: PathBuf,
    /// Unused sandboxes end after so long; never, if not said.
    pub idle: Option<Duration>,
    /// No command may run longer.
    pub max_timeout: Duration,
    /// The policy when none is asked for.
    pub default_policy: Policy,
    /// Where sandboxes run when nothing else is said.
    pub backend: String,
    /// Name or path of the runtime of the backend `oci`, if said.
    pub oci_runtime: Option<String>,
    /// The image when none is asked for.
    pub default_image: Image,
    /// Folders that models may name as images, without links.
    pub allowed_images: Vec<PathBuf>,
    /// Images that models may ask for by name.
    pub allowed_names: Vec<NamePattern>,
    /// Images by name: how they come here, and how much they may take up.
    pub images: ImageSettings,
    /// What sandboxes in containers start from.
    pub engine_images: EngineImages,
    /// Policies that models may name; all, if not said.
    pub allowed_policies: Option<BTreeSet<String>>,
    /// Where policies of the operator's own are.
    pub policy_folder: Option<PathBuf>,
    /// The policy that no sandbox may pass.
    pub ceiling: Option<Policy>,
    /// Refuse limits that would only be watched.
    pub strict: bool,
    /// Limits that may go unheld.
    pub allow_unenforced: BTreeSet<Control>,
    /// Kinds of sandboxes by name.
    pub templates: BTreeMap<String, Template>,
    /// Sandboxes that are kept ready before anybody asks.
    pub warm: Vec<Warm>,
    /// Sandboxes of one user.
    pub max_sandboxes_per_user: usize,
    /// Sandboxes in all.
    pub max_sandboxes: usize,
    /// Memory that must stay free for a new sandbox.
    pub memory_floor: Bytes,
    /// When a person is asked.
    pub ask: Ask,
    /// How long a question waits for its answer.
    pub answer: Duration,
    /// Ports of this machine that the preset `development` reaches.
    pub development_ports: BTreeSet<u16>,
    /// Places for packages that were named.
    package_mirrors: Vec<Url>,
    /// Those, and what package managers know, once somebody asked.
    mirrors: Arc<OnceLock<Mirrors>>,
    /// Secrets that stay outside.
    pub secrets: Vec<SecretSetting>,
    /// Services that are reached with them.
    pub services: Vec<ServiceSetting>,
    /// Stop a sandbox that sends a placeholder to where it does not belong.
    pub freeze_on_leak: bool,
    trust: Arc<OnceLock<Trust>>,
    /// Who works on tasks when nobody is named.
    pub agent: String,
    /// The model that the agent `claude` asks.
    pub model: ModelSetting,
    /// A task may ask the model so often.
    pub max_turns: u32,
    /// A task may cost so much, in US dollars.
    pub task_budget_usd: f64,
    /// A task may use so many tokens.
    pub task_budget_tokens: u64,
    /// The version of Claude Code that is fetched.
    pub claude_code_version: String,
    /// The version of OpenCode that is fetched.
    pub opencode_version: String,
    /// Whether what lies in the workspace may configure programs that work there.
    pub trust_workspace: bool,
    /// Steps that the agent `mock` follows.
    pub mock_script: Option<PathBuf>,
    /// What is logged to standard error.
    pub log: String,
}

impl Settings {
    /// What the words mean.
    pub fn from_typed(mut typed: Typed) -> Result<Self, ConfigError> {
        let state = match typed.take("state_folder", "the absolute path of a folder", absolute)? {
            Some(folder) => folder,
            None => paths::state_folder()?,
        };
        let idle = typed.take("auto_cleanup_minutes", "a number of minutes, or 0 for never", minutes)?;
        let max_timeout = typed.take("max_timeout_seconds", "a number of seconds from 1 to 604800", timeout)?;
        let [said_ceiling, said_default, said_allowed] =
            ["ceiling", "default_policy", "allowed_policies"].map(|key| (key, typed.source(key)));
        let policy_said = typed.take("default_policy", "the name of a policy", text)?;
        let image =
            typed.take("default_image", "`host`, the absolute path of a folder, or the name of an image", |said| {
                said.as_str()?.parse().ok()
            })?;
        let allowed = typed.take("allowed_images", images::ALLOWED, images::allowed)?.unwrap_or_default();
        let budget = typed.take("image_budget", "a size, such as 20GiB", size)?;
        let registries = typed.take("registry_mirrors", images::MIRRORS, images::mirrors)?;
        let insecure = typed.take("insecure_registries", images::INSECURE, images::insecure)?;
        let policies = typed.take("allowed_policies", "a list of names of policies", names)?;
        let folder = typed.take("policy_folder", "the absolute path of a folder", absolute)?;
        let (said_warm, warm) = (typed.source("warm"), typed.take("warm", warm::EXPECTED, warm::read)?);
        let said_templates = typed.0.remove("templates");
        let ceiling = typed.take("ceiling", "the name of a policy", text)?;
        let said_secrets = typed.source("secrets").or_else(|| typed.source("services"));
        let secrets = typed.secrets()?;
        let mut settings = Self {
            state,
            idle: idle.unwrap_or(Some(Duration::from_secs(30 * 60))),
            max_timeout: max_timeout.unwrap_or(Duration::from_secs(600)),
            default_policy: Policy::default(),
            backend: typed.take("backend", BACKENDS, backend)?.unwrap_or_else(|| sandbox_linux::BACKEND.to_owned()),
            oci_runtime: typed.take("oci_runtime", RUNTIME, runtime)?,
            default_image: image.unwrap_or(Image::Host),
            allowed_images: Vec::new(),
            allowed_names: allowed.names,
            images: images::settings(budget, registries, insecure),
            engine_images: EngineImages {
                default: typed.take("docker_image", engines::IMAGE, engines::image)?,
                of_commands: typed.take("command_images", engines::COMMANDS, engines::commands)?.unwrap_or_default(),
            },
            allowed_policies: None,
            policy_folder: folder.or_else(paths::policy_folder),
            ceiling: None,
            strict: typed.take("strict", "true or false", truth)?.unwrap_or(false),
            allow_unenforced: typed.take("allow_unenforced", CONTROLS, controls)?.unwrap_or_default(),
            templates: templates::built_in(),
            warm: Vec::new(),
            max_sandboxes_per_user: typed.take("max_sandboxes_per_user", COUNT, count)?.unwrap_or(32),
            max_sandboxes: typed.take("max_sandboxes", COUNT, count)?.unwrap_or(1024),
            memory_floor: typed.take("memory_floor", "a size, such as 256MiB", size)?.unwrap_or(Bytes::mib(256)),
            ask: typed.take("ask", "denied, requests or never", Ask::parse)?.unwrap_or_default(),
            answer: typed
                .take("answer_seconds", "a number of seconds from 1 to 3600", timeout)?
                .unwrap_or(Duration::from_secs(60))
                .min(Duration::from_secs(3600)),
            development_ports: typed.take("development_ports", "a list of ports", ports)?.unwrap_or_default(),
            package_mirrors: typed
                .take("package_mirrors", "a list of addresses, such as https://pypi.example.com/simple", addresses)?
                .unwrap_or_default(),
            mirrors: Arc::default(),
            services: typed.services(&secrets)?,
            secrets,
            freeze_on_leak: typed.take("freeze_on_leak", "true or false", truth)?.unwrap_or(false),
            trust: Arc::default(),
            agent: typed.take("agent", "the name of an agent, or auto", text)?.unwrap_or_else(|| "auto".to_owned()),
            model: typed.model()?,
            max_turns: typed.take("max_turns", COUNT, count)?.map_or(100, |turns| turns as u32),
            task_budget_usd: typed
                .take("task_budget_usd", "an amount of US dollars, such as 2.5", money)?
                .unwrap_or(5.0),
            task_budget_tokens: typed.take("task_budget_tokens", TOKENS, tokens)?.unwrap_or(5_000_000),
            claude_code_version: typed.take("claude_code_version", VERSION, text)?.unwrap_or_else(latest),
            opencode_version: typed.take("opencode_version", VERSION, text)?.unwrap_or_else(latest),
            trust_workspace: typed.take("trust_workspace", "true or false", truth)?.unwrap_or(false),
            mock_script: typed.take("mock_script", "the absolute path of a file", absolute)?,
            log: typed
                .take("log", "a level (error, warn, info, debug), or a filter such as sandbox_mcp=debug", filter)?
                .unwrap_or_else(|| "warn".to_owned()),
        };
        settings.ceiling =
            ceiling.map(|name| settings.policy(&name)).transpose().map_err(|why| in_setting(said_ceiling, why))?;
        settings.default_policy = settings
            .policy(policy_said.as_deref().unwrap_or(sandbox_core::policy::DEFAULT_PRESET))
            .map_err(|why| in_setting(said_default, why))?;
        settings.allowed_policies = policies
            .map(|names| settings.policies_for_models(names))
            .transpose()
            .map_err(|why| in_setting(said_allowed, why))?;
        if let Some(Said { source, value }) = said_templates {
            let refuse = |why| ConfigError::BadTable { source_: source.clone(), key: "templates", why };
            settings.templates = templates::read(&value).map_err(refuse)?;
            templates::check(&settings, KNOWN_BACKENDS).map_err(refuse)?;
        }
        if let (Some(source_), Some(said)) = (said_warm, warm) {
            settings.warm = said.mean(&settings).map_err(|why| ConfigError::BadTable { source_, key: "warm", why })?;
        }
        if let Some(source_) = said_secrets {
            let refuse = |why| ConfigError::BadTable { source_, key: "secrets", why };
            secrets::check(&settings).map_err(refuse)?;
        }
        settings.allowed_images = allowed
            .folders
            .iter()
            .map(|folder| ceiling::image_folder(folder, &settings.state))
            .collect::<Result<_, _>>()?;
        if let Image::Folder(folder) = &settings.default_image
            && folder.exists()
        {
            ceiling::image_folder(folder, &settings.state)?;
        }
        Ok(settings)
    }

    /// Which version of a program is fetched.
    pub fn agent_version(&self, agent: &str) -> &str {
        if agent == "opencode" { &self.opencode_version } else { &self.claude_code_version }
    }

    /// Who is believed to be who it says, by this machine. Read when the first sandbox has a secret.
    pub fn trust(&self) -> Trust {
        self.trust.get_or_init(Trust::of_this_machine).clone()
    }

    /// The user's own places for packages.
    pub fn mirrors(&self) -> &Mirrors {
        self.mirrors.get_or_init(|| Mirrors::find(&self.package_mirrors))
    }
}

/// An error about a policy, with the setting that names it.
fn in_setting((key, source): (&'static str, Option<Source>), why: ConfigError) -> ConfigError {
    match source {
        Some(source_) => ConfigError::PolicyInSetting { source_, key, why: Box::new(why) },
        None => why,
    }
}

/// The candidate that is most like what was typed, if any is like it at all.
pub fn nearest<'a>(typed: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let typed: String = typed.to_lowercase().chars().take(60).collect();
    let likeness = |candidate: &str| strsim::jaro_winkler(&typed, &candidate.to_lowercase());
    let best = candidates.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) > 0.7).then_some(best)
}

fn latest() -> String {
    "latest".to_owned()
}

const VERSION: &str = "a version such as 1.2.3, or latest";
/// All that this program has.
const KNOWN_BACKENDS: &[&str] = &[sandbox_linux::BACKEND, sandbox_docker::BACKEND, sandbox_oci::BACKEND];
const BACKENDS: &str = "the name of a backend: linux, docker, oci";
const KEY: &str = "env:NAME, file:/PATH or command:PROGRAM ARGUMENT…, and never the key itself";
const TOKENS: &str = "a whole number of tokens from 100 to 1000000000";
const RUNTIME: &str = "the name or the absolute path of an OCI runtime: runsc, runc";
const COUNT: &str = "a whole number from 1 to 1000000";
const CONTROLS: &str = "a list of: memory, cpu, pids, disk, tmp, time, network, filesystem, privileges, \
                        system_calls, commands, executor_identity, security_module";

impl Typed {
    /// Where a setting was said.
    fn source(&self, key: &str) -> Option<Source> {
        self.0.get(key).map(|said| said.source.clone())
    }

    fn secrets(&mut self) -> Result<Vec<SecretSetting>, ConfigError> {
        let Some(Said { source, value }) = self.0.remove("secrets") else { return Ok(Vec::new()) };
        let file = match &source {
            Source::File(file) => Some(file.as_path()),
            _ => None,
        };
        secrets::read_secrets(&value, file).map_err(|why| ConfigError::BadTable {
            source_: source,
            key: "secrets",
            why,
        })
    }

    fn services(&mut self, secrets: &[SecretSetting]) -> Result<Vec<ServiceSetting>, ConfigError> {
        let Some(Said { source, value }) = self.0.remove("services") else { return Ok(Vec::new()) };
        let read = secrets::read_services(&value, secrets);
        read.map_err(|why| ConfigError::BadTable { source_: source, key: "services", why })
    }

    fn model(&mut self) -> Result<ModelSetting, ConfigError> {
        let api = self.take("model_api", "messages or chat", ModelApi::parse)?.unwrap_or(ModelApi::Messages);
        let said = self.take("model_url", "an address, such as http://127.0.0.1:11434/v1", upstream)?;
        let (is_named, usual) = (said.is_some(), api.usual_address());
        let wrong = || bad_value(Source::Flag("model_url"), "model_url", usual, "an address");
        let upstream = said.or_else(|| usual.parse().ok()).ok_or_else(wrong)?;
        let prices = match self.0.remove("prices") {
            None => Ok(Default::default()),
            Some(Said { source, value }) => {
                model::prices(&value).map_err(|why| ConfigError::BadTable { source_: source, key: "prices", why })
            }
        };
        Ok(ModelSetting {
            api,
            upstream,
            is_named,
            name: self.take("model", "the name of a model", text)?.unwrap_or_else(|| model::MODEL.to_owned()),
            key: self.take("model_key", KEY, model::key)?.unwrap_or_else(|| api.usual_key()),
            context: self.take("model_context_tokens", TOKENS, tokens)?.unwrap_or(200_000),
            answer: self.take("model_answer_tokens", TOKENS, tokens)?.unwrap_or(16_000),
            idle: self
                .take("model_idle_seconds", "a number of seconds from 1 to 604800", timeout)?
                .unwrap_or(Duration::from_secs(120)),
            prices: prices?,
        })
    }

    fn take<T>(
        &mut self,
        key: &'static str,
        expected: &str,
        meaning: impl FnOnce(&toml::Value) -> Option<T>,
    ) -> Result<Option<T>, ConfigError> {
        let Some(Said { source, value }) = self.0.remove(key) else { return Ok(None) };
        match meaning(&value) {
            Some(meaning) => Ok(Some(meaning)),
            // Somebody may have put the key there.
            None if key == "model_key" => Err(bad_value(source, key, "something that is not shown here", expected)),
            None => Err(bad_value(source, key, &value.to_string(), expected)),
        }
    }
}

fn bad_value(source_: Source, key: &'static str, value: &str, expected: &str) -> ConfigError {
    let value = value.chars().take(80).collect();
    ConfigError::BadValue { source_, key, value, expected: expected.to_owned() }
}

fn text(said: &toml::Value) -> Option<String> {
    said.as_str().map(str::to_owned)
}

fn backend(said: &toml::Value) -> Option<String> {
    text(said).filter(|name| KNOWN_BACKENDS.contains(&name.as_str()))
}

fn runtime(said: &toml::Value) -> Option<String> {
    let usable =
        |name: &String| !name.is_empty() && !name.contains('\0') && (name.starts_with('/') || !name.contains('/'));
    text(said).filter(usable)
}

fn filter(said: &toml::Value) -> Option<String> {
    text(said).filter(|text| tracing_subscriber::EnvFilter::try_new(text).is_ok())
}

fn absolute(said: &toml::Value) -> Option<PathBuf> {
    said.as_str().filter(|path| path.starts_with('/') && !path.contains('\0')).map(PathBuf::from)
}

fn number(said: &toml::Value) -> Option<f64> {
    match said {
        toml::Value::Integer(number) => Some(*number as f64),
        toml::Value::Float(number) => Some(*number),
        toml::Value::String(text) => text.trim().parse().ok(),
        _ => None,
    }
}

fn minutes(said: &toml::Value) -> Option<Option<Duration>> {
    let minutes = number(said).filter(|minutes| (0.0..=5_256_000.0).contains(minutes))?;
    Some((minutes > 0.0).then(|| Duration::from_secs_f64(minutes * 60.0)))
}

fn timeout(said: &toml::Value) -> Option<Duration> {
    number(said).filter(|seconds| (1.0..=604_800.0).contains(seconds)).map(Duration::from_secs_f64)
}

fn count(said: &toml::Value) -> Option<usize> {
    number(said).filter(|count| count.fract() == 0.0 && (1.0..=1e6).contains(count)).map(|count| count as usize)
}

fn tokens(said: &toml::Value) -> Option<u64> {
    number(said).filter(|count| count.fract() == 0.0 && (100.0..=1e9).contains(count)).map(|count| count as u64)
}

fn money(said: &toml::Value) -> Option<f64> {
    number(said).filter(|amount| (0.0..=1e6).contains(amount))
}

fn upstream(said: &toml::Value) -> Option<Upstream> {
    said.as_str()?.parse().ok()
}

fn truth(said: &toml::Value) -> Option<bool> {
    match said {
        toml::Value::Boolean(truth) => Some(*truth),
        toml::Value::String(text) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Some(true),
            "false" | "0" | "no" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn size(said: &toml::Value) -> Option<Bytes> {
    match said {
        toml::Value::Integer(number) => u64::try_from(*number).ok().map(Bytes),
        toml::Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn addresses(said: &toml::Value) -> Option<Vec<Url>> {
    names(said)?.iter().map(|text| mirrors::address(text)).collect()
}

fn ports(said: &toml::Value) -> Option<BTreeSet<u16>> {
    let port = |said: &toml::Value| number(said).filter(|port| port.fract() == 0.0 && (1.0..=65535.0).contains(port));
    match said {
        toml::Value::Array(items) => items.iter().map(|item| port(item).map(|port| port as u16)).collect(),
        toml::Value::String(_) => names(said)?.iter().map(|text| text.parse().ok()).collect(),
        one => port(one).map(|port| [port as u16].into()),
    }
}

fn controls(said: &toml::Value) -> Option<BTreeSet<Control>> {
    names(said)?.iter().map(|name| control(name)).collect()
}

fn names(said: &toml::Value) -> Option<Vec<String>> {
    list(said, ',')
}

fn list(said: &toml::Value, divider: char) -> Option<Vec<String>> {
    match said {
        toml::Value::Array(items) => items.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
        toml::Value::String(text) => {
            Some(text.split(divider).map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect())
        }
        _ => None,
    }
}

fn control(name: &str) -> Option<Control> {
    let deserializer: serde::de::value::StrDeserializer<'_, serde::de::value::Error> = name.into_deserializer();
    Control::deserialize(deserializer).ok()
}
