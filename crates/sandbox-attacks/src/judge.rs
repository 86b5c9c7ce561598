//! Comparing what was seen inside with what is outside. Nothing secret goes in: what is compared comes out.

use std::{
    fs,
    hash::{DefaultHasher, Hasher},
    io::Read,
    path::Path,
};

use sandbox_core::{Facts, Image};

use crate::{canary::Canary, expectation, report::Finding};

/// Variables of our own that were seen inside. Those that every sandbox has by itself say nothing, nor does a digit.
pub(crate) fn environment(seen: &str, canary: &Canary, _: &Facts) -> Finding {
    const USUAL: [&str; 9] = ["PATH", "HOME", "LANG", "TERM", "USER", "LOGNAME", "SHELL", "TMPDIR", "PWD"];
    let ours =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let lines: Vec<&str> = seen.lines().collect();
    let told = ours.filter(|(name, value)| {
        !USUAL.contains(&name.as_str()) && value.len() > 2 && lines.contains(&format!("{name}={value}").as_str())
    });
    let mut told: Vec<String> = told.map(|(name, _)| name).collect();
    if seen.contains(&canary.mark) {
        told.push("the canary's".to_owned());
    }
    Finding::of_list("variables of this machine", told)
}

/// Files that are the same inside and here.
pub(crate) fn host_secrets(seen: &str, _: &Canary, _: &Facts) -> Finding {
    let same = seen.lines().filter_map(|line| line.split_once(' ')).filter(|(print, path)| {
        let mut content = Vec::new();
        let read = fs::File::open(path).and_then(|file| file.take(1 << 16).read_to_end(&mut content));
        let mut hasher = DefaultHasher::new();
        hasher.write(&content);
        read.is_ok() && format!("{:016x}", hasher.finish()) == *print
    });
    Finding::of_list("files of this machine that can be read", same.map(|(_, path)| path.to_owned()).collect())
}

/// Entries of folders that this machine has too.
pub(crate) fn host_folders(seen: &str, _: &Canary, facts: &Facts) -> Finding {
    if facts.spec.image != Image::Host {
        return Finding::not_applicable("these folders are the image's");
    }
    let ours = seen.lines().filter(|path| !matches!(*path, "/home/sandbox" | "/opt/sandbox"));
    let same = ours.filter(|path| fs::symlink_metadata(path).is_ok());
    Finding::of_list("entries of this machine's folders", same.take(10).map(str::to_owned).collect())
}

/// Paths of this machine in the mount table.
pub(crate) fn mount_table(seen: &str, _: &Canary, _: &Facts) -> Finding {
    let ours = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points: Vec<&str> = ours.lines().filter_map(|line| line.split(' ').nth(4)).collect();
    let told = seen.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (root, point) = (fields.get(3)?, fields.get(4)?);
        let holds_us =
            |above: &&str| Path::new(&format!("{}{root}/sandbox-attack", above.trim_end_matches('/'))).exists();
        let is_ours = *point == "/workspace" && *root != "/" && points.iter().any(holds_us);
        let mut layers =
            line.split([',', ' ', ':']).filter_map(|option| option.split_once("dir=")).map(|(_, path)| path);
        let layer = layers.find(|path| path.starts_with('/') && Path::new(path).exists());
        is_ours.then_some(*root).or(layer).map(str::to_owned)
    });
    Finding::of_list("folders of this machine that the mount table names", told.collect())
}

/// Places in a cgroup tree. A sandbox with a kernel of its own has a tree of its own, which tells nothing about this machine's
/// unless the place is there too.
pub(crate) fn cgroup_path(seen: &str, _: &Canary, facts: &Facts) -> Finding {
    let own_tree = expectation::has_own_kernel(facts);
    let trees = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let trees: Vec<&str> = trees
        .lines()
        .filter_map(|line| line.split_once(" - ").filter(|(_, kind)| kind.starts_with("cgroup")))
        .filter_map(|(mount, _)| mount.split(' ').nth(4))
        .collect();
    let is_here = |line: &&str| {
        let place = line.rsplit(':').next().unwrap_or_default();
        place.contains("..") || trees.iter().any(|tree| Path::new(&format!("{tree}{place}")).exists())
    };
    let told = seen.lines().filter(|line| !line.is_empty()).filter(|line| !own_tree || is_here(line));
    Finding::of_list("places in the machine's cgroup tree", told.map(str::to_owned).collect())
}

/// How this machine was started may hold secrets.
pub(crate) fn boot_command_line(seen: &str, _: &Canary, _: &Facts) -> Finding {
    match fs::read_to_string("/proc/cmdline") {
        Ok(ours) if ours.trim() == seen.trim() && !seen.trim().is_empty() => {
            Finding::broke("/proc/cmdline tells how this machine's kernel was started")
        }
        _ => Finding::held("/proc/cmdline is not this machine's"),
    }
}
