//! Takes values out of what comes back, and puts the placeholders in their place.

use std::sync::{Arc, OnceLock};

use hyper::{
    Response,
    ext::ReasonPhrase,
    header::{self, HeaderMap, HeaderValue},
};

use super::replace::{Pair, Plan};

/// What must not be seen on a connection.
#[derive(Clone)]
pub(super) struct Hidden {
    pairs: Vec<Pair>,
    plan: Arc<OnceLock<Option<Arc<Plan>>>>,
}

impl Hidden {
    pub(super) fn new(pairs: Vec<Pair>) -> Self {
        Self { pairs, plan: Arc::default() }
    }

    /// This too, for one answer.
    pub(super) fn and(&self, more: Vec<Pair>) -> Self {
        if more.is_empty() { self.clone() } else { Self::new(self.pairs.iter().cloned().chain(more).collect()) }
    }

    pub(super) fn plan(&self) -> Option<Arc<Plan>> {
        self.plan.get_or_init(|| Plan::new(self.pairs.clone())).clone()
    }

    /// A header's name has lost its case.
    fn is_in_name(&self, name: &str) -> bool {
        self.pairs.iter().any(|pair| name.contains(&String::from_utf8_lossy(&pair.from).to_ascii_lowercase()))
    }
}

/// In everything that comes before the body.
pub(super) fn in_head<B>(hidden: &Hidden, response: &mut Response<B>) {
    // Nobody needs it, and anything can be said in it.
    response.extensions_mut().remove::<ReasonPhrase>();
    let Some(plan) = hidden.plan() else { return };
    let headers = response.headers_mut();
    let named: Vec<_> = headers.keys().filter(|name| hidden.is_in_name(name.as_str())).cloned().collect();
    named.into_iter().for_each(|name| drop(headers.remove(name)));
    for value in headers.values_mut() {
        let (replaced, count) = plan.replace(value.as_bytes());
        if count > 0 {
            *value = HeaderValue::from_bytes(&replaced).unwrap_or(HeaderValue::from_static(""));
        }
    }
}

/// Whether a body can be looked into.
pub(super) fn is_readable(headers: &HeaderMap) -> bool {
    let only =
        |name, plain: &[u8]| headers.get_all(name).iter().all(|coding| coding.as_bytes().eq_ignore_ascii_case(plain));
    only(header::CONTENT_ENCODING, b"identity") && only(header::TRANSFER_ENCODING, b"chunked")
}
