//! Programs that spend as much as they can. They stand where Claude Code would, and stop for nobody: only what is outside of
//! the sandbox keeps them from it.

use std::{fs, os::unix::fs::PermissionsExt, time::Duration};

use serde_json::{Value, json};

use crate::{
    agents::{finished, server},
    harness::Client,
    model::{Say, Server, text},
};

/// Asks from many threads at once, in every way that could cost more than it seems to.
const GREEDY: &str = r#"#!/usr/bin/env python3
import json, os, threading, urllib.request, urllib.error
base = os.environ["ANTHROPIC_BASE_URL"]
print(json.dumps({"type": "system", "subtype": "init", "session_id": "x"}), flush=True)
def ask(path, body):
    request = urllib.request.Request(base + path, data=body.encode(), headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer: return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error: return error.code, error.read().decode()
    except OSError as error: return 0, str(error)
usual = '"model":"claude-opus-5-5","messages":[{"role":"user","content":"spend"}]'
def break_off(path, body):
    request = urllib.request.Request(base + path, data=body.encode(), headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer: answer.readline()
    except OSError: pass
with open("/workspace/refused.txt", "w") as refused:
    for path, body in [
        ("/v1/messages/batches", '{"requests":[]}'),
        ("/v1/messages", '{"max_tokens":1,"max_tokens":64000,%s}' % usual),
        ("/v1/messages", '{"max_tokens":100,"tools":[{"type":"web_fetch_20250910","name":"web_fetch"}],%s}' % usual),
    ]:
        print(*ask(path, body), file=refused)
def spend():
    while True: WAY
for _ in range(20): threading.Thread(target=spend).start()
"#;

/// It hears each answer to its end.
const HEARS: &str = r#"ask("/v1/messages", '{"max_tokens":10000,%s}' % usual)"#;
/// It hears the first line of each, in which no price stands.
const BREAKS_OFF: &str = r#"break_off("/v1/messages", '{"max_tokens":10000,"stream":true,%s}' % usual)"#;

async fn with_greedy(model: &Server, way: &str) -> Client {
    let client = server(&model.settings(), &[]).await;
    let folder = client.state().join("agents/claude-code/1.0.0");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("claude"), GREEDY.replace("WAY", way)).unwrap();
    fs::set_permissions(folder.join("claude"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::write(folder.join("../current"), "1.0.0").unwrap();
    client
}

async fn spends(model: &Server, way: &str) -> (Value, Client) {
    let client = with_greedy(model, way).await;
    let task = json!({"task": "spend it", "agent": "claude-code", "budget_usd": 0.5});
    let done = finished(&client, task).await;
    let why = done["error"].as_str().unwrap_or_default();
    assert!(done["status"] == "failed" && why.contains("its budget is $0.50"), "{done}");
    (done, client)
}

#[tokio::test]
async fn a_program_that_asks_twenty_times_at_once_never_spends_more_than_its_budget() {
    let slow = Duration::from_millis(200);
    let model = Server::start(move |_| Say::Obedient(slow, 100, 9_000, vec![text("more?")])).await;
    let (done, client) = spends(&model, HEARS).await;
    // $0.18 for each answer, and the last one only as long as the rest pays for.
    let cost = done["cost"]["usd"].as_f64().unwrap();
    assert!((0.45..=0.5).contains(&cost), "{done}");
    let asked: Vec<u64> = model.requests().iter().filter_map(|asked| asked.body["max_tokens"].as_u64()).collect();
    assert!(asked.len() <= 5 && asked[..2] == [10_000, 10_000] && asked[2] < 10_000, "{asked:?}");
    let refused = client.output(done["session_id"].as_str().unwrap(), "cat refused.txt").await;
    assert_eq!(refused.matches("400 ").count(), 3, "{refused}");
    assert!(refused.contains("only answers questions") && refused.contains("twice"), "{refused}");
    assert!(refused.contains("`web_fetch_20250910`: that would be done by the model's server"), "{refused}");
}

#[tokio::test]
async fn a_program_that_breaks_every_answer_off_before_its_price_is_told_pays_for_all_of_it() {
    let model = Server::start(|_| Say::Endless).await;
    let (done, _client) = spends(&model, BREAKS_OFF).await;
    let cost = done["cost"]["usd"].as_f64().unwrap();
    assert!((0.45..=0.51).contains(&cost), "{done}");
    let asked: Vec<u64> = model.requests().iter().filter_map(|asked| asked.body["max_tokens"].as_u64()).collect();
    assert!(asked.len() <= 5 && asked.iter().sum::<u64>() <= 25_000, "{asked:?}");
}

#[tokio::test]
async fn a_program_whose_model_takes_more_than_it_should_is_stopped_after_that_answer() {
    let model = Server::start(|_| Say::Costly(100, 60_000, vec![text("more?")])).await;
    let (done, _client) = spends(&model, HEARS).await;
    assert_eq!((model.requests().len(), &done["turns"]), (1, &json!(1)), "{done}");
}
