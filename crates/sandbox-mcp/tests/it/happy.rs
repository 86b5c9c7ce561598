//! What people come for.

use serde_json::{Value, json};

use crate::harness::{Era, start, start_with};

const CSV: &str = "name,amount\nann,3\nbob,4\n";

#[tokio::test]
async fn a_csv_goes_in_and_a_result_comes_out_in_both_eras() {
    for era in [Era::Legacy, Era::Modern] {
        let client = start_with(era, &[]).await;
        let session = client.sandbox().await;
        let files = json!([{"path": "data/sales.csv", "content": CSV}]);
        let written = client.ok("write_files", json!({"session_id": session, "files": files})).await;
        assert_eq!(written["written"][0]["size_bytes"], CSV.len());
        let script = "awk -F, 'NR>1{s+=$2} END{print s}' data/sales.csv > total.txt; cat total.txt";
        assert_eq!(client.output(&session, script).await, "7\n");
        let got = client.ok("get_files", json!({"session_id": session, "paths": ["total.txt", "none.txt"]})).await;
        assert_eq!(got["files"][0]["content"], "Nwo=");
        assert_eq!((&got["files"][0]["size_bytes"], &got["files"][0]["mime_type"]), (&json!(2), &json!("text/plain")));
        assert_eq!(got["missing"], json!(["none.txt"]));
        let gone = client.ok("cleanup_session", json!({"session_id": session})).await;
        assert_eq!((&gone["status"], &gone["session_id"]), (&json!("success"), &json!(session)));
        assert!(!client.folder(&session).exists());
    }
}

#[tokio::test]
async fn a_command_has_shell_folder_variables_input_and_both_outputs_apart() {
    let client = start().await;
    let session = client.sandbox_with(json!({"env": {"GREETING": "hello"}})).await;
    let arguments = json!({
        "session_id": session, "command": "pwd; echo $GREETING $WHO; cat; echo bad >&2; exit 3",
        "cwd": "/tmp", "env": {"WHO": "world"}, "stdin": "typed",
    });
    let ran = client.ok("run_command", arguments).await;
    assert_eq!(ran["stdout"], "/tmp\nhello world\ntyped");
    assert_eq!((&ran["stderr"], &ran["exit_code"], &ran["status"]), (&json!("bad\n"), &json!(3), &json!("exited")));
    assert_eq!((&ran["signal"], &ran["denials"]), (&Value::Null, &json!([])));
}

#[tokio::test]
async fn older_names_of_tools_and_parameters_answer_too() {
    let client = start().await;
    let session = client.ok("create_container_environment", json!({})).await["session_id"].clone();
    let file = json!({"container_id": session, "filename": "a.txt", "content": "hi"});
    client.ok("create_file_in_container", file).await;
    let ran = client.ok("execute_command_in_container", json!({"container_id": session, "command": "cat a.txt"})).await;
    assert_eq!(ran["stdout"], "hi");
    let got = client.ok("download_files", json!({"session_id": session, "file_paths": ["a.txt"]})).await;
    assert_eq!(got["files"][0]["content"], "aGk=");
    assert_eq!(client.ok("exit_container", json!({"container_id": session, "force": true})).await["status"], "success");
    let other = client.sandbox().await;
    client.ok("cleanup_sandbox", json!({"sandbox_id": other})).await;
}

#[tokio::test]
async fn a_task_is_done_by_the_mock_agent_which_says_that_it_is_one() {
    let client = start().await;
    let task = json!({"task_description": "Sum the sales", "files": [{"path": "s.csv", "content": CSV}]});
    let done = client.ok("execute_task", task).await;
    assert_eq!((&done["status"], &done["error"]), (&json!("completed"), &Value::Null));
    assert_eq!(done["files_created"], json!(["output.txt"]));
    assert!(done["duration_seconds"].is_number() && done["output"].as_str().unwrap().contains("mock"), "{done}");
    let text = client.output(done["session_id"].as_str().unwrap(), "cat output.txt; ls").await;
    assert!(text.contains("Sum the sales") && text.contains("s.csv"), "{text}");
}

#[tokio::test]
async fn ten_tasks_at_once_succeed() {
    let client = std::sync::Arc::new(start().await);
    let tasks = (0..10).map(|n| {
        let client = client.clone();
        tokio::spawn(async move { client.ok("execute_task", json!({"task": format!("Task number {n}")})).await })
    });
    let mut sessions = std::collections::BTreeSet::new();
    for task in tasks.collect::<Vec<_>>() {
        let done = task.await.unwrap();
        assert_eq!(done["status"], "completed", "{done}");
        sessions.insert(done["session_id"].to_string());
    }
    assert_eq!(sessions.len(), 10);
}

#[tokio::test]
async fn the_status_of_a_sandbox_tells_use_jobs_and_how_limits_are_held() {
    let client = start().await;
    let session = client.sandbox().await;
    client.run(&session, "true").await;
    let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
    let sandbox = &status["sandboxes"][0];
    assert_eq!((&sandbox["state"], &sandbox["policy"]), (&json!("running"), &json!("yolo-3")));
    assert_eq!((&sandbox["jobs"][0]["command"], &sandbox["jobs"][0]["status"]), (&json!("true"), &json!("exited")));
    assert!(
        ["kernel", "supervised"].contains(&sandbox["enforcement"]["memory"]["held"].as_str().unwrap()),
        "{sandbox}"
    );
    assert!(sandbox["usage"]["memory_bytes"].is_number(), "{sandbox}");
    assert_eq!(client.ok("get_sandbox_status", json!({})).await["sandboxes"][0]["session_id"], json!(session));
}
