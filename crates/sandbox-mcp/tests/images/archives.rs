//! Images of archives and layouts: what is in them is there, owned as it should be, whoever unpacks.

use std::{fs, path::Path};

use crate::kit::{Here, Image, file, folder, gzip, layer, programs, zstd};

fn saved(here: &Here, image: &Image) -> String {
    let path = here.path().join("image.tar");
    image.save(&path, "small:1");
    path.to_str().unwrap().to_owned()
}

/// With a single id everything is the user's own.
fn has_several_ids() -> bool {
    let single =
        std::env::var_os("SANDBOX_MCP_SINGLE_ID").is_some() || std::env::var_os("SANDBOX_MCP_USE_BWRAP").is_some();
    rustix::process::geteuid().is_root() || !single
}

#[test]
fn an_image_that_docker_saved_runs_as_it_was_made() {
    let here = Here::new();
    let told = here.ok(&["pull", &saved(&here, &Image::small())]);
    assert!(told.starts_with("docker.io/library/small:1 sha256:"), "{told}");
    let script = "cat /etc/upper; ls -A /emptied; test -e /gone || echo gone; test -d /home/sandbox && echo home; \
                  cat /emptied/same; echo $OF_THE_IMAGE $HOME $PATH; pwd; id -u; touch /x 2>/dev/null || echo frozen";
    let expected = "upper\nnew\nsame\ngone\nhome\nnew\nyes /home/sandbox \
                    /home/sandbox/.venv/bin:/home/sandbox/.local/bin:/bin:/extra\n/workspace\n1000\nfrozen\n";
    assert_eq!(here.sh("small:1", script), expected);
    let owners = here.sh("small:1", "stat -c '%u:%g:%a' /etc/sign /emptied/new /bin");
    let expected = if has_several_ids() {
        "7:8:640\n1000:1000:4755\n0:0:755\n"
    } else {
        "1000:1000:640\n1000:1000:755\n1000:1000:755\n"
    };
    assert_eq!(owners, expected);
}

#[test]
fn a_root_that_can_be_changed_is_changed_for_one_sandbox_only() {
    let here = Here::new();
    here.ok(&["pull", &saved(&here, &Image::small())]);
    let change = "echo mine > /etc/sign && rm /bin/ls && mkdir /new && cat /etc/sign && id -u";
    let writable = ["exec", "--policy", "yolo-4", "--image", "small:1", "--", "sh", "-c"];
    assert_eq!(here.ok(&[&writable[..], &[change]].concat()), "mine\n0\n");
    assert_eq!(
        here.ok(&[&writable[..], &["cat /etc/sign; ls -d /new 2>/dev/null || ls -d /bin/ls"]].concat()),
        "of the image\n/bin/ls\n"
    );
}

#[test]
fn layouts_and_their_archives_work_with_every_compression() {
    for pack in [gzip as fn(&[u8]) -> Vec<u8>, zstd, |bytes| bytes.to_vec()] {
        let here = Here::new();
        let image = Image::new(&[layer(&programs()), layer(&[file("deep/er/file", b"content\n")])], pack);
        let layout = here.path().join("layout");
        image.write_layout(&layout, Some("registry.example/team/tool:2"));
        here.ok(&["pull", layout.to_str().unwrap()]);
        assert_eq!(here.sh("registry.example/team/tool:2", "cat /deep/er/file"), "content\n");
        // The same in one file, itself compressed, without a name.
        let files: Vec<_> = image.layout(None).iter().map(|(name, content)| file(name, content)).collect();
        let archive = here.path().join("My Tool.oci.tar.gz");
        fs::write(&archive, gzip(&layer(&files))).unwrap();
        let told = here.ok(&["pull", archive.to_str().unwrap()]);
        assert!(told.starts_with("localhost/my-tool:latest "), "{told}");
        here.ok(&["pull", archive.to_str().unwrap(), "--name", "other:3"]);
        assert_eq!(
            here.names(),
            ["docker.io/library/other:3", "localhost/my-tool:latest", "registry.example/team/tool:2"]
        );
        // All three are the same layers, put together once.
        assert_eq!(here.kept(), 3);
    }
}

#[test]
fn images_without_users_or_a_shell_work() {
    let here = Here::new();
    let programs: Vec<_> = programs().into_iter().take(2).collect();
    let path = here.path().join("bare.tar");
    Image::new(&[layer(&programs)], gzip).save(&path, "bare:1");
    here.ok(&["pull", path.to_str().unwrap()]);
    assert_eq!(here.ok(&["exec", "--image", "bare:1", "--", "/bin/busybox", "id", "-un"]), "sandbox\n");
    let ended = here.run(&["exec", "--image", "bare:1", "--", "sh", "-c", "true"]);
    assert_eq!(ended.code, Some(127), "{ended:?}");
    // Nothing at all is an image too, in which nothing runs.
    let path = here.path().join("empty.tar");
    Image::new(&[layer(&[folder("data")])], gzip).save(&path, "empty:1");
    here.ok(&["pull", path.to_str().unwrap()]);
    assert_eq!(here.run(&["exec", "--image", "empty:1", "--", "ls"]).code, Some(127));
}

#[test]
fn a_hundred_thousand_files_are_unpacked() {
    let here = Here::in_memory();
    let mut entries = vec![folder("many")];
    for number in 0..200 {
        entries.push(folder(&format!("many/{number}")));
        entries.extend((0..500).map(|inner| file(&format!("many/{number}/{inner}"), b"x")));
    }
    let path = here.path().join("many.tar");
    Image::new(&[layer(&entries)], gzip).save(&path, "many:1");
    here.ok(&["pull", path.to_str().unwrap()]);
    let images: serde_json::Value = serde_json::from_str(&here.ok(&["images", "--json"])).unwrap();
    assert_eq!(images[0]["size_bytes"], 100_000);
}

#[test]
fn what_is_no_image_is_said_to_be_none() {
    let here = Here::new();
    let path = here.path().join("notes.tar");
    fs::write(&path, layer(&[file("notes.txt", b"hello")])).unwrap();
    let text = path.to_str().unwrap();
    assert!(here.refused(&["pull", text]).contains("neither a manifest.json"));
    fs::write(&path, "hello").unwrap();
    assert!(here.refused(&["pull", text]).contains("is no archive of an image"));
    assert!(here.refused(&["pull", "./missing.tar"]).contains("missing.tar"));
    assert!(here.refused(&["pull", "No Such Name"]).contains("not the name of an image"));
    assert!(Path::new(text).exists() && here.names().is_empty());
}

#[test]
fn a_file_made_itself_the_image_of_a_template() {
    let here = Here::new();
    let (name, path, layout) =
        ("localhost/sandbox-mcp/base:latest", here.path().join("gift.tar"), here.path().join("gift"));
    Image::small().save(&path, name);
    Image::small().write_layout(&layout, Some(name));
    for gift in [&path, &layout] {
        let said = here.refused(&["pull", gift.to_str().unwrap()]);
        assert!(said.contains("calls itself localhost/sandbox-mcp/base") && said.contains("--name"), "{said}");
    }
    assert!(here.names().is_empty());
    here.ok(&["pull", path.to_str().unwrap(), "--name", name]);
    assert_eq!(here.names(), [name]);
}

#[test]
fn a_file_put_itself_in_the_place_of_another_image() {
    let here = Here::new();
    let small = saved(&here, &Image::small());
    here.ok(&["pull", &small]);
    here.ok(&["pull", &small]);
    let other = here.path().join("other.tar");
    Image::new(&[layer(&programs())], gzip).save(&other, "small:1");
    let said = here.refused(&["pull", other.to_str().unwrap()]);
    assert!(said.contains("another image has that name already"), "{said}");
    assert_eq!(here.sh("small:1", "cat /etc/upper"), "upper\n");
    here.ok(&["pull", other.to_str().unwrap(), "--name", "small:1"]);
    assert_eq!(here.sh("small:1", "cat /etc/upper 2>/dev/null || echo replaced"), "replaced\n");
}

/// With the runtime that SANDBOX_TESTS_OCI_RUNTIME names; tests/engines/oci does.
#[test]
fn an_image_runs_on_an_oci_runtime() {
    let Ok(runtime) = std::env::var("SANDBOX_TESTS_OCI_RUNTIME") else { return };
    let here = Here::new().with("SANDBOX_MCP_OCI_RUNTIME", &runtime).with("SANDBOX_MCP_BACKEND", "oci");
    here.ok(&["pull", &saved(&here, &Image::small())]);
    let script = "cat /etc/upper; ls -A /emptied; test -e /gone || echo gone; echo $OF_THE_IMAGE $PATH; pwd; id -u; \
                  touch /x 2>/dev/null || echo frozen";
    // A runtime shows a single id as root, who is nobody outside.
    let user = if has_several_ids() { 1000 } else { 0 };
    let expected = format!(
        "upper\nnew\nsame\ngone\nyes /home/sandbox/.venv/bin:/home/sandbox/.local/bin:/bin:/extra\n/workspace\n{user}\nfrozen\n"
    );
    assert_eq!(here.sh("small:1", script), expected);
    let writable = ["exec", "--policy", "yolo-4", "--image", "small:1", "--", "sh", "-c"];
    let change = "echo mine > /etc/sign && rm /bin/ls && cat /etc/sign";
    assert_eq!(here.ok(&[&writable[..], &[change]].concat()), "mine\n");
    assert_eq!(here.sh("small:1", "ls -d /bin/ls"), "/bin/ls\n");
}
