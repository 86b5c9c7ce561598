//! What we are measured against: a plain spawn on the host, `bwrap` with the same namespaces, and docker.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::program::CommandLine;

/// Prints one line and ends.
pub const ECHO: [&str; 2] = ["/bin/echo", "hello"];

/// A plain start on the host: nothing can be faster.
pub fn plain() -> CommandLine {
    CommandLine::new(ECHO)
}

/// `bwrap` with the same namespaces and the same view of the host as an embedded sandbox. It sets no cgroup, no limits and
/// no system call filter.
pub fn bwrap(workspace: &Path) -> CommandLine {
    let mut words = vec!["bwrap".to_owned()];
    let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
    for name in ["user", "pid", "net", "ipc", "uts", "cgroup"] {
        add(&[&format!("--unshare-{name}")]);
    }
    add(&["--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]);
    add(&["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc/alternatives", "/etc/alternatives"]);
    for name in ["bin", "lib", "lib64", "sbin"] {
        add(&["--symlink", &format!("usr/{name}"), &format!("/{name}")]);
    }
    add(&["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", "/home/sandbox"]);
    add(&["--bind", &workspace.display().to_string(), "/workspace", "--chdir", "/workspace"]);
    CommandLine::new(words)
}

/// A docker engine of our own.
#[derive(Clone, Debug)]
pub struct Docker {
    socket: PathBuf,
    image: String,
}

impl Docker {
    /// The engine behind this socket, if it answers.
    pub fn connect(socket: &Path, image: &str) -> Result<Self> {
        let docker = Self { socket: socket.to_owned(), image: image.to_owned() };
        docker.version()?;
        Ok(docker)
    }

    /// The engine's version.
    pub fn version(&self) -> Result<String> {
        self.words(["version", "--format", "{{.Server.Version}}"]).output()
    }

    /// One command in a container of its own that is removed afterwards.
    pub fn run(&self, command: &[&str]) -> CommandLine {
        self.run_with(&[], command)
    }

    /// The same with these options.
    pub fn run_with(&self, options: &[&str], command: &[&str]) -> CommandLine {
        let words = ["run", "--rm", "--network=none"].into_iter().chain(options.iter().copied()).chain([&*self.image]);
        self.words(words).with(command.iter().copied())
    }

    /// Where it is reached.
    pub fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Takes an archive in.
    pub fn load(&self, archive: &Path) -> CommandLine {
        self.words(["load", "--quiet", "--input", &archive.display().to_string()])
    }

    /// Gives an image a second name.
    pub fn tag(&self, name: &str) -> Result<()> {
        self.words(["tag", &self.image, name]).output().map(drop)
    }

    /// Removes the image by all its names, and with it its layers.
    pub fn forget(&self, name: &str) -> Result<()> {
        self.remove_image(&self.image)?;
        self.remove_image(name)
    }

    /// Has the image back that was loaded under this name.
    pub fn remember(&self, name: &str) -> Result<()> {
        self.words(["tag", name, &self.image]).output().map(drop)
    }

    /// Writes images to an archive.
    pub fn save(&self, name: &str, archive: &Path) -> Result<()> {
        self.words(["save", "--output", &archive.display().to_string(), name]).output().map(drop)
    }

    /// Removes a name of an image, and the image with its last one.
    pub fn remove_image(&self, name: &str) -> Result<()> {
        self.words(["image", "rm", "--force", name]).output().map(drop)
    }

    /// Starts a container that does nothing; its id.
    pub fn start_idle(&self) -> Result<String> {
        self.words(["run", "--detach", "--network=none", &self.image, "sleep", "infinity"]).output()
    }

    /// A command in a running container.
    pub fn exec(&self, container: &str, command: &[&str]) -> CommandLine {
        self.words(["exec", container]).with(command.iter().copied())
    }

    /// Ends and removes containers.
    pub fn remove(&self, containers: &[String]) -> Result<()> {
        self.words(["rm", "--force"]).with(containers.iter().map(String::as_str)).output().map(drop)
    }

    /// A text that stands in the command line of every process that belongs to this engine.
    pub fn mark(&self) -> String {
        self.socket.parent().unwrap_or(&self.socket).display().to_string()
    }

    fn words<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> CommandLine {
        CommandLine::new(["docker".to_owned(), "--host".to_owned(), self.address()]).with(words)
    }
}
