//! What can be changed of a root: all of it in a layer of the sandbox's own, or named places only.

use std::{fs, path::Path, process::Command, time::Duration};

use sandbox_core::{
    Bytes, Control, Image, Policy, SandboxSpec,
    exec::{Exec, Exit},
};
use sandbox_executor::client::Client;

use crate::workbench::{Workbench, get, has_own_kernel, put, run, sh};

fn preset(name: &str) -> impl FnOnce(&mut SandboxSpec) {
    let policy = Policy::preset(name).unwrap();
    move |spec| spec.policy = policy
}

/// A backend without layers refuses, and says what to do; true if it did.
async fn refuses_layers(bench: &Workbench) -> bool {
    if bench.subject.image.is_some() {
        return false;
    }
    let mut spec = bench.spec();
    preset("yolo-4")(&mut spec);
    let refused = bench.subject.backend.create(&spec).await.err().expect("refused").to_string();
    assert!(refused.contains("yolo-3"), "{refused}");
    true
}

pub async fn this_machines_programs_can_be_changed_in_a_layer_of_ones_own(bench: Workbench) {
    if refuses_layers(&bench).await {
        return;
    }
    let count = || ["/usr/bin", "/usr/share", "/etc"].map(|folder| fs::read_dir(folder).unwrap().count());
    let before = count();
    for name in ["yolo-4", "build", "development"] {
        let (sandbox, client) = bench.sandbox_with(preset(name)).await;
        if name == "development" && has_own_kernel(sandbox.as_ref()) {
            // Who is not root has no capabilities in gVisor, so root's folders are not theirs to change.
            continue;
        }
        let script = r#"set -e
            # Folders that not every machine has are tried where they are.
            for folder in / /usr /usr/bin /usr/share/doc /usr/local/lib /etc /etc/ssl /var /var/lib /opt /srv /usr/lib/python3 /run; do
                test -d $folder || continue
                echo new > $folder/new; grep -q new $folder/new; mv $folder/new $folder/newer
                mkdir $folder/inner; mv $folder/newer $folder/inner/newest; rm -r $folder/inner
            done
            cp /usr/bin/tac /usr/bin/tac.copy; mv /usr/bin/tac.copy /usr/bin/tac; echo x | tac
            rm /usr/bin/sed; ! command -v sed; set -- /usr/share/*/; rm -r "$1"; test ! -e "$1"
            mv "$2" /usr/share/renamed; test -d /usr/share/renamed && test ! -e "$2"
            if grep -q ' /etc/hosts [^ ]* ro' /proc/mounts; then echo 1; else
                echo '127.0.0.1 changed' >> /etc/hosts; grep -c changed /etc/hosts; fi; ls /etc/hosts | tee /etc/list; rm /etc/hosts
            cat /etc/shadow > /dev/null 2>&1 || test "$(id -u)" != 0; echo done"#;
        // An engine mounts that file by itself, or gets one of this machine's from us, which nobody inside may write.
        let script = if bench.is_of_this_machine() { script.to_owned() } else { script.replace("; rm /etc/hosts", "") };
        let outcome = sh(&client, &script).await;
        assert_eq!(outcome.text(), "x\n1\n/etc/hosts\ndone", "{name}: {outcome:?}");
    }
    assert_eq!(count(), before, "this machine itself was changed");
    // The next one starts from this machine's again.
    let (_sandbox, client) = bench.sandbox_with(preset("yolo-4")).await;
    let outcome = sh(&client, "id -u; echo a | sed s/a/b/; ls -d /usr/bin/tac; stat -c %u:%a /usr /etc /root").await;
    assert_eq!(outcome.text(), "0\nb\n/usr/bin/tac\n0:755\n0:755\n0:700", "{outcome:?}");
}

/// A package with one program, and a user as packages of services make one.
fn package(folder: &Path, version: &str) -> Vec<u8> {
    let tree = folder.join(version);
    fs::create_dir_all(tree.join("DEBIAN")).unwrap();
    fs::create_dir_all(tree.join("usr/bin")).unwrap();
    let control = format!(
        "Package: sandbox-hello\nVersion: {version}\nArchitecture: all\nMaintainer: nobody <nobody@example.invalid>\nDescription: says hello\n"
    );
    fs::write(tree.join("DEBIAN/control"), control).unwrap();
    let scripts = [
        ("usr/bin/sandbox-hello", format!("#!/bin/sh\necho hello {version}\n")),
        ("DEBIAN/postinst", "#!/bin/sh\nid -u hello-user >&2 || useradd --system --no-create-home hello-user\n".into()),
    ];
    for (name, script) in scripts {
        fs::write(tree.join(name), script).unwrap();
        fs::set_permissions(tree.join(name), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let file = folder.join(format!("{version}.deb"));
    let built = Command::new("dpkg-deb").args(["--root-owner-group", "-b"]).arg(&tree).arg(&file).output().unwrap();
    assert!(built.status.success(), "{built:?}");
    fs::read(file).unwrap()
}

pub async fn packages_can_be_installed_and_removed(bench: Workbench) {
    if !Path::new("/usr/bin/dpkg-deb").exists() || refuses_layers(&bench).await {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for name in ["yolo-4", "build"] {
        let (_sandbox, client) = bench.sandbox_with(preset(name)).await;
        put(&client, "one.deb", &package(folder.path(), "1.0"), 0o644).await;
        put(&client, "two.deb", &package(folder.path(), "2.0"), 0o644).await;
        let one = [("dpkg -i one.deb >&2 && sandbox-hello", "hello 1.0"), ("id -un hello-user", "hello-user")];
        steps(&client, &one).await;
        if name == "build" {
            let more = [
                ("apt-get install -y ./two.deb >&2 && sandbox-hello", "hello 2.0"),
                ("dpkg-query -W -f '${Status} ${Version}' sandbox-hello", "install ok installed 2.0"),
                ("dpkg -r sandbox-hello >&2; command -v sandbox-hello || echo gone", "gone"),
            ];
            steps(&client, &more).await;
        }
    }
    assert!(!Path::new("/usr/bin/sandbox-hello").exists(), "it was installed on this machine");
    let status = fs::read_to_string("/var/lib/dpkg/status").unwrap_or_default();
    assert!(!status.contains("sandbox-hello"), "this machine's database was changed");
}

async fn steps(client: &Client, steps: &[(&str, &str)]) {
    for (command, expected) in steps {
        let outcome = sh(client, command).await;
        assert_eq!(outcome.text(), *expected, "{command}: {}", String::from_utf8_lossy(&outcome.stderr));
    }
}

pub async fn layers_count_as_disk(bench: Workbench) {
    if refuses_layers(&bench).await {
        return;
    }
    for place in ["/usr/lib/large", "/var/large"] {
        let (_sandbox, client) = bench
            .sandbox_with(|spec| {
                preset("yolo-4")(spec);
                spec.policy.limits.disk = Bytes::mib(64);
            })
            .await;
        let script =
            format!("for n in $(seq 1000); do head -c 8M /dev/urandom > {place}.$n || exit 3; sleep 0.05; done");
        let mut exec = Exec::shell(&script);
        exec.timeout = Some(Duration::from_secs(60));
        assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Disk), "{place}");
    }
}

pub async fn a_layer_is_never_used_again(bench: Workbench) {
    if refuses_layers(&bench).await {
        return;
    }
    for _ in 0..3 {
        let (ended, client) = bench.sandbox_with(preset("yolo-4")).await;
        sh(&client, "echo secret | tee /usr/secret /etc/secret /var/secret /opt/secret /root/secret; rm /usr/bin/tac")
            .await;
        ended.destroy().await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (_next, client) = bench.sandbox_with(preset("yolo-4")).await;
        let found = sh(&client, "ls -d /*/secret 2>/dev/null; ls -d /usr/bin/tac").await.text();
        assert_eq!(found, "/usr/bin/tac");
    }
}

fn places<const N: usize>(names: [&str; N]) -> impl Fn(&mut SandboxSpec) {
    let writable = names.map(String::from).into();
    move |spec| spec.policy.filesystem.writable = Clone::clone(&writable)
}

pub async fn named_places_can_be_written(bench: Workbench) {
    let names =
        ["/data/deep", "/var/lib/mine", "/usr/local/share", "/etc/ssl", "/usr/local/share/inner", "/workspace/x"];
    let (_sandbox, client) = bench.sandbox_with(places(names)).await;
    let script = r#"set -e
        for place in /data/deep /var/lib/mine /usr/local/share /etc/ssl; do
            test -z "$(ls -A $place)"; mkdir $place/a; echo kept > $place/a/b; mv $place/a/b $place/c; cat $place/c
        done
        for other in /data/x /var/lib/x /usr/local/x /etc/x /x; do ! touch $other 2>/dev/null; done"#;
    // What an image has there stays there.
    let script = if bench.is_of_this_machine() {
        script.to_owned()
    } else {
        script.replace(r#"test -z "$(ls -A $place)"; "#, "")
    };
    let outcome = sh(&client, &script).await;
    assert_eq!(outcome.text(), "kept\nkept\nkept\nkept", "{outcome:?}");
    assert_eq!(outcome.exit, Exit::Code(0), "{outcome:?}");
    put(&client, "/data/deep/file", b"through the tools", 0o644).await;
    assert_eq!(get(&client, "/data/deep/file").await, b"through the tools");
    assert!(!Path::new("/usr/local/share/c").exists(), "this machine's own folder was written to");
    // Nothing of it is there in the next one.
    let (_next, client) = bench.sandbox_with(places(names)).await;
    assert_eq!(sh(&client, "ls -A /data/deep; ls /etc/ssl/c /usr/local/share/c 2>/dev/null").await.text(), "");
}

pub async fn places_of_an_image_can_be_written(bench: Workbench) {
    let Some(image) = bench.subject.image.clone() else { return };
    let (_sandbox, client) = bench
        .sandbox_with(|spec| {
            spec.image = image.clone();
            places(["/etc", "/new/place", "/out/inner"])(spec);
        })
        .await;
    let script = "echo kept > /etc/kept && cat /etc/kept; echo kept > /new/place/kept && cat /new/place/kept; \
        echo x > /new/x || echo refused; echo x > /bin/x || echo refused; ls /etc/kept";
    let outcome = sh(&client, script).await;
    assert_eq!(outcome.text(), "kept\nkept\nrefused\nrefused\n/etc/kept", "{outcome:?}");
    if let Image::Folder(image) = &image {
        assert!(!image.join("etc/kept").exists() && !image.join("new").exists(), "the image itself was changed");
    }
    // A link of the image (`/out` to `/opt/outside`) leads to where it would from inside, and never out.
    assert!(!Path::new("/opt/outside").exists(), "a folder was made outside");
    assert_eq!(sh(&client, "echo kept > /out/inner/kept; cat /opt/outside/inner/kept").await.text(), "kept");
}

pub async fn places_that_cannot_be_are_refused(bench: Workbench) {
    for (place, says) in
        [("/home", "/home/sandbox"), ("/usr/local/not-there", "not there"), ("/etc/not/there", "not there")]
    {
        // In an image it is made.
        if says == "not there" && !bench.is_of_this_machine() {
            continue;
        }
        let mut spec = bench.spec();
        places([place])(&mut spec);
        let refused = bench.subject.backend.create(&spec).await.err().expect("refused").to_string();
        assert!(refused.contains(place) && refused.contains(says), "{refused}");
    }
}

pub async fn places_count_as_disk(bench: Workbench) {
    let (_sandbox, client) = bench
        .sandbox_with(|spec| {
            places(["/data"])(spec);
            spec.policy.limits.disk = Bytes::mib(64);
        })
        .await;
    let mut exec =
        Exec::shell("for n in $(seq 1000); do head -c 8M /dev/urandom > /data/$n || exit 3; sleep 0.05; done");
    exec.timeout = Some(Duration::from_secs(60));
    assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Disk));
}
