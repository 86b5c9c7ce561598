//! Links, and folders that turn into links, on the way of the file interface. `/dev/shm` is a folder that the
//! sandbox's user may change and that is no place for files, so nothing may be read, made or removed there.

use std::time::Duration;

use futures::future::BoxFuture;
use sandbox_executor::{
    client::{Client, ClientError},
    protocol::Path,
    transfer::Piece,
};
use tokio::time::timeout;

use super::{or_return, with_cell};
use crate::{
    canary::argument,
    report::Finding,
    workbench::{ANSWER, Bench, Cell, write},
};

/// Where nothing may be reached.
pub(super) const OUTSIDE: &str = "/dev/shm/outside";

/// The content of a file, at most 64 KiB of it, in time.
pub(super) async fn read(client: &Client, path: &[u8]) -> Result<Vec<u8>, ReadError> {
    let reading = async {
        let mut reader = client.read(&Path(path.to_vec()), 0, Some(64 << 10)).await?;
        let mut content = Vec::new();
        while let Some(piece) = reader.next().await? {
            match piece {
                Piece::Data(data) => content.extend(data),
                Piece::Hole(length) => content.resize(content.len() + length.min(1 << 16) as usize, 0),
            }
        }
        Ok(content)
    };
    match timeout(ANSWER, reading).await {
        Ok(Ok(content)) => Ok(content),
        Ok(Err(error)) => Err(ReadError::Refused(error)),
        Err(_) => Err(ReadError::Hangs),
    }
}

pub(super) enum ReadError {
    Refused(#[allow(dead_code, reason = "shown by whoever looks closer")] ClientError),
    Hangs,
}

/// Every way to touch `folder/secret` and `folder`, and what of it worked.
async fn touch_all(client: &Client, folder: &str, mark: &str) -> Vec<String> {
    let path = |name: &str| Path::from(&format!("{folder}/{name}"));
    let mut worked = Vec::new();
    let mut note = |what: &str, did: bool| {
        if did {
            worked.push(format!("{what} by {folder}"));
        }
    };
    let content = read(client, &path("secret").0).await;
    note("reading", content.is_ok_and(|content| content == mark.as_bytes()));
    note("looking at a file", client.stat(&path("victim-1")).await.is_ok());
    note("listing", client.list(&Path::from(folder), 2, 100).await.is_ok_and(|found| !found.entries.is_empty()));
    note("writing", write(client, &path("new").0, b"new", 0o644).await.is_ok());
    note("making a folder", client.make_folder(&path("made")).await.is_ok());
    note("renaming", client.rename(&path("victim-2"), &path("renamed")).await.is_ok());
    note("removing", client.remove(&path("victim-3")).await.is_ok());
    note("removing a folder", client.remove(&path("folder")).await.is_ok());
    worked
}

async fn prepared(bench: &Bench, cell: &Cell) -> Result<String, Finding> {
    let mark = bench.canary.mark.clone();
    cell.plant("plant_outside", &[&argument(&mark), &format!("at={OUTSIDE}")]).await?;
    Ok(mark)
}

pub(crate) fn absolute_paths(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let mark = or_return!(prepared(&bench, &cell).await);
        let mut worked = touch_all(&cell.client, OUTSIDE, &mark).await;
        worked.extend(touch_all(&cell.client, &format!("//dev///shm/./{}", "outside"), &mark).await);
        for path in ["/etc/passwd", "/usr/bin/env", "/proc/version"] {
            if read(&cell.client, path.as_bytes()).await.is_ok() {
                worked.push(format!("reading {path}"));
            }
        }
        Finding::of_list("beyond the places for files", worked)
    })
}

pub(crate) fn parent_paths(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let mark = or_return!(prepared(&bench, &cell).await);
        let mut worked = Vec::new();
        for folder in [
            "../dev/shm/outside",
            "/workspace/../dev/shm/outside",
            "a/../../dev/shm/outside",
            "/tmp/x/../../dev/shm/outside",
            "./.././dev/shm/outside",
            "/home/sandbox/../../dev/shm/outside",
        ] {
            worked.extend(touch_all(&cell.client, folder, &mark).await);
        }
        Finding::of_list("by way of `..`", worked)
    })
}

pub(crate) fn link_as_folder(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let mark = or_return!(prepared(&bench, &cell).await);
        let links = [
            ("/workspace/direct", OUTSIDE),
            ("/workspace/relative", "../dev/shm/outside"),
            ("/workspace/chain", "relative"),
            ("/tmp/inner", "/workspace/chain"),
            ("/home/sandbox/far", "/tmp/inner/../outside"),
            ("/workspace/root", "/"),
        ];
        for (at, to) in links {
            or_return!(cell.plant("plant_link", &[&format!("at={at}"), &format!("to={to}")]).await);
        }
        let mut worked = Vec::new();
        for (at, _) in &links[..5] {
            worked.extend(touch_all(&cell.client, at, &mark).await);
        }
        worked.extend(touch_all(&cell.client, "/workspace/root/dev/shm/outside", &mark).await);
        Finding::of_list("through links to folders", worked)
    })
}

pub(crate) fn link_as_file(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let mark = or_return!(prepared(&bench, &cell).await);
        let look = [format!("at={OUTSIDE}")];
        let look: Vec<&str> = look.iter().map(String::as_str).collect();
        let before = cell.look("show_folder", &look).await;
        let targets = [
            ("secret", "read"),
            ("victim-1", "written"),
            ("victim-2", "removed"),
            ("nothing", "dangling"),
            ("victim-4", "renamed"),
        ];
        for (target, name) in targets {
            let (at, to) = (format!("at=/workspace/{name}"), format!("to={OUTSIDE}/{target}"));
            or_return!(cell.plant("plant_link", &[&at, &to]).await);
        }
        let client = &cell.client;
        let mut worked = Vec::new();
        if read(client, b"/workspace/read").await.is_ok_and(|content| content == mark.as_bytes()) {
            worked.push("reading through a link".to_owned());
        }
        // Each of these may replace or remove the link itself; what it points to must stay.
        let _ = write(client, b"/workspace/written", b"overwritten!", 0o644).await;
        let _ = write(client, b"/workspace/dangling", b"made", 0o644).await;
        let _ = client.remove(&Path::from("/workspace/removed")).await;
        let _ = client.rename(&Path::from("/workspace/renamed"), &Path::from("/workspace/elsewhere")).await;
        if cell.look("show_folder", &look).await != before {
            worked.push("changing what a link points to".to_owned());
        }
        Finding::of_list("through links to files", worked)
    })
}

/// Links that are no paths: `/proc` has doors to other roots and to open files, and the executor has more of them than
/// a command.
pub(crate) fn magic_links(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let mark = or_return!(prepared(&bench, &cell).await);
        let mut worked = Vec::new();
        for (index, target) in
            ["/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/proc/thread-self/root", "/proc/1/cwd"]
                .iter()
                .enumerate()
        {
            let at = format!("/workspace/magic-{index}");
            or_return!(cell.plant("plant_link", &[&format!("at={at}"), &format!("to={target}")]).await);
            worked.extend(touch_all(&cell.client, &format!("{at}/dev/shm/outside"), &mark).await);
            worked.extend(touch_all(&cell.client, &format!("{target}/dev/shm/outside"), &mark).await);
        }
        for number in 0..40 {
            let at = format!("/workspace/descriptor-{number}");
            or_return!(cell.plant("plant_link", &[&format!("at={at}"), &format!("to=/proc/self/fd/{number}")]).await);
            if read(&cell.client, at.as_bytes()).await.is_ok_and(|content| !content.is_empty()) {
                worked.push(format!("reading the executor's descriptor {number}"));
            }
        }
        Finding::of_list("through the links of /proc", worked)
    })
}

/// The executor's own files in `/proc`, which it may read where a command may not.
pub(crate) fn executors_proc(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |_, cell| async move {
        let mut worked = Vec::new();
        for process in ["self", "1", "thread-self", "self/task/1"] {
            for name in
                ["environ", "maps", "mem", "auxv", "cmdline", "mountinfo", "status", "stat", "syscall", "pagemap"]
            {
                let path = format!("/proc/{process}/{name}");
                let at = format!("/workspace/{}-{name}", process.replace('/', "-"));
                let _ = cell.plant("plant_link", &[&format!("at={at}"), &format!("to={path}")]).await;
                for path in [path, at] {
                    let read = read(&cell.client, path.as_bytes()).await;
                    // Files of /proc say that they are empty, and the interface reads no further than that.
                    if read.is_ok_and(|content| !content.is_empty()) {
                        worked.push(path);
                    }
                }
            }
            for folder in ["fd", "root", "cwd", "task", "map_files", "ns"] {
                let path = format!("/proc/{process}/{folder}");
                if cell.client.list(&Path::from(&path), 1, 10).await.is_ok_and(|found| !found.entries.is_empty()) {
                    worked.push(path);
                }
            }
        }
        Finding::of_list("files about the executor", worked)
    })
}

/// A folder that is exchanged for a link, again and again, while files in it are read, written and removed.
pub(crate) fn swapped_folder(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        let mark = or_return!(prepared(&bench, &cell).await);
        let look = format!("at={OUTSIDE}");
        let before = cell.look("show_folder", &[&look]).await;
        or_return!(cell.plant("swap", &[&format!("to={OUTSIDE}")]).await);
        let client = &cell.client;
        let mut worked = Vec::new();
        let race = async {
            for round in 0..200 {
                if read(client, b"/workspace/race/dir/secret").await.is_ok_and(|content| content == mark.as_bytes()) {
                    return vec![format!("reading in round {round}")];
                }
                let _ = write(client, format!("/workspace/race/dir/new-{round}").as_bytes(), b"x", 0o644).await;
                let _ = client.make_folder(&Path::from(&format!("/workspace/race/dir/made-{round}"))).await;
                let _ = client.remove(&Path::from(&format!("/workspace/race/dir/victim-{round}"))).await;
                let (from, to) = (format!("/workspace/race/dir/victim-{}", 199 - round), "/workspace/race/dir/taken");
                let _ = client.rename(&Path::from(&from), &Path::from(to)).await;
            }
            Vec::new()
        };
        worked.extend(timeout(Duration::from_secs(15), race).await.unwrap_or_default());
        if cell.look("show_folder", &[&look]).await != before {
            worked.push("changing files outside".to_owned());
        }
        Finding::of_list("while a folder turned into a link", worked)
    })
}

/// A tree is removed while one of its folders turns into a link.
pub(crate) fn removal_race(bench: Bench) -> BoxFuture<'static, Finding> {
    with_cell(bench, |bench, cell| async move {
        or_return!(prepared(&bench, &cell).await);
        let look = format!("at={OUTSIDE}");
        let before = cell.look("show_folder", &[&look]).await;
        or_return!(cell.plant("plant_link", &["at=/workspace/link-in-tree", &format!("to={OUTSIDE}")]).await);
        let _ = cell.client.remove(&Path::from("/workspace/link-in-tree")).await;
        or_return!(cell.plant("swap", &[&format!("to={OUTSIDE}")]).await);
        for _ in 0..10 {
            let _ = timeout(ANSWER, cell.client.remove(&Path::from("/workspace/race"))).await;
        }
        match cell.look("show_folder", &[&look]).await == before {
            true => Finding::held("what is outside is as it was"),
            false => Finding::broke("removing a tree removed files outside of it"),
        }
    })
}
