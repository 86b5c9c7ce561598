//! Makes images of a few files, packs them in every way, and runs the program under test with a state folder of its own.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{EntryType, Header};

/// The program under test.
pub const BINARY: &str = env!("CARGO_BIN_EXE_sandbox-mcp");

/// An entry of a layer, whatever it is.
#[derive(Clone)]
pub struct Entry {
    name: Vec<u8>,
    kind: EntryType,
    link: Vec<u8>,
    content: Vec<u8>,
    mode: u32,
    owner: (u64, u64),
}

pub fn entry(name: &str, kind: EntryType) -> Entry {
    let mode = if kind == EntryType::Directory { 0o755 } else { 0o644 };
    Entry { name: name.into(), kind, link: Vec::new(), content: Vec::new(), mode, owner: (0, 0) }
}

pub fn file(name: &str, content: &[u8]) -> Entry {
    Entry { content: content.to_vec(), ..entry(name, EntryType::Regular) }
}

pub fn folder(name: &str) -> Entry {
    entry(name, EntryType::Directory)
}

pub fn symlink(name: &str, to: &str) -> Entry {
    Entry { link: to.into(), ..entry(name, EntryType::Symlink) }
}

pub fn hard_link(name: &str, to: &str) -> Entry {
    Entry { link: to.into(), ..entry(name, EntryType::Link) }
}

impl Entry {
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    pub fn owner(mut self, uid: u64, gid: u64) -> Self {
        self.owner = (uid, gid);
        self
    }

    /// What comes in an archive: names that are too long for a header, or have odd bytes, in a record of their own.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let odd = |text: &[u8]| text.len() > 99 || text.contains(&0);
        let mut records = Vec::new();
        if odd(&self.name) {
            records.extend(record(b"path", &self.name));
        }
        if odd(&self.link) {
            records.extend(record(b"linkpath", &self.link));
        }
        if !records.is_empty() {
            bytes.extend(block(&entry("pax", EntryType::XHeader), &records));
        }
        bytes.extend(block(self, &self.content));
        bytes
    }
}

fn record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

fn block(entry: &Entry, content: &[u8]) -> Vec<u8> {
    let mut header = Header::new_ustar();
    let copy = |field: &mut [u8], text: &[u8]| {
        let length = text.len().min(field.len());
        field[..length].copy_from_slice(&text[..length]);
    };
    copy(&mut header.as_old_mut().name, &entry.name);
    copy(&mut header.as_old_mut().linkname, &entry.link);
    header.set_entry_type(entry.kind);
    header.set_mode(entry.mode);
    header.set_uid(entry.owner.0);
    header.set_gid(entry.owner.1);
    header.set_mtime(1_000_000_000);
    header.set_size(content.len() as u64);
    if matches!(entry.kind, EntryType::Char | EntryType::Block) {
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
    }
    header.set_cksum();
    let padding = vec![0; (512 - content.len() % 512) % 512];
    [header.as_bytes(), content, &padding].concat()
}

/// A layer, not compressed.
pub fn layer(entries: &[Entry]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(Entry::bytes).collect();
    bytes.extend([0; 1024]);
    bytes
}

/// What runs in a small image.
pub fn programs() -> Vec<Entry> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    let content = fs::read(busybox.expect("install the package busybox-static")).unwrap();
    let mut entries = vec![folder("bin"), file("bin/busybox", &content).mode(0o755)];
    let names = ["sh", "ls", "cat", "id", "echo", "stat", "env", "touch", "rm", "mkdir", "test", "sleep", "find", "ln"];
    entries.extend(names.map(|name| symlink(&format!("bin/{name}"), "busybox")));
    entries
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// An image: its layers as they are packed, and what describes it.
#[derive(Clone)]
pub struct Image {
    pub layers: Vec<Vec<u8>>,
    pub config: Vec<u8>,
    pub manifest: Vec<u8>,
}

impl Image {
    /// Of layers that are not compressed, packed so.
    pub fn new(layers: &[Vec<u8>], pack: fn(&[u8]) -> Vec<u8>) -> Self {
        let diff_ids: Vec<String> = layers.iter().map(|layer| digest(layer)).collect();
        let packed: Vec<Vec<u8>> = layers.iter().map(|layer| pack(layer)).collect();
        Self::of(packed, &diff_ids)
    }

    /// Of layers that say of themselves what they unpack to.
    pub fn of(layers: Vec<Vec<u8>>, diff_ids: &[String]) -> Self {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let env = ["PATH=/bin:/extra", "OF_THE_IMAGE=yes", "HOME=/root", "http_proxy=http://evil.example"];
        let config = json!({
            "architecture": architecture, "os": "linux",
            "config": {"Env": env, "User": "5:5", "WorkingDir": "/nowhere"},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = config.to_string().into_bytes();
        let kind = |layer: &[u8]| match layer {
            [0x28, 0xb5, ..] => "application/vnd.oci.image.layer.v1.tar+zstd",
            [0x1f, 0x8b, ..] => "application/vnd.oci.image.layer.v1.tar+gzip",
            _ => "application/vnd.oci.image.layer.v1.tar",
        };
        let described: Vec<Value> = layers.iter().map(|layer| descriptor(kind(layer), layer)).collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
            "layers": described,
        });
        Self { layers, config, manifest: manifest.to_string().into_bytes() }
    }

    /// One that works: what runs in it, and what a second layer takes away.
    pub fn small() -> Self {
        let mut lower = programs();
        lower.extend([
            folder("etc"),
            file("etc/sign", b"of the image\n").mode(0o640).owner(7, 8),
            folder("gone"),
            file("gone/file", b"x"),
            folder("emptied"),
            file("emptied/old", b"x"),
            symlink("home", "/var/home"),
        ]);
        let upper = [
            file(".wh.gone", b""),
            file("emptied/.wh..wh..opq", b""),
            file("emptied/new", b"new\n").owner(1000, 1000).mode(0o4755),
            hard_link("emptied/same", "emptied/new"),
            file("etc/upper", b"upper\n"),
        ];
        Self::new(&[layer(&lower), layer(&upper)], gzip)
    }

    /// As `docker save` writes it.
    pub fn save(&self, path: &Path, name: &str) {
        let names: Vec<String> = (0..self.layers.len()).map(|number| format!("{number}/layer.tar")).collect();
        let manifest = json!([{"Config": "config.json", "RepoTags": [name], "Layers": names}]).to_string();
        let mut entries = vec![file("config.json", &self.config)];
        entries.extend(names.iter().zip(&self.layers).map(|(name, layer)| file(name, layer)));
        entries.push(file("manifest.json", manifest.as_bytes()));
        fs::write(path, layer(&entries)).unwrap();
    }

    /// The files of an OCI layout.
    pub fn layout(&self, name: Option<&str>) -> Vec<(String, Vec<u8>)> {
        let blob = |content: &[u8]| (format!("blobs/sha256/{}", &digest(content)[7..]), content.to_vec());
        let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &self.manifest);
        if let Some(name) = name {
            entry["annotations"] = json!({"org.opencontainers.image.ref.name": name});
        }
        let index = json!({"schemaVersion": 2, "manifests": [entry]}).to_string().into_bytes();
        let mut files = vec![("oci-layout".to_owned(), br#"{"imageLayoutVersion":"1.0.0"}"#.to_vec())];
        files.push(("index.json".to_owned(), index));
        files.extend([blob(&self.manifest), blob(&self.config)]);
        files.extend(self.layers.iter().map(|layer| blob(layer)));
        files
    }

    pub fn write_layout(&self, folder: &Path, name: Option<&str>) {
        fs::create_dir_all(folder.join("blobs/sha256")).unwrap();
        self.layout(name).into_iter().for_each(|(path, content)| fs::write(folder.join(path), content).unwrap());
    }
}

pub fn descriptor(kind: &str, content: &[u8]) -> Value {
    json!({"mediaType": kind, "digest": digest(content), "size": content.len()})
}

/// A state folder, and the program with it.
pub struct Here {
    folder: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Here {
    pub fn new() -> Self {
        Self::at(tempfile::tempdir().unwrap())
    }

    fn at(folder: tempfile::TempDir) -> Self {
        fs::create_dir(folder.path().join("state")).unwrap();
        fs::set_permissions(folder.path().join("state"), fs::Permissions::from_mode(0o700)).unwrap();
        Self { folder, variables: Vec::new() }
    }

    /// Where many files take no time.
    pub fn in_memory() -> Self {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        Self::at(folder)
    }

    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command.args(arguments).env("WORKSPACE_BASE", self.state()).env("HOME", self.path());
        command.envs(self.variables.iter().map(|(name, value)| (name, value))).stdin(std::process::Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Ended {
        Ended::of(self.command(arguments).output().unwrap())
    }

    pub fn ok(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.out
    }

    /// What it says when it does not do it.
    pub fn refused(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments);
        assert_eq!(ended.code, Some(1), "{arguments:?}: {ended:?}");
        ended.err
    }

    /// A script in a fresh sandbox of an image.
    pub fn sh(&self, image: &str, script: &str) -> String {
        self.ok(&["exec", "--image", image, "--", "sh", "-c", script])
    }

    pub fn names(&self) -> Vec<String> {
        let images: Value = serde_json::from_str(&self.ok(&["images", "--json"])).unwrap();
        images.as_array().unwrap().iter().map(|image| image["name"].as_str().unwrap().to_owned()).collect()
    }

    /// What lies in the store besides images that are whole: drafts, parts, and what was not thrown away.
    pub fn rubbish(&self) -> Vec<String> {
        let mut found = Vec::new();
        for kind in ["machine", "subordinate", "single"] {
            for part in ["layers", "roots", "blobs", "names"] {
                let folder = self.state().join("images").join(kind).join(part);
                let names = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
                let names = names.map(|name| name.to_string_lossy().into_owned());
                found.extend(names.filter(|name| part == "blobs" || name.contains(".draft") || name.ends_with(".new")));
            }
        }
        found
    }

    /// Folders of layers and of layers put together.
    pub fn kept(&self) -> usize {
        let kinds = ["machine", "subordinate", "single"].into_iter();
        let folders =
            kinds.flat_map(|kind| ["layers", "roots"].map(|part| self.state().join("images").join(kind).join(part)));
        folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten()).count()
    }
}

impl Drop for Here {
    /// Files of an image have owners that only a worker of ours can remove.
    fn drop(&mut self) {
        for name in self.names_quietly() {
            let _ = self.command(&["rmi", &name]).output();
        }
        let gone = || fs::read_dir(self.state().join("trash")).is_ok_and(|mut entries| entries.next().is_none());
        for _ in (0..200).take_while(|_| !gone()) {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

impl Here {
    fn names_quietly(&self) -> Vec<String> {
        let Ok(output) = self.command(&["images", "--json"]).output() else { return Vec::new() };
        let images: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let names = images.as_array().into_iter().flatten().filter_map(|image| image["name"].as_str());
        names.map(str::to_owned).collect()
    }
}

impl Ended {
    pub fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

impl Entry {
    /// With another word wherever this one is.
    pub fn replace(mut self, word: &str, by: &str) -> Self {
        let replaced = |bytes: &[u8]| match std::str::from_utf8(bytes) {
            Ok(text) => text.replace(word, by).into_bytes(),
            Err(_) => bytes.to_vec(),
        };
        (self.name, self.link) = (replaced(&self.name), replaced(&self.link));
        self
    }

    pub fn name_is(&mut self, name: &str) {
        self.name = name.into();
    }
}
