//! Images that mean harm. Each is refused in words, nothing is made outside, and nothing of it is kept.

use std::{fs, path::Path};

use tar::EntryType;

use crate::kit::{Entry, Here, Image, digest, entry, file, folder, gzip, hard_link, layer, programs, symlink, zstd};

/// What a layer must not do, and what is said about it. `OUT` stands for a folder outside.
fn table() -> Vec<(&'static str, Vec<Entry>, &'static str)> {
    let long = "x".repeat(300);
    let deep = "d/".repeat(400) + "file";
    let endless = "e/".repeat(2500) + "file";
    vec![
        ("an absolute name", vec![file("OUT/planted", b"x")], "is absolute"),
        ("a name that leads up", vec![file("../../../planted", b"x")], "leads upwards"),
        ("a name that leads up in its middle", vec![file("a/../../planted", b"x")], "leads upwards"),
        ("an empty name", vec![file("", b"x")], "is empty"),
        ("a zero byte", vec![file("a\0b", b"x")], "zero byte"),
        ("a part that is too long", vec![file(&long, b"x")], "too long"),
        ("folders without end", vec![file(&deep, b"x")], "too deeply"),
        ("a path without end", vec![file(&endless, b"x")], "too long"),
        (
            "through a link that leads out",
            vec![symlink("out", "OUT"), file("out/planted", b"x")],
            "leads through `out`",
        ),
        (
            "through a link that leads up",
            vec![symlink("up", "../../.."), file("up/planted", b"x")],
            "leads through `up`",
        ),
        (
            "through a link to a link",
            vec![symlink("a", "b"), symlink("b", "OUT"), file("a/planted", b"x")],
            "leads through `a`",
        ),
        ("a folder through a link", vec![symlink("out", "OUT"), folder("out/planted")], "leads through `out`"),
        ("through a file", vec![file("plain", b"x"), file("plain/inner", b"x")], "leads through `plain`"),
        (
            "through links in a circle",
            vec![symlink("a", "b"), symlink("b", "a"), file("a/x", b"x")],
            "leads through `a`",
        ),
        ("a hard link that leads out", vec![hard_link("stolen", "../../../../../../etc/shadow")], "leads upwards"),
        ("an absolute hard link", vec![hard_link("stolen", "/etc/shadow")], "is absolute"),
        (
            "a hard link through a link",
            vec![symlink("etc", "/etc"), hard_link("stolen", "etc/passwd")],
            "leads through `etc`",
        ),
        ("a hard link to nothing", vec![hard_link("a", "b")], "not in the same layer"),
        ("hard links in a circle", vec![hard_link("a", "b"), hard_link("b", "a")], "not in the same layer"),
        ("a hard link to itself", vec![file("a", b"x"), hard_link("a", "./a")], "which is itself"),
        ("a hard link to a folder", vec![folder("a"), hard_link("b", "a")], "which is a folder"),
        ("a link to nothing", vec![symlink("a", "")], "leads nowhere"),
        ("a device", vec![entry("disk", EntryType::Block)], "is a device"),
        ("a device deep inside", vec![entry("usr/lib/null", EntryType::Char)], "is a device"),
        ("a device called dev", vec![entry("dev", EntryType::Char)], "is a device"),
        ("an unknown kind", vec![entry("x", EntryType::new(b'Z'))], "not understood"),
        ("a sparse file", vec![entry("x", EntryType::new(b'S'))], "not understood"),
        ("a root that is a link", vec![symlink("./", "OUT")], "root is no folder"),
        ("a whiteout of nothing", vec![file(".wh.", b"")], "removes nothing"),
        ("a whiteout of the folder itself", vec![file("a/.wh..", b"")], "removes nothing"),
        ("a whiteout of the folder above", vec![file("a/.wh...", b"")], "removes nothing"),
        ("through a whiteout", vec![file(".wh.a/b", b"")], "one that removes"),
        (
            "a whiteout through a link",
            vec![symlink("out", "OUT"), file("out/.wh.precious", b"")],
            "leads through `out`",
        ),
        (
            "an opaque folder through a link",
            vec![symlink("out", "OUT"), file("out/.wh..wh..opq", b"")],
            "leads through `out`",
        ),
    ]
}

fn outside(here: &Here) -> String {
    let outside = here.path().join("outside");
    fs::create_dir_all(&outside).unwrap();
    fs::write(outside.join("precious"), "precious").unwrap();
    outside.to_str().unwrap().to_owned()
}

fn untouched(outside: &str) -> bool {
    let precious = fs::read_to_string(Path::new(outside).join("precious")).is_ok_and(|text| text == "precious");
    precious && fs::read_dir(outside).unwrap().count() == 1
}

#[test]
fn layers_that_mean_harm_do_none_and_are_refused() {
    let here = Here::new();
    let outside = outside(&here);
    let path = here.path().join("evil.tar");
    for (what, entries, says) in table() {
        let entries: Vec<Entry> = entries.into_iter().map(|entry| entry.replace("OUT", &outside)).collect();
        // The bad one alone, and above a layer that gives it something to work with.
        for layers in [vec![layer(&entries)], vec![layer(&[folder("a"), file("a/x", b"x")]), layer(&entries)]] {
            Image::new(&layers, gzip).save(&path, "evil:1");
            let said = here.refused(&["pull", path.to_str().unwrap()]);
            assert!(said.contains("the image is refused") && said.contains(says), "{what}: {said}");
            assert!(untouched(&outside), "{what} did something outside");
        }
    }
    assert!(here.names().is_empty());
    for planted in ["planted", "state/planted", "state/images/planted"] {
        assert!(!here.path().join(planted).exists());
    }
    assert_eq!(here.rubbish(), Vec::<String>::new());
}

#[test]
fn a_lower_layers_link_does_not_lead_a_higher_layer_out() {
    let here = Here::new();
    let outside = outside(&here);
    let path = here.path().join("image.tar");
    let lower =
        [programs(), vec![symlink("out", &outside), symlink("gone", &outside), symlink("emptied", &outside)]].concat();
    let upper = [file("out/planted", b"x"), file("gone/.wh.precious", b""), file("emptied/.wh..wh..opq", b"")];
    Image::new(&[layer(&lower), layer(&upper)], gzip).save(&path, "crossing:1");
    here.ok(&["pull", path.to_str().unwrap()]);
    assert!(untouched(&outside));
    assert_eq!(here.sh("crossing:1", "cat /out/planted; ls -A /gone /emptied"), "x/emptied:\n\n/gone:\n");
}

#[test]
fn links_at_places_where_sandboxes_mount_lead_nowhere() {
    let here = Here::new();
    let outside = outside(&here);
    let path = here.path().join("image.tar");
    let links = ["proc", "dev", "tmp", "workspace", "home", "sys", "run"].map(|name| symlink(name, &outside));
    let etc =
        [folder("etc"), symlink("etc/resolv.conf", &format!("{outside}/resolv")), symlink("etc/passwd", "/etc/shadow")];
    Image::new(&[layer(&[programs(), links.to_vec(), etc.to_vec()].concat())], gzip).save(&path, "links:1");
    here.ok(&["pull", path.to_str().unwrap()]);
    for policy in ["yolo-1", "yolo-4"] {
        let script =
            "test -r /proc/self/status && test -c /dev/null && echo x > /tmp/x && echo x > x && cat /etc/passwd";
        let told = here.ok(&["exec", "--policy", policy, "--image", "links:1", "--", "sh", "-c", script]);
        assert!(told.ends_with("sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/sh\n") && !told.contains('$'), "{told}");
        assert!(untouched(&outside), "{policy}");
    }
}

#[test]
fn of_entries_with_the_same_name_the_last_counts() {
    let here = Here::new();
    let path = here.path().join("image.tar");
    let entries = [
        file("a", b"first"),
        folder("a"),
        file("a/inner", b"x"),
        file("a", b"last"),
        file("b", b"x"),
        symlink("b", "a"),
        folder("c/d"),
        file("c/d/e", b"x"),
        symlink("c", "a"),
        entry("dev/null", EntryType::Char),
        entry("pipe", EntryType::Fifo),
    ];
    Image::new(&[layer(&[programs(), entries.to_vec()].concat())], gzip).save(&path, "twice:1");
    here.ok(&["pull", path.to_str().unwrap()]);
    assert_eq!(
        here.sh("twice:1", "cat /a /b /c; test -p /pipe && echo; ls -d /c/d 2>/dev/null; true"),
        "lastlastlast\n"
    );
}

#[test]
fn what_lies_about_itself_is_refused() {
    let here = Here::new();
    let path = here.path().join("image.tar");
    let good = layer(&programs());
    let text = path.to_str().unwrap();
    let refused = |image: Image, says: &str| {
        image.save(&path, "liar:1");
        let said = here.refused(&["pull", text]);
        assert!(said.contains("the image is refused") && said.contains(says), "{says}: {said}");
    };
    refused(Image::of(vec![gzip(&good)], &[digest(b"something else")]), "should be sha256:");
    refused(Image::of(vec![gzip(&good)], &[]), "layers");
    refused(Image::of(vec![gzip(&good)], &["sha256:../../x".to_owned()]), "not a digest");
    refused(Image::of(vec![gzip(&good)[..5000].to_vec()], &[digest(&good)]), "cannot be unpacked");
    refused(Image::of(vec![good[..5000].to_vec()], &[digest(&good)]), "ends in the middle");
    refused(Image::of(vec![b"BZh91AY".to_vec()], &[digest(&good)]), "only gzip and zstd");
    refused(Image::of(vec![vec![7; 4096]], &[digest(&[7; 4096])]), "checksum");
    let mut foreign = Image::small();
    foreign.config =
        String::from_utf8(foreign.config).unwrap().replace("amd64", "s390x").replace("arm64", "s390x").into_bytes();
    refused(foreign, "s390x");
    // In a layout everything has its digest.
    let layout = here.path().join("layout");
    Image::small().write_layout(&layout, Some("x:1"));
    let blob = layout.join(format!("blobs/sha256/{}", &digest(&Image::small().layers[1])[7..]));
    let mut content = fs::read(&blob).unwrap();
    let last = content.len() - 1;
    content[last] ^= 1;
    fs::write(&blob, content).unwrap();
    let said = here.refused(&["pull", layout.to_str().unwrap()]);
    assert!(said.contains("the image is refused"), "{said}");
    assert_eq!((here.names(), here.rubbish()), (Vec::new(), Vec::new()));
}

#[test]
fn a_bomb_does_not_go_off() {
    let here = Here::in_memory().with("SANDBOX_MCP_IMAGE_BUDGET", "16MiB");
    let path = here.path().join("image.tar");
    // A few hundred KiB that would become 48 MiB, as one file and as what describes one.
    let zeros = vec![0; 48 << 20];
    for pack in [gzip as fn(&[u8]) -> Vec<u8>, zstd] {
        Image::new(&[layer(&[file("zeros", &zeros)])], pack).save(&path, "bomb:1");
        assert!(fs::metadata(&path).unwrap().len() < 2 << 20);
        let said = here.refused(&["pull", path.to_str().unwrap()]);
        assert!(said.contains("the image is refused") && said.contains("MiB"), "{said}");
    }
    let mut described = file("x", b"");
    described.name_is(&"y".repeat(8 << 20));
    Image::new(&[layer(&[described])], gzip).save(&path, "bomb:2");
    let said = here.refused(&["pull", path.to_str().unwrap()]);
    assert!(said.contains("description that is too long"), "{said}");
    assert_eq!((here.kept(), here.rubbish()), (0, Vec::new()));
}

/// 388 KB with a budget of 64 MiB left 360 MiB: only compressed sizes were added up.
#[test]
fn many_layers_took_up_more_than_all_images_may() {
    let here = Here::in_memory().with("SANDBOX_MCP_IMAGE_BUDGET", "16MiB");
    let path = here.path().join("image.tar");
    let layers: Vec<_> = (0..6_u8).map(|number| layer(&[file("zeros", &vec![number; 8 << 20])])).collect();
    Image::new(&layers, gzip).save(&path, "many:1");
    assert!(fs::metadata(&path).unwrap().len() < 1 << 20);
    let said = here.refused(&["pull", path.to_str().unwrap()]);
    assert!(said.contains("the image is refused") && said.contains("image_budget"), "{said}");
    assert_eq!((here.names(), here.kept(), here.rubbish()), (Vec::new(), 0, Vec::new()));
}

#[test]
fn thousands_of_empty_files_took_up_nothing() {
    let here = Here::in_memory().with("SANDBOX_MCP_IMAGE_BUDGET", "16MiB");
    let path = here.path().join("image.tar");
    let files: Vec<_> = (0..5000).map(|number| file(&format!("f{number}"), b"")).collect();
    Image::new(&[layer(&files)], gzip).save(&path, "empty:1");
    let said = here.refused(&["pull", path.to_str().unwrap()]);
    assert!(said.contains("the image is refused") && said.contains("image_budget"), "{said}");
    assert_eq!((here.kept(), here.rubbish()), (0, Vec::new()));
}

/// 373 KB took 370 MB of memory: each folder on the way was remembered with all of its parts.
#[test]
fn long_paths_took_all_memory() {
    let here = Here::in_memory();
    let path = here.path().join("image.tar");
    let deep = format!("{}/", "x".repeat(200)).repeat(18);
    let files: Vec<_> = (0..2200).map(|number| file(&format!("{number}/{deep}file"), b"")).collect();
    Image::new(&[layer(&files)], gzip).save(&path, "deep:1");
    let said = here.refused(&["pull", path.to_str().unwrap()]);
    assert!(said.contains("the image is refused") && said.contains("paths of a layer's folders"), "{said}");
    assert_eq!((here.kept(), here.rubbish()), (0, Vec::new()));
}
