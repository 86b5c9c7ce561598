//! AppArmor and SELinux as a second wall: what this machine has, and the label that a sandbox's first process takes when
//! it becomes the executor. Everything inside inherits it.
//!
//! Both modules work alike: a process writes the label that it wants into its own `attr/exec`, and the kernel gives it
//! with the next program or refuses to start that. So what was written and read back is held once the executor runs.

use std::{fs, io, path::Path, thread};

use sandbox_core::{Control, Enforcement, Finding, Grade, Held, SandboxSpec, policy::SecurityProfile};
use serde::{Deserialize, Serialize};

/// Our AppArmor profile for what runs inside.
pub const INSIDE: &str = "sandbox-mcp-inside";

/// What this machine's kernel has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SecurityModule {
    /// Neither of the two, or neither is switched on.
    None,
    /// Whatever it has, bwrap starts sandboxes here: it would take the label itself, and could build nothing any more.
    OutOfReach,
    /// AppArmor.
    AppArmor {
        /// How one of our processes comes by a profile.
        manner: Manner,
        /// Whether [`INSIDE`] is loaded and enforced.
        inside: Loaded,
    },
    /// SELinux.
    SeLinux {
        /// Our own context.
        context: String,
        /// Whether it refuses or only takes notes.
        mode: Mode,
    },
}

/// How a process comes by a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// It takes it, because it has none.
    Exec,
    /// It adds it to the one that it has: with `no_new_privs` nobody may leave a profile.
    Stack,
}

/// Whether a profile holds here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Loaded {
    Yes,
    No,
}

/// What SELinux does about what its policy forbids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Mode {
    Enforcing,
    Permissive,
}

/// What the first process becomes, as the module names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Label {
    AppArmor { manner: Manner, profile: String },
    SeLinux { context: String },
}

impl SecurityModule {
    /// Looks at this machine.
    pub fn look() -> Self {
        if fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|answer| answer.starts_with('Y')) {
            let manner = read_attribute(&APPARMOR_CURRENT).map_or(Manner::Exec, |current| manner(&current));
            let inside = match apparmor_mode(INSIDE, manner).as_deref() {
                Some("enforce") => Loaded::Yes,
                _ => Loaded::No,
            };
            return Self::AppArmor { manner, inside };
        }
        match (fs::read_to_string("/sys/fs/selinux/enforce"), read_attribute(&["current"])) {
            // Until a policy is loaded there is no context but the kernel's own, and anything may be written.
            (Ok(enforce), Ok(context)) if context.contains(':') => {
                let mode = if enforce.trim() == "1" { Mode::Enforcing } else { Mode::Permissive };
                Self::SeLinux { context, mode }
            }
            _ => Self::None,
        }
    }

    /// The label that a sandbox gets here, and how it is held: nothing where the policy leaves it to us and we have
    /// none, since the other walls do not lean on this one.
    pub fn choose(&self, spec: &SandboxSpec, enforcement: &mut Enforcement) -> Option<Label> {
        let mut hold = |held, by: String| enforcement.hold(Control::SecurityModule, held, by);
        match (&spec.policy.privileges.security_profile, self) {
            (SecurityProfile::Auto, Self::AppArmor { manner, inside: Loaded::Yes }) => {
                hold(Held::Kernel, format!("AppArmor profile {INSIDE}"));
                Some(Label::AppArmor { manner: *manner, profile: INSIDE.into() })
            }
            (SecurityProfile::Auto, _) => None,
            (SecurityProfile::Named(profile), Self::AppArmor { manner, .. }) => {
                hold(Held::Kernel, format!("AppArmor profile {profile}"));
                Some(Label::AppArmor { manner: *manner, profile: profile.clone() })
            }
            (SecurityProfile::Named(kind), Self::SeLinux { context, mode: Mode::Enforcing }) => {
                let context = context_inside(context, kind, spec.id.as_str());
                hold(Held::Kernel, format!("SELinux context {context}"));
                Some(Label::SeLinux { context })
            }
            (SecurityProfile::Named(kind), Self::SeLinux { mode: Mode::Permissive, .. }) => {
                hold(Held::None, format!("SELinux is permissive, so the type {kind} would hold nothing back"));
                None
            }
            (SecurityProfile::Named(profile), Self::OutOfReach) => {
                hold(Held::None, format!("bwrap starts sandboxes here, and cannot give them {profile}"));
                None
            }
            (SecurityProfile::Named(profile), Self::None) => {
                hold(Held::None, format!("neither AppArmor nor SELinux is switched on, so there is no {profile}"));
                None
            }
        }
    }

    /// What `doctor` says about it; nothing where there is no such module.
    pub fn findings(&self) -> Vec<Finding> {
        match self {
            Self::None | Self::OutOfReach => Vec::new(),
            Self::AppArmor { inside, .. } => vec![apparmor_finding(*inside)],
            Self::SeLinux { mode, .. } => vec![selinux_finding(*mode)],
        }
    }
}

impl Label {
    /// Takes the label with the next program. Only in a process that is about to become the executor.
    pub fn apply(&self) -> io::Result<()> {
        match self {
            Self::AppArmor { manner, profile } => {
                match apparmor_mode_after(&request_apparmor(profile, *manner)?).as_deref() {
                    Some("enforce") => Ok(()),
                    mode => Err(io::Error::other(format!(
                        "it is not enforced but in mode {}: `sudo aa-enforce {profile}` changes that",
                        mode.unwrap_or("unknown")
                    ))),
                }
            }
            Self::SeLinux { context } => {
                fs::write(attribute(&["exec"]), context)?;
                match read_attribute(&["exec"])? {
                    taken if taken == *context => Ok(()),
                    other => Err(io::Error::other(format!("the kernel made `{other}` of it"))),
                }
            }
        }
    }

    /// What is being done, with what to do where it fails.
    pub fn step(&self) -> String {
        match self {
            Self::AppArmor { profile, .. } if profile == INSIDE => {
                format!("taking the AppArmor profile {INSIDE} (`sandbox-mcp doctor --fix` loads it)")
            }
            Self::AppArmor { profile, .. } => format!(
                "taking the AppArmor profile {profile} (it must be loaded: `sudo apparmor_parser --replace FILE`)"
            ),
            Self::SeLinux { context } => format!(
                "taking the SELinux context {context} (the policy must know it and let this program's domain enter it)"
            ),
        }
    }
}

/// The mode of a profile that this process could take now; nothing if it is not loaded.
pub fn apparmor_profile_mode(profile: &str) -> Option<String> {
    let current = read_attribute(&APPARMOR_CURRENT).ok()?;
    apparmor_mode(profile, manner(&current))
}

/// Whether AppArmor keeps ordinary programs from using user namespaces.
pub fn restricts_user_namespaces() -> bool {
    fs::read_to_string("/proc/sys/kernel/apparmor_restrict_unprivileged_userns").is_ok_and(|text| text.trim() == "1")
}

/// The list of loaded profiles is for root alone, but anybody may ask for one. The wish dies with the thread that had it.
fn apparmor_mode(profile: &str, manner: Manner) -> Option<String> {
    let profile = profile.to_owned();
    let asked = thread::Builder::new().spawn(move || request_apparmor(&profile, manner)).ok()?.join().ok()?;
    apparmor_mode_after(&asked.ok()?)
}

const APPARMOR_CURRENT: [&str; 2] = ["apparmor/current", "current"];
const APPARMOR_EXEC: [&str; 2] = ["apparmor/exec", "exec"];

/// Writes the wish, and reads back what the kernel made of it.
fn request_apparmor(profile: &str, manner: Manner) -> io::Result<String> {
    let word = match manner {
        Manner::Exec => "exec",
        Manner::Stack => "stack",
    };
    fs::write(attribute(&APPARMOR_EXEC), format!("{word} {profile}"))?;
    read_attribute(&APPARMOR_EXEC)
}

/// `NAME (MODE)`; where profiles are stacked, all must be of that mode.
fn apparmor_mode_after(label: &str) -> Option<String> {
    let (_, mode) = label.strip_suffix(')')?.rsplit_once(" (")?;
    Some(mode.to_owned())
}

fn manner(current: &str) -> Manner {
    if current == "unconfined" || apparmor_mode_after(current).as_deref() == Some("unconfined") {
        Manner::Exec
    } else {
        Manner::Stack
    }
}

/// Older kernels have the module's attributes under the common names only.
fn attribute(names: &[&str]) -> String {
    let paths: Vec<String> = names.iter().map(|name| format!("/proc/thread-self/attr/{name}")).collect();
    let found = paths.iter().find(|path| Path::new(path).exists());
    found.or(paths.last()).cloned().unwrap_or_default()
}

fn read_attribute(names: &[&str]) -> io::Result<String> {
    let text = fs::read_to_string(attribute(names))?;
    Ok(text.trim_end_matches(['\0', '\n']).to_owned())
}

/// Our own user and role in the type that the policy names. Where we may use all categories, a pair of them is the
/// sandbox's own.
fn context_inside(own: &str, kind: &str, id: &str) -> String {
    let mut parts = own.splitn(4, ':');
    let (user, role) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let level = parts.nth(1).map(|range| {
        let low = range.split(['-', ':']).next().unwrap_or(range);
        if range.ends_with(":c0.c1023") {
            let (first, second) = categories(id);
            format!(":{low}:c{first},c{second}")
        } else {
            format!(":{}", range.split('-').next().unwrap_or(range))
        }
    });
    format!("{user}:{role}:{kind}{}", level.unwrap_or_default())
}

/// Two different categories from the random part of a sandbox's name, the smaller first.
fn categories(id: &str) -> (u32, u32) {
    let digits = id.rsplit('_').next().unwrap_or_default();
    let number = u32::from_str_radix(digits.get(..8).unwrap_or_default(), 16).unwrap_or_default();
    let (one, other) = (number % 1024, number / 1024 % 1023);
    let other = if other >= one { other + 1 } else { other };
    (one.min(other), one.max(other))
}

fn apparmor_finding(inside: Loaded) -> Finding {
    let restricted = match restricts_user_namespaces() {
        true => "; ordinary programs may not use user namespaces",
        false => "",
    };
    let (grade, found, fix) = match inside {
        Loaded::Yes => (Grade::Good, format!("what runs inside has the profile {INSIDE}"), None),
        Loaded::No => (
            Grade::Weak,
            format!("the profile {INSIDE} is not loaded: the walls are there, but not said twice"),
            Some("`sandbox-mcp doctor --fix` loads it".to_owned()),
        ),
    };
    Finding { subject: "AppArmor".into(), grade, found: format!("{found}{restricted}"), fix }
}

fn selinux_finding(mode: Mode) -> Finding {
    let (grade, found, fix) = match mode {
        Mode::Enforcing => {
            (Grade::Good, "enforcing: a policy with security_profile = \"TYPE\" runs commands in that type", None)
        }
        Mode::Permissive => (
            Grade::Weak,
            "permissive: it holds nothing back",
            Some("`sudo setenforce 1`, once your other programs work with it".to_owned()),
        ),
    };
    Finding { subject: "SELinux".into(), grade, found: found.into(), fix }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sandbox_core::{Image, Policy, SessionId, UserId};

    fn spec(profile: SecurityProfile) -> SandboxSpec {
        let mut policy = Policy::default();
        policy.privileges.security_profile = profile;
        let owner = UserId::local();
        let id = SessionId::random(&owner).unwrap();
        SandboxSpec {
            id,
            owner,
            image: Image::Host,
            policy,
            persistent: false,
            env: Default::default(),
            certificates: None,
            tools: Vec::new(),
        }
    }

    fn choose(module: &SecurityModule, profile: SecurityProfile) -> (Option<Label>, Option<Held>, bool) {
        let (spec, mut enforcement) = (spec(profile), Enforcement::default());
        let label = module.choose(&spec, &mut enforcement);
        let held = enforcement.0.get(&Control::SecurityModule).map(|holding| holding.held);
        (label, held, enforcement.satisfies(&spec.policy).is_ok())
    }

    fn apparmor(inside: Loaded) -> SecurityModule {
        SecurityModule::AppArmor { manner: Manner::Exec, inside }
    }

    fn selinux(mode: Mode) -> SecurityModule {
        SecurityModule::SeLinux { context: "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023".into(), mode }
    }

    #[test]
    fn ours_is_taken_where_it_is_loaded_and_nothing_is_refused_where_not() {
        let ours = Label::AppArmor { manner: Manner::Exec, profile: INSIDE.into() };
        assert_eq!(choose(&apparmor(Loaded::Yes), SecurityProfile::Auto), (Some(ours), Some(Held::Kernel), true));
        for module in [SecurityModule::None, SecurityModule::OutOfReach, apparmor(Loaded::No), selinux(Mode::Enforcing)]
        {
            assert_eq!(choose(&module, SecurityProfile::Auto), (None, None, true));
        }
    }

    #[test]
    fn a_named_profile_is_held_by_the_kernel_or_there_is_no_sandbox() {
        let named = || SecurityProfile::Named("mine_t".into());
        for module in [apparmor(Loaded::No), selinux(Mode::Enforcing)] {
            let (label, held, satisfied) = choose(&module, named());
            assert!(label.is_some() && held == Some(Held::Kernel) && satisfied);
        }
        for module in [SecurityModule::None, SecurityModule::OutOfReach, selinux(Mode::Permissive)] {
            assert_eq!(choose(&module, named()), (None, Some(Held::None), false));
        }
    }

    #[test]
    fn whoever_has_a_profile_keeps_it() {
        assert_eq!(manner("unconfined"), Manner::Exec);
        assert_eq!(manner("sandbox-mcp (unconfined)"), Manner::Exec);
        assert_eq!(manner("docker-default (enforce)"), Manner::Stack);
        assert_eq!(apparmor_mode_after("one//&two (mixed)").as_deref(), Some("mixed"));
        assert_eq!(apparmor_mode_after(""), None);
    }

    #[test]
    fn a_context_keeps_our_user_and_role_and_gets_two_categories_where_we_have_them_all() {
        let context = |own| context_inside(own, "mine_t", "sandbox_local_0000040312345678");
        assert_eq!(context("a_u:b_r:c_t:s0-s0:c0.c1023"), "a_u:b_r:mine_t:s0:c1,c3");
        assert_eq!(context("a_u:b_r:c_t:s0"), "a_u:b_r:mine_t:s0");
        assert_eq!(context("a_u:b_r:c_t:s0:c5,c9-s0:c5,c9"), "a_u:b_r:mine_t:s0:c5,c9");
        assert_eq!(context("a_u:b_r:c_t"), "a_u:b_r:mine_t");
    }

    #[test]
    fn the_two_categories_differ() {
        for number in (0..u32::MAX).step_by(999_983) {
            let (first, second) = categories(&format!("x_{number:08x}"));
            assert!(first < second && second < 1024, "{number}");
        }
    }
}
