//! What answers and receipts of tasks say of files, hosts and secrets.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    agents::{finished, server},
    harness::{Client, Era, start, start_with},
    model::{KEY, Server, text},
    network::{Echo, VALUE, with_secret},
    tasks::script,
};

/// The receipt of a task as JSON, and its page.
fn receipt(client: &Client, done: &Value) -> (Value, String) {
    let folder = client.state().join("tasks").join(done["task_id"].as_str().unwrap());
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    (serde_json::from_str(&read("receipt.json")).unwrap(), read("receipt.html"))
}

/// A server with a secret for `host.internal`, and a sandbox that may use it.
async fn with_token(echo: &Echo, folder: &Path) -> (Client, String) {
    with_secret(echo, folder, "");
    let config = folder.join("settings.toml");
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_CONFIG", config.to_str().unwrap())]).await;
    let session = client.sandbox_with(json!({"policy": "named"})).await;
    (client, session)
}

/// What came of a task of the mock agent in this sandbox.
async fn followed(client: &Client, session: &str, steps: Value) -> Value {
    let task = json!({"task": "x", "agent": "mock", "session_id": session, "files": script(steps)});
    let done = finished(client, task).await;
    assert_eq!(done["status"], "completed", "{done}");
    done
}

/// The row of `host.internal` at this port.
fn row(receipt: &Value, port: u16) -> Value {
    let target = format!("host.internal:{port}");
    let found = receipt["hosts"].as_array().unwrap().iter().find(|host| host["target"] == target);
    found.unwrap_or_else(|| panic!("{target} is not there: {receipt}")).clone()
}

#[tokio::test]
async fn files_that_a_task_changed_and_deleted_are_told_and_so_is_what_held_it() {
    let client = start().await;
    let write = json!({"write": {"path": "changed.txt", "content": "longer than before"}});
    let mut files = script(json!([write, {"must": "rm deleted.txt"}, {"finish": "ok"}]));
    let more = ["changed.txt", "deleted.txt", "kept.txt"].map(|path| json!({"path": path, "content": "x"}));
    files.as_array_mut().unwrap().extend(more);
    let done = finished(&client, json!({"task": "x", "files": files})).await;
    assert_eq!(
        (&done["files_created"], &done["files_changed"], &done["files_deleted"]),
        (&json!([]), &json!(["changed.txt"]), &json!(["deleted.txt"])),
        "{done}"
    );
    let (receipt, page) = receipt(&client, &done);
    let held = done["enforced"].as_object().unwrap();
    assert!(held.contains_key("memory"), "{done}");
    for (control, how) in held {
        assert_eq!(how, &receipt["enforced"][control]["held"], "{control}: {done} {receipt}");
    }
    let changed = &receipt["files_changed"][0];
    assert_eq!((&changed["path"], &changed["size_bytes"]), (&json!("changed.txt"), &json!(18)), "{receipt}");
    assert_eq!(receipt["files_deleted"], json!(["deleted.txt"]), "{receipt}");
    assert!(page.contains("<td>deleted</td><td>deleted.txt</td>"), "{page}");
}

#[tokio::test]
async fn a_secret_whose_host_was_reached_is_on_the_receipt_with_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let echo = Echo::start(folder.path(), false);
    let (client, session) = with_token(&echo, folder.path()).await;
    let fetch = format!("curl -sS -H \"Authorization: Bearer $TOKEN\" http://host.internal:{}/plain", echo.port);
    // A moment for the connection to end.
    let done = followed(&client, &session, json!([{"must": fetch}, {"sleep": 0.5}, {"finish": "ok"}])).await;
    let (receipt, page) = receipt(&client, &done);
    let row = row(&receipt, echo.port);
    assert_eq!((&row["connections"], &row["refused"], &row["failed"]), (&json!(1), &json!(0), &json!(0)), "{receipt}");
    let bytes = |field: &str| row[field].as_u64().unwrap();
    assert!(bytes("sent_bytes") > 50 && bytes("received_bytes") > 50, "{receipt}");
    assert_eq!((&receipt["secrets"], &receipt["hosts_missed"]), (&json!(["token"]), &json!(0)), "{receipt}");
    assert!(!receipt.to_string().contains(VALUE) && !page.contains(VALUE) && page.contains("<td>token</td>"), "{page}");
}

#[tokio::test]
async fn a_secret_whose_host_was_not_there_is_not_called_used() {
    let folder = tempfile::tempdir().unwrap();
    let echo = Echo::start(folder.path(), false);
    let (client, session) = with_token(&echo, folder.path()).await;
    let port = echo.port;
    drop(echo);
    let fetch = format!("curl -sS -H \"Authorization: Bearer $TOKEN\" http://host.internal:{port}/plain");
    let done = followed(&client, &session, json!([{"run": fetch}, {"sleep": 0.5}, {"finish": "ok"}])).await;
    let (receipt, _) = receipt(&client, &done);
    let row = row(&receipt, port);
    assert_eq!((&row["connections"], &row["refused"]), (&json!(0), &json!(0)), "{receipt}");
    assert!(row["failed"].as_u64().unwrap() > 0, "{receipt}");
    assert_eq!(receipt["secrets"], json!([]), "{receipt}");
}

#[tokio::test]
async fn a_connection_that_is_still_open_at_the_end_is_on_the_receipt() {
    let folder = tempfile::tempdir().unwrap();
    let echo = Echo::start(folder.path(), false);
    let (client, session) = with_token(&echo, folder.path()).await;
    let hold = format!(
        "import http.client, time; c = http.client.HTTPConnection('127.0.0.1', 3128); c.set_tunnel('host.internal', {}); \
         c.request('GET', '/held'); c.getresponse().read(); open('held', 'w').close(); time.sleep(60)",
        echo.port
    );
    let hold = json!({"session_id": session, "command": format!("python3 -c \"{hold}\""), "wait_seconds": 0});
    client.ok("run_command", hold).await;
    let wait = "until test -e held; do sleep 0.1; done";
    let done = followed(&client, &session, json!([{"must": wait}, {"finish": "ok"}])).await;
    let (receipt, _) = receipt(&client, &done);
    let row = row(&receipt, echo.port);
    assert!(row["connections"] == 1 && row["received_bytes"].as_u64().unwrap() > 0, "{receipt}");
    assert_eq!(receipt["secrets"], json!(["token"]), "{receipt}");
}

#[tokio::test]
async fn the_key_of_a_model_that_was_asked_is_among_the_secrets_by_name() {
    let model = Server::turns(vec![vec![text("Done.")]]).await;
    let client = server(&model.settings(), &[]).await;
    let asked = finished(&client, json!({"task": "x"})).await;
    let (told, page) = receipt(&client, &asked);
    assert_eq!(told["secrets"], json!(["model_key"]), "{told}");
    assert!(!told.to_string().contains(KEY) && !page.contains(KEY));
    // The mock only acts as if it had asked.
    let steps = script(json!([{"spend": {"input": 1000, "output": 100}}, {"finish": "ok"}]));
    let pretended = finished(&client, json!({"task": "x", "agent": "mock", "files": steps})).await;
    assert_eq!(receipt(&client, &pretended).0["secrets"], json!([]));
}
