//! What a secret is: a value that stays outside, the hosts that it is for, and how a program inside makes use of it.

use std::{fmt, ops::RangeInclusive};

use hyper::header::{self, HeaderName, HeaderValue};

use super::{
    SecretsError,
    replace::Pair,
    written::{escaped, lower_escapes, percent_encoded},
};
use crate::{Pattern, Target};

/// Shorter ones would be found where nobody meant them.
const SHORTEST: usize = 8;
/// Longer than any key or token; what is replaced must not grow without bound.
const LONGEST: usize = 4 << 10;
const LONGEST_NAME: usize = 40;
const PREFIX: &str = "sbx_secret_";
/// Random bytes in a placeholder.
const RANDOM: usize = 16;

/// One secret.
#[derive(Clone, Debug)]
pub struct Secret {
    /// What it is called, also inside: lower-case letters, digits, `-` and `_`.
    pub name: String,
    /// What nobody inside may know.
    pub value: Value,
    /// Whom it is for. None: nobody but services that name it.
    pub hosts: Vec<Pattern>,
    /// On which ports; none means all.
    pub ports: Vec<RangeInclusive<u16>>,
    /// How it gets into requests.
    pub usage: Usage,
    /// Where in a request its placeholder is replaced.
    pub placed: Placed,
    /// Whether it may also be sent where everybody on the way can read it.
    pub plain_http: PlainHttp,
}

/// Where in a request a placeholder is replaced. Whoever is inside writes the request: what a server stores of it can be read
/// again later, in another form or by another name, so a value that stands anywhere can be had by whoever uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placed {
    /// In headers that prove who somebody is, which no server stores.
    #[default]
    Credentials,
    /// Also in the address, in all headers, and in the body.
    Anywhere,
}

/// Headers that prove who somebody is.
const CREDENTIALS: [&str; 12] = [
    "authorization",
    "api-key",
    "apikey",
    "job-token",
    "ocp-apim-subscription-key",
    "private-token",
    "x-access-token",
    "x-api-key",
    "x-auth-token",
    "x-goog-api-key",
    "x-subscription-token",
    "x-vault-token",
];

/// Whether a header proves who somebody is.
pub(crate) fn is_credential(name: &HeaderName) -> bool {
    CREDENTIALS.contains(&name.as_str())
}

/// The value of a secret. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Value(String);

/// How a secret gets into requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Programs hold a placeholder and send it wherever they would send the value.
    Placeholder,
    /// This header is set on every request, whatever a program sent in it.
    Header {
        /// Such as `Authorization` or `x-api-key`.
        name: String,
        /// Such as `Bearer {}`: the value stands where the braces are.
        format: String,
    },
}

/// Whether a secret may be sent without TLS, as local servers want it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum PlainHttp {
    #[default]
    Refused,
    Allowed,
}

/// A secret that was checked, with what stands for it inside.
pub(crate) struct Held {
    pub(crate) secret: Secret,
    /// What a program sends, or at least sees, instead of the value.
    pub(crate) placeholder: String,
    /// The random part of the placeholder, where there is one.
    pub(crate) mark: Option<String>,
    /// The header that is set.
    pub(crate) header: Option<(HeaderName, HeaderValue)>,
}

impl Value {
    /// From the text itself.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value(hidden)")
    }
}

impl Held {
    /// Checks a secret, and makes its placeholder unless there is one from before.
    pub(crate) fn new(secret: Secret, known: Option<&str>) -> Result<Self, SecretsError> {
        let name = secret.name.clone();
        if !is_name(&name) {
            return Err(SecretsError::Name(name));
        }
        let value = secret.value.as_str();
        if !(SHORTEST..=LONGEST).contains(&value.len()) || value.contains(char::is_control) || value.trim() != value {
            return Err(SecretsError::Value(name));
        }
        if secret.hosts.contains(&Pattern::Any) {
            return Err(SecretsError::Everybody(name));
        }
        let header = match &secret.usage {
            Usage::Placeholder => None,
            Usage::Header { name: header, format } => {
                Some(checked_header(header, format, value).ok_or_else(|| SecretsError::Header(name.clone()))?)
            }
        };
        let mark = match secret.usage {
            Usage::Placeholder => Some(match known {
                Some(known) => mark_of(known, &name).ok_or(SecretsError::Placeholder(name))?,
                None => random_mark()?,
            }),
            // Nobody sends it, so it is only what is seen in place of the value.
            Usage::Header { .. } => None,
        };
        let end = mark.as_ref().map(|mark| format!("_{mark}")).unwrap_or_default();
        let placeholder = format!("{PREFIX}{}{end}", secret.name);
        Ok(Self { secret, placeholder, mark, header })
    }

    /// Whether it may be sent to this target.
    pub(crate) fn is_for(&self, target: &Target) -> bool {
        let Secret { hosts, ports, .. } = &self.secret;
        hosts.iter().any(|pattern| pattern.matches(&target.host))
            && (ports.is_empty() || ports.iter().any(|ports| ports.contains(&target.port)))
    }

    /// The value in every way in which it is written plainly, with the placeholder for each.
    pub(crate) fn hidden(&self) -> Vec<Pair> {
        let value = self.secret.value.as_str();
        let (encoded, escaped) = (percent_encoded(value), escaped(value));
        // Some write the digits of an escape small, and some escape slashes.
        let mut forms = vec![value.to_owned(), lower_escapes(&encoded), encoded, escaped.replace('/', "\\/"), escaped];
        forms.sort_unstable();
        forms.dedup();
        forms.into_iter().map(|form| Pair::new(form, self.placeholder.as_str())).collect()
    }
}

/// Whether a secret or a service can be called so: it is part of addresses and of placeholders.
pub(super) fn is_name(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.bytes().all(fits)
}

/// The header with the value in it; nothing if it cannot be one, or is not ours to set.
fn checked_header(name: &str, format: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    let name: HeaderName = name.parse().ok()?;
    let framing = [
        header::HOST,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::CONTENT_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::EXPECT,
    ];
    if framing.contains(&name) || format.matches("{}").count() != 1 {
        return None;
    }
    let mut value = HeaderValue::try_from(format.replace("{}", value)).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

/// The random part of a placeholder that was made for this secret before.
fn mark_of(placeholder: &str, name: &str) -> Option<String> {
    let mark = placeholder.strip_prefix(PREFIX)?.strip_prefix(name)?.strip_prefix('_')?;
    let fits = mark.len() == 2 * RANDOM && mark.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    fits.then(|| mark.to_owned())
}

/// Nobody guesses it, and it is the same in lower case.
pub(super) fn random_mark() -> Result<String, SecretsError> {
    let mut random = [0; RANDOM];
    getrandom::fill(&mut random).map_err(|error| SecretsError::Random(error.to_string()))?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, value: &str, usage: Usage) -> Secret {
        Secret {
            name: name.into(),
            value: Value::new(value),
            hosts: vec!["*.example.com".parse().expect("a pattern")],
            ports: vec![443..=443],
            usage,
            placed: Placed::Anywhere,
            plain_http: PlainHttp::Refused,
        }
    }

    fn header(name: &str, format: &str) -> Usage {
        Usage::Header { name: name.into(), format: format.into() }
    }

    #[test]
    fn placeholders_differ_and_headers_have_none() {
        let made = || Held::new(secret("key", "12345678", Usage::Placeholder), None).expect("a secret");
        let (one, other) = (made(), made());
        assert_ne!(one.placeholder, other.placeholder);
        let again = |known: &str| Held::new(secret("key", "12345678", Usage::Placeholder), Some(known));
        assert_eq!(again(&one.placeholder).expect("a secret").placeholder, one.placeholder);
        for wrong in ["", "sbx_secret_key_", &one.placeholder[1..], &one.placeholder.to_uppercase(), "sbx_secret_key_0"]
        {
            assert!(matches!(again(wrong), Err(SecretsError::Placeholder(_))), "{wrong}");
        }
        assert!(one.placeholder.starts_with("sbx_secret_key_") && one.placeholder.len() == 15 + 2 * RANDOM);
        let set = Held::new(secret("key", "12345678", header("X-Api-Key", "{}")), None).expect("a secret");
        assert_eq!((set.placeholder.as_str(), set.mark.is_none()), ("sbx_secret_key", true));
        assert!(!format!("{:?} {:?}", set.secret, set.header).contains("12345678"));
    }

    #[test]
    fn a_value_is_hidden_in_every_way_in_which_it_is_written_plainly() {
        let held = Held::new(secret("a", "a/b\"c\"d/", Usage::Placeholder), None).expect("a secret");
        let forms: Vec<String> =
            held.hidden().into_iter().map(|pair| String::from_utf8(pair.from).expect("text")).collect();
        for form in ["a/b\"c\"d/", "a%2Fb%22c%22d%2F", "a%2fb%22c%22d%2f", "a/b\\\"c\\\"d/", "a\\/b\\\"c\\\"d\\/"] {
            assert!(forms.iter().any(|known| known == form), "{form}: {forms:?}");
        }
    }

    #[test]
    fn what_cannot_be_kept_or_sent_is_refused() {
        let long = "x".repeat(LONGEST + 1);
        for (name, value) in [("", "12345678"), ("A", "12345678"), ("a b", "12345678"), (&long, "12345678")] {
            assert!(
                matches!(Held::new(secret(name, value, Usage::Placeholder), None), Err(SecretsError::Name(_))),
                "{name}"
            );
        }
        for value in ["1234567", "12345678\n", "1234\r\n5678", " 12345678", &long, "1234\u{0}5678"] {
            let refused = Held::new(secret("a", value, Usage::Placeholder), None).err().expect("refused");
            assert!(matches!(refused, SecretsError::Value(_)) && !refused.to_string().contains("5678"), "{refused}");
        }
        let everybody = Secret { hosts: vec![Pattern::Any], ..secret("a", "12345678", Usage::Placeholder) };
        assert!(matches!(Held::new(everybody, None), Err(SecretsError::Everybody(_))));
        for usage in [header("Host", "{}"), header("a b", "{}"), header("x", "no braces"), header("x", "{}\n{}")] {
            assert!(matches!(Held::new(secret("a", "12345678", usage), None), Err(SecretsError::Header(_))));
        }
    }

    #[test]
    fn a_secret_is_for_its_hosts_and_ports_only() {
        let held = Held::new(secret("a", "12345678", Usage::Placeholder), None).expect("a secret");
        let is_for = |target: &str| held.is_for(&target.parse().expect(target));
        assert!(is_for("a.example.com:443") && !is_for("a.example.com:80"));
        assert!(!is_for("example.com:443") && !is_for("a.example.com.evil.org:443"));
    }
}
