//! Kinds of sandboxes by name: the operator's, and what is said of built-in ones whose image is not there.

use std::process::{Command, Output};

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{BINARY, Era, start, start_in};

const MINE: &str =
    "[templates.mine]\nimage = \"host\"\npolicy = \"yolo-1\"\nenv = { KIND = \"mine\", BOTH = \"template\" }\n";

fn settings() -> (TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.toml");
    std::fs::write(&file, MINE).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (folder, file)
}

fn run(arguments: &[&str]) -> Output {
    let (folder, config) = settings();
    let mut command = Command::new(BINARY);
    command.args(["--config", &config, "--state"]).arg(folder.path().join("state")).args(arguments);
    command.stdin(std::process::Stdio::null()).output().unwrap()
}

#[tokio::test]
async fn a_template_of_the_operator_gives_image_policy_and_variables() {
    let (folder, config) = settings();
    // The policy of a template is the operator's word too.
    let variables = [("SANDBOX_MCP_CONFIG", config.as_str()), ("SANDBOX_MCP_ALLOWED_POLICIES", "yolo-3")];
    let client = start_in(folder.path(), Era::Legacy, &variables[..1]).await;
    let made = client.ok("create_sandbox", json!({"template": "mine", "env": {"BOTH": "asked"}})).await;
    assert_eq!((&made["policy"], &made["image"]), (&json!("yolo-1"), &json!("host")));
    let session = made["session_id"].as_str().unwrap();
    assert_eq!(client.output(session, "echo $KIND $BOTH").await, "mine asked\n");
    let made = client.ok("create_sandbox", json!({"template": "mine", "policy": "yolo-2"})).await;
    assert_eq!(made["policy"], "yolo-2");
    drop(client);
    let folder = tempfile::tempdir().unwrap();
    let client = start_in(folder.path(), Era::Legacy, &variables).await;
    assert_eq!(client.ok("create_sandbox", json!({"template": "mine"})).await["policy"], "yolo-1");
}

#[tokio::test]
async fn a_template_that_is_not_there_is_answered_with_the_nearest() {
    let client = start().await;
    let text = client.refused("create_sandbox", json!({"template": "pyton"})).await;
    assert!(text.contains("did you mean `python`") && text.contains("base, cpp, go, node, python, rust"), "{text}");
    let text = client.refused("create_sandbox", json!({"template": "python", "image": "host"})).await;
    assert!(text.contains("leave out"), "{text}");
}

#[tokio::test]
async fn an_image_that_was_never_built_is_told_with_how_to_build_it() {
    let text = start().await.refused("create_sandbox", json!({"template": "node"})).await;
    for part in ["template `node`", "docker build -t localhost/sandbox-mcp/node -f docker/Dockerfile.node docker"] {
        assert!(text.contains(part), "{text}");
    }
    let output = run(&["exec", "--template", "cpp", "--", "true"]);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{text}");
    assert!(text.contains("docker/Dockerfile.cpp") && text.contains("sandbox-mcp pull cpp.tar"), "{text}");
}

#[test]
fn a_mode_that_is_not_there_is_an_error_and_outside_of_a_container_nothing_is_served() {
    let run = |mode: &str| {
        let mut command = Command::new(BINARY);
        command.env("MCP_MODE", mode).env_remove("container").env_remove("KUBERNETES_SERVICE_HOST");
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(run("gateway").contains("must be `sandbox`"));
    let of_machine = std::fs::read_link("/proc/self/ns/pid").unwrap().as_os_str() == "pid:[4026531836]";
    if !of_machine && ["/.dockerenv", "/run/.containerenv"].iter().any(|mark| std::path::Path::new(mark).exists()) {
        println!("the rest is not tried: this machine is a container itself");
        return;
    }
    assert!(run("sandbox").contains("this is no container"));
}

#[test]
fn exec_and_run_know_templates() {
    for relay in [&[][..], &["--json"]] {
        let words = ["exec", "--template", "mine", "--", "sh", "-c", "echo kind is $KIND"];
        let output = run(&[relay, &words].concat());
        assert!(String::from_utf8_lossy(&output.stdout).contains("kind is mine"), "{output:?}");
    }
    let output = run(&["exec", "--template", "mien", "--", "true"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("did you mean `mine`"), "{output:?}");
    let out = tempfile::tempdir().unwrap();
    let output = run(&["run", "--template", "mine", "look", "--out", out.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
}
