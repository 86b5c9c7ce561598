//! Lends a sandbox the model for one task: an address on its own loopback, behind which the way out adds the key. Inside
//! there is nothing but a placeholder.

use std::sync::Arc;

use sandbox_egress::{
    Host, Loan, Network, Placed, PlainHttp, Scheme, Secret, Service, Trust, Usage, Value, Vault, reach,
};

use super::{chance, purse::Purse};
use crate::{
    agent::{WorkError, Worker},
    config::{ModelApi, ModelSetting},
    sandboxes::{Care, secrets},
};

/// Stands where programs want a key.
pub(super) const PLACEHOLDER: &str = "the-key-stays-outside";
/// Where the name of a model server that the operator named may lead: also into a company's network.
const NAMED: [&str; 7] =
    ["0.0.0.0/0", "::/0", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"];
/// Where `localhost` leads.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1/128"];

/// A model that is lent; the loan ends with this value, and with it everything that could be spent.
pub(super) struct LentModel<'a> {
    loan: Loan,
    purse: Arc<Purse>,
    worker: &'a Worker<'a>,
}

impl LentModel<'_> {
    /// Its address inside.
    pub(super) fn address(&self) -> String {
        format!("{}{}", secrets::PROXY, self.loan.path())
    }
}

impl Drop for LentModel<'_> {
    /// However the task ends, its bill has all that its program has asked for.
    fn drop(&mut self) {
        self.worker.settle(self.purse.close());
    }
}

/// Lends the operator's model to the sandbox of a worker.
pub(super) async fn lend<'a>(worker: &'a Worker<'a>, purse: Arc<Purse>) -> Result<LentModel<'a>, WorkError> {
    let (settings, session) = (worker.settings(), worker.session());
    let model = &settings.model;
    let Some(way_out) = session.way_out() else {
        let why = match session.care() {
            Care::Anothers => {
                "another server looks after its network: give the task to that server, or use a new sandbox"
            }
            Care::Ours => {
                "it was made without a network, and the agent could not ask its model: use a new sandbox, or the agent \
                 `claude`, which works from outside"
            }
        };
        return Err(WorkError::Agent(format!("this agent cannot work in {}: {why}", session.id())));
    };
    let value = match secrets::value(&model.key).await {
        Ok(value) => value,
        // A server of one's own that wants no key gets one that nobody has.
        Err(_) if !model.needs_key() => Value::new(chance::hex::<16>()?),
        Err(why) => return Err(WorkError::Agent(format!("the key of the model cannot be had: {why}"))),
    };
    let (header, format) = match model.api {
        ModelApi::Messages => ("x-api-key", "{}"),
        ModelApi::Chat => ("authorization", "Bearer {}"),
    };
    let trust = match model.upstream.scheme {
        Scheme::Https => settings.trust(),
        Scheme::Http => Trust::nobody(),
    };
    let mut vault = Vault::new(trust);
    vault.secrets.push(Secret {
        name: "model-key".to_owned(),
        value,
        hosts: Vec::new(),
        ports: Vec::new(),
        usage: Usage::Header { name: header.to_owned(), format: format.to_owned() },
        placed: Placed::Credentials,
        plain_http: PlainHttp::Allowed,
    });
    vault.services.push(Service {
        name: "model".to_owned(),
        upstream: model.upstream.clone(),
        secret: "model-key".to_owned(),
        within: within(model),
    });
    vault.follower = Some(purse.clone());
    let loan = way_out.lend(vault);
    let loan = loan.map_err(|error| WorkError::Agent(format!("the model could not be lent: {error}")))?;
    Ok(LentModel { loan, purse, worker })
}

/// Where the name of the model's server may lead; nothing means to public addresses.
fn within(model: &ModelSetting) -> Vec<Network> {
    let blocks: Vec<String> = match &model.upstream.target.host {
        Host::Address(address) if reach(*address) == sandbox_egress::Reach::Public => Vec::new(),
        Host::Address(address) => vec![format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })],
        Host::Name(name) if name.as_str() == "localhost" => LOOPBACK.map(str::to_owned).into(),
        Host::Name(_) if model.is_named => NAMED.map(str::to_owned).into(),
        Host::Name(_) => Vec::new(),
    };
    blocks.iter().filter_map(|block| block.parse().ok()).collect()
}
