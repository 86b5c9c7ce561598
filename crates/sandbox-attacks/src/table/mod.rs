//! The table of attacks, one file for each group.

mod disguise;
mod escape;
mod exhaustion;
mod files;
mod leakage;
mod network;

use crate::Attack;

/// All attacks.
pub fn all() -> impl Iterator<Item = Attack> {
    let tables = [
        escape::MOUNTS,
        escape::NAMESPACES,
        escape::FIRST_PROCESS,
        escape::KERNEL,
        escape::MACHINE,
        escape::PRIVILEGES,
        leakage::ATTACKS,
        network::ATTACKS,
        disguise::ATTACKS,
        files::ATTACKS,
        exhaustion::ATTACKS,
    ];
    tables.into_iter().flatten().copied()
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, os::fd::AsRawFd, process::Command};

    use super::*;
    use crate::{Group, attack::Way};

    #[test]
    fn names_are_unique_and_sentences_are_there() {
        let mut seen = BTreeSet::new();
        for attack in all() {
            assert!(seen.insert(attack.name), "{} comes twice", attack.name);
            assert!(!attack.walls.is_empty() && attack.tries.len() > 8, "{}", attack.name);
            assert!(!attack.tries.ends_with('.') && attack.tries.starts_with(char::is_uppercase), "{}", attack.tries);
        }
        assert!(seen.len() >= 120, "only {} attacks", seen.len());
    }

    #[test]
    fn every_group_has_attacks() {
        for group in Group::ALL {
            assert!(all().filter(|attack| attack.group == group).count() >= 10, "{group}");
        }
    }

    #[test]
    fn the_program_knows_every_attack_that_runs_inside() {
        let program = crate::unpack().expect("a file in memory");
        let output = Command::new(format!("/proc/self/fd/{}", program.as_raw_fd())).arg("list").output();
        let output = String::from_utf8(output.expect("it runs").stdout).expect("text");
        let known: BTreeSet<&str> = output.lines().collect();
        for attack in all().filter(|attack| !matches!(attack.way, Way::Outside(_))) {
            assert!(known.contains(attack.name), "{} is not in the program", attack.name);
        }
        let listed: BTreeSet<&str> = all().map(|attack| attack.name).collect();
        let helpers = [
            "find_mark",
            "leave_mark",
            "listen_for_host",
            "host_resources",
            "still_here",
            "stay",
            "disk_deep_tree",
            "output_flood",
            "ignore_signals",
            "daemon",
            "effects",
            "show_folder",
            "swap",
            "grow",
        ];
        for name in known {
            let helper = helpers.contains(&name) || name.starts_with("plant_");
            assert!(helper || listed.contains(name), "{name} is in the program and never run");
        }
    }
}
