//! The tasks of docs/SANDBOX.md, each as it stands there: what is typed at a terminal, and what is called over MCP. The mock
//! agent follows what a model would do; sandbox, files, way out and results are real.

use std::{
    fs,
    net::ToSocketAddrs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use base64::prelude::{BASE64_STANDARD, Engine};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    agents::finished,
    harness::{BINARY, Client, Era, start_with},
    person::{Person, text},
};

const PAGE: &str = include_str!("../../../../docs/SANDBOX.md");

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

/// One example, and what it is allowed here beyond what everybody is.
struct Example {
    name: &'static str,
    policies: TempDir,
}

impl Example {
    fn new(name: &'static str, policy: &str) -> Self {
        let policies = tempfile::tempdir().unwrap();
        fs::write(policies.path().join("yolo-example.toml"), format!("extends = \"yolo-3\"\n{policy}")).unwrap();
        Self { name, policies }
    }

    fn file(&self, name: &str) -> PathBuf {
        examples().join("tasks").join(self.name).join(name)
    }

    /// What is called over MCP.
    fn call(&self) -> Value {
        serde_json::from_str(&fs::read_to_string(self.file("call.json")).unwrap()).unwrap()
    }

    /// What is typed, as the page has it.
    fn typed(&self) -> &'static str {
        let begins = format!("sandbox-mcp run {}", self.call()["task"]);
        let line = PAGE.lines().find(|line| line.starts_with(&begins));
        line.unwrap_or_else(|| panic!("docs/SANDBOX.md does not have `{begins}`"))
    }

    /// With these, the agent that needs no model does what one would do.
    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("SANDBOX_MCP_MOCK_SCRIPT", self.file("script.toml").to_str().unwrap().to_owned()),
            ("SANDBOX_MCP_POLICY_FOLDER", self.policies.path().to_str().unwrap().to_owned()),
            ("SANDBOX_MCP_DEFAULT_POLICY", "yolo-example".to_owned()),
        ]
    }

    /// Somebody types this, and gets what is expected.
    fn works_at_a_terminal(&self, typed: &str) -> Person {
        let person = Person::new();
        symlink(examples(), person.folder("examples")).unwrap();
        fs::create_dir(person.folder("bin")).unwrap();
        symlink(BINARY, person.folder("bin/sandbox-mcp")).unwrap();
        let path = format!("{}:/usr/local/bin:/usr/bin:/bin", person.folder("bin").display());
        let output = person.starts("sh", &["-c", typed]).env("PATH", path).envs(self.settings()).output().unwrap();
        assert!(output.status.success(), "{}: {output:?}", self.name);
        let results = typed.rsplit(' ').next().unwrap();
        for (path, content) in self.expected() {
            let found = fs::read(person.folder(results).join(&path));
            assert!(found.is_ok_and(|found| found == content), "{path} is another one");
        }
        person
    }

    /// A client calls this, and gets what is expected.
    async fn works_over_mcp(&self, call: Value) -> (Value, Client) {
        let settings = self.settings();
        let all: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let client = start_with(Era::Legacy, &all).await;
        let done = finished(&client, call).await;
        assert_eq!((&done["status"], &done["error"]), (&json!("completed"), &Value::Null), "{done}");
        for (path, content) in self.expected() {
            let found = client.output(done["session_id"].as_str().unwrap(), &format!("cat '{path}'")).await;
            assert_eq!(found.as_bytes(), content, "{path} of {}", self.name);
        }
        (done, client)
    }

    /// Files that must come out, byte for byte.
    fn expected(&self) -> Vec<(String, Vec<u8>)> {
        let top = self.file("expected");
        let (mut folders, mut files) = (vec![top.clone()], Vec::new());
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => {
                        let path = entry.strip_prefix(&top).unwrap().to_str().unwrap().to_owned();
                        files.push((path, fs::read(entry).unwrap()));
                    }
                }
            }
        }
        files
    }
}

async fn works(name: &'static str, policy: &str) -> (Person, Value, Client) {
    let example = Example::new(name, policy);
    let person = example.works_at_a_terminal(example.typed());
    let (done, client) = example.works_over_mcp(example.call()).await;
    (person, done, client)
}

#[tokio::test]
async fn a_table_becomes_a_report_and_a_chart() {
    works("sales-chart", "").await;
}

#[tokio::test]
async fn a_folder_is_put_in_order() {
    works("tidy-folder", "").await;
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

/// The site is on this machine, which only a policy lets a sandbox reach: so the address is another one, and the level is
/// that of the policy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_becomes_a_clean_table() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let page = fs::read(examples().join("tasks/web-prices/site/prices.html")).unwrap();
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", page.len());
            let _ = stream.write_all(&[head.as_bytes(), &page].concat()).await;
        }
    });
    let here = |text: &str| {
        text.replace("https://shop.example/", &format!("http://host.internal:{port}/")).replace(" --level 2", "")
    };
    let example = Example::new("web-prices", &format!("host_ports = [{port}]\n"));
    assert!(example.typed().contains(" --level 2") && example.call()["yolo_level"] == 2);
    example.works_at_a_terminal(&here(example.typed()));
    let (done, _client) = example.works_over_mcp(json!({"task": here(example.call()["task"].as_str().unwrap())})).await;
    assert_eq!(done["files_created"], json!(["prices.csv"]), "{done}");
}

#[tokio::test]
#[ignore = "needs PyPI: tests/agents/run"]
async fn pictures_become_smaller() {
    let (person, done, client) = works("photos", &registry()).await;
    assert_eq!(done["files_created"], json!(["small/beach.jpg", "small/tower.jpg"]), "{done}");
    let sizes = "python3 -c 'from PIL import Image; print(*[Image.open(f\"small/{n}.jpg\").width <= 32 for n in (\"beach\", \"tower\")])'";
    assert_eq!(client.output(done["session_id"].as_str().unwrap(), sizes).await, "True True\n");
    for name in ["beach", "tower"] {
        assert!(fs::read(person.folder(&format!("pictures/small/{name}.jpg"))).unwrap().starts_with(b"\xff\xd8\xff"));
    }
}

#[tokio::test]
#[ignore = "needs PyPI: tests/agents/run"]
async fn spreadsheets_become_one() {
    let (person, done, _client) = works("merge-spreadsheets", &registry()).await;
    assert!(done["output"].as_str().unwrap().contains("87.25"), "{done}");
    assert!(fs::read(person.folder("year/year.xlsx")).unwrap().starts_with(b"PK"));
}

#[tokio::test]
#[ignore = "needs PyPI: tests/agents/run"]
async fn a_table_comes_out_of_a_document() {
    let (_person, done, _client) = works("tables-from-pdf", &registry()).await;
    assert!(done["output"].as_str().unwrap().contains("the total is right"), "{done}");
}

/// What is printed on the page is what the tests above call.
#[test]
fn the_page_for_people_has_every_example_as_it_is() {
    let blocks: Vec<Value> = PAGE
        .split("```json\n")
        .skip(1)
        .map(|rest| serde_json::from_str(rest.split("```").next().unwrap()).unwrap())
        .collect();
    let mut printed = 0;
    for entry in fs::read_dir(examples().join("tasks")).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        assert!(PAGE.contains(&format!("(../examples/tasks/{name}/call.json)")), "{name} is not on the page");
        let call: Value = serde_json::from_str(&fs::read_to_string(entry.path().join("call.json")).unwrap()).unwrap();
        printed += blocks.iter().filter(|block| **block == call).count();
        for file in call["files"].as_array().into_iter().flatten() {
            let given = fs::read(entry.path().join("in").join(file["path"].as_str().unwrap())).unwrap();
            let content = file["content"].as_str().unwrap();
            let sent = match file["encoding"] == "base64" {
                true => BASE64_STANDARD.decode(content).unwrap(),
                false => content.as_bytes().to_vec(),
            };
            assert!(sent == given, "{} of {name} is another one than in its call", file["path"]);
        }
    }
    assert_eq!(printed, blocks.len(), "a call on the page is none of the examples");
}
