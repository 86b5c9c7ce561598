//! Files: in, out, and never through a link that leads elsewhere.

use sandbox_core::{Control, exec::Exit};
use sandbox_executor::protocol::{FileKind, NewFile, Path};

use crate::workbench::{Workbench, get, has_own_kernel, put, sh};

pub async fn content_and_modes_survive(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let content: Vec<u8> = (0..300_000u32).flat_map(u32::to_le_bytes).collect();
    put(&client, "deep/er/data.bin", &content, 0o640).await;
    assert_eq!(get(&client, "/workspace/deep/er/data.bin").await, content);
    assert_eq!(sh(&client, "stat -c %a deep/er/data.bin").await.text(), "640");
    put(&client, "tool", b"#!/bin/sh\necho works\n", 0o4755).await;
    assert_eq!(
        sh(&client, "./tool; stat -c %a tool").await.text(),
        "works\n755",
        "a set-user-id bit is not taken over"
    );
    client.rename(&Path::from("tool"), &Path::from("renamed")).await.unwrap();
    client.remove(&Path::from("deep")).await.unwrap();
    client.make_folder(&Path::from("a/b/c")).await.unwrap();
    assert_eq!(sh(&client, "find . | sort").await.text(), ".\n./a\n./a/b\n./a/b/c\n./renamed");
}

pub async fn a_file_with_holes_stays_small(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    let mut writer = client.write().await.unwrap();
    writer.begin(&NewFile { path: Path::from("sparse"), mode: None }).await.unwrap();
    writer.data(b"start").await.unwrap();
    writer.hole(5 << 30).await.unwrap();
    writer.data(b"end").await.unwrap();
    writer.finish().await.unwrap();
    assert_eq!(sh(&client, "stat -c %s sparse; tail -c 3 sparse").await.text(), format!("{}\nend", (5u64 << 30) + 8));
    if has_own_kernel(sandbox.as_ref()) {
        // gVisor shows its length as its blocks, and no holes to who reads it; what it takes outside is told, if who
        // counts is not inside too.
        let inside = sandbox.facts().enforcement.0[&Control::Disk].by.contains("counts with its whole length");
        assert!(inside || sandbox.usage().await.unwrap().disk.0 < 1 << 20);
        return;
    }
    assert_eq!(sh(&client, "test $(du -k sparse | cut -f1) -lt 1000 && echo small").await.text(), "small");
    let mut reader = client.read(&Path::from("sparse"), 0, None).await.unwrap();
    let (mut pieces, mut total) = (0, 0);
    while let Some(piece) = reader.next().await.unwrap() {
        pieces += 1;
        total += match piece {
            sandbox_executor::transfer::Piece::Data(data) => data.len() as u64,
            sandbox_executor::transfer::Piece::Hole(length) => length,
        };
    }
    assert_eq!(total, (5 << 30) + 8);
    assert!(pieces < 100, "{pieces} pieces for a file that is one hole");
}

pub async fn many_files_at_once(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let mut writer = client.write().await.unwrap();
    for number in 0..2000 {
        writer.begin(&NewFile { path: Path::from(&format!("many/{number}.txt")), mode: None }).await.unwrap();
        writer.data(number.to_string().as_bytes()).await.unwrap();
        writer.finish().await.unwrap();
    }
    assert_eq!(sh(&client, "ls many | wc -l").await.text(), "2000");
    let listing = client.list(&Path::from("many"), 1, 10_000).await.unwrap();
    assert_eq!((listing.entries.len(), listing.truncated), (2000, false));
    let listing = client.list(&Path::from("many"), 1, 100).await.unwrap();
    assert_eq!((listing.entries.len(), listing.truncated), (100, true));
}

pub async fn links_that_point_out_lead_nowhere(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    sh(
        &client,
        "ln -s /etc/passwd direct; ln -s /etc ancestor; ln -s /etc/new dangling; ln -s ../../etc/passwd relative",
    )
    .await;
    sh(&client, "mkdir inner; echo inside > inner/file; ln -s inner/file fine; ln -s /proc/1/root magic").await;
    for path in [
        "direct",
        "ancestor/passwd",
        "relative",
        "magic/etc/passwd",
        "../etc/passwd",
        "/etc/passwd",
        "a/../../etc/passwd",
    ] {
        let Err(error) = client.read(&Path::from(path), 0, None).await else { panic!("{path} was read") };
        assert!(!error.to_string().is_empty());
    }
    for path in ["dangling", "ancestor/new", "/etc/new", "/workspace/../etc/new"] {
        let mut writer = client.write().await.unwrap();
        let begun = writer.begin(&NewFile { path: Path::from(path), mode: None }).await;
        let ended = if begun.is_ok() { writer.finish().await } else { begun };
        // Writing replaces the link itself, or is refused; it never goes through.
        if ended.is_ok() {
            assert_eq!(sh(&client, &format!("test -L {path} && echo link")).await.text(), "", "{path}");
        }
    }
    assert_eq!(get(&client, "fine").await, b"inside\n");
}

pub async fn names_that_are_not_text_are_listed(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    sh(&client, r#"touch "$(printf 'odd\377name')""#).await;
    let listing = client.list(&Path::from("."), 1, 100).await.unwrap();
    assert_eq!(listing.entries[0].path.0, b"odd\xffname");
    client.remove(&Path::from(b"odd\xffname")).await.unwrap();
    let long = "x".repeat(4096);
    assert!(client.stat(&Path::from(&long)).await.is_err());
    assert!(client.stat(&Path::from(b"a\0b")).await.is_err());
}

pub async fn what_is_no_file_is_refused(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    sh(&client, "mkfifo pipe; mkdir folder").await;
    for path in ["pipe", "folder", "missing"] {
        assert!(client.read(&Path::from(path), 0, None).await.is_err(), "{path} was read");
    }
    assert_eq!(client.stat(&Path::from("folder")).await.unwrap().kind, FileKind::Folder);
}

pub async fn files_belong_to_the_sandboxs_user(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    put(&client, "mine", b"", 0o600).await;
    assert_eq!(sh(&client, "stat -c %u:%g mine; echo more >> mine && echo written").await.text(), "1000:1000\nwritten");
}

pub async fn pip_and_npm_install_as_typed(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let setup = "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n";
    put(&client, "pkg/pyproject.toml", setup.as_bytes(), 0o644).await;
    let wheel = r#"
import zipfile
with zipfile.ZipFile('tiny-1-py3-none-any.whl', 'w') as z:
    z.writestr('tiny.py', 'answer = 42\n')
    z.writestr('tiny-1.dist-info/METADATA', 'Metadata-Version: 2.1\nName: tiny\nVersion: 1\n')
    z.writestr('tiny-1.dist-info/WHEEL', 'Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n')
    z.writestr('tiny-1.dist-info/entry_points.txt', '[console_scripts]\ntiny-tool = tiny:main\n')
    z.writestr('tiny-1.dist-info/RECORD', '')
"#;
    put(&client, "wheel.py", wheel.as_bytes(), 0o644).await;
    if sh(&client, "command -v pip && python3 -m pip --version").await.exit == Exit::Code(0) {
        let outcome = sh(&client, "python3 wheel.py && pip install --no-index ./tiny-1-py3-none-any.whl && python3 -c 'import tiny; print(tiny.answer)' && command -v tiny-tool").await;
        // An image has its own Python, which is left as it is.
        let place = if bench.is_of_this_machine() { ".venv" } else { ".local" };
        assert!(outcome.text().ends_with(&format!("42\n/home/sandbox/{place}/bin/tiny-tool")), "{outcome:?}");
    }
    if sh(&client, "command -v npm").await.exit == Exit::Code(0) {
        put(
            &client,
            "hello/package.json",
            br#"{"name":"hello","version":"1.0.0","bin":{"hello-tool":"index.js"}}"#,
            0o644,
        )
        .await;
        put(&client, "hello/index.js", b"#!/usr/bin/env node\nconsole.log('hi')\n", 0o755).await;
        let outcome = sh(&client, "npm i -g --offline --no-audit ./hello >/dev/null && hello-tool").await;
        assert_eq!(outcome.text(), "hi", "{outcome:?}");
    }
}
