//! The official Rust client, in both eras, over the real pipes.

use std::sync::Arc;

use rmcp::{
    ClientHandler, ErrorData,
    model::{
        CallToolRequestParams, ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
        ProtocolVersion,
    },
    service::{ClientLifecycleMode, ClientServiceExt, RequestContext, RoleClient, RunningService},
    transport::{ConfigureCommandExt, TokioChildProcess},
};
use serde_json::{Value, json};

use crate::harness::BINARY;

/// A person who says yes.
struct Yes;

impl ClientHandler for Yes {
    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let ElicitRequestParams::FormElicitationParams { message, .. } = request else { panic!("no form") };
        assert!(message.contains("asks for more than its policy gives"), "{message}");
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(json!({"for": "once"})))
    }

    fn get_info(&self) -> ClientConfig {
        let mut config = ClientConfig::default();
        config.capabilities = ClientCapabilities::builder().enable_elicitation().build();
        config
    }
}

async fn connect<H: ClientHandler>(
    person: H,
    mode: ClientLifecycleMode,
    state: &std::path::Path,
) -> RunningService<RoleClient, H> {
    let command = tokio::process::Command::new(BINARY).configure(|command| {
        command.arg("serve").env("WORKSPACE_BASE", state.join("state"));
    });
    person.serve_with_lifecycle(TokioChildProcess::new(command).unwrap(), mode).await.unwrap()
}

async fn call<H: ClientHandler>(client: &RunningService<RoleClient, H>, tool: &'static str, arguments: Value) -> Value {
    let arguments = arguments.as_object().unwrap().clone();
    let result = client.call_tool(CallToolRequestParams::new(tool).with_arguments(arguments)).await.unwrap();
    assert_ne!(result.is_error, Some(true), "{result:?}");
    result.structured_content.unwrap()
}

async fn round(mode: ClientLifecycleMode) {
    let folder = tempfile::tempdir().unwrap();
    let client = connect((), mode, folder.path()).await;
    assert_eq!(client.list_all_tools().await.unwrap().len(), 11);
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

fn modern() -> ClientLifecycleMode {
    ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] }
}

#[tokio::test]
async fn the_official_client_is_asked_in_both_eras() {
    for mode in [ClientLifecycleMode::Initialize, modern()] {
        let folder = tempfile::tempdir().unwrap();
        let client = connect(Yes, mode, folder.path()).await;
        let session = call(&client, "create_sandbox", json!({})).await["session_id"].clone();
        let ran = call(&client, "run_command", json!({"session_id": session, "command": "ssh -V"})).await;
        assert_eq!(ran["status"], "exited", "{ran}");
    }
}

#[tokio::test]
async fn the_official_client_works_with_a_handshake() {
    round(ClientLifecycleMode::Initialize).await;
}

#[tokio::test]
async fn the_official_client_works_without_one() {
    round(modern()).await;
}
