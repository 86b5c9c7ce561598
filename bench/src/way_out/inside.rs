//! A sandbox of `sandbox-mcp serve` with our client in it, which may reach one port of this machine.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use serde_json::json;

use super::{ground::Ground, traffic::PROGRAM};
use crate::{mcp::Server, private};

/// What the server is called inside.
pub const SERVER: &str = "host.internal";
/// Our client inside.
pub const CLIENT: &str = "/workspace/client";

/// The sandbox, and the server that looks after it.
pub struct Inside {
    server: Server,
    session: String,
}

impl Inside {
    /// Starts both where the servers are. What else the policy limits is not to be in the way.
    pub fn make(sandbox_mcp: &Path, folder: &Path, ground: &Ground, port: u16) -> Result<Self> {
        let (state, policies) = (private(folder, "way-out")?, private(folder, "policies")?);
        let policy = format!(
            "extends = \"full_isolation\"\nhost_ports = [{port}]\n[limits]\nconnections = 4000\ncpus = 64\nmemory = \"1GB\"\n"
        );
        fs::write(policies.join("reach.toml"), policy)?;
        let mut command = ground.outside().with([sandbox_mcp.display().to_string(), "serve".to_owned()]).command();
        command.env("XDG_STATE_HOME", state).env("SANDBOX_MCP_POLICY_FOLDER", policies);
        let mut server = Server::greet(command)?;
        let session = server.create(json!({ "policy": "reach" }))?;
        let mut inside = Self { server, session };
        let address = format!("http://{SERVER}:{port}{PROGRAM}");
        inside.run(&format!("curl --silent --fail --output {CLIENT} {address} && chmod +x {CLIENT}"))?;
        Ok(inside)
    }

    /// What a command prints.
    pub fn run(&mut self, command: &str) -> Result<String> {
        let ran = self.server.run(&self.session, command)?;
        ensure!(ran["exit_code"] == 0, "{command}: {ran}");
        Ok(ran["stdout"].as_str().unwrap_or_default().to_owned())
    }

    /// The server's process.
    pub fn server(&self) -> u32 {
        self.server.process()
    }
}
