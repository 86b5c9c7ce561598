//! What tests of engines start and end themselves: a Docker of their own, and Debian's registry on loopback.

#![allow(dead_code, reason = "every test takes a part of it")]

use std::{
    collections::BTreeSet,
    fs,
    net::{TcpListener, TcpStream},
    os::unix::{fs::DirBuilderExt, net::UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    query_parameters::{ListContainersOptionsBuilder, ListNetworksOptions, ListVolumesOptions},
};
use sandbox_core::{Image, Policy, Reference, SandboxSpec, SessionId, UserId};

/// `me` with the password `secret`, as `htpasswd -B` writes it.
const USERS: &str = "me:$2b$04$kQNxKrNgL5SmyaayGvswHOJgoHP8l6ZkYRfD1t61ZXWoI.iXq6AUu\n";
const PATIENCE: Duration = Duration::from_secs(60);

/// A variable that says something.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Waits until it is so.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A folder for a server's state.
pub fn state_in(folder: &Path) -> PathBuf {
    let state = folder.join("state");
    fs::DirBuilder::new().mode(0o700).create(&state).expect("a folder for the state");
    state
}

/// A sandbox of the policy that is the default.
pub fn spec(image: &Reference) -> SandboxSpec {
    let owner = UserId::local();
    SandboxSpec {
        id: SessionId::random(&owner).expect("an id"),
        owner,
        image: Image::Reference(image.clone()),
        policy: Policy::default(),
        persistent: false,
        env: Default::default(),
        certificates: None,
        tools: Vec::new(),
    }
}

/// A Docker that is ours, and may be killed.
pub struct Dockerd {
    folder: PathBuf,
    child: Child,
}

impl Dockerd {
    /// With what lies in this folder.
    pub fn start(folder: &Path) -> Self {
        fs::create_dir_all(folder).expect("a folder");
        fs::write(folder.join("daemon.json"), "{}").expect("its settings");
        let child = Self::run(folder);
        let engine = Self { folder: folder.to_owned(), child };
        engine.wait();
        engine
    }

    fn run(folder: &Path) -> Child {
        let at = |name: &str| folder.join(name);
        let log = fs::File::options().create(true).append(true).open(at("log")).expect("a log");
        let mut command = Command::new("dockerd");
        command.arg("--config-file").arg(at("daemon.json")).arg("--data-root").arg(at("data"));
        command.arg("--exec-root").arg(at("exec")).arg("--pidfile").arg(at("pid"));
        command.arg("--host").arg(format!("unix://{}", at("s.sock").display()));
        command.args(["--bridge=none", "--iptables=false", "--ip6tables=false"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        command.spawn().expect("dockerd starts")
    }

    fn wait(&self) {
        wait_until("an answer of dockerd", || {
            let docker = Command::new("docker").args(["-H", &self.address(), "version"]).output();
            docker.is_ok_and(|output| output.status.success())
        });
    }

    pub fn address(&self) -> String {
        format!("unix://{}", self.folder.join("s.sock").display())
    }

    /// As the kernel does it when memory is short.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }

    /// A new one at the same place.
    pub fn start_again(&mut self) {
        // Its containerd dies with it, and must not be taken for one that lives.
        let containerd = fs::read_to_string(self.folder.join("exec/containerd/containerd.pid")).unwrap_or_default();
        let process = Path::new("/proc").join(containerd.trim());
        wait_until("the end of containerd", || containerd.is_empty() || !process.exists());
        let _ = fs::remove_file(self.folder.join("pid"));
        self.child = Self::run(&self.folder);
        self.wait();
    }

    /// Files of fetches that were not completed.
    pub fn half_fetched(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.join("data/tmp")).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Dockerd {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
    }
}

/// Docker's own client.
pub fn docker(address: &str, words: &[&str]) -> String {
    let output = Command::new("docker").args(["-H", address]).args(words).output().expect("the docker command");
    assert!(output.status.success(), "docker {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything of an engine that could be left over, by name.
pub async fn things(address: &str) -> BTreeSet<String> {
    let path = address.trim_start_matches("unix://");
    let docker = Docker::connect_with_unix(path, 60, API_DEFAULT_VERSION).expect("an engine");
    let docker = docker.negotiate_version().await.expect("an engine");
    let all = ListContainersOptionsBuilder::default().all(true).build();
    let containers = docker.list_containers(Some(all)).await.expect("its containers");
    let volumes = docker.list_volumes(None::<ListVolumesOptions>).await.expect("its volumes");
    let networks = docker.list_networks(None::<ListNetworksOptions>).await.expect("its networks");
    let containers = containers.into_iter().flat_map(|one| one.names.unwrap_or_default());
    let containers = containers.map(|name| format!("container {name}"));
    let volumes = volumes.volumes.unwrap_or_default().into_iter().map(|one| format!("volume {}", one.name));
    // The executor's program lies in one that all sandboxes share.
    let volumes = volumes.filter(|name| !name.starts_with("volume sandbox-mcp-program-"));
    let networks = networks.into_iter().filter_map(|one| one.name).map(|name| format!("network {name}"));
    containers.chain(volumes).chain(networks).collect()
}

/// Debian's registry.
pub struct Registry {
    child: Child,
    pub port: u16,
}

impl Registry {
    /// With what lies in this folder; with a password, only `me` is let in.
    pub fn start(folder: &Path, password: bool) -> Self {
        let port = free_port();
        let mut config = serde_json::json!({
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": folder.join("storage")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        if password {
            fs::write(folder.join("users"), USERS).expect("its users");
            config["auth"] = serde_json::json!({"htpasswd": {"realm": "test", "path": folder.join("users")}});
        }
        let file = folder.join(format!("registry-{port}.json"));
        fs::write(&file, config.to_string()).expect("its settings");
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("docker-registry starts");
        wait_until("an answer of the registry", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Self { child, port }
    }

    /// The name of an image there.
    pub fn image(&self, name: &str) -> Reference {
        format!("localhost:{}/{name}:latest", self.port).parse().expect("a name")
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// Gives the registry an image that takes a while to fetch, made of an archive; the engine does not keep it.
pub fn publish(address: &str, archive: &Path, folder: &Path, image: &Reference) {
    let larger = folder.join("larger.tar");
    fs::copy(archive, &larger).expect("a copy");
    let random = "head -c 30000000 /dev/urandom >ballast && tar -rf larger.tar ballast && rm ballast";
    let made = Command::new("sh").args(["-c", random]).current_dir(folder).status().expect("a shell");
    assert!(made.success(), "the archive was not made larger");
    docker(address, &["import", &larger.to_string_lossy(), image.as_str()]);
    docker(address, &["push", "--quiet", image.as_str()]);
    docker(address, &["rmi", image.as_str()]);
    let _ = fs::remove_file(larger);
}

/// Whether somebody listens there.
pub fn answers(address: &str) -> bool {
    UnixStream::connect(address.trim_start_matches("unix://")).is_ok()
}
