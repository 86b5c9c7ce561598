//! The only programs that may be executed where a policy lists them: their files, and what those need to start.

use std::collections::BTreeSet;

use crate::programs::Programs;

/// What some programs start by themselves, by name on PATH, file, or folder ending in `/`. This list is in SECURITY.md.
const HELPERS: [(&[&str], &[&str]); 4] = [
    (&["git"], &["/usr/lib/git-core/", "/usr/libexec/git-core/"]),
    (
        &["gcc", "g++", "cc", "c++", "clang", "clang++"],
        &["/usr/lib/gcc/", "/usr/libexec/gcc/", "/usr/lib/llvm/", "as", "ld", "ld.bfd", "ld.gold", "ld.lld", "ar"],
    ),
    (&["node", "npm", "npx"], &["/usr/lib/node_modules/", "/usr/share/nodejs/", "/usr/local/lib/node_modules/", "sh"]),
    (&["pip", "pip3"], &["/opt/sandbox/bin/", "sh", "python3"]),
];

/// Files and folders that must be executable for these programs. Who is not there cannot be executed either.
pub fn executables(allow: &BTreeSet<String>, programs: &Programs) -> Vec<String> {
    let mut found = BTreeSet::new();
    let mut open: Vec<String> = allow.iter().cloned().collect();
    let helpers = HELPERS.iter().filter(|(names, _)| names.iter().any(|name| allow.contains(*name)));
    open.extend(helpers.flat_map(|(_, needed)| needed.iter().map(|name| (*name).to_owned())));
    while let Some(wanted) = open.pop() {
        if wanted.len() > 1 && wanted.ends_with('/') {
            // Folders in HOME and /workspace are not there yet for us, so they are taken as they are.
            let folder = wanted.trim_end_matches('/');
            found.insert(programs.resolve(folder).unwrap_or_else(|| folder.to_owned()));
            continue;
        }
        for file in files(&wanted, programs) {
            if found.insert(file.clone()) {
                open.extend(programs.needs(&file));
            }
        }
    }
    found.into_iter().collect()
}

/// Listed programs that are not there: a name that was mistyped looks just so.
pub fn missing(allow: &BTreeSet<String>, programs: &Programs) -> Vec<String> {
    let is_missing = |name: &&String| !name.ends_with('/') && files(name, programs).is_empty();
    allow.iter().filter(is_missing).cloned().collect()
}

fn files(wanted: &str, programs: &Programs) -> Vec<String> {
    if wanted.contains('/') { programs.resolve(wanted).into_iter().collect() } else { programs.named(wanted) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::Path};

    #[test]
    fn a_script_brings_its_interpreter_and_that_its_loader() {
        let folder = tempfile::tempdir().expect("a folder");
        let bin = folder.path().join("bin");
        fs::create_dir_all(&bin).expect("a folder");
        fs::create_dir_all(folder.path().join("opt/tools")).expect("a folder");
        fs::write(bin.join("script"), "#!/bin/shell\n").expect("a script");
        fs::copy("/bin/sh", bin.join("shell")).expect("a program");
        fs::write(bin.join("other"), "x").expect("a program");
        let programs = Programs::of(folder.path(), Vec::new()).expect("programs");
        let loader = programs.needs("/bin/shell").pop().expect("a loader");
        let at = folder.path().join(loader.trim_start_matches('/'));
        fs::create_dir_all(at.parent().unwrap_or(Path::new("/"))).expect("a folder");
        fs::write(&at, "x").expect("a loader");
        let allow = ["script", "missing", "/opt/tools/"].map(String::from).into();
        let mut expected = vec!["/bin/script".to_owned(), "/bin/shell".into(), loader, "/opt/tools".into()];
        expected.sort();
        assert_eq!(executables(&allow, &programs), expected);
        assert_eq!(missing(&allow, &programs), ["missing"]);
    }
}
