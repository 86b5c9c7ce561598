//! An offer to go on with HTTP/2 without TLS (`Upgrade: h2c`), which the client of the JDK makes in each plain request.
//!
//! Any server may pass over an offer (RFC 9110, 7.8), so it is taken out and the request goes on as HTTP/1.1. Of all other
//! things that can be begun, somebody waits for just that.

use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};

/// What goes with the offer (RFC 7540, 3.2.1).
const SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// Takes the offer out, where it is the only one.
pub(crate) fn decline_http2(headers: &mut HeaderMap) {
    let mut offers = headers.get_all(header::UPGRADE).iter();
    let is_http2 = |offer: &HeaderValue| offer.as_bytes().eq_ignore_ascii_case(b"h2c");
    if !offers.next().is_some_and(is_http2) || offers.next().is_some() {
        return;
    }
    headers.remove(header::UPGRADE);
    headers.remove(SETTINGS);
    let kept = other_words(headers);
    headers.remove(header::CONNECTION);
    if let Ok(kept) = HeaderValue::try_from(kept.join(", "))
        && !kept.is_empty()
    {
        headers.insert(header::CONNECTION, kept);
    }
}

/// What `Connection` names beside the offer. A value that is no text is left out with it.
fn other_words(headers: &HeaderMap) -> Vec<String> {
    let said = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let words = said.flat_map(|value| value.split(',')).map(str::trim);
    let offer = [header::UPGRADE, SETTINGS];
    let of_offer = |word: &&str| offer.iter().any(|name| word.eq_ignore_ascii_case(name.as_str()));
    words.filter(|word| !word.is_empty() && !of_offer(word)).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declined(said: &[(&'static str, &'static str)]) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in said {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        decline_http2(&mut headers);
        let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_owned();
        headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    #[test]
    fn an_offer_of_http_2_is_taken_out_with_all_that_speaks_of_it() {
        let java = [("connection", "Upgrade, HTTP2-Settings"), ("http2-settings", "AAE"), ("upgrade", "h2c")];
        assert!(declined(&java).is_empty());
        let more = [("connection", "Upgrade"), ("connection", "HTTP2-Settings, Close"), ("upgrade", "H2C")];
        assert_eq!(declined(&more), [("connection".to_owned(), "Close".to_owned())]);
    }

    #[test]
    fn other_offers_stay_and_so_does_one_among_several() {
        for offer in ["websocket", "h2c, websocket", "h2", "h2c/1", ""] {
            assert_eq!(declined(&[("connection", "upgrade"), ("upgrade", offer)]).len(), 2, "{offer}");
        }
        assert_eq!(declined(&[("upgrade", "h2c"), ("upgrade", "websocket")]).len(), 2);
    }
}
