//! When a person is asked for what a policy does not give.

/// When somebody is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ask {
    /// Whenever a command is denied, and when an agent asks in advance.
    #[default]
    Denied,
    /// Only when an agent asks in advance.
    Requests,
    /// Never: what is denied is refused.
    Never,
}

impl Ask {
    /// As the settings have it.
    pub(super) fn parse(said: &toml::Value) -> Option<Self> {
        match said.as_str()? {
            "denied" => Some(Self::Denied),
            "requests" => Some(Self::Requests),
            "never" => Some(Self::Never),
            _ => None,
        }
    }
}
