//! Debian's registry on loopback: started by a test, ended with it.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;

use crate::kit::{Image, descriptor, digest};

/// `me` with the password `secret`, as `htpasswd -B` writes it.
const USERS: &str = "me:$2b$04$kQNxKrNgL5SmyaayGvswHOJgoHP8l6ZkYRfD1t61ZXWoI.iXq6AUu\n";

/// A registry.
pub struct Registry {
    child: Child,
    pub port: u16,
    pub folder: PathBuf,
}

/// Whom it lets in.
pub enum Doors {
    Open,
    Password,
    /// `realm` and the file with the certificate of whoever signs.
    Token(String, PathBuf),
    /// Files with its certificate and key.
    Tls(PathBuf, PathBuf),
}

/// Whether there is one on this machine; where tests require it, there must be.
pub fn is_there() -> bool {
    let found = Path::new("/usr/bin/docker-registry").exists();
    let required =
        std::env::var("SANDBOX_TESTS_REQUIRE").is_ok_and(|list| list.split(',').any(|name| name == "registry"));
    assert!(found || !required, "install the package docker-registry");
    if !found {
        eprintln!("skipped: the package docker-registry is not installed");
    }
    found
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Registry {
    /// With what lies in this folder.
    pub fn start(folder: &Path, doors: Doors) -> Self {
        let port = free_port();
        let mut config = json!({
            "version": 0.1,
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": folder.join("storage")}},
            "http": {"addr": format!("127.0.0.1:{port}")},
        });
        match doors {
            Doors::Open => {}
            Doors::Password => {
                let users = folder.join("users");
                fs::write(&users, USERS).unwrap();
                config["auth"] = json!({"htpasswd": {"realm": "test", "path": users}});
            }
            Doors::Token(realm, bundle) => {
                config["auth"] = json!({"token": {"realm": realm, "service": "the registry", "issuer": "the test", "rootcertbundle": bundle}});
            }
            Doors::Tls(certificate, key) => {
                config["http"]["tls"] = json!({"certificate": certificate, "key": key});
            }
        }
        let file = folder.join(format!("config-{port}.json"));
        fs::write(&file, config.to_string()).unwrap();
        let mut command = Command::new("/usr/bin/docker-registry");
        command.arg("serve").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < until, "the registry does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        Self { child, port, folder: folder.to_owned() }
    }

    pub fn host(&self) -> String {
        format!("localhost:{}", self.port)
    }

    /// Puts an image there.
    pub fn push(&self, image: &Image, name: &str, tag: &str) {
        for blob in image.layers.iter().chain([&image.config]) {
            self.push_blob(name, blob);
        }
        self.push_manifest(name, tag, "application/vnd.oci.image.manifest.v1+json", &image.manifest);
    }

    /// The same as one of several, of which the others are for other machines.
    pub fn push_list(&self, image: &Image, name: &str, tag: &str) {
        self.push(image, name, "one-of-them");
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let entry = |architecture: &str| {
            let mut entry = descriptor(kind, &image.manifest);
            entry["platform"] = json!({"os": "linux", "architecture": architecture});
            entry
        };
        let ours = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let list = json!({
            "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [entry("s390x"), entry(ours)],
        });
        self.push_manifest(name, tag, "application/vnd.oci.image.index.v1+json", list.to_string().as_bytes());
    }

    fn push_blob(&self, name: &str, blob: &[u8]) {
        let (status, head) = self.ask("POST", &format!("/v2/{name}/blobs/uploads/"), "", b"");
        assert_eq!(status, 202, "{head}");
        let to = head.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap();
        let path = to.trim().trim_start_matches(&format!("http://127.0.0.1:{}", self.port));
        let (status, head) = self.ask("PUT", &format!("{path}&digest={}", digest(blob)), "", blob);
        assert_eq!(status, 201, "{head}");
    }

    fn push_manifest(&self, name: &str, tag: &str, kind: &str, manifest: &[u8]) {
        let kind = format!("Content-Type: {kind}\r\n");
        let (status, head) = self.ask("PUT", &format!("/v2/{name}/manifests/{tag}"), &kind, manifest);
        assert_eq!(status, 201, "{head}");
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n",
            self.port
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }

    /// The file that holds a blob.
    pub fn blob(&self, blob: &[u8]) -> PathBuf {
        let hex = &digest(blob)[7..];
        self.folder.join(format!("storage/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
