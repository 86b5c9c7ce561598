//! The tasks of docs/SANDBOX.md, as written there. The mock agent follows what a model would do; sandbox, files, way out and
//! results are real.

use std::{
    fs,
    net::ToSocketAddrs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    agents::finished,
    harness::{Client, Era, start_with},
    person::{Person, text},
};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tasks").join(name)
}

/// Runs the task of an example, with these words more.
fn run(person: &Person, name: &str, task: &str, more: &[&str]) -> Output {
    let (script, input) = (example(name).join("script.toml"), example(name).join("in"));
    let out = person.folder("results");
    let mut command = person.types(&["run", task, "--agent", "mock", "--out", out.to_str().unwrap()]);
    if input.exists() {
        command.arg("--file").arg(input);
    }
    command.args(more).env("SANDBOX_MCP_MOCK_SCRIPT", script).output().unwrap()
}

fn task(name: &str) -> String {
    fs::read_to_string(example(name).join("task.txt")).unwrap().trim().to_owned()
}

/// Every file that is expected is there, and is the same.
fn compare(expected: &Path, found: &Path) {
    for entry in fs::read_dir(expected).unwrap().map(Result::unwrap) {
        let (expected, found) = (entry.path(), found.join(entry.file_name()));
        if expected.is_dir() {
            compare(&expected, &found);
            continue;
        }
        let content = fs::read(&found).unwrap_or_else(|error| panic!("{}: {error}", found.display()));
        assert!(content == fs::read(&expected).unwrap(), "{} is another one", found.display());
    }
}

fn works(name: &str) {
    let person = Person::new();
    let output = run(&person, name, &task(name), &[]);
    assert!(output.status.success(), "{output:?}");
    compare(&example(name).join("expected"), &person.folder("results"));
}

#[test]
fn a_table_becomes_a_report_and_a_chart() {
    works("sales-chart");
}

#[test]
fn a_folder_is_put_in_order() {
    works("tidy-folder");
}

/// Does the task of an example in a sandbox with this policy; without it in one as anybody gets.
async fn done(name: &str, task: &str, policy: &str) -> (Value, Client) {
    let policies = tempfile::tempdir().unwrap();
    fs::write(policies.path().join("example.toml"), format!("extends = \"yolo-3\"\n{policy}")).unwrap();
    let (script, folder) = (example(name).join("script.toml"), policies.path().to_str().unwrap());
    let settings = [("SANDBOX_MCP_MOCK_SCRIPT", script.to_str().unwrap()), ("SANDBOX_MCP_POLICY_FOLDER", folder)];
    let client = start_with(Era::Legacy, &settings).await;
    let session = client.ok("create_sandbox", json!({"policy": "example"})).await["session_id"].clone();
    let files = fs::read_dir(example(name).join("in")).into_iter().flatten().map(Result::unwrap);
    let file = |entry: fs::DirEntry| {
        let content = BASE64_STANDARD.encode(fs::read(entry.path()).unwrap());
        json!({"path": entry.file_name().to_str().unwrap(), "content": content, "encoding": "base64"})
    };
    let files: Vec<Value> = files.map(file).collect();
    let asked = json!({"task": task, "agent": "mock", "session_id": session, "files": files, "timeout": 300});
    let done = finished(&client, asked).await;
    assert_eq!((&done["status"], &done["error"]), (&json!("completed"), &Value::Null), "{done}");
    for entry in fs::read_dir(example(name).join("expected")).into_iter().flatten().map(Result::unwrap) {
        let found =
            client.output(session.as_str().unwrap(), &format!("cat {}", entry.file_name().to_str().unwrap())).await;
        assert_eq!(found, fs::read_to_string(entry.path()).unwrap(), "{name}");
    }
    (done, client)
}

/// Packages come from where pip of this machine gets them, also if that is no public address.
fn registry() -> String {
    let configured = Command::new("pip3").args(["config", "get", "global.index-url"]).output();
    let configured = configured.map(|output| text(&output.stdout).to_owned()).unwrap_or_default();
    let own =
        configured.split("://").nth(1).and_then(|rest| rest.split('/').next()?.split(':').next()).unwrap_or_default();
    let hosts: Vec<&str> =
        ["pypi.org", "files.pythonhosted.org", own].into_iter().filter(|host| !host.is_empty()).collect();
    let addresses = hosts.iter().flat_map(|host| (*host, 443).to_socket_addrs().into_iter().flatten());
    let blocks = addresses.map(|address| format!("{}/{}", address.ip(), if address.is_ipv4() { 32 } else { 128 }));
    let mut blocks: Vec<String> = blocks.collect();
    blocks.sort_unstable();
    blocks.dedup();
    assert!(!blocks.is_empty(), "the names {hosts:?} lead nowhere: there is no PyPI here");
    format!("[[network_rules]]\nallow = {hosts:?}\nwithin = {blocks:?}\n")
}

#[tokio::test]
async fn a_page_becomes_a_clean_table() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let page = fs::read(example("web-prices").join("site/prices.html")).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", page.len());
            let _ = stream.write_all(&[head.as_bytes(), &page].concat()).await;
        }
    });
    let task = task("web-prices").replace("the page", &format!("http://host.internal:{port}/prices.html"));
    let (done, _client) = done("web-prices", &task, &format!("host_ports = [{port}]\n")).await;
    assert_eq!(done["files_created"], json!(["prices.csv"]), "{done}");
}

#[tokio::test]
#[ignore = "needs PyPI: tests/agents/run"]
async fn pictures_become_smaller() {
    let (done, client) = done("photos", &task("photos"), &registry()).await;
    assert_eq!(done["files_created"], json!(["small/beach.jpg", "small/tower.jpg"]), "{done}");
    let sizes = "python3 -c 'from PIL import Image; print(*[Image.open(f\"small/{n}.jpg\").width <= 32 for n in (\"beach\", \"tower\")])'";
    assert_eq!(client.output(done["session_id"].as_str().unwrap(), sizes).await, "True True\n");
}

#[tokio::test]
#[ignore = "needs PyPI: tests/agents/run"]
async fn spreadsheets_become_one() {
    let (done, _client) = done("merge-spreadsheets", &task("merge-spreadsheets"), &registry()).await;
    assert!(done["output"].as_str().unwrap().contains("87.25"), "{done}");
}

#[tokio::test]
#[ignore = "needs PyPI: tests/agents/run"]
async fn a_table_comes_out_of_a_document() {
    let (done, _client) = done("tables-from-pdf", &task("tables-from-pdf"), &registry()).await;
    assert!(done["output"].as_str().unwrap().contains("the total is right"), "{done}");
}

#[test]
fn the_page_for_people_has_every_example_as_it_is() {
    let page = include_str!("../../../../docs/SANDBOX.md");
    for entry in fs::read_dir(example("")).unwrap().map(Result::unwrap) {
        let task = task(entry.file_name().to_str().unwrap());
        let first = task.split(['.', ':']).next().unwrap();
        let begins = first.split(" from the page").next().unwrap();
        assert!(page.contains(begins), "docs/SANDBOX.md does not have `{begins}`");
    }
    assert!(text(page.as_bytes()).starts_with("# "));
}
