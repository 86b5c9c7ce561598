//! `images`, `rmi`, the budget, and what models may name.

use std::process::Stdio;

use serde_json::Value;

use crate::kit::{Here, Image, file, gzip, layer, programs};

fn pull(here: &Here, name: &str, image: &Image) {
    let path = here.path().join("image.tar");
    image.save(&path, name);
    here.ok(&["pull", path.to_str().unwrap()]);
}

#[test]
fn an_image_that_a_sandbox_stands_on_is_not_removed() {
    let here = Here::new();
    pull(&here, "small:1", &Image::small());
    let mut sleeper = here.command(&["exec", "--image", "small:1", "--", "sh", "-c", "echo ready; sleep 60"]);
    let mut sleeper = sleeper.stdout(Stdio::piped()).stdin(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(sleeper.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let images: Value = serde_json::from_str(&here.ok(&["images", "--json"])).unwrap();
    let user = images[0]["used_by"][0].as_str().unwrap().to_owned();
    assert!(here.ok(&["images"]).contains(&user));
    let said = here.refused(&["rmi", "small:1"]);
    assert!(said.contains(&user) && said.contains("sandbox-mcp rm"), "{said}");
    // Under another name it is the same image, which stays.
    let archive = here.path().join("image.tar");
    here.ok(&["pull", archive.to_str().unwrap(), "--name", "other:1"]);
    here.ok(&["rmi", "small:1"]);
    assert_eq!(here.names(), ["docker.io/library/other:1"]);
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    here.ok(&["rm", "--all"]);
    here.ok(&["rmi", "other:1"]);
    assert_eq!(here.kept(), 0);
    let said = here.refused(&["rmi", "other:1"]);
    assert!(said.contains("there is no image other:1") && said.contains("sandbox-mcp pull other:1"), "{said}");
}

#[test]
fn shared_layers_stay_until_the_last_image_goes() {
    let here = Here::new();
    let base = layer(&programs());
    pull(&here, "one:1", &Image::new(&[base.clone(), layer(&[file("one", b"1")])], gzip));
    pull(&here, "two:1", &Image::new(&[base, layer(&[file("two", b"2")])], gzip));
    assert_eq!(here.kept(), 3 + 2);
    here.ok(&["rmi", "one:1"]);
    assert_eq!((here.kept(), here.sh("two:1", "cat /two")), (3, "2".to_owned()));
    here.ok(&["rmi", "two:1"]);
    assert_eq!((here.kept(), here.rubbish()), (0, Vec::new()));
}

#[test]
fn of_two_images_that_were_removed_at_once_one_stayed_on_the_disk() {
    let here = Here::new();
    pull(&here, "one:1", &Image::new(&[layer(&programs()), layer(&[file("one", b"1")])], gzip));
    pull(&here, "two:1", &Image::new(&[layer(&[file("two", b"2")])], gzip));
    here.ok(&["rmi", "one:1", "two:1"]);
    assert_eq!((here.kept(), here.rubbish()), (0, Vec::new()));
}

#[test]
fn the_budget_is_kept_and_who_was_used_last_stays() {
    let here = Here::new().with("SANDBOX_MCP_IMAGE_BUDGET", "7MiB");
    let image = |number: u8| {
        // Each is different, and does not shrink.
        let noise: Vec<u8> =
            (0..2_500_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> (13 + number % 3)) as u8 ^ number).collect();
        Image::new(&[layer(&[programs(), vec![file("noise", &noise)]].concat())], gzip)
    };
    let pause = || std::thread::sleep(std::time::Duration::from_millis(20));
    pull(&here, "a:1", &image(1));
    pause();
    assert_eq!(here.names().len(), 1);
    pull(&here, "b:1", &image(2));
    assert_eq!(here.names(), ["docker.io/library/b:1"], "4.5 MiB each: only one fits");
    let said = {
        let path = here.path().join("large.tar");
        let noise: Vec<u8> = (0..9_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        Image::new(&[layer(&[file("noise", &noise)])], |bytes| bytes.to_vec()).save(&path, "large:1");
        here.refused(&["pull", path.to_str().unwrap()])
    };
    assert!(said.contains("image_budget"), "{said}");
    assert_eq!(here.names(), ["docker.io/library/b:1"]);
}

#[test]
fn answers_in_json_are_json_also_when_it_fails() {
    let here = Here::new();
    let ended = here.run(&["pull", "--json", "./missing.tar"]);
    let value: Value = serde_json::from_str(&ended.out).unwrap();
    assert!(value["error"]["message"].as_str().unwrap().contains("missing.tar"), "{ended:?}");
    assert_eq!(here.ok(&["images", "--json"]).trim(), "[]");
    let ended = here.run(&["rmi", "--json", "none:1"]);
    let value: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, value[0]["status"].as_str()), (Some(1), Some("failed")));
}
