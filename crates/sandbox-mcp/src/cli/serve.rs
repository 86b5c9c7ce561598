//! `serve`: MCP over standard streams until they close or somebody says stop.

use crate::{app::App, cli::terminal::stop_asked, config::Settings, mcp};

pub(super) async fn serve(settings: Settings) -> anyhow::Result<u8> {
    let app = App::serve(settings).await?;
    let recovery = app.sandboxes.recovery();
    if !recovery.is_empty() {
        super::screen::tell(&recovery.to_string());
    }
    let served = tokio::select! {
        served = mcp::serve_stdio(app.clone()) => served.map(|()| 0),
        signal = stop_asked() => Ok(128 + signal),
    };
    app.sandboxes.close().await;
    served
}
