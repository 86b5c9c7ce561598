//! Why secrets cannot be kept as somebody wants it. No message shows a value.

use super::{AuthorityError, FinderError, TrustError};

/// Why secrets cannot be kept like this.
#[derive(Debug, thiserror::Error)]
pub enum SecretsError {
    /// A name that is none.
    #[error("`{0}` is no name for a secret or a service: use up to 40 lower-case letters, digits, - and _")]
    Name(String),
    /// Two of the same name.
    #[error("there are two secrets, or two services, called `{0}`")]
    Twice(String),
    /// More than anybody has.
    #[error("one sandbox can have 100 secrets at most")]
    TooMany,
    /// A value that cannot be kept.
    #[error(
        "the value of secret `{0}` cannot be used: it must have 8 to 4096 bytes, no line breaks or other control characters, and no spaces around it"
    )]
    Value(String),
    /// A placeholder that was never one.
    #[error("what is given as the placeholder of secret `{0}` was not made for it")]
    Placeholder(String),
    /// For all hosts.
    #[error("secret `{0}` is for `*`, which is everybody; name the hosts that may have it")]
    Everybody(String),
    /// A header that cannot be set.
    #[error(
        "the header of secret `{0}` cannot be set: it needs a name that is not about the message itself, and one {{}} for the value"
    )]
    Header(String),
    /// A service that needs what is not there.
    #[error("service `{service}` uses secret `{secret}`, which there is not")]
    NoSecret {
        /// The service.
        service: String,
        /// What it wants.
        secret: String,
    },
    /// A service that would give its secret away.
    #[error("service `{0}` is reached over plain HTTP, which its secret does not allow")]
    Plain(String),
    /// Nothing random.
    #[error("no randomness is to be had from this machine: {0}")]
    Random(String),
    /// Nothing to find placeholders with.
    #[error(transparent)]
    Finder(#[from] FinderError),
    /// No certificates.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// No verification.
    #[error(transparent)]
    Trust(#[from] TrustError),
}
