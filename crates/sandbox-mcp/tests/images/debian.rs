//! A whole distribution as an image; it takes a while to be made, so only `./test --full` asks for it (`--ignored`).

use std::{fs, process::Command};

use crate::kit::{Here, Image, gzip};

#[test]
#[ignore = "makes a Debian system first"]
fn debian_runs_and_installs_into_itself() {
    let here = Here::new();
    let tar = here.path().join("debian.tar");
    let mut command = Command::new("mmdebstrap");
    command.args(["--mode=unshare", "--variant=apt", "--format=tar"]);
    if rustix::process::geteuid().is_root() {
        command.arg("--mode=root");
    }
    // From where this machine gets its own release.
    let sources = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/apt-sources")).output().unwrap();
    let list = here.path().join("sources.list");
    fs::write(&list, &sources.stdout).unwrap();
    let release = String::from_utf8_lossy(&sources.stdout).split(' ').nth(2).expect("a release").to_owned();
    let made = command.args([&release, tar.to_str().unwrap(), list.to_str().unwrap()]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let layer = fs::read(&tar).unwrap();
    let path = here.path().join("image.tar");
    Image::new(&[layer], gzip).save(&path, "debian:1");
    here.ok(&["pull", path.to_str().unwrap()]);
    let script = ". /etc/os-release; echo $ID; perl -e 'print 6 * 7, \"\\n\"'; dpkg -l | grep -c ^ii > /workspace/n; test -s /workspace/n && getent passwd 1000 | cut -d: -f1";
    assert_eq!(here.sh("debian:1", script), "debian\n42\nsandbox\n");
    let writable = ["exec", "--policy", "yolo-4", "--image", "debian:1", "--", "sh", "-c"];
    // The kit's images name only /bin.
    let script = "set -e; PATH=/usr/sbin:/usr/bin:/sbin:/bin; mkdir -p /p/DEBIAN /p/usr/share/mine; echo hi > /p/usr/share/mine/x; \
        printf 'Package: mine\\nVersion: 1\\nArchitecture: all\\nMaintainer: me <me@example.com>\\nDescription: mine\\n' > /p/DEBIAN/control; \
        dpkg-deb -b /p /mine.deb >/dev/null; dpkg -i /mine.deb >/dev/null; cat /usr/share/mine/x; dpkg --purge mine >/dev/null; ls /usr/share/mine 2>/dev/null || echo gone";
    assert_eq!(here.ok(&[&writable[..], &[script]].concat()), "hi\ngone\n");
}
