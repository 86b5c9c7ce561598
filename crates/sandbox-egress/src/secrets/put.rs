//! Puts values into a request: where placeholders stand, and as headers that we set.

use std::sync::Arc;

use hyper::{
    Request,
    body::{Body, Bytes, Incoming},
    header::{self, HeaderMap, HeaderValue},
    http::request::Parts,
};

use super::{
    Kept, Outgoing, Stopped,
    body::Watch,
    replace::{Pair, Plan},
    secret::{Held, Placed, is_credential},
    written::{self, credentials, encoded_credentials, replace_in_address},
};
use crate::Reason;

/// A body that is held whole has at most this size; a longer one goes out as it is.
const LARGEST: u64 = 1 << 20;
/// How often something is replaced in one request: a value is longer than what stands for it, and what is sent is not to
/// grow without bound.
pub(super) const MOST: usize = 64;

/// The values that go out on one connection.
pub(super) struct Values {
    /// Placeholders, and what they stand for, where somebody proves who they are.
    credentials: Option<Arc<Plan>>,
    /// The same, for anywhere.
    pairs: Vec<Pair>,
    plan: Option<Arc<Plan>>,
    /// Secrets whose header is set.
    headers: Vec<usize>,
}

/// Puts them into one request.
pub(super) struct Put<'a> {
    kept: &'a Kept,
    values: &'a Values,
    count: usize,
}

impl Values {
    pub(super) fn new<'a>(held: impl Iterator<Item = &'a Held>, headers: Vec<usize>) -> Self {
        let held: Vec<&Held> = held.filter(|held| held.mark.is_some()).collect();
        let pair = |held: &&Held| Pair::new(held.placeholder.as_str(), held.secret.value.as_str());
        let anywhere = held.iter().filter(|held| held.secret.placed == Placed::Anywhere);
        let pairs: Vec<Pair> = anywhere.map(pair).collect();
        let credentials = Plan::new(held.iter().map(pair).collect());
        Self { credentials, plan: Plan::new(pairs.clone()), pairs, headers }
    }
}

impl<'a> Put<'a> {
    pub(super) fn new(kept: &'a Kept, values: &'a Values) -> Self {
        Self { kept, values, count: 0 }
    }

    /// The request as it goes out; and credentials that were put together, with what they were before.
    pub(super) async fn into_request(
        mut self,
        request: Request<Incoming>,
        watch: Option<Watch>,
    ) -> Result<(Request<Outgoing>, Vec<Pair>), Stopped> {
        let (mut parts, body) = request.into_parts();
        self.put_in_address(&mut parts)?;
        let credentials = self.put_in_headers(&mut parts.headers)?;
        for (name, value) in self.values.headers.iter().filter_map(|&number| self.kept.held.get(number)?.header.clone())
        {
            parts.headers.insert(name, value);
        }
        // What comes back must be readable, and whole: a value is not seen in pieces.
        parts.headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        [header::TE, header::RANGE, header::IF_RANGE].into_iter().for_each(|name| drop(parts.headers.remove(name)));
        // Whoever waits for it hears it from us.
        parts.headers.remove(header::EXPECT);
        let body = self.put_in_body(&mut parts.headers, body, watch).await?;
        Ok((Request::from_parts(parts, body), credentials))
    }

    fn counted(&mut self, count: usize) -> Result<(), Stopped> {
        self.count += count;
        if self.count > MOST { Err(too_much()) } else { Ok(()) }
    }

    fn put_in_address(&mut self, parts: &mut Parts) -> Result<(), Stopped> {
        let Some(path) = parts.uri.path_and_query() else { return Ok(()) };
        let (address, count) = replace_in_address(path.as_str(), &self.values.pairs);
        self.counted(count)?;
        if count > 0 {
            parts.uri = address.parse().map_err(|_| too_much())?;
        }
        Ok(())
    }

    fn put_in_headers(&mut self, headers: &mut HeaderMap) -> Result<Vec<Pair>, Stopped> {
        let mut made = Vec::new();
        for (name, value) in headers.iter_mut() {
            let plan = if is_credential(name) { &self.values.credentials } else { &self.values.plan };
            let Some(plan) = plan.clone() else { continue };
            let replaced = match credentials(value.as_bytes()) {
                Some((before, credentials)) => {
                    let (credentials, count) = plan.replace(&credentials);
                    self.counted(count)?;
                    (count > 0).then(|| {
                        let after = encoded_credentials(&credentials);
                        made.push(Pair::new(after.as_str(), before));
                        format!("Basic {after}").into_bytes()
                    })
                }
                None => {
                    let (replaced, count) = plan.replace(value.as_bytes());
                    self.counted(count)?;
                    (count > 0).then_some(replaced)
                }
            };
            if let Some(replaced) = replaced {
                *value = HeaderValue::from_bytes(&replaced).map_err(|_| too_much())?;
                value.set_sensitive(true);
            }
        }
        Ok(made)
    }

    async fn put_in_body(
        &mut self,
        headers: &mut HeaderMap,
        body: Incoming,
        watch: Option<Watch>,
    ) -> Result<Outgoing, Stopped> {
        let encoded = headers.get(header::CONTENT_ENCODING).is_some_and(|coding| coding != "identity");
        let length = body.size_hint().exact();
        let plan = self.plan_for(headers).filter(|_| !encoded && !body.is_end_stream());
        match (plan, length) {
            (Some(plan), Some(0..=LARGEST)) => self.whole(headers, body, watch, &plan).await,
            (Some(plan), None) => Ok(Outgoing::new(body, watch, Some(plan))),
            (Some(_) | None, _) => Ok(Outgoing::new(body, watch, None)),
        }
    }

    /// A value within a text of some kind is written as that kind wants it.
    fn plan_for(&self, headers: &HeaderMap) -> Option<Arc<Plan>> {
        let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let write: fn(&str) -> String = match kind.as_str() {
            "application/x-www-form-urlencoded" => written::percent_encoded,
            "application/json" => written::escaped,
            json if json.ends_with("+json") => written::escaped,
            _ => return self.values.plan.clone(),
        };
        let pairs = self
            .values
            .pairs
            .iter()
            .map(|pair| Pair::new(pair.from.clone(), write(&String::from_utf8_lossy(&pair.to))));
        Plan::new(pairs.collect())
    }

    /// With its length known a body is sent as its sender would have: not every server takes it in pieces.
    async fn whole(
        &mut self,
        headers: &mut HeaderMap,
        body: Incoming,
        watch: Option<Watch>,
        plan: &Arc<Plan>,
    ) -> Result<Outgoing, Stopped> {
        let outgoing = Outgoing::new(body, watch, None);
        let (body, place) = outgoing.gather(&self.kept.whole_bodies, 1, LARGEST).await?;
        let (body, count) = plan.replace(&body);
        self.counted(count)?;
        headers.insert(header::CONTENT_LENGTH, body.len().into());
        Ok(Outgoing::whole(Bytes::from(body), place))
    }
}

/// Whoever sends so many placeholders, or puts one where no value fits, wants something else than to use a secret.
pub(super) fn too_much() -> Stopped {
    Stopped {
        words: Some("a placeholder stands in it too often, or where no value can".into()),
        ..Stopped::new(Reason::NotARequest)
    }
}
