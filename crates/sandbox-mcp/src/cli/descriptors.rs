//! How many files this process may have open at once.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Every sandbox, call and connection holds some. The usual limit is low for programs that use select(2), which we do not.
pub(super) fn raise_limit() {
    let most = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }) {
        tracing::warn!(%error, "the limit on open files stays as it is");
    }
}
