//! Programs that a policy takes away, and lists of the only ones that it allows: held by the kernel, not by names.

use std::path::Path;

use sandbox_core::{Control, Error, Held, Policy, SandboxSpec, exec::Exit};

use crate::workbench::{Workbench, connect, is_refused_by_name, put, sh};

/// Denied by every preset, where this machine has them.
fn denied_here() -> Vec<String> {
    let names = ["su", "mount", "umount", "chroot", "unshare", "nsenter", "ssh", "mkfs.ext4", "reboot"];
    let found = names.into_iter().filter_map(|name| {
        let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
        folders.into_iter().map(|folder| format!("{folder}/{name}")).find(|path| Path::new(path).exists())
    });
    found.collect()
}

pub async fn denied_programs_are_gone(bench: Workbench) {
    if bench.subject.unheld.contains(&Control::Commands) {
        let mut spec = bench.spec_with(Control::Commands);
        spec.policy.commands = Policy::preset("yolo-1").unwrap().commands;
        return is_refused_by_name(&bench, &spec, Control::Commands).await;
    }
    let mut denied = denied_here();
    assert!(!denied.is_empty(), "this machine has none of the programs that are denied");
    if !bench.is_of_this_machine() {
        // Those of the image.
        let (_sandbox, client) = bench.sandbox().await;
        let mut there = Vec::new();
        for path in denied {
            if sh(&client, &format!("test -e {path} && ! test -L {path}")).await.exit == Exit::Code(0) {
                there.push(path);
            }
        }
        denied = there;
    }
    for name in ["yolo-1", "full_isolation", "user_added"] {
        let (sandbox, client) = bench.sandbox_with(|spec| spec.policy = Policy::preset(name).unwrap()).await;
        let held = sandbox.facts().enforcement.0.get(&Control::Commands).cloned().expect("it says so");
        // Not everybody can cover a link to what is others' too.
        let some_are_left = held.by.contains("cannot cover");
        assert_eq!(held.held, if some_are_left { Held::Supervised } else { Held::Kernel });
        for path in &denied {
            if some_are_left && std::fs::read_link(path).is_ok() {
                continue;
            }
            let outcome = sh(&client, &format!("{path} --version")).await;
            assert_eq!(outcome.exit, Exit::Code(126), "{name}: {path} {outcome:?}");
            let outcome = sh(
                &client,
                &format!(
                    "cp {path} ./copy && chmod +x ./copy; head -n 1 ./copy; rm -f ./copy; rm -f {path}; test -e {path}"
                ),
            )
            .await;
            assert!(outcome.text().starts_with("This program is not available in this sandbox"), "{path}: {outcome:?}");
            assert_eq!(outcome.exit, Exit::Code(0), "{path} could be removed");
        }
        assert_eq!(sh(&client, "ls -d / && python3 -c 'print(1)'").await.text(), "/\n1");
    }
    // An explanation alone is no wall, and nothing says that it is one.
    let (sandbox, client) = bench.sandbox().await;
    assert!(!sandbox.facts().enforcement.0.contains_key(&Control::Commands));
    assert_ne!(sh(&client, &format!("head -c 4 {}", denied[0])).await.text(), "This");
}

pub async fn denied_links_of_an_image_are_gone(bench: Workbench) {
    let Some(image) = bench.subject.image.clone() else { return };
    // Tried with all others there.
    if bench.subject.unheld.contains(&Control::Commands) {
        return;
    }
    let (sandbox, client) = bench
        .sandbox_with(|spec| {
            spec.image = image.clone();
            spec.policy = Policy::preset("yolo-1").unwrap();
        })
        .await;
    // Where that cannot be, it is said.
    if sandbox.facts().enforcement.0[&Control::Commands].by.contains("cannot cover") {
        return;
    }
    // By path, because this shell is the same program and needs no other for what it knows itself.
    let outcome = sh(&client, "/bin/mount; echo $?; cat /bin/su; ls /bin/busybox; id -u").await;
    let text = outcome.text();
    assert!(
        text.starts_with("126\nThis program is not available") && text.ends_with("/bin/busybox\n1000"),
        "{outcome:?}"
    );
}

fn only(names: &[&str]) -> impl Fn(&mut SandboxSpec) {
    let allow: std::collections::BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
    move |spec| spec.policy.commands.allow = Some(allow.clone())
}

/// Where the kernel cannot hold a list, there is no sandbox until that is accepted by name; true if so.
async fn cannot_hold(bench: &Workbench) -> bool {
    let mut spec = bench.spec_with(Control::Commands);
    only(&["sh"])(&mut spec);
    match bench.subject.backend.create(&spec).await {
        Err(Error::Unenforceable { refused, .. }) if refused.0.contains_key(&Control::Commands) => {
            let mut accepted = bench.spec();
            only(&["sh"])(&mut accepted);
            accepted.policy.allow_unenforced.insert(Control::Commands);
            let sandbox = bench.subject.backend.create(&accepted).await.unwrap();
            assert_eq!(sh(&connect(sandbox.as_ref()).await, "id -u").await.text(), "1000");
            sandbox.destroy().await.unwrap();
            true
        }
        Err(other) => panic!("create: {other}"),
        Ok(sandbox) => {
            sandbox.destroy().await.unwrap();
            false
        }
    }
}

pub async fn only_listed_programs_are_executed(bench: Workbench) {
    if cannot_hold(&bench).await {
        return;
    }
    let list = only(&["sh", "cat", "cp", "chmod", "mv", "mkdir", "/workspace/tools/"]);
    let (sandbox, client) = bench.sandbox_with(&list).await;
    assert_eq!(sandbox.facts().enforcement.0[&Control::Commands].held, Held::Kernel);
    put(&client, "script", b"#!/bin/sh\necho ran\n", 0o755).await;
    for (command, expected) in [
        ("cat script | sh", "ran"),
        ("ls; echo $?", "126"),
        ("/usr/bin/id; echo $?", "126"),
        ("cp /usr/bin/id ./cat; ./cat; echo $?", "126"),
        ("cp /usr/bin/id /tmp/id; chmod +x /tmp/id; /tmp/id; echo $?", "126"),
        ("./script; echo $?", "126"),
        ("sh script", "ran"),
        ("cp script tools/ && tools/script", "ran"),
        ("mkdir a b && cp script a && mv a/script b && cat b/script | sh", "ran"),
    ] {
        let outcome = sh(&client, command).await;
        assert_eq!(outcome.text(), expected, "{command}: {outcome:?}");
    }
    // Loaded by hand it is code like any other that an allowed program reads: it has no more rights than that.
    let by_hand = "for loader in /lib64/ld-linux-x86-64.so.2 /lib/ld-linux-aarch64.so.1; do \
        if [ -e $loader ]; then $loader /usr/bin/id -u; fi; done; ls; echo $?";
    let text = sh(&client, by_hand).await.text();
    assert!(text == "126" || text.lines().count() == 2 && text.ends_with("126"), "{text}");
}

/// A rule is about a file, and in a root that can be changed another program can be written over it.
pub async fn a_list_takes_a_root_that_cannot_be_changed(bench: Workbench) {
    let mut spec = bench.spec_with(Control::Commands);
    spec.policy.filesystem.root = sandbox_core::policy::Root::Writable;
    only(&["sh"])(&mut spec);
    match bench.subject.backend.create(&spec).await {
        Err(Error::Unenforceable { refused, .. }) => {
            let why = refused.0.get(&Control::Commands).map(|holding| holding.by.as_str());
            assert!(why.is_some_and(|why| why.contains("could be replaced")), "{refused:?}");
        }
        // Where there are no layers, such a root is refused by itself.
        Err(Error::Unavailable { .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a list that does not hold was accepted"),
    }
}

pub async fn a_list_comes_with_what_its_programs_need(bench: Workbench) {
    if cannot_hold(&bench).await {
        return;
    }
    let usual = sandbox_core::policy::STANDARD_COMMANDS;
    let (_sandbox, client) = bench.sandbox_with(only(usual)).await;
    for command in [
        "python3 -c 'print(1)'",
        "echo 1 | gzip | zcat",
        "git --exec-path >/dev/null && git init -q . && echo 1",
        "pip --version >/dev/null && echo 1",
        "npm --version >/dev/null && echo 1",
    ] {
        let program = command.split(' ').next().unwrap_or_default();
        let there = || async { sh(&client, &format!("command -v {program}")).await.exit == Exit::Code(0) };
        let missing =
            if bench.is_of_this_machine() { !Path::new("/usr/bin").join(program).exists() } else { !there().await };
        if program != "echo" && missing {
            continue;
        }
        let outcome = sh(&client, command).await;
        assert_eq!(outcome.text(), "1", "{command}: {}", String::from_utf8_lossy(&outcome.stderr));
    }
    let outcome = sh(&client, "dpkg --version; echo $?; perl -e 'exec \"mount\"; ' ; echo $?").await;
    assert!(outcome.text().starts_with("126") || outcome.text().starts_with("127"), "{outcome:?}");
}
