//! The one table of settings: their names in the file and in the environment, and what they are for. docs/settings.md is
//! made from it, and a test compares them.

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// Its name in the environment.
    pub variable: &'static str,
    /// What holds if it is not said, as it would be written in the file, or in words.
    pub default: &'static str,
    /// What it says.
    pub about: &'static str,
}

/// All settings.
pub const KEYS: &[Key] = &[
    key("state_folder", "WORKSPACE_BASE", "`~/.local/state/sandbox-mcp`", "where sandboxes and their history live"),
    key("auto_cleanup_minutes", "AUTO_CLEANUP_MINUTES", "`30`", "unused sandboxes end after so long; `0` is never"),
    key(
        "max_timeout_seconds",
        "MAX_TIMEOUT_SECONDS",
        "`600`",
        "no command may run longer, whatever its policy says and whoever says yes",
    ),
    key("default_policy", "SANDBOX_MCP_DEFAULT_POLICY", "`\"yolo-3\"`", "the policy when none is asked for"),
    key(
        "backend",
        "SANDBOX_MCP_BACKEND",
        "`\"linux\"`",
        "where sandboxes run when nothing else is said: `linux`, which is embedded; `docker`, which is Podman too; or `oci`, a \
         runtime such as gVisor",
    ),
    key(
        "docker_image",
        "DOCKER_IMAGE",
        "none",
        "the image of sandboxes in containers that name none, or `host`; see docs/engines.md",
    ),
    key(
        "command_images",
        "SANDBOX_MCP_COMMAND_IMAGES",
        "see docs/engines.md",
        "the image of a command in a container that names none, by program: `{ node = \"node:22-slim\" }`; in the \
         environment `node=node:22-slim,go=golang:1`",
    ),
    key(
        "oci_runtime",
        "SANDBOX_MCP_OCI_RUNTIME",
        "the `runsc` of this machine",
        "the runtime of the backend `oci`, by name or path: `runsc`, `runc`, or another that is called the same way",
    ),
    key("default_image", "SANDBOX_MCP_DEFAULT_IMAGE", "`\"host\"`", "the image when none is asked for"),
    key(
        "allowed_images",
        "SANDBOX_MCP_ALLOWED_IMAGES",
        "none",
        "images that models may name beside the default: folders, names (`python:3.12-slim`), all tags of one \
         (`python:*`), all below a folder (`ghcr.io/team/*`); in the environment divided by commas",
    ),
    key(
        "image_budget",
        "SANDBOX_MCP_IMAGE_BUDGET",
        "`\"20GiB\"`",
        "what images may take up on disk; at a pull those go first that nobody used for longest",
    ),
    key(
        "registry_mirrors",
        "SANDBOX_MCP_REGISTRY_MIRRORS",
        "none",
        "addresses that are asked before a registry: `[\"docker.io=https://mirror.example.com\"]`",
    ),
    key(
        "insecure_registries",
        "SANDBOX_MCP_INSECURE_REGISTRIES",
        "none",
        "registries and mirrors that may be reached without TLS, beside this machine's own: `[\"registry.lan:5000\"]`",
    ),
    key(
        "allowed_policies",
        "SANDBOX_MCP_ALLOWED_POLICIES",
        "all",
        "policies that models may name; `default_policy` must be one of them. It does not bind people at a terminal: \
         that is what `ceiling` is for",
    ),
    key(
        "policy_folder",
        "SANDBOX_MCP_POLICY_FOLDER",
        "`~/.config/sandbox-mcp/policies`",
        "where policies of your own are, each a file `NAME.toml`",
    ),
    key("ceiling", "SANDBOX_MCP_CEILING", "none", "the policy that no sandbox may pass"),
    key("strict", "SANDBOX_MCP_STRICT", "`false`", "refuse limits that would only be watched"),
    key(
        "allow_unenforced",
        "SANDBOX_MCP_ALLOW_UNENFORCED",
        "none",
        "limits that may be only watched though `strict` says otherwise, or go unheld, by name: `[\"disk\", \"time\"]`",
    ),
    key(
        "warm",
        "SANDBOX_MCP_WARM",
        "`0`",
        "sandboxes that `serve` keeps ready before anybody asks: so many of the default kind, or a list of kinds: \
         `[{ policy = \"yolo-3\", image = \"host\", backend = \"linux\", count = 2 }]`",
    ),
    key("max_sandboxes_per_user", "SANDBOX_MCP_MAX_SANDBOXES_PER_USER", "`32`", "sandboxes of one user"),
    key("max_sandboxes", "SANDBOX_MCP_MAX_SANDBOXES", "`1024`", "sandboxes in all"),
    key("memory_floor", "SANDBOX_MCP_MEMORY_FLOOR", "`\"256MiB\"`", "memory that must stay free for a new sandbox"),
    key(
        "ask",
        "SANDBOX_MCP_ASK",
        "`\"denied\"`",
        "when a person is asked: `denied` (also for denied commands), `requests` (only by request_access), `never`",
    ),
    key(
        "answer_seconds",
        "SANDBOX_MCP_ANSWER_SECONDS",
        "`60`",
        "a question that nobody answers is refused after so long",
    ),
    key(
        "package_mirrors",
        "SANDBOX_MCP_PACKAGE_MIRRORS",
        "those that pip, npm, cargo and apt of this machine know",
        "addresses (`https://…`) of your own that packages come from, reached wherever a policy reaches package registries",
    ),
    key(
        "development_ports",
        "SANDBOX_MCP_DEVELOPMENT_PORTS",
        "none",
        "ports of this machine that sandboxes with the policy `development` reach, as `host.internal`: `[5432, 6379]`",
    ),
    key(
        "freeze_on_leak",
        "SANDBOX_MCP_FREEZE_ON_LEAK",
        "`false`",
        "stop every process of a sandbox that sends the placeholder of a secret to where it does not belong",
    ),
    key(
        "agent",
        "SANDBOX_MCP_AGENT",
        "`\"auto\"`",
        "who works on tasks when nobody is named; `auto` takes what is configured",
    ),
    key("model", "SANDBOX_MCP_MODEL", "`\"claude-opus-5-5\"`", "the model that the agent `claude` asks"),
    key(
        "model_api",
        "SANDBOX_MCP_MODEL_API",
        "`\"messages\"`",
        "how it is spoken to: `messages` (Anthropic), or `chat` (OpenAI, Ollama, llama.cpp, vLLM)",
    ),
    key(
        "model_url",
        "SANDBOX_MCP_MODEL_URL",
        "the address of Anthropic, or with `chat` of OpenAI",
        "where it is, such as `http://127.0.0.1:11434/v1`; an address that begins with `http:` needs no key",
    ),
    key(
        "model_key",
        "SANDBOX_MCP_MODEL_KEY",
        "the variable `ANTHROPIC_API_KEY`, or with `chat` `OPENAI_API_KEY`",
        "where its key comes from: `env:NAME`, `file:/PATH` or `command:PROGRAM ARGUMENT…`; never the key itself",
    ),
    key(
        "model_context_tokens",
        "SANDBOX_MCP_MODEL_CONTEXT_TOKENS",
        "`200000`",
        "a conversation that grows longer is summed up and goes on from there",
    ),
    key("model_answer_tokens", "SANDBOX_MCP_MODEL_ANSWER_TOKENS", "`16000`", "the longest single answer of the model"),
    key(
        "model_idle_seconds",
        "SANDBOX_MCP_MODEL_IDLE_SECONDS",
        "`120`",
        "a model that says nothing for so long is asked again",
    ),
    key("max_turns", "SANDBOX_MCP_MAX_TURNS", "`100`", "a task may ask the model so often"),
    key("task_budget_usd", "SANDBOX_MCP_TASK_BUDGET_USD", "`5`", "a task may cost so much, in US dollars"),
    key(
        "task_budget_tokens",
        "SANDBOX_MCP_TASK_BUDGET_TOKENS",
        "`5000000`",
        "a task may use so many tokens, read and written, those from the cache too",
    ),
    key(
        "claude_code_version",
        "SANDBOX_MCP_CLAUDE_CODE_VERSION",
        "`\"latest\"`",
        "the version of Claude Code that `agents install claude-code` fetches",
    ),
    key(
        "opencode_version",
        "SANDBOX_MCP_OPENCODE_VERSION",
        "`\"latest\"`",
        "the version of OpenCode that `agents install opencode` fetches",
    ),
    key(
        "trust_workspace",
        "SANDBOX_MCP_TRUST_WORKSPACE",
        "`false`",
        "let hooks, plugins, MCP servers and instructions that lie in the workspace configure `claude-code` and `opencode`",
    ),
    key(
        "mock_script",
        "SANDBOX_MCP_MOCK_SCRIPT",
        "none",
        "a file with steps that the agent `mock` follows, for demonstrations and tests",
    ),
    key(
        "log",
        "SANDBOX_MCP_LOG",
        "`\"warn\"`",
        "what is logged to standard error: `error`, `warn`, `info`, `debug`, or a filter such as `sandbox_mcp=debug`",
    ),
];

/// The table of docs/settings.md.
pub fn markdown() -> String {
    let row = |key: &Key| format!("| `{}` | `{}` | {} | {} |\n", key.name, key.variable, key.default, key.about);
    let head = "| setting | in the environment | if not said | says |\n| --- | --- | --- | --- |\n";
    KEYS.iter().fold(head.to_owned(), |text, key| text + &row(key))
}

/// Names the settings file; it cannot stand in that file itself.
pub(super) const CONFIG_VARIABLE: &str = "SANDBOX_MCP_CONFIG";
/// Read by backends themselves, for tests and not for operators; and the one that programs in a sandbox find.
pub(super) const INTERNAL: &[&str] = &[
    "SANDBOX_MCP_URL",
    "SANDBOX_MCP_DOCKER_DIE_AT",
    "SANDBOX_MCP_DOCKER_REACH",
    "SANDBOX_MCP_LEASE_SECONDS",
    "SANDBOX_MCP_NO_NFTABLES",
    "SANDBOX_MCP_SINGLE_ID",
    "SANDBOX_MCP_USE_BWRAP",
];
/// Variables that begin so are ours, and must be known.
pub(super) const PREFIX: &str = "SANDBOX_MCP_";

const fn key(name: &'static str, variable: &'static str, default: &'static str, about: &'static str) -> Key {
    Key { name, variable, default, about }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Settings, Typed};
    use std::{fs, path::Path};

    /// With this variable set the page is written instead of compared.
    const UPDATE: &str = "UPDATE_DOCS";
    const BEGIN: &str = "<!-- settings -->\n";
    const END: &str = "<!-- end of settings -->";

    #[test]
    fn the_page_of_settings_is_the_one_of_the_code() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/settings.md");
        let text = fs::read_to_string(&file).unwrap();
        let (before, rest) = text.split_once(BEGIN).unwrap();
        let (table, after) = rest.split_once(END).unwrap();
        if std::env::var_os(UPDATE).is_some() {
            fs::write(&file, format!("{before}{BEGIN}{}{END}{after}", markdown())).unwrap();
        } else {
            let run = format!("{UPDATE}=1 cargo test -p sandbox-mcp --lib page_of_settings");
            assert!(table == markdown(), "docs/settings.md is old: run `{run}`");
        }
    }

    #[test]
    fn the_defaults_of_the_page_are_those_of_the_code() {
        let settings = |text: &str| {
            let mut typed = Typed::default();
            typed.add_file(Path::new("/x"), text).unwrap();
            typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
            format!("{:?}", Settings::from_typed(typed).unwrap())
        };
        let written = |key: &Key| match key.default.trim_matches('`') {
            path if path.starts_with('~') => None,
            value if key.default.starts_with('`') => Some(format!("{} = {value}\n", key.name)),
            _ => None,
        };
        let all: String = KEYS.iter().filter_map(written).collect();
        assert_eq!(settings(&all), settings(""));
        let page = include_str!("../../../../docs/settings.md");
        let example = page.split("```").find_map(|block| block.strip_prefix("toml\n")).unwrap();
        assert_ne!(settings(example), settings(""), "the example of the page is understood");
    }
}
