//! Landlock: what may be written and executed, held by the kernel apart from mounts.
//!
//! Writes are said once more, so that a slip in the mounts alone opens nothing; older kernels do without. Execution is
//! held by nothing else, so where it is asked for it must hold. Shared libraries are read, not executed, and so is
//! whatever an allowed interpreter runs: a list of programs says what may be *started*, not what code may run.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use ::landlock::{
    ABI, Access, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError,
};

/// Whether this kernel can hold what may be executed. Before version 2 nothing could be moved between folders then.
pub fn holds_execution() -> bool {
    let ruleset = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    ruleset.handle_access(AccessFs::from_all(ABI::V2)).and_then(Ruleset::create).is_ok()
}

/// Restricts this process and all after it: writes to beneath these places, execution to these files and folders and to
/// the executor itself.
pub fn restrict(
    writable: Option<&[String]>,
    executable: Option<&[String]>,
    executor: BorrowedFd<'_>,
) -> io::Result<()> {
    if writable.is_none() && executable.is_none() {
        return Ok(());
    }
    build(writable, executable, executor).map_err(io::Error::other)
}

fn build(
    writable: Option<&[String]>,
    executable: Option<&[String]>,
    executor: BorrowedFd<'_>,
) -> Result<(), RulesetError> {
    let writing = AccessFs::from_write(ABI::V3);
    let mut ruleset = Ruleset::default();
    if writable.is_some() {
        ruleset = ruleset.handle_access(writing)?;
    }
    if executable.is_some() {
        // Moving between folders is refused by any rules at all unless it is allowed by name.
        let needed = AccessFs::Execute | AccessFs::Refer;
        ruleset = ruleset.set_compatibility(CompatLevel::HardRequirement).handle_access(needed)?;
        ruleset = ruleset.set_compatibility(CompatLevel::BestEffort);
    }
    let mut ruleset = ruleset.create()?;
    match writable {
        Some(places) => ruleset = beneath(ruleset, places, writing)?,
        None => ruleset = beneath(ruleset, &["/".into()], AccessFs::Refer.into())?,
    }
    if let Some(programs) = executable {
        ruleset = beneath(ruleset, programs, AccessFs::Execute.into())?;
        // Memory files have no name, and are not asked about.
        if rustix::fs::fstat(executor).is_ok_and(|found| found.st_nlink > 0) {
            ruleset = ruleset.add_rule(PathBeneath::new(executor.as_fd(), AccessFs::Execute))?;
        }
    }
    ruleset.restrict_self().map(drop)
}

/// What is not there needs no rule.
fn beneath(
    ruleset: RulesetCreated,
    paths: &[String],
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    let open = paths.iter().filter_map(|path| PathFd::new(path).ok());
    open.into_iter().try_fold(ruleset, |ruleset, path| ruleset.add_rule(PathBeneath::new(path, access)))
}
