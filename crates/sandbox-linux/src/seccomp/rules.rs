//! What a filter says, before it is compiled: for each call some rules on its arguments. Pure.

use std::collections::BTreeMap;

/// What a call is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answer {
    /// It is made.
    Allow,
    /// It fails with this number, and nothing happens.
    Errno(u16),
}

impl Answer {
    /// Known, and not allowed.
    pub const REFUSE: Self = Self::Errno(libc::EPERM as u16);
    /// As on a kernel that does not have it, so that libraries fall back.
    pub const ABSENT: Self = Self::Errno(libc::ENOSYS as u16);
    /// The same for a family of sockets: programs that would like to use one (useradd and the kernel's audit) go on.
    pub const NO_FAMILY: Self = Self::Errno(libc::EAFNOSUPPORT as u16);
    /// And for a kind within a family.
    pub const NO_PROTOCOL: Self = Self::Errno(libc::EPROTONOSUPPORT as u16);
}

/// The calls of one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Rules by the number of the call.
    pub calls: BTreeMap<u32, Vec<Rule>>,
    /// For known calls that no rule speaks of.
    pub otherwise: Answer,
}

/// An answer for when all tests hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// None: always.
    pub tests: Vec<Test>,
    /// The answer.
    pub answer: Answer,
}

/// One argument, as far as the mask shows it, compared with a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    /// 0 to 5.
    pub argument: u8,
    /// Bits that are looked at.
    pub mask: u64,
    /// How.
    pub compare: Compare,
    /// With what.
    pub value: u64,
}

/// How an argument is compared, as a number without sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Compare {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Profile {
    /// What happens to a call. Where several rules hold, one that refuses wins.
    pub fn answer(&self, number: u32, arguments: &[u64; 6]) -> Answer {
        let rules = self.rules(number).into_iter();
        rules.filter(|rule| rule.holds(arguments)).map(|rule| rule.answer).next().unwrap_or(self.otherwise)
    }

    /// The rules for a call in the order in which the first that holds decides: those that refuse come first.
    pub fn rules(&self, number: u32) -> Vec<&Rule> {
        let mut rules: Vec<&Rule> = self.calls.get(&number).into_iter().flatten().collect();
        rules.sort_by_key(|rule| rule.answer == Answer::Allow);
        rules
    }

    /// Adds a rule for a call.
    pub fn add(&mut self, number: u32, rule: Rule) {
        self.calls.entry(number).or_default().push(rule);
    }
}

impl Rule {
    /// Always this answer.
    pub fn always(answer: Answer) -> Self {
        Self { tests: Vec::new(), answer }
    }

    /// Whether it applies.
    pub fn holds(&self, arguments: &[u64; 6]) -> bool {
        self.tests.iter().all(|test| test.holds(arguments))
    }
}

/// What the kernel reads of arguments that are `int` or `unsigned int` to it. Whoever looks at more can be fooled.
const LOW_HALF: u64 = u32::MAX as u64;

impl Test {
    /// The low half of an argument is this.
    pub fn is(argument: u8, value: u32) -> Self {
        Self { argument, mask: LOW_HALF, compare: Compare::Equal, value: value.into() }
    }

    /// The low half of an argument is not this.
    pub fn is_not(argument: u8, value: u32) -> Self {
        Self { compare: Compare::NotEqual, ..Self::is(argument, value) }
    }

    /// One of these bits is set.
    pub fn any_of(argument: u8, bits: u32) -> Self {
        Self { argument, mask: bits.into(), compare: Compare::NotEqual, value: 0 }
    }

    /// None of these bits is set.
    pub fn none_of(argument: u8, bits: u32) -> Self {
        Self { compare: Compare::Equal, ..Self::any_of(argument, bits) }
    }

    fn holds(&self, arguments: &[u64; 6]) -> bool {
        let seen = arguments[usize::from(self.argument)] & self.mask;
        match self.compare {
            Compare::Equal => seen == self.value,
            Compare::NotEqual => seen != self.value,
            Compare::Less => seen < self.value,
            Compare::LessOrEqual => seen <= self.value,
            Compare::Greater => seen > self.value,
            Compare::GreaterOrEqual => seen >= self.value,
        }
    }
}
