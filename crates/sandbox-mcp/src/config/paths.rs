//! Where things belong if nobody says otherwise (the XDG base directory specification).

use std::path::PathBuf;

use super::{ConfigError, keys::CONFIG_VARIABLE};

/// The settings file that is read when no flag names one. It need not exist.
pub fn config_file() -> Option<PathBuf> {
    if let Some(file) = std::env::var_os(CONFIG_VARIABLE).filter(|value| !value.is_empty()) {
        return Some(file.into());
    }
    base("XDG_CONFIG_HOME", ".config").map(|base| base.join("sandbox-mcp/config.toml"))
}

/// Where policies of one's own are when nobody says otherwise. It need not exist.
pub(super) fn policy_folder() -> Option<PathBuf> {
    base("XDG_CONFIG_HOME", ".config").map(|base| base.join("sandbox-mcp/policies"))
}

/// The state folder that is used when none is set.
pub(super) fn state_folder() -> Result<PathBuf, ConfigError> {
    let missing =
        ConfigError::NoHome { variable: "XDG_STATE_HOME", what: "state folder", flag: "--state DIR or WORKSPACE_BASE" };
    base("XDG_STATE_HOME", ".local/state").map(|base| base.join("sandbox-mcp")).ok_or(missing)
}

/// The specification says that a relative path in such a variable counts as unset.
fn base(variable: &str, below_home: &str) -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(variable).or_else(|| absolute("HOME").map(|home| home.join(below_home)))
}
