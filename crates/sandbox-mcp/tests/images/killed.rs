//! `kill -9` at every step: what was half there is not seen, the next pull works, and nothing is left behind.

use std::{os::unix::process::ExitStatusExt, process::Stdio, thread::sleep, time::Duration};

use crate::{
    kit::{Here, Image, file, gzip, layer, programs},
    registry::{Doors, Registry, is_there},
};

/// Where the process that pulls, or the one that unpacks for it, ends itself as if killed.
const PULL: [&str; 8] =
    ["downloading", "downloaded", "unpacking", "unpacked", "merging", "merged", "recording", "thrown away"];
const REMOVE: [&str; 2] = ["forgotten", "thrown away"];

fn image() -> Image {
    Image::new(&[layer(&programs()), layer(&[file("two", b"2")]), layer(&[file("three", b"3")])], gzip)
}

#[test]
fn a_pull_that_is_killed_anywhere_leaves_nothing_half_there() {
    if !is_there() || !cfg!(debug_assertions) {
        return;
    }
    let here = Here::new();
    let registry = Registry::start(here.path(), Doors::Open);
    registry.push(&image(), "killed", "1");
    let name = format!("{}/killed:1", registry.host());
    for place in PULL {
        let mut command = here.command(&["pull", &name]);
        let ended = command.env("SANDBOX_IMAGE_DIES_AT", place).output().unwrap();
        assert!(!ended.status.success(), "{place}");
        // Either it is there as a whole or not at all.
        match here.names().as_slice() {
            [] => {}
            [only] => assert!(*only == name && here.sh(&name, "cat /two /three") == "23", "{place}"),
            more => panic!("{place}: {more:?}"),
        }
        here.ok(&["pull", &name]);
        assert_eq!(here.sh(&name, "cat /two /three"), "23", "{place}");
        assert_eq!((here.kept(), here.rubbish()), (4, Vec::new()), "{place}");
        here.ok(&["rmi", &name]);
        assert_eq!(here.kept(), 0, "{place}");
    }
}

#[test]
fn a_removal_that_is_killed_is_done_with_by_the_next() {
    if !cfg!(debug_assertions) {
        return;
    }
    let here = Here::new();
    let path = here.path().join("image.tar");
    image().save(&path, "removed:1");
    for place in REMOVE {
        here.ok(&["pull", path.to_str().unwrap()]);
        let mut command = here.command(&["rmi", "removed:1"]);
        let ended = command.env("SANDBOX_IMAGE_DIES_AT", place).output().unwrap();
        assert_eq!(ended.status.signal(), Some(9), "{place}");
        assert_eq!(here.names(), Vec::<String>::new(), "{place}");
        here.ok(&["pull", path.to_str().unwrap()]);
        here.ok(&["rmi", "removed:1"]);
        assert_eq!((here.kept(), here.rubbish()), (0, Vec::new()), "{place}");
    }
}

#[test]
fn a_pull_that_is_killed_at_any_time_goes_on_later() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = Registry::start(here.path(), Doors::Open);
    registry.push(&image(), "killed", "1");
    let name = format!("{}/killed:1", registry.host());
    for milliseconds in [1, 5, 15, 30, 60, 100, 150, 250] {
        let mut pull = here.command(&["pull", &name]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        sleep(Duration::from_millis(milliseconds));
        pull.kill().unwrap();
        pull.wait().unwrap();
    }
    here.ok(&["pull", &name]);
    assert_eq!(here.sh(&name, "cat /two /three"), "23");
    assert_eq!((here.kept(), here.rubbish()), (4, Vec::new()));
}
