//! Files in and out: paths that lead nowhere good, content that is none, too much of everything.

use serde_json::{Value, json};

use crate::harness::{Client, start};

async fn write(client: &Client, session: &str, path: &str) -> String {
    let files = json!([{"path": path, "content": "x"}, {"path": "good.txt", "content": "fine"}]);
    client.refused("write_files", json!({"session_id": session, "files": files})).await
}

async fn read(client: &Client, session: &str, path: &str) -> String {
    client.refused("get_files", json!({"session_id": session, "paths": [path]})).await
}

#[tokio::test]
async fn paths_with_dots_that_lead_out_are_refused_and_the_others_are_written() {
    let client = start().await;
    let session = client.sandbox().await;
    for path in ["../../../etc/passwd", "a/../../../etc/x", "/workspace/../etc/passwd"] {
        let text = write(&client, &session, path).await;
        assert!(text.contains("/workspace"), "{path}: {text}");
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&answer["failed"][0]["path"], &answer["written"][0]["path"]), (&json!(path), &json!("good.txt")));
        assert!(read(&client, &session, path).await.contains("/workspace"));
    }
}

#[tokio::test]
async fn absolute_paths_outside_the_places_for_files_are_refused() {
    let client = start().await;
    let session = client.sandbox().await;
    for path in ["/etc/passwd", "/proc/1/environ", "/dev/null", "/sys/kernel/notes", "/usr/bin/x"] {
        assert!(read(&client, &session, path).await.contains("/workspace"), "{path}");
        assert!(write(&client, &session, path).await.contains("/workspace"), "{path}");
    }
    let files = json!([{"path": "/tmp/a", "content": "1"}, {"path": "/home/sandbox/b", "content": "2"}, {"path": "/workspace/c", "content": "3"}]);
    client.ok("write_files", json!({"session_id": session, "files": files})).await;
    assert_eq!(client.output(&session, "cat /tmp/a ~/b c").await, "123");
}

#[tokio::test]
async fn nul_empty_and_overlong_paths_are_refused_with_the_reason() {
    let client = start().await;
    let session = client.sandbox().await;
    assert!(write(&client, &session, "a\0b").await.contains("NUL"));
    assert!(write(&client, &session, "").await.contains("empty"));
    assert!(write(&client, &session, &"x".repeat(4096)).await.to_lowercase().contains("long"));
    assert!(write(&client, &session, &"d/".repeat(2500)).await.contains("longer than 4,096"));
}

#[tokio::test]
async fn links_planted_inside_do_not_lead_out() {
    let client = start().await;
    let session = client.sandbox().await;
    let plant = "ln -s /etc/passwd direct; ln -s /nowhere/at/all dangling; ln -s /etc ancestor; ln -s ../../.. up; ln -s /workspace/ok inside; echo in > ok";
    client.output(&session, plant).await;
    for path in ["direct", "dangling", "ancestor/passwd", "up/etc/passwd"] {
        let answer = client.call("get_files", json!({"session_id": session, "paths": [path]})).await;
        assert_eq!(answer.value["files"], json!([]), "{path}: {}", answer.text);
    }
    for path in ["ancestor/x", "up/tmp-x"] {
        assert!(write(&client, &session, path).await.contains("/workspace"), "{path}");
    }
    for path in ["direct", "dangling"] {
        let files = json!([{"path": path, "content": "mine"}]);
        client.call("write_files", json!({"session_id": session, "files": files})).await;
    }
    let outside = std::fs::read_to_string("/etc/passwd").unwrap();
    assert!(outside.contains("root:") && !std::path::Path::new("/nowhere").exists());
}

#[tokio::test]
async fn a_link_that_changes_during_the_write_never_leads_out() {
    let client = start().await;
    let session = client.sandbox().await;
    let race = "mkdir -p real; while :; do ln -sfn /etc swap; rm -f swap; mkdir swap 2>/dev/null; rmdir swap 2>/dev/null; done";
    client.ok("run_command", json!({"session_id": session, "command": race, "wait_seconds": 0})).await;
    let name = format!("race-{}", std::process::id());
    let files: Vec<Value> = (0..300).map(|n| json!({"path": format!("swap/{name}-{n}"), "content": "x"})).collect();
    for _ in 0..3 {
        client.call("write_files", json!({"session_id": session, "files": files})).await;
        let paths = vec!["swap/passwd"; 100];
        let got = client.call("get_files", json!({"session_id": session, "paths": paths})).await;
        assert!(!got.text.contains("cm9vdDp4OjA6MD"), "somebody's passwd came out");
    }
    let escaped = std::fs::read_dir("/etc")
        .unwrap()
        .filter_map(Result::ok)
        .any(|entry| entry.file_name().to_string_lossy().starts_with(&name));
    assert!(!escaped);
    client.still_works().await;
}

#[tokio::test]
async fn names_of_four_kilobytes_and_names_that_are_no_text_inside_are_listed_and_read() {
    let client = start().await;
    let session = client.sandbox().await;
    let script = "printf odd > \"$(printf 'n\\377\\376me')\"; p=$(printf 'd%.0s' $(seq 200)); d=/workspace; \
                  for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19; do d=$d/$p; mkdir $d; cd $d; done; echo deep > leaf";
    client.output(&session, script).await;
    let listed = client.ok("list_files", json!({"session_id": session, "depth": 40})).await;
    let entries = listed["entries"].as_array().unwrap();
    let odd = entries.iter().find(|entry| entry["uri"].is_string()).expect("the odd name has a link");
    let got = client.ok("get_files", json!({"session_id": session, "paths": [odd["uri"]]})).await;
    assert_eq!(got["files"][0]["content"], "b2Rk");
    assert!(entries.iter().any(|entry| entry["path"].as_str().unwrap().len() > 3500), "{}", entries.len());
}

#[tokio::test]
async fn broken_base64_is_named_and_the_others_are_written() {
    let client = start().await;
    let session = client.sandbox().await;
    let files = json!([
        {"path": "good.bin", "content": "AAH/", "encoding": "base64"},
        {"path": "bad.bin", "content": "no base64!", "encoding": "base64"},
        {"path": "run.sh", "content": "echo ran", "mode": "755"},
        {"path": "odd.sh", "content": "", "mode": "rwx"},
    ]);
    let text = client.refused("write_files", json!({"session_id": session, "files": files})).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&answer["written_count"], &answer["failed_count"]), (&json!(2), &json!(2)));
    assert_eq!(answer["failed"][0]["path"], "bad.bin");
    assert!(answer["failed"][0]["error"].as_str().unwrap().contains("base64"));
    assert!(answer["failed"][1]["error"].as_str().unwrap().contains("octal"));
    assert_eq!(client.output(&session, "od -An -tx1 good.bin; ./run.sh").await, " 00 01 ff\nran\n");
}

#[tokio::test]
async fn a_file_over_the_inline_limit_comes_as_a_link_that_can_be_read_whole_or_in_parts() {
    let client = start().await;
    let session = client.sandbox().await;
    let sum = client.output(&session, "seq 1 20000 > big.txt; sha256sum < big.txt").await;
    let answer = client.call("get_files", json!({"session_id": session, "paths": ["big.txt"]})).await;
    let file = &answer.value["files"][0];
    assert_eq!((&file["content"], &file["size_bytes"]), (&Value::Null, &json!(108_894)));
    assert!(sum.starts_with(file["sha256"].as_str().unwrap()));
    let link = &answer.whole["result"]["content"][1];
    assert_eq!((&link["type"], &link["uri"]), (&json!("resource_link"), &file["uri"]));
    let whole = client.request("resources/read", json!({"uri": file["uri"]})).await;
    assert_eq!(whole["result"]["contents"][0]["blob"].as_str().unwrap().len(), 108_894usize.div_ceil(3) * 4);
    let part = json!({"session_id": session, "paths": ["big.txt"], "offset": 108_888, "length": 100});
    let part = client.ok("get_files", part).await;
    assert_eq!(part["files"][0]["content"], "MjAwMDAK");
    let all = client.ok("get_files", json!({"session_id": session, "paths": ["big.txt"], "max_bytes": 200_000})).await;
    assert!(all["files"][0]["content"].is_string());
}

#[tokio::test]
async fn a_resource_that_is_not_there_is_an_error_with_its_name() {
    let client = start().await;
    let session = client.sandbox().await;
    for (uri, code) in [
        (format!("sandbox://{session}/workspace/none"), -32002),
        ("sandbox://x/y".to_owned(), -32602),
        ("file:///etc/passwd".to_owned(), -32602),
    ] {
        let answer = client.request("resources/read", json!({"uri": uri})).await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
    }
    let outside = client.request("resources/read", json!({"uri": format!("sandbox://{session}/etc/passwd")})).await;
    assert!(outside["error"].is_object(), "{outside}");
}

#[tokio::test]
async fn a_file_over_the_disk_limit_is_refused_and_nothing_else_is_lost() {
    let client = start().await;
    let session = client.sandbox_with(json!({"limits": {"disk": "8MiB"}})).await;
    let big = "x".repeat(12 << 20);
    let files = json!([{"path": "small.txt", "content": "kept"}, {"path": "big.bin", "content": big}]);
    let answer = client.call("write_files", json!({"session_id": session, "files": files})).await;
    assert!(answer.is_error, "{:.500}", answer.text);
    client.still_works().await;
}

#[tokio::test]
async fn ten_thousand_files_go_in_at_once_and_the_answer_stays_small() {
    let client = start().await;
    let session = client.sandbox().await;
    let files: Vec<Value> = (0..10_000).map(|n| json!({"path": format!("many/{n:05}.txt"), "content": "x"})).collect();
    let answer = client.call("write_files", json!({"session_id": session, "files": files})).await;
    assert_eq!((answer.is_error, &answer.value["written_count"]), (false, &json!(10_000)));
    assert!(answer.text.len() < 20_000);
    assert_eq!(client.output(&session, "ls many | wc -l").await.trim(), "10000");
    let (mut seen, mut after) = (0, Value::Null);
    loop {
        let listed = client.ok("list_files", json!({"session_id": session, "path": "many", "after": after})).await;
        assert!(listed.to_string().len() < 100_000);
        seen += listed["entries"].as_array().unwrap().len();
        if listed["truncated"] == false {
            break;
        }
        after = listed["entries"].as_array().unwrap().last().unwrap()["path"].clone();
    }
    assert_eq!(seen, 10_000);
}

#[tokio::test]
async fn what_changed_since_is_listed_alone() {
    let client = start().await;
    let session = client.sandbox().await;
    client.output(&session, "echo 1 > old; sleep 0.1").await;
    let before = client.ok("list_files", json!({"session_id": session})).await;
    assert_eq!(before["entries"][0]["path"], "old");
    client.output(&session, "mkdir sub; echo 2 > sub/new; touch -d '2001-01-01' sub/new").await;
    let after = client.ok("list_files", json!({"session_id": session, "changed_since": before["listed_at"]})).await;
    let paths: Vec<&str> =
        after["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    assert!(paths.contains(&"sub/new") && !paths.contains(&"old"), "{paths:?}");
}

#[tokio::test]
async fn modes_and_binary_content_survive_both_ways_and_belong_to_the_sandboxs_user() {
    let client = start().await;
    let session = client.sandbox().await;
    let files = json!([{"path": "bin/tool", "content": "f0VMRgD/AAE=", "encoding": "base64", "mode": "750"}]);
    client.ok("write_files", json!({"session_id": session, "files": files})).await;
    assert_eq!(
        client.output(&session, "stat -c '%a %s' bin/tool; test -O bin/tool && echo mine").await,
        "750 8\nmine\n"
    );
    let got = client.ok("get_files", json!({"session_id": session, "paths": ["/workspace/bin/tool"]})).await;
    assert_eq!(got["files"][0]["content"], "f0VMRgD/AAE=");
}
