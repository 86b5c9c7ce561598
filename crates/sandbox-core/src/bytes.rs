//! A number of bytes that people write as `512MiB` and read back the same way.

use std::{fmt, str::FromStr};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Unexpected, Visitor},
};

/// A size. Written as a plain number or with a unit (`KiB`, `MiB`, `GiB`; `K`, `MB`, … mean the same).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// So many times 1024 bytes.
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }
    /// So many times 1024² bytes.
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// So many times 1024³ bytes.
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let Some((unit, name)) = UNITS.into_iter().find(|(unit, _)| self.0 >= *unit) else {
            return write!(f, "{} B", self.0);
        };
        if self.0.is_multiple_of(unit) {
            write!(f, "{} {name}", self.0 / unit)
        } else {
            write!(f, "{:.1} {name}", self.0 as f64 / unit as f64)
        }
    }
}

/// The text is not a size.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a size: write a number with a unit, such as 512MiB or 4GiB")]
pub struct InvalidBytes(String);

impl FromStr for Bytes {
    type Err = InvalidBytes;

    fn from_str(text: &str) -> Result<Self, InvalidBytes> {
        let invalid = || InvalidBytes(text.to_owned());
        let text_ = text.trim();
        let digits = text_.find(|c: char| !c.is_ascii_digit()).unwrap_or(text_.len());
        let number: u64 = text_[..digits].parse().map_err(|_| invalid())?;
        let shift = match text_[digits..].trim().to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(invalid()),
        };
        number.checked_mul(1 << shift).map(Self).ok_or_else(invalid)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Written)
    }
}

/// A number, or text with a unit.
struct Written;

impl Visitor<'_> for Written {
    type Value = Bytes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, such as \"512MiB\"")
    }

    fn visit_u64<E: de::Error>(self, number: u64) -> Result<Bytes, E> {
        Ok(Bytes(number))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<Bytes, E> {
        let wrong = || de::Error::invalid_value(Unexpected::Signed(number), &self);
        u64::try_from(number).map(Bytes).map_err(|_| wrong())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn people_write_sizes_in_many_ways() {
        for text in ["4GiB", "4 gib", "4G", "4096MiB", "4294967296"] {
            assert_eq!(text.parse::<Bytes>().ok(), Some(Bytes::gib(4)), "{text}");
        }
        for text in ["", "GiB", "-1", "4 parsecs", "99999999999999TiB"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn whole_units_survive_a_round_trip(n in 1u64..1024, unit in 0usize..3) {
            let bytes = [Bytes::kib(n), Bytes::mib(n), Bytes::gib(n)][unit];
            prop_assert_eq!(bytes.to_string().parse::<Bytes>().ok(), Some(bytes));
        }
    }
}
