//! `open`: a web server in a sandbox, shown at an address on this machine for as long as this command runs.

use serde_json::json;

use super::{Answer, args::Open, screen, terminal::stop_asked};
use crate::{app::App, config::Settings, sandboxes::OpenPort};

pub(super) async fn open(settings: Settings, args: Open, answer: Answer) -> anyhow::Result<u8> {
    let app = App::reach(settings)?;
    let session = app.sandboxes.find_to_use(&app.owner_of(&args.session), &args.session).await?;
    let OpenPort { url, port, listening } = session.open_port(args.port).await?;
    match answer {
        Answer::Json => screen::say_json(&json!({ "url": url, "port": port, "listening": listening })),
        Answer::Text => screen::say(&url),
    }
    if !listening {
        screen::tell(&format!(
            "nobody listens on port {port} in the sandbox yet; the address works once somebody does"
        ));
    }
    if answer == Answer::Text {
        screen::tell("Ctrl-C closes it");
    }
    tokio::select! {
        () = session.ports_closed() => screen::tell("the sandbox has ended, and the address with it"),
        _ = stop_asked() => {}
    }
    app.sandboxes.close().await;
    Ok(0)
}
