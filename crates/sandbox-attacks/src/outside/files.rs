//! Things that are no plain files, names that are no plain names, and content without end, offered to the file
//! interface.

use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use sandbox_executor::{
    protocol::{FileKind, NewFile, Path},
    transfer::Piece,
};
use tokio::time::timeout;

use super::{
    links::{OUTSIDE, ReadError, read},
    or_return, with_cell,
};
use crate::{
    canary::argument,
    report::Finding,
    workbench::{ANSWER, Bench, write},
};

/// Pipes without a writer, sockets, devices: nothing that waits, nothing that has no end.
pub(crate) fn special_files(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        or_return!(cell.plant("plant_fifo", &["at=/workspace/fifo"]).await);
        or_return!(cell.plant("plant_socket", &["at=/workspace/socket"]).await);
        for name in ["zero", "urandom", "tty", "null", "full"] {
            or_return!(cell.plant("plant_link", &[&format!("at=/workspace/{name}"), &format!("to=/dev/{name}")]).await);
        }
        let mut worked = Vec::new();
        let paths = [
            "/workspace/fifo",
            "/workspace/socket",
            "/workspace/zero",
            "/workspace/urandom",
            "/workspace/tty",
            "/dev/zero",
            "/dev/urandom",
            "/dev/tty",
            "/dev/full",
        ];
        // Where memory is summed over processes, a plain file stands in for the device.
        let zeros = cell.client.stat(&Path::from("/dev/zero")).await;
        let plain = zeros.is_ok_and(|found| found.kind == FileKind::File);
        for path in paths.into_iter().filter(|path| !(plain && path.ends_with("/zero"))) {
            match read(&cell.client, path.as_bytes()).await {
                Ok(content) if !content.is_empty() => worked.push(format!("reading {path}")),
                Err(ReadError::Hangs) => worked.push(format!("{path} holds the executor")),
                _ => {}
            }
            if timeout(ANSWER, cell.client.list(&Path::from(path), 1, 10)).await.is_err() {
                worked.push(format!("listing {path} hangs"));
            }
        }
        let writing = timeout(ANSWER, write(&cell.client, b"/workspace/fifo", b"x", 0o644)).await;
        if writing.is_err() {
            worked.push("writing over a pipe hangs".to_owned());
        }
        worked.extend(cell.is_well().await.err());
        Finding::of_list("with things that are no files", worked)
    })
}

/// Names that are too long, empty, not text, or hold a NUL.
pub(crate) fn odd_names(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let client = &cell.client;
        let mut worked = Vec::new();
        let long = vec![b'a'; 4096];
        let deep = b"d/".repeat(40_000);
        let impossible: [&[u8]; 6] = [b"", b"a\0b", b"\0", b"/workspace/a\0/../../etc/passwd", &long, &deep];
        for name in impossible {
            let shown = String::from_utf8_lossy(&name[..name.len().min(12)]).escape_debug().to_string();
            if write(client, name, b"x", 0o644).await.is_ok() {
                worked.push(format!("writing a file named {shown:?}"));
            }
            if client.stat(&Path(name.to_vec())).await.is_ok() || read(client, name).await.is_ok() {
                worked.push(format!("finding a file named {shown:?}"));
            }
        }
        let odd: [&[u8]; 5] = [b"\xff\xfe\xfd", b"new\nline", b"\x1b[31mred", b"-rf", b"..."];
        for name in odd {
            let written = write(client, name, b"x", 0o644).await.is_ok();
            if written && client.remove(&Path(name.to_vec())).await.is_err() {
                worked.push(format!("{name:?} cannot be removed again"));
            }
        }
        worked.extend(cell.is_well().await.err());
        Finding::of_list("with odd names", worked)
    })
}

/// Bits that make a program run as somebody else.
pub(crate) fn privileged_modes(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let mut worked = Vec::new();
        for mode in [0o4755, 0o2755, 0o6777, 0o1777, 0o10_755, u32::MAX] {
            let path = format!("/workspace/mode-{mode:o}");
            let written = write(&cell.client, path.as_bytes(), b"x", mode).await;
            let found = cell.client.stat(&Path::from(&path)).await;
            if written.is_ok() && found.is_ok_and(|found| found.mode & 0o6000 != 0) {
                worked.push(format!("{mode:o}"));
            }
        }
        Finding::of_list("modes that were set", worked)
    })
}

/// Files that are larger than anything: as holes that come in, and as holes that go out.
pub(crate) fn sparse_bomb(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let client = &cell.client;
        let mut worked = Vec::new();
        for length in [1u64 << 45, 1 << 62, u64::MAX] {
            let written = async {
                let mut writer = client.write().await?;
                writer.begin(&NewFile { path: Path::from("/workspace/hole"), mode: None }).await?;
                writer.hole(length).await?;
                writer.hole(length).await?;
                writer.finish().await
            };
            if timeout(ANSWER, written).await.is_err() {
                worked.push(format!("a hole of {length} bytes hangs"));
            }
        }
        // Where file sizes are limited the bomb cannot be made.
        if cell.plant("plant_sparse", &["at=/workspace/sparse"]).await.is_ok() {
            let begun = Instant::now();
            let reading = async {
                let mut reader = client.read(&Path::from("/workspace/sparse"), 0, None).await.ok()?;
                let mut data = 0;
                while let Ok(Some(piece)) = reader.next().await {
                    data += if let Piece::Data(data) = piece { data.len() } else { 0 };
                }
                Some(data)
            };
            match timeout(ANSWER, reading).await {
                Ok(Some(data)) if data > 1 << 24 => worked.push(format!("{data} bytes came of an empty file")),
                Err(_) => worked.push(format!("reading holes takes more than {:?}", begun.elapsed())),
                _ => {}
            }
        }
        worked.extend(cell.is_well().await.err());
        Finding::of_list("with files of holes", worked)
    })
}

/// A file that grows as fast as it is read must come to an end.
pub(crate) fn growing_file(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        or_return!(cell.plant("grow", &["at=/workspace/growing"]).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let reading = async {
            let mut reader =
                cell.client.read(&Path::from("/workspace/growing"), 0, None).await.map_err(|e| e.to_string())?;
            let (size, mut total) = (reader.info().size, 0);
            while let Some(piece) = reader.next().await.map_err(|error| error.to_string())? {
                total += if let Piece::Data(data) = piece { data.len() as u64 } else { 0 };
            }
            Ok::<_, String>((size, total))
        };
        match timeout(ANSWER, reading).await {
            Ok(Ok((size, total))) if total <= size => Finding::held(format!("{total} of {size} bytes were read")),
            Ok(Ok((size, total))) => Finding::broke(format!("{total} bytes came of a file of {size}")),
            Ok(Err(error)) => Finding::held(error),
            Err(_) => Finding::broke("reading a file that grows does not end"),
        }
    })
}

/// Taking something out of its place, or the place itself away.
pub(crate) fn leave_the_place(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        or_return!(cell.plant("plant_outside", &[&argument(&bench.canary.mark), &format!("at={OUTSIDE}")]).await);
        let client = &cell.client;
        let mut worked = Vec::new();
        let _ = write(client, b"/workspace/mine", b"x", 0o644).await;
        for target in [
            format!("{OUTSIDE}/taken"),
            "/etc/taken".to_owned(),
            "/taken".to_owned(),
            "../taken".to_owned(),
            "/proc/taken".to_owned(),
        ] {
            if client.rename(&Path::from("/workspace/mine"), &Path::from(&target)).await.is_ok() {
                worked.push(format!("moving a file to {target}"));
                let _ = client.rename(&Path::from(&target), &Path::from("/workspace/mine")).await;
            }
        }
        for place in ["/workspace", ".", "/workspace/.", "/", "/tmp", "/home/sandbox"] {
            if timeout(ANSWER, client.remove(&Path::from(place))).await.is_ok_and(|removed| removed.is_ok()) {
                worked.push(format!("removing {place}"));
            }
            if client.rename(&Path::from(place), &Path::from("/workspace/moved")).await.is_ok() {
                worked.push(format!("renaming {place}"));
            }
        }
        worked.extend(cell.is_well().await.err());
        Finding::of_list("leaving the places for files", worked)
    })
}

/// Another name for a file outside, which no link can be told by.
pub(crate) fn hard_links(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        or_return!(cell.plant("plant_outside", &[&argument(&bench.canary.mark), &format!("at={OUTSIDE}")]).await);
        let mut worked = Vec::new();
        let targets = [
            format!("{OUTSIDE}/secret"),
            "/etc/passwd".to_owned(),
            "/usr/bin/env".to_owned(),
            "/proc/1/environ".to_owned(),
            "/proc/self/exe".to_owned(),
        ];
        for (index, target) in targets.iter().enumerate() {
            let at = format!("/workspace/hard-{index}");
            let linked = cell.plant("plant_hard_link", &[&format!("at={at}"), &format!("to={target}")]).await;
            if linked.is_ok() && read(&cell.client, at.as_bytes()).await.is_ok_and(|content| !content.is_empty()) {
                worked.push(format!("reading {target}"));
            }
        }
        Finding::of_list("through hard links", worked)
    })
}

/// More entries than anybody asked for.
pub(crate) fn listing_flood(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        or_return!(cell.plant("plant_many", &["at=/tmp/many"]).await);
        for (at, to) in [("/tmp/many/loop", "/tmp/many"), ("/tmp/many/self", "self"), ("/tmp/many/up", "..")] {
            let _ = cell.plant("plant_link", &[&format!("at={at}"), &format!("to={to}")]).await;
        }
        let mut worked = Vec::new();
        for limit in [1, 100, 1000] {
            match timeout(ANSWER, cell.client.list(&Path::from("/tmp"), u32::MAX, limit)).await {
                Ok(Ok(found)) if found.entries.len() as u32 > limit => {
                    worked.push(format!("{} entries for {limit}", found.entries.len()))
                }
                Ok(Ok(found)) if !found.truncated => worked.push("the listing says that it is whole".to_owned()),
                Ok(Err(error)) => worked.push(format!("listing fails: {error}")),
                Err(_) => worked.push("listing does not end".to_owned()),
                Ok(Ok(_)) => {}
            }
        }
        let removed = timeout(3 * ANSWER, cell.client.remove(&Path::from("/tmp/many"))).await;
        if !removed.is_ok_and(|removed| removed.is_ok()) {
            worked.push("20,000 files cannot be removed".to_owned());
        }
        worked.extend(cell.is_well().await.err());
        Finding::of_list("with many files", worked)
    })
}

/// Writing over what is not a file, from inside and from outside at once.
pub(crate) fn write_over_others(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let client = &cell.client;
        let mut worked = Vec::new();
        let _ = client.make_folder(&Path::from("/workspace/folder/deep")).await;
        if write(client, b"/workspace/folder", b"x", 0o644).await.is_ok() {
            worked.push("a folder was replaced by a file".to_owned());
        }
        let paths: [&[u8]; 5] =
            [b"/workspace", b"/tmp", b"/dev/null", b"/proc/sys/kernel/hostname", b"/workspace/sandbox-attack/below"];
        for path in paths {
            if write(client, path, b"x", 0o644).await.is_ok() {
                worked.push(String::from_utf8_lossy(path).into_owned());
            }
        }
        worked.extend(cell.is_well().await.err());
        Finding::of_list("written over", worked)
    })
}
