//! The one table of settings: their names in the file and in the environment, and what they are for.

/// One setting.
#[derive(Debug)]
pub struct Key {
    /// Its name in the file.
    pub name: &'static str,
    /// Its name in the environment.
    pub variable: &'static str,
    /// What it says.
    pub about: &'static str,
}

/// All settings.
pub const KEYS: [Key; 17] = [
    key("state_folder", "WORKSPACE_BASE", "where sandboxes and their history live"),
    key("auto_cleanup_minutes", "AUTO_CLEANUP_MINUTES", "unused sandboxes end after so long; 0 is never (30)"),
    key("max_timeout_seconds", "MAX_TIMEOUT_SECONDS", "no command may run longer (600)"),
    key("default_policy", "SANDBOX_MCP_DEFAULT_POLICY", "the policy when none is asked for (yolo-3)"),
    key("default_image", "SANDBOX_MCP_DEFAULT_IMAGE", "the image when none is asked for (host)"),
    key(
        "allowed_images",
        "SANDBOX_MCP_ALLOWED_IMAGES",
        "folders that models may name as images, beside the default (none)",
    ),
    key("allowed_policies", "SANDBOX_MCP_ALLOWED_POLICIES", "policies that models may name (all)"),
    key("policy_folder", "SANDBOX_MCP_POLICY_FOLDER", "where policies of your own are, each a file NAME.toml"),
    key("ceiling", "SANDBOX_MCP_CEILING", "the policy that no sandbox may pass (none)"),
    key("strict", "SANDBOX_MCP_STRICT", "refuse limits that would only be watched (false)"),
    key("allow_unenforced", "SANDBOX_MCP_ALLOW_UNENFORCED", "limits that may go unheld, by name (none)"),
    key("max_sandboxes_per_user", "SANDBOX_MCP_MAX_SANDBOXES_PER_USER", "sandboxes of one user (32)"),
    key("max_sandboxes", "SANDBOX_MCP_MAX_SANDBOXES", "sandboxes in all (1024)"),
    key("memory_floor", "SANDBOX_MCP_MEMORY_FLOOR", "memory that must stay free for a new sandbox (256MiB)"),
    key(
        "ask",
        "SANDBOX_MCP_ASK",
        "when a person is asked: denied (also for denied commands), requests (only by request_access), never (denied)",
    ),
    key("answer_seconds", "SANDBOX_MCP_ANSWER_SECONDS", "a question that nobody answers is refused after so long (60)"),
    key("log", "SANDBOX_MCP_LOG", "what is logged to standard error: error, warn, info, debug (warn)"),
];

/// Names the settings file; it cannot stand in that file itself.
pub(super) const CONFIG_VARIABLE: &str = "SANDBOX_MCP_CONFIG";
/// Read by the embedded backend itself; they are for tests, not for operators.
pub(super) const INTERNAL: [&str; 3] = ["SANDBOX_MCP_LEASE_SECONDS", "SANDBOX_MCP_SINGLE_ID", "SANDBOX_MCP_USE_BWRAP"];
/// Variables that begin so are ours, and must be known.
pub(super) const PREFIX: &str = "SANDBOX_MCP_";

const fn key(name: &'static str, variable: &'static str, about: &'static str) -> Key {
    Key { name, variable, about }
}
