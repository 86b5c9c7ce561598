//! Profiles of one's own, in the form that OCI runtimes and container engines read.
//!
//! Two steps: what the file says ([`Document`]), then what it means here ([`Profile`]). What we cannot do as it is
//! written is an error; only names of calls that this kernel does not have are passed over, as runtimes do. Nothing is
//! ever killed: where a profile says so, the call fails with EPERM instead.

mod document;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use document::{Action, Argument, Condition, Document, Entry, Operator};
use sandbox_core::policy::{Capabilities, UnknownCapability};

use super::{
    Narrowing,
    compile::{self, LONGEST},
    floor, names,
    rules::{Answer, Compare, Profile, Rule, Test},
};

/// No profile is longer; those of container engines have some 20 KiB.
const LONGEST_FILE: u64 = 1 << 20;
/// No profile has more rules; that many would not fit into a filter anyway.
const MOST_RULES: usize = 1 << 16;
/// The largest error number that the kernel gives.
const LARGEST_ERRNO: u32 = 4095;

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ProfileError {
    #[error("it cannot be read: {0}")]
    Read(io::Error),
    #[error("it is not a file")]
    NotAFile,
    #[error("it is longer than {} KiB", LONGEST_FILE >> 10)]
    TooLong,
    #[error("it is not an OCI seccomp profile: {0}")]
    Form(serde_json::Error),
    #[error("the action {0} needs somebody who answers for each call, and here nobody does")]
    Action(&'static str),
    #[error("`{field}` is only for SCMP_ACT_ERRNO, and says {number}")]
    ErrnoWithoutUse { field: &'static str, number: u32 },
    #[error("`{field}` is {number}, and no error has a number above {LARGEST_ERRNO}")]
    Errno { field: &'static str, number: u32 },
    #[error("it is for {0}, and this machine is {native}", native = NATIVE.1)]
    Architecture(String),
    #[error("`architectures` and `archMap` are both there, and say the same thing twice")]
    Architectures,
    #[error("an entry of `syscalls` has neither `names` nor `name`, or both")]
    Names,
    #[error("an argument has the `index` {0}: a call has six, from 0 to 5")]
    Index(u64),
    #[error("`minKernel` is `{0}`: it is a version such as 5.11")]
    Kernel(String),
    #[error("{0}")]
    Capability(#[from] UnknownCapability),
    #[error("it has more than {MOST_RULES} rules")]
    Rules,
    #[error("it becomes {0} instructions, and the kernel takes {LONGEST}")]
    Program(usize),
    #[error("it refuses calls that every sandbox needs to start commands: {}", .0.join(", "))]
    Executor(Vec<&'static str>),
}

impl ProfileError {
    /// What to do about it.
    pub fn fix(&self) -> &'static str {
        match self {
            Self::Read(_) | Self::NotAFile => "Name a file that the server can read, or use minimal, standard or build",
            Self::TooLong | Self::Rules | Self::Program(_) => {
                "Name calls instead of testing their arguments, or use several profiles"
            }
            Self::Action(_) => "Use SCMP_ACT_ALLOW or SCMP_ACT_ERRNO",
            Self::Executor(_) => "Allow them: what commands may not do with them is held by other walls",
            _ => "Correct the file, or use minimal, standard or build",
        }
    }
}

/// The profile in a file, as it is meant for commands with these capabilities on this machine.
pub fn read(path: &Path, capabilities: Capabilities) -> Result<Profile, ProfileError> {
    let machine = Machine { capabilities, kernel: running_kernel() };
    parse(&contents(path)?, &machine)
}

fn contents(path: &Path) -> Result<Vec<u8>, ProfileError> {
    // A pipe would keep us waiting.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(ProfileError::Read)?;
    if !file.metadata().map_err(ProfileError::Read)?.is_file() {
        return Err(ProfileError::NotAFile);
    }
    let mut bytes = Vec::new();
    file.take(LONGEST_FILE + 1).read_to_end(&mut bytes).map_err(ProfileError::Read)?;
    if bytes.len() as u64 > LONGEST_FILE { Err(ProfileError::TooLong) } else { Ok(bytes) }
}

/// What a profile can ask about.
pub(super) struct Machine {
    pub(super) capabilities: Capabilities,
    pub(super) kernel: (u32, u32),
}

/// From the text of a profile to what it means.
pub(super) fn parse(bytes: &[u8], machine: &Machine) -> Result<Profile, ProfileError> {
    let document: Document = serde_json::from_slice(bytes).map_err(ProfileError::Form)?;
    let profile = document.meaning(machine)?;
    let filtered = floor::beneath(
        profile.clone(),
        Narrowing { visible_memory_only: true, fixed_processors: true, lenient_kernel: Some(0) },
    );
    let missing = floor::missing(&filtered);
    if !missing.is_empty() {
        return Err(ProfileError::Executor(missing));
    }
    let length = compile::compile(&filtered).len();
    if length > LONGEST { Err(ProfileError::Program(length)) } else { Ok(profile) }
}

/// What a text means, whatever becomes of it.
#[cfg(test)]
pub(super) fn understand(bytes: &[u8]) -> Result<Profile, ProfileError> {
    let document: Document = serde_json::from_slice(bytes).map_err(ProfileError::Form)?;
    document.meaning(&Machine { capabilities: Capabilities::NONE, kernel: running_kernel() })
}

/// This architecture, as profiles and as conditions call it.
#[cfg(target_arch = "x86_64")]
const NATIVE: (&str, &str) = ("SCMP_ARCH_X86_64", "amd64");
#[cfg(target_arch = "aarch64")]
const NATIVE: (&str, &str) = ("SCMP_ARCH_AARCH64", "arm64");

impl Document {
    fn meaning(&self, machine: &Machine) -> Result<Profile, ProfileError> {
        self.check_architecture()?;
        let otherwise = self.default_action.answer("defaultErrnoRet", self.default_errno_ret)?;
        let mut profile = Profile { calls: Default::default(), otherwise };
        let mut count = 0usize;
        for entry in self.syscalls.iter().flatten() {
            let rules = entry.rules()?;
            let names = entry.names()?;
            if !entry.applies(machine)? {
                continue;
            }
            count = count.saturating_add(names.len().saturating_mul(rules.len()));
            if count > MOST_RULES {
                return Err(ProfileError::Rules);
            }
            for number in names.into_iter().filter_map(names::number) {
                rules.iter().for_each(|rule| profile.add(number, rule.clone()));
            }
        }
        Ok(profile)
    }

    /// Foreign ABIs are closed whatever is listed, so all that counts is whether the profile is for this machine.
    fn check_architecture(&self) -> Result<(), ProfileError> {
        let Some(listed) = &self.architectures else { return Ok(()) };
        if self.arch_map.is_some() {
            return Err(ProfileError::Architectures);
        }
        if listed.is_empty() || listed.iter().any(|one| one.0 == NATIVE.0) {
            return Ok(());
        }
        Err(ProfileError::Architecture(listed.iter().map(|one| one.0.as_str()).collect::<Vec<_>>().join(", ")))
    }
}

impl Action {
    fn answer(self, field: &'static str, number: Option<u32>) -> Result<Answer, ProfileError> {
        match (self, number) {
            (Self::Trace, _) => Err(ProfileError::Action("SCMP_ACT_TRACE")),
            (Self::Notify, _) => Err(ProfileError::Action("SCMP_ACT_NOTIFY")),
            (Self::Errno, Some(number)) if number > LARGEST_ERRNO => Err(ProfileError::Errno { field, number }),
            (Self::Errno, Some(number)) => Ok(Answer::Errno(number as u16)),
            (_, Some(number)) => Err(ProfileError::ErrnoWithoutUse { field, number }),
            (Self::Allow | Self::Log, None) => Ok(Answer::Allow),
            (Self::Errno | Self::Kill, None) => Ok(Answer::REFUSE),
        }
    }
}

impl Entry {
    fn names(&self) -> Result<Vec<&str>, ProfileError> {
        match (&self.names, &self.name) {
            (Some(names), None) if !names.is_empty() => Ok(names.iter().map(String::as_str).collect()),
            (None, Some(name)) => Ok(vec![name]),
            _ => Err(ProfileError::Names),
        }
    }

    /// All tests must hold, unless two are about the same argument: then each one alone is enough, as runtimes have it.
    fn rules(&self) -> Result<Vec<Rule>, ProfileError> {
        let answer = self.action.answer("errnoRet", self.errno_ret)?;
        let tests: Vec<Test> = self.args.iter().flatten().map(Argument::test).collect::<Result<_, _>>()?;
        let repeated = (0..6).any(|index| tests.iter().filter(|test| test.argument == index).count() > 1);
        if repeated {
            return Ok(tests.into_iter().map(|test| Rule { tests: vec![test], answer }).collect());
        }
        Ok(vec![Rule { tests, answer }])
    }

    fn applies(&self, machine: &Machine) -> Result<bool, ProfileError> {
        let none = Condition::default();
        let (includes, excludes) = (self.includes.as_ref().unwrap_or(&none), self.excludes.as_ref().unwrap_or(&none));
        // All capabilities must be there to include, and any one is enough to exclude.
        let wanted = Capabilities::from_names(includes.caps.iter().flatten())?;
        let unwanted = Capabilities::from_names(excludes.caps.iter().flatten())?;
        let capabilities =
            wanted.is_within(machine.capabilities) && (unwanted & machine.capabilities) == Capabilities::NONE;
        let native = |arches: &[String]| arches.iter().any(|name| name == NATIVE.1);
        let architectures = includes.arches.as_deref().is_none_or(|arches| arches.is_empty() || native(arches))
            && !excludes.arches.as_deref().is_some_and(native);
        let kernel = includes.least_kernel()?.is_none_or(|least| machine.kernel >= least)
            && excludes.least_kernel()?.is_none_or(|least| machine.kernel < least);
        Ok(capabilities && architectures && kernel)
    }
}

impl Condition {
    fn least_kernel(&self) -> Result<Option<(u32, u32)>, ProfileError> {
        let read = |text: &String| version(text).ok_or_else(|| ProfileError::Kernel(text.clone()));
        self.min_kernel.as_ref().map(read).transpose()
    }
}

impl Argument {
    fn test(&self) -> Result<Test, ProfileError> {
        let argument =
            u8::try_from(self.index).ok().filter(|&index| index < 6).ok_or(ProfileError::Index(self.index))?;
        let whole = |compare| Test { argument, mask: u64::MAX, compare, value: self.value };
        Ok(match self.op {
            Operator::Equal => whole(Compare::Equal),
            Operator::NotEqual => whole(Compare::NotEqual),
            Operator::Less => whole(Compare::Less),
            Operator::LessOrEqual => whole(Compare::LessOrEqual),
            Operator::Greater => whole(Compare::Greater),
            Operator::GreaterOrEqual => whole(Compare::GreaterOrEqual),
            // The first value is the mask, and bits outside of it are not looked at on either side.
            Operator::MaskedEqual => {
                Test { argument, mask: self.value, compare: Compare::Equal, value: self.value_two & self.value }
            }
        })
    }
}

fn running_kernel() -> (u32, u32) {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    // A version that cannot be read is old.
    version(release.split(['-', '+', ' ']).next().unwrap_or_default()).unwrap_or_default()
}

/// `5.11` or `5.11.0`.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.').map(str::parse::<u32>);
    let version = (parts.next()?.ok()?, parts.next()?.ok()?);
    parts.all(|part| part.is_ok()).then_some(version)
}
