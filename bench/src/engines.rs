//! Sandboxes on other engines, and from OCI images: each against what the engine's own command line takes. Ours are asked
//! for over MCP, as a client would.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::{
    clock::{Row, Stopwatch, Timing, Variant, interleave},
    mcp::Server,
    private,
    program::CommandLine,
    results::Part,
    rivals::{Docker, ECHO},
};

/// Names of what is compared.
pub mod names {
    #![allow(missing_docs, reason = "the names say it")]
    pub const RUN: &str = "`docker run --rm`";
    pub const CREATE: &str = "docker backend, made when asked for";
    pub const WARM: &str = "docker backend, one was ready";
    pub const EXEC: &str = "`docker exec`";
    pub const LIVE: &str = "docker backend, a command in a live sandbox";
    pub const RUN_GVISOR: &str = "`docker run --rm --runtime=runsc`";
    pub const DIRECT_GVISOR: &str = "`runsc`, driven directly";
    pub const HOST: &str = "embedded, from `host`";
    pub const IMAGE: &str = "embedded, from an OCI image";
    pub const LOAD: &str = "`docker load`";
    pub const PULL: &str = "`sandbox-mcp pull` of the same archive";
}
use names::*;

/// What was measured.
pub struct Engines {
    /// The docker backend.
    pub docker: Part<Vec<Row>>,
    /// gVisor.
    pub gvisor: Part<Vec<Row>>,
    /// Sandboxes from OCI images.
    pub images: Part<Vec<Row>>,
    /// Images that are taken in.
    pub loads: Part<Vec<Row>>,
}

impl Engines {
    /// All parts, with what they are about.
    pub fn parts(&self) -> [(&'static str, &Part<Vec<Row>>); 4] {
        [
            ("On docker, over MCP: a sandbox with its first command, and a command in one that lives", &self.docker),
            ("gVisor, with and without a daemon", &self.gvisor),
            ("Embedded, from an OCI image and from `host`, over MCP", &self.images),
            ("An archive that is taken in", &self.loads),
        ]
    }
}

/// Kept ready for those who want one at once.
const READY: usize = 2;
/// Time for them to be ready again.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the image is called where no engine is.
const NAME: &str = "localhost/bench:1";

/// Where, and with what.
pub struct Field<'a> {
    /// The program.
    pub sandbox_mcp: &'a Path,
    /// A folder for everything.
    pub folder: &'a Path,
    /// The engine.
    pub docker: &'a Docker,
}

impl Field<'_> {
    /// The docker backend against the engine's own commands.
    pub fn docker(&self, rounds: usize) -> Result<Vec<Row>> {
        let address = self.docker.address();
        let count = READY.to_string();
        let on = |name, more: &[(&str, &str)]| {
            let engine = [("SANDBOX_MCP_BACKEND", "docker"), ("DOCKER_HOST", &address), ("DOCKER_IMAGE", "bench")];
            self.serve(name, &[&engine, more].concat())
        };
        let mut cold = on("docker-cold", &[])?;
        let mut warm = on("docker-warm", &[("SANDBOX_MCP_WARM", &count)])?;
        let mut live = on("docker-live", &[])?;
        let session = live.create(json!({}))?;
        let container = self.docker.start_idle()?;
        let (run, exec) = (self.docker.run(&ECHO), self.docker.exec(&container, &ECHO));
        let rows = interleave(
            rounds,
            vec![
                Variant::new(RUN, || run.time()),
                Variant::new(CREATE, || cold.time_start()),
                Variant::new(WARM, || {
                    warm.until_ready(READY, PATIENCE)?;
                    warm.time_start()
                }),
                Variant::new(EXEC, || exec.time()),
                Variant::new(LIVE, || time_command(&mut live, &session)),
            ],
        );
        self.docker.remove(&[container])?;
        rows
    }

    /// gVisor without a daemon against gVisor by docker.
    pub fn gvisor(&self, rounds: usize) -> Result<Vec<Row>> {
        let variables = [("SANDBOX_MCP_BACKEND", "oci"), ("SANDBOX_MCP_OCI_RUNTIME", "runsc")];
        let mut direct = self.serve("gvisor", &variables)?;
        let run = self.docker.run_with(&["--runtime=runsc"], &ECHO);
        let variants =
            vec![Variant::new(RUN_GVISOR, || run.time()), Variant::new(DIRECT_GVISOR, || direct.time_start())];
        interleave(rounds, variants)
    }

    /// The engine's image as an archive.
    pub fn archive(&self) -> Result<PathBuf> {
        let archive = self.folder.join("archive.tar");
        self.docker.tag(NAME)?;
        self.docker.save(NAME, &archive)?;
        Ok(archive)
    }

    /// Embedded sandboxes from an OCI image and from this machine's programs.
    pub fn images(&self, rounds: usize, archive: &Path) -> Result<Vec<Row>> {
        let state = private(self.folder, "images")?;
        self.pull(&state, archive).output()?;
        let allowed = [("SANDBOX_MCP_ALLOWED_IMAGES", NAME)];
        let [mut host, mut image] = [self.serve("images", &allowed)?, self.serve("images", &allowed)?];
        let from = |server: &mut Server, image: &str| {
            server.time_start_of(json!({ "image": image, "policy": "full_isolation" }))
        };
        let variants =
            vec![Variant::new(HOST, || from(&mut host, "host")), Variant::new(IMAGE, || from(&mut image, NAME))];
        interleave(rounds, variants)
    }

    /// The same archive, unpacked by the engine and by us. Each time all of it is gone before.
    pub fn loads(&self, rounds: usize, archive: &Path) -> Result<Vec<Row>> {
        let state = private(self.folder, "loads")?;
        let [load, pull] = [self.docker.load(archive), self.pull(&state, archive)];
        let remove = self.program(&state).with(["rmi", NAME]);
        let variants = vec![
            Variant::new(LOAD, || {
                self.docker.forget(NAME)?;
                let timing = afresh(&load)?;
                self.docker.remember(NAME)?;
                Ok(timing)
            }),
            Variant::new(PULL, || {
                // It is not there the first time.
                let _ = remove.output();
                afresh(&pull)
            }),
        ];
        interleave(rounds, variants)
    }

    fn pull(&self, state: &Path, archive: &Path) -> CommandLine {
        self.program(state).with(["pull".to_owned(), archive.display().to_string(), "--name".into(), NAME.to_owned()])
    }

    fn program(&self, state: &Path) -> CommandLine {
        let state = format!("XDG_STATE_HOME={}", state.display());
        CommandLine::new(["env".to_owned(), state, self.sandbox_mcp.display().to_string()])
    }

    fn serve(&self, name: &str, variables: &[(&str, &str)]) -> Result<Server> {
        let mut command = self.program(&private(self.folder, name)?).with(["serve"]).command();
        command.envs(variables.iter().copied());
        Server::greet(command)
    }
}

/// Without writes of others under way.
fn afresh(line: &CommandLine) -> Result<Timing> {
    CommandLine::new(["sync"]).output()?;
    line.time()
}

fn time_command(server: &mut Server, session: &str) -> Result<Timing> {
    let mut watch = Stopwatch::start();
    let ran: Value = server.run(session, "/bin/echo hello")?;
    watch.output();
    ensure!(ran["stdout"] == "hello\n", "run_command answered {ran}");
    Ok(watch.stop())
}
