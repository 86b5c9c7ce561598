//! What content is called: the SHA-256 of its bytes. Checked when it is read, compared while bytes go by.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::ImageError;

/// `sha256:` and 64 small hexadecimal digits. Nothing else gets into a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

impl Digest {
    /// Of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut meter = Meter::default();
        meter.update(bytes);
        meter.digest()
    }

    /// The digits only.
    pub fn hex(&self) -> &str {
        &self.0
    }
}

impl FromStr for Digest {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        match text.strip_prefix("sha256:") {
            Some(hex) if hex.len() == 64 && hex.bytes().all(digit) => Ok(Self(hex.to_owned())),
            _ => Err(ImageError::malformed(format!(
                "`{}` is not a digest that is understood: `sha256:` and 64 hexadecimal digits",
                text.chars().take(100).collect::<String>()
            ))),
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{}", self.0)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> Self {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Self, ImageError> {
        text.parse()
    }
}

/// Counts and hashes bytes that go by.
#[derive(Clone, Default)]
pub struct Meter {
    hasher: Sha256,
    /// Bytes so far.
    pub length: u64,
}

impl Meter {
    /// More bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
    }

    /// Of everything so far.
    pub fn digest(&self) -> Digest {
        let bytes = self.hasher.clone().finalize();
        Digest(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// An error, unless everything was what was promised.
    pub fn verify(&self, what: &str, digest: &Digest) -> Result<(), ImageError> {
        let found = self.digest();
        if found == *digest {
            return Ok(());
        }
        Err(ImageError::malformed(format!("{what} should be {digest}, but its content is {found}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_whole_digests_are_digests() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
        let upper = empty.to_uppercase();
        for text in ["", "sha256:", &empty[..70], &upper, "sha512:00", "sha256:../../../../etc/passwd"] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
        let long = format!("{empty}0");
        assert!(long.parse::<Digest>().is_err());
    }
}
