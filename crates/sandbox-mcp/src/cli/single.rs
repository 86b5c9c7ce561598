//! `exec` in a fresh sandbox without a terminal: this process is its own launcher. No runtime, no server, and no database
//! unless something connected: this path is measured in milliseconds.

use std::{collections::BTreeMap, io, os::fd::AsFd, time::Duration};

use rustix::fs::{FileType, fstat, major, minor};
use sandbox_core::{Image, Policy, SandboxSpec, SessionId, UserId, exec};

use super::{
    args::{Exec, Global},
    exit, outside, prompt, screen,
};
use crate::{
    config::{self, Settings, Template},
    sandboxes::{access, check_env, secrets, way_out},
};

/// Whether the command can have our own descriptors and nobody needs to stand between.
///
/// Only pipes and /dev/null are handed over. A terminal would let the command type for its user (TIOCSTI); a folder
/// would lead out of the sandbox; and a file could be opened again through /proc/self/fd with more rights than it was
/// given with. All those go through a relay.
pub(super) fn fits(args: &Exec, global: &Global) -> bool {
    let harmless = can_be_handed(io::stdin()) && can_be_handed(io::stdout()) && can_be_handed(io::stderr());
    args.session.is_none() && !global.json && harmless
}

/// Runs it and answers with its exit code.
///
/// Nothing if the sandbox has secrets, since those take somebody who puts them in, or runs elsewhere.
pub(super) fn run(args: Exec, global: &Global) -> anyhow::Result<Result<u8, Exec>> {
    let settings = Settings::load(&global.flags())?;
    config::prepare_state(&settings.state)?;
    let spec = spec(&settings, &args)?;
    let embedded = backend(&settings, &args)?.unwrap_or(&settings.backend) == sandbox_linux::BACKEND;
    // An image that has to be fetched first takes a runtime.
    let missing = matches!(&spec.image, Image::Reference(name) if !sandbox_linux::has_image(&settings.state, name));
    if !embedded || missing || secrets::are_there(&settings, &spec.policy) {
        return Ok(Err(args));
    }
    let most = spec.policy.limits.run.min(settings.max_timeout);
    let mut command = command(args)?;
    if let Some(asked) = command.timeout.filter(|asked| *asked > most) {
        screen::tell(&lowered(asked, most, &spec.policy, &settings));
    }
    command.timeout = Some(command.timeout.unwrap_or(most).min(most));
    if let Err(denials) = prompt::admit(&command, &spec, &settings) {
        screen::tell(&access::in_words(&denials));
        return Ok(Ok(exit::NOT_ALLOWED));
    }
    let rules = way_out::rules(&spec.policy, &settings)?;
    let serve = |doors, leash: &sandbox_linux::Leash| outside::serve(doors, leash, rules, &spec, &settings.state);
    let explain = |error| match &spec.image {
        Image::Reference(name) => settings.explain_missing(name, error),
        _ => error,
    };
    let ended = sandbox_linux::run_single(&settings.state, &spec, command, serve).map_err(explain)?;
    if let Some(account) = ended.account {
        outside::tell(&account, ended.exit);
    }
    if ended.wanted_network {
        outside::tell_of_no_network(&spec, &settings.state);
    }
    if let Some(message) = exit::message(ended.exit, &spec.policy) {
        screen::tell(&message);
    }
    Ok(Ok(exit::code(ended.exit)))
}

/// The command as it will be started.
pub(super) fn command(args: Exec) -> anyhow::Result<exec::Exec> {
    let mut command = exec::Exec::argv(args.command);
    command.env = args.env.into_iter().collect();
    check_env(&command.env)?;
    command.cwd = args.cwd;
    command.timeout = args.timeout;
    command.stdin = exec::Stdin::Piped;
    Ok(command)
}

/// What to say when less time is given than was asked for.
pub(super) fn lowered(asked: Duration, most: Duration, policy: &Policy, settings: &Settings) -> String {
    let by = access::lowered_by(most, policy, settings);
    format!("the timeout of {} s is lowered to {} s ({by})", asked.as_secs_f64(), most.as_secs_f64())
}

fn spec(settings: &Settings, args: &Exec) -> anyhow::Result<SandboxSpec> {
    let owner = UserId::local();
    let id = SessionId::random(&owner).map_err(|error| io::Error::other(error.to_string()))?;
    let (image, mut env) = image(settings, args)?;
    let (policy, _) = policy(settings, args)?;
    way_out::tell_of_mirrors(&mut env, &policy, settings);
    Ok(SandboxSpec { id, owner, image, policy, persistent: false, env, certificates: None, tools: Vec::new() })
}

/// The kind of a fresh sandbox, if one was named.
fn template<'s>(settings: &'s Settings, args: &Exec) -> anyhow::Result<Option<&'s Template>> {
    Ok(args.template.as_deref().map(|name| settings.template(name)).transpose()?)
}

/// What a fresh sandbox starts from, and the variables that belong to it.
pub(super) fn image(settings: &Settings, args: &Exec) -> anyhow::Result<(Image, BTreeMap<String, String>)> {
    Ok(match template(settings, args)? {
        Some(template) => (template.image.clone(), template.env.clone()),
        None => (args.image.clone().map_or_else(|| default_image(settings, args), Ok)?, BTreeMap::new()),
    })
}

/// In a container a plain command gets an image that has it, unless one was set for all sandboxes.
fn default_image(settings: &Settings, args: &Exec) -> anyhow::Result<Image> {
    let engine = backend(settings, args)?.unwrap_or(&settings.backend) == sandbox_docker::BACKEND;
    let of_command = || settings.engine_images.of_command(&args.command);
    let chosen = (engine && settings.default_image == Image::Host).then(of_command).flatten();
    Ok(chosen.unwrap_or_else(|| settings.default_image.clone()))
}

/// Where a fresh sandbox runs, if that was said.
pub(super) fn backend<'a>(settings: &'a Settings, args: &'a Exec) -> anyhow::Result<Option<&'a String>> {
    Ok(args.backend.as_ref().or(template(settings, args)?.and_then(|template| template.backend.as_ref())))
}

/// The policy of a fresh sandbox, and what the ceiling took from it. Who named it is told so; the default is nobody's wish.
pub(super) fn policy(settings: &Settings, args: &Exec) -> anyhow::Result<(Policy, Vec<String>)> {
    let of_template = template(settings, args)?.and_then(|template| template.policy.as_deref());
    if let (None, Some(name)) = (&args.policy, of_template) {
        return Ok((settings.policy(name)?, settings.lowered_by_ceiling(name)));
    }
    let Some(said) = &args.policy else {
        let default = &settings.default_policy;
        return Ok((default.clone(), settings.lowered_by_ceiling(&default.name)));
    };
    let narrowed = settings.lowered_at_terminal(said);
    narrowed.iter().for_each(|what| screen::tell(what));
    Ok((settings.policy_at_terminal(said)?, narrowed))
}

fn can_be_handed(descriptor: impl AsFd) -> bool {
    let Ok(found) = fstat(descriptor) else { return false };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Fifo => true,
        FileType::CharacterDevice => (major(found.st_rdev), minor(found.st_rdev)) == (1, 3),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;

    #[test]
    fn only_pipes_and_the_null_device_are_handed_over() {
        let (reader, writer) = io::pipe().unwrap();
        assert!(can_be_handed(&reader) && can_be_handed(&writer));
        assert!(can_be_handed(File::open("/dev/null").unwrap()));
        for other in ["/", "/etc/passwd", "/dev/zero"] {
            assert!(!can_be_handed(File::open(other).unwrap()), "{other}");
        }
    }
}
