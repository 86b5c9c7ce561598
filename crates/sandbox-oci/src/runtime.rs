//! The runtime: which program it is, what kind, and how it is called.

use std::{
    env,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use sandbox_core::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::view;

/// The one that is used where nothing is said.
pub const USUAL: &str = "runsc";
/// A program that says nothing about itself for so long is none that could be used.
const PATIENCE: Duration = Duration::from_secs(5);
/// Where distributions put runtimes, beside what PATH says.
const FOLDERS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A runtime of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Runtime {
    /// Its program.
    pub path: PathBuf,
    /// What it runs sandboxes on.
    pub kind: Kind,
    /// As it says.
    pub version: String,
}

/// What a runtime runs sandboxes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A kernel of its own, gVisor: this machine's kernel never sees a system call of a command.
    Gvisor,
    /// This machine's kernel.
    Plain,
}

impl Runtime {
    /// Finds it by name or path, and asks who it is.
    pub fn find(wanted: &str) -> Result<Self> {
        let missing = |why: String| Error::Unavailable {
            what: format!("the OCI runtime `{wanted}` cannot be used"),
            why,
            fix: install(wanted),
        };
        let path = locate(wanted).ok_or_else(|| missing("there is no such program".into()))?;
        let said = ask(&path).map_err(missing)?;
        let mut lines = said.lines();
        let version = lines.next().unwrap_or_default().trim().to_owned();
        let kind = if version.starts_with("runsc") { Kind::Gvisor } else { Kind::Plain };
        Ok(Self { path, kind, version })
    }

    /// What it is called with. Its network is never its own: whatever leaves goes through the executor.
    pub fn arguments(&self, name: &str) -> Vec<String> {
        let root = format!("--root={}", view::STATE);
        let run = ["run".to_owned(), format!("--bundle={}", view::BUNDLE), name.to_owned()];
        let options: &[&str] = match self.kind {
            Kind::Gvisor => &[
                // Debian's versions cannot make a network of their own on Linux 6.11 and newer (gVisor issue 10704).
                "--network=none",
                "--platform=systrap",
                // The executor connects to a socket of the keeper's; none can be made outside.
                "--host-uds=open",
                // The keeper has put it into its cgroup already.
                "--ignore-cgroups",
                // Layers are this machine's, so that they can be measured.
                "--overlay2=none",
                // Nobody but the sandbox changes its files while it lives.
                "--file-access=exclusive",
                "--file-access-mounts=exclusive",
            ],
            Kind::Plain => &[],
        };
        std::iter::once(root).chain(options.iter().map(|&option| option.to_owned())).chain(run).collect()
    }

    /// In words.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// How to get it.
pub fn install(wanted: &str) -> String {
    let setting = "or name another with `oci_runtime` in the settings (SANDBOX_MCP_OCI_RUNTIME)";
    match Path::new(wanted).file_name().and_then(|name| name.to_str()) {
        Some("runsc") => format!(
            "Install gVisor: on Debian 12 `sudo apt-get install -t bookworm-backports runsc`, on newer ones `sudo apt-get install runsc`, elsewhere see https://gvisor.dev/docs/user_guide/install/; {setting}"
        ),
        Some("runc") => format!("Install it: on Debian and Ubuntu `sudo apt-get install runc`; {setting}"),
        _ => format!("Check the name or path, {setting}"),
    }
}

fn locate(wanted: &str) -> Option<PathBuf> {
    if wanted.contains('/') {
        return Some(PathBuf::from(wanted)).filter(|path| path.is_file());
    }
    let named = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&named).chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(wanted)).find(|path| path.is_file())
}

/// What it says about its version. Some of them never answer (notes on /dev/kvm, broken wrappers), so it is not waited
/// for without end.
fn ask(path: &Path) -> std::result::Result<String, String> {
    let mut command = Command::new(path);
    command.arg("--version").env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", path.display()))?;
    let end = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => break,
            Ok(Some(status)) => return Err(format!("`{} --version` ended with {status}", path.display())),
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("`{} --version` says nothing for {PATIENCE:?}", path.display()));
            }
        }
    }
    let mut said = String::new();
    if let Some(output) = child.stdout.take() {
        let _ = output.take(4096).read_to_string(&mut said);
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn gvisor_gets_no_network_and_no_door_but_ours() {
        let runtime = Runtime { path: "/usr/bin/runsc".into(), kind: Kind::Gvisor, version: String::new() };
        let arguments = runtime.arguments("x");
        for wanted in ["--network=none", "--host-uds=open", "--overlay2=none"] {
            assert!(arguments.iter().any(|found| found == wanted), "{arguments:?}");
        }
        assert_eq!(arguments.last().map(String::as_str), Some("x"));
    }

    #[test]
    fn what_is_not_there_is_explained() {
        let error = Runtime::find("runsc-that-nobody-has").unwrap_err().to_string();
        assert!(error.contains("oci_runtime"), "{error}");
        let error = Runtime::find("/nowhere/runsc").unwrap_err().to_string();
        assert!(error.contains("bookworm-backports"), "{error}");
    }

    #[test]
    fn who_never_answers_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slow");
        std::fs::write(&path, "#!/bin/sh\nexec sleep 60\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let began = Instant::now();
        let error = Runtime::find(path.to_str().unwrap()).unwrap_err().to_string();
        assert!(error.contains("says nothing") && began.elapsed() < PATIENCE * 2, "{error}");
    }
}
