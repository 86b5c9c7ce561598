//! What the suite holds on the host's side, each with a mark: a process with arguments and variables, listeners, local
//! sockets, shared memory, a queue, a file. None of it may be seen or reached from inside.

use std::{
    collections::BTreeSet,
    fs,
    hash::{DefaultHasher, Hasher},
    io,
    os::fd::OwnedFd,
    os::unix::fs::DirBuilderExt,
    path::PathBuf,
    process::Stdio,
};

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::program;

/// Held until dropped.
pub(crate) struct Canary {
    /// A word that is nowhere else.
    pub mark: String,
    /// The program, for looking around on the host.
    pub program: OwnedFd,
    /// A number made from the mark.
    pub segment: u32,
    folder: PathBuf,
    said: Said,
    /// When this is closed, also by our death, the process clears away what it holds, and ends.
    _input: tokio::process::ChildStdin,
}

#[derive(Deserialize)]
struct Said {
    tcp4: u16,
    tcp6: u16,
    udp4: u16,
}

impl Canary {
    pub async fn start() -> io::Result<Self> {
        let program = program::unpack()?;
        let mark = random_mark()?;
        let segment = segment_of(&mark);
        // Not named by the mark: attacks are told this path, and must not show the mark themselves.
        let folder = std::env::temp_dir().join(format!("sandbox-attack-{}", random_mark()?));
        fs::DirBuilder::new().mode(0o700).create(&folder)?;
        fs::write(folder.join("secret"), &mark)?;
        let mut command = program::on_host(&program);
        command.args(["canary", &argument(&mark), &format!("named={mark}"), &format!("segment={segment}")]);
        command.arg(format!("folder={}", folder.display())).env("SANDBOX_ATTACK_MARK", &mark);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (process.stdin.take(), process.stdout.take());
        let (input, output) = (input.ok_or(io::ErrorKind::BrokenPipe)?, output.ok_or(io::ErrorKind::BrokenPipe)?);
        let line = BufReader::new(output).lines().next_line().await?.unwrap_or_default();
        let said = serde_json::from_str(&line)?;
        Ok(Self { mark, program, segment, folder, said, _input: input })
    }

    /// What attacks inside are told. The mark goes backwards, so that the attacks themselves do not show it.
    pub fn arguments(&self) -> Vec<String> {
        let mut all = vec![
            argument(&self.mark),
            format!("segment={}", self.segment),
            format!("tcp4={}", self.said.tcp4),
            format!("tcp6={}", self.said.tcp6),
            format!("udp4={}", self.said.udp4),
            format!("socket={}/socket", self.folder.display()),
            format!("canary={}", self.folder.display()),
            format!("canary={}/secret", self.folder.display()),
            format!("host={}", rustix::system::uname().nodename().to_string_lossy()),
        ];
        all.extend(secrets().into_iter().map(|path| format!("secret={path}")));
        all.extend(users().into_iter().map(|name| format!("user={name}")));
        all.extend(daemons().into_iter().map(|path| format!("daemon={path}")));
        all
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A mark as an argument.
pub(crate) fn argument(mark: &str) -> String {
    format!("mark={}", mark.chars().rev().collect::<String>())
}

/// A word that is nowhere else.
pub(crate) fn random_mark() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(format!("canary{:016x}", u64::from_ne_bytes(bytes)))
}

/// A key for shared memory that goes with a mark.
pub(crate) fn segment_of(mark: &str) -> u32 {
    let mut hasher = DefaultHasher::new();
    hasher.write(mark.as_bytes());
    hasher.finish() as u32 & 0x3fff_ffff | 0x4000_0000
}

/// Files of this machine that nobody inside has any business with, as far as they exist.
fn secrets() -> BTreeSet<String> {
    let machine = [
        "/etc/shadow",
        "/etc/gshadow",
        "/etc/sudoers",
        "/etc/machine-id",
        "/etc/fstab",
        "/etc/crontab",
        "/etc/ssh/ssh_host_ed25519_key",
        "/etc/ssh/ssh_host_rsa_key",
        "/etc/ssh/sshd_config",
        "/var/lib/dbus/machine-id",
        "/var/log/syslog",
        "/var/log/auth.log",
        "/var/log/dpkg.log",
        "/etc/subuid",
        "/etc/docker/daemon.json",
    ];
    let own = [
        ".bash_history",
        ".ssh/id_ed25519",
        ".ssh/id_rsa",
        ".ssh/authorized_keys",
        ".ssh/known_hosts",
        ".aws/credentials",
        ".netrc",
        ".git-credentials",
        ".gitconfig",
        ".npmrc",
        ".docker/config.json",
        ".kube/config",
        ".gnupg/pubring.kbx",
        ".config/gh/hosts.yml",
        ".bashrc",
        ".profile",
        ".cargo/credentials.toml",
    ];
    let home = std::env::var("HOME").unwrap_or_default();
    let own = own.iter().filter(|_| !home.is_empty()).map(|name| format!("{home}/{name}"));
    let known = machine.into_iter().map(str::to_owned).chain(own);
    known.filter(|path| fs::symlink_metadata(path).is_ok()).collect()
}

/// People of this machine.
fn users() -> Vec<String> {
    let content = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let person = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let number: u32 = fields.get(2)?.parse().ok()?;
        let name = *fields.first()?;
        ((1000..60_000).contains(&number) && name != "sandbox").then(|| name.to_owned())
    };
    content.lines().filter_map(person).take(20).collect()
}

/// Sockets that this user's environment names.
fn daemons() -> Vec<String> {
    let variables = ["SSH_AUTH_SOCK", "GPG_AGENT_INFO", "XDG_RUNTIME_DIR", "DOCKER_HOST", "DBUS_SESSION_BUS_ADDRESS"];
    let values = variables.iter().filter_map(|name| std::env::var(name).ok());
    let paths = values.map(|value| value.trim_start_matches("unix://").trim_start_matches("unix:path=").to_owned());
    paths.map(|path| if path.starts_with("/run/user") { format!("{path}/bus") } else { path }).collect()
}
