//! `serve`: MCP over standard streams until they close or somebody says stop.

use std::io::IsTerminal;

use crate::{
    agent::{self, receipt},
    app::App,
    cli::terminal::stop_asked,
    config::Settings,
    mcp,
};

pub(super) async fn serve(settings: Settings) -> anyhow::Result<u8> {
    super::descriptors::raise_limit();
    let app = App::serve(settings).await?;
    let recovery = app.sandboxes.recovery();
    if !recovery.is_empty() {
        super::screen::tell(&recovery.to_string());
    }
    for receipt in receipt::recover(&app.settings.state) {
        let (id, session) =
            (receipt["task_id"].as_str().unwrap_or_default(), receipt["session_id"].as_str().unwrap_or_default());
        super::screen::tell(&format!("the task {id} in {session} was interrupted when an earlier server ended"));
        let sandboxes = app.sandboxes.clone();
        tokio::spawn(async move { agent::end_after(&receipt, &sandboxes).await });
    }
    if std::io::stdin().is_terminal() {
        super::screen::tell(
            "waits for an MCP client on standard input. Clients start it by themselves: `sandbox-mcp serve --help` shows how. Ctrl-C ends it",
        );
    }
    let served = tokio::select! {
        served = mcp::serve_stdio(app.clone()) => served.map(|()| 0),
        signal = stop_asked() => Ok(128 + signal),
    };
    app.tasks.stop_all(&app.sandboxes).await;
    app.sandboxes.close().await;
    served
}
