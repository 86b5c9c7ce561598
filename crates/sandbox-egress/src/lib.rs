//! The way out of a sandbox: what it may reach, decided here and nowhere else.
//!
//! A target is parsed once ([`Target`]); [`Rules`] decide, a pure function with reasons that have names; names are resolved
//! once, and an address is dialled only if it was checked ([`Reach`]). What carries bytes knows nothing of rules, and what
//! decides does no I/O. Secrets ([`Secrets`]) stay on this side: a sandbox sees only what stands for them.

#![forbid(unsafe_code)]

mod address;
mod advice;
pub mod client_hello;
mod counted;
mod dial;
pub mod dns;
mod doors;
mod engine;
mod flow;
#[doc(hidden)]
pub mod fuzzing;
mod granted;
mod handed;
mod host;
mod ledger;
mod limits;
mod metered;
mod name_servers;
mod outward;
mod own;
mod packets;
mod pattern;
mod places;
pub mod plain_http;
mod presets;
mod proxy;
mod record;
mod resolver;
mod rules;
mod secrets;
pub mod socks;
mod splice;
mod stand_in;
mod target;
mod translator;
mod transparent;
mod tunnel;
mod upgrade;
mod written;

pub use address::{Network, NetworkError, Reach, reach};
pub use advice::{Adviser, Reader, Refused, WITHOUT_NETWORK, looks_private};
pub use doors::Doors;
pub use engine::{Engine, OnRefusal, Opened, Recorder, Refusal, Setup};
pub use host::{Host, HostError, Name};
pub use limits::Limits;
pub use outward::{Credential, Outward, OutwardError};
pub use own::{Answering, OwnTools, PATH as OWN_PATH};
pub use packets::Packets;
pub use pattern::{Pattern, PatternError};
pub use places::Places;
pub use presets::Mirror;
pub use record::{Record, Verdict};
pub use resolver::{Resolver, ResolverError, THIS_MACHINE};
pub use rules::{Decision, Effect, Reason, Rule, Rules, Scope};
pub use secrets::{
    AuthorityError, Basis, Budget, FinderError, Follower, Leak, Leave, Leaving, Loan, NoLeave, OnLeak, OnSpent, Placed,
    PlainHttp, Question, Scheme, Secret, Secrets, SecretsError, Service, Spent, Trust, TrustError, Upstream,
    UpstreamError, Usage, Value, Vault,
};
pub use stand_in::StandIns;
pub use target::{Protocol, Target, TargetError};
pub use tunnel::Carried;
pub use written::RuleError;
