//! Tasks in a real container engine, against a model server of the tests' own that does
//! everything wrong first: the built-in agent, Claude Code and OpenCode.
//!
//! `tests/templates/run --only agents` starts an engine, builds the images of docker/ and names it in
//! `SANDBOX_TESTS_ENGINE`. Without it these tests say so, and fail where `SANDBOX_TESTS_REQUIRE` names `docker`.

use serde_json::{Value, json};

use crate::{
    agents::{csv_turns, finished},
    harness::Client,
    model::{Asked, KEY, Say, Server},
    programs::{analyse, programs, sales, sales_are_right, with_programs},
};

/// An engine's address; nothing if these tests cannot run.
fn engine() -> Option<String> {
    let address = std::env::var("SANDBOX_TESTS_ENGINE").ok();
    let required = std::env::var("SANDBOX_TESTS_REQUIRE").unwrap_or_default();
    if address.is_none() {
        assert!(!required.split(',').any(|word| word == "docker"), "SANDBOX_TESTS_ENGINE is not set");
        eprintln!("skipped: there is no engine; tests/templates/run --only agents starts one");
    }
    address
}

/// What the task of the CSV file comes to in the engine.
async fn works(agent: &str, image: &str, model: &Server) -> Option<(Value, Client)> {
    let (engine, folder) = (engine()?, programs()?);
    let image = format!("localhost/sandbox-mcp/{image}");
    let docker = [
        ("SANDBOX_MCP_BACKEND", "docker"),
        ("DOCKER_HOST", engine.as_str()),
        ("SANDBOX_MCP_ALLOWED_IMAGES", image.as_str()),
    ];
    let client = with_programs(&folder, model, &docker).await;
    let mut task = sales(agent);
    task["image"] = json!(image);
    // The level that reaches nothing: only the model, by the way that the task brings along.
    task["yolo_level"] = json!(1);
    let done = finished(&client, task).await;
    assert_eq!((&done["status"], &done["error"]), (&json!("completed"), &Value::Null), "{done}");
    let session = done["session_id"].as_str().unwrap();
    let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
    assert_eq!(status["sandboxes"][0]["backend"], "docker", "{status}");
    // There is no way out but ours, and no key.
    let look = "ip -o link 2>/dev/null | grep -v ' lo:'; wc -l < /proc/net/route; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'";
    let seen = client.output(session, look).await;
    assert!(seen.starts_with("1\n") && !seen.contains(KEY), "{seen}");
    assert!(model.requests().iter().all(|request| request.head.contains(KEY)), "the key is added outside");
    Some((done, client))
}

/// Answers as the script says, after it has done everything wrong.
async fn troubled(script: impl Fn(&Asked<'_>) -> Say + Send + Sync + 'static) -> Server {
    let error = |kind: &str| json!({"type": "error", "error": {"type": kind, "message": "not now"}}).to_string();
    Server::start(move |asked| match asked.number {
        0 => Say::Status(429, "retry-after: 1\r\n", error("rate_limit_error")),
        1 => Say::Status(529, "", error("overloaded_error")),
        2 => Say::Cut,
        // Who asks for a whole answer after that and gets this gives up, and says so.
        3 if asked.body["stream"] == true => Say::Raw("data: {oops\n\n"),
        _ => script(asked),
    })
    .await
}

#[tokio::test]
async fn the_built_in_agent_works_in_a_container() {
    let turns = csv_turns();
    let model = troubled(move |asked| Say::Turn(turns[asked.step].clone())).await;
    let Some((done, client)) = works("claude", "claude-code", &model).await else { return };
    assert_eq!(done["files_created"], json!(["analyse.py", "chart.png", "chart.svg", "report.md"]), "{done}");
    let report = client.output(done["session_id"].as_str().unwrap(), "cat report.md").await;
    assert!(report.contains("- jan: 200\n- feb: 245"), "{report}");
}

#[tokio::test]
async fn claude_code_works_in_a_container() {
    let model = troubled(analyse).await;
    let Some((done, client)) = works("claude-code", "claude-code", &model).await else { return };
    sales_are_right(&client, &done).await;
}

#[tokio::test]
async fn opencode_works_in_a_container() {
    let model = troubled(analyse).await;
    let Some((done, client)) = works("opencode", "opencode", &model).await else { return };
    sales_are_right(&client, &done).await;
}
