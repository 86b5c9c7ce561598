//! The official Rust client, in both eras, over the real pipes.

use std::sync::Arc;

use rmcp::{
    model::{CallToolRequestParams, ProtocolVersion},
    service::{ClientLifecycleMode, ClientServiceExt, RoleClient, RunningService},
    transport::{ConfigureCommandExt, TokioChildProcess},
};
use serde_json::{Value, json};

use crate::harness::BINARY;

async fn connect(mode: ClientLifecycleMode, state: &std::path::Path) -> RunningService<RoleClient, ()> {
    let command = tokio::process::Command::new(BINARY).configure(|command| {
        command.arg("serve").env("WORKSPACE_BASE", state.join("state"));
    });
    ().serve_with_lifecycle(TokioChildProcess::new(command).unwrap(), mode).await.unwrap()
}

async fn call(client: &RunningService<RoleClient, ()>, tool: &'static str, arguments: Value) -> Value {
    let arguments = arguments.as_object().unwrap().clone();
    let result = client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await.unwrap();
    assert_ne!(result.is_error, Some(true), "{result:?}");
    result.structured_content.unwrap()
}

async fn round(mode: ClientLifecycleMode) {
    let folder = tempfile::tempdir().unwrap();
    let client = connect(mode, folder.path()).await;
    assert_eq!(client.list_all_tools().await.unwrap().len(), 10);
    let session = call(&client, "create_sandbox", json!({})).await["session_id"].clone();
    let ran = call(&client, "run_command", json!({"session_id": session, "command": "echo hi"})).await;
    assert_eq!(ran["stdout"], "hi\n");
    let client = Arc::new(client);
    let runs = (0..5).map(|n| {
        let (client, session) = (client.clone(), session.clone());
        tokio::spawn(async move {
            call(&client, "run_command", json!({"session_id": session, "command": format!("echo {n}")})).await
        })
    });
    for (n, run) in runs.collect::<Vec<_>>().into_iter().enumerate() {
        assert_eq!(run.await.unwrap()["stdout"], format!("{n}\n"));
    }
    call(&client, "cleanup_session", json!({"session_id": session})).await;
}

#[tokio::test]
async fn the_official_client_works_with_a_handshake() {
    round(ClientLifecycleMode::Initialize).await;
}

#[tokio::test]
async fn the_official_client_works_without_one() {
    round(ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }).await;
}
