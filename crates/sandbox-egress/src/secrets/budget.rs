//! Whether a service may be asked once more.

use std::fmt;

type Check = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Says before each request to a service whether it may be made.
pub struct Budget(Option<Check>);

impl Budget {
    /// It always may.
    pub fn endless() -> Self {
        Self(None)
    }

    /// Whoever counts decides: by the service's name, with words for a person where it is too much. Must not wait.
    pub fn asked_of(check: impl Fn(&str) -> Result<(), String> + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(check)))
    }

    pub(crate) fn allows(&self, service: &str) -> Result<(), String> {
        self.0.as_ref().map_or(Ok(()), |check| check(service))
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Budget(limited)" } else { "Budget(endless)" })
    }
}
