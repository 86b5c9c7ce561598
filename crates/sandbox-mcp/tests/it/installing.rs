//! Programs that are fetched from a registry, here one of the tests' own on loopback.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Output},
    sync::Arc,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::json;
use sha2::{Digest, Sha512};

use crate::person::{Person, text};

/// A registry that describes every package with this hash, and gives this content for it. Its address.
fn registry(content: Vec<u8>, hash: &[u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/", listener.local_addr().unwrap());
    let integrity = format!("sha512-{}", BASE64_STANDARD.encode(hash));
    let (content, base) = (Arc::new(content), address.clone());
    std::thread::spawn(move || {
        listener.incoming().flatten().for_each(|stream| answer(stream, &base, &integrity, &content))
    });
    address
}

fn answer(mut stream: TcpStream, base: &str, integrity: &str, content: &[u8]) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).unwrap_or(0) == 0 {
            return;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let name = path.split('/').nth(1).unwrap_or_default();
    let description =
        json!({"name": name, "version": "1.2.3", "dist": {"tarball": format!("{base}x.tgz"), "integrity": integrity}});
    let body = if name == "x.tgz" { content.to_vec() } else { description.to_string().into_bytes() };
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n");
    let _ = stream.write_all(&body);
}

/// A package with something in it that looks like a program.
fn package(folder: &std::path::Path) -> Vec<u8> {
    std::fs::create_dir_all(folder.join("package/bin")).unwrap();
    std::fs::write(folder.join("package/bin/opencode"), b"\x7fELF and no more").unwrap();
    let packed = Command::new("tar").args(["-czf", "-", "package"]).current_dir(folder).output().unwrap();
    assert!(packed.status.success(), "{packed:?}");
    packed.stdout
}

fn install(person: &Person, registry: &str) -> Output {
    let words = ["agents", "install", "opencode", "--version", "1.2.3"];
    person.types(&words).env("npm_config_registry", registry).output().unwrap()
}

/// Files in the state folder that come from a package.
fn kept(person: &Person) -> String {
    let name = ["-type", "f", "(", "-name", "opencode", "-o", "-name", "*.tgz", ")"];
    let found = Command::new("find").arg(person.folder("state")).args(name).output().unwrap();
    text(&found.stdout).to_owned()
}

#[test]
fn a_package_that_is_not_what_the_registry_described_is_refused() {
    let (person, folder) = (Person::new(), tempfile::tempdir().unwrap());
    let content = package(folder.path());
    let right = Sha512::digest(&content);
    let mut wrong = right.to_vec();
    wrong[63] ^= 1;
    let refused = install(&person, &registry(content.clone(), &wrong));
    let told = text(&refused.stderr);
    assert!(!refused.status.success() && told.contains("its SHA-512 is another. Nothing was kept"), "{refused:?}");
    assert_eq!(kept(&person), "", "what was refused lies around");
    // The same package under its own hash is taken: nothing else was wrong with it.
    let taken = install(&person, &registry(content, &right));
    assert!(taken.status.success() && kept(&person).ends_with("bin/opencode"), "{taken:?} {}", kept(&person));
}
