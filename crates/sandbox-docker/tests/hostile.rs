//! Images that mean harm, on a real engine: what they bring, link or want must not become what root runs, nor a place to write
//! without end. Against `SANDBOX_TEST_ENGINE`, with images made of `SANDBOX_TEST_ARCHIVE`.

#![allow(clippy::expect_used, clippy::print_stdout, reason = "this is a test")]

mod support;

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::Command,
};

use sandbox_core::{Backend, Policy, Reference, Sandbox, SandboxSpec, exec::Exec};
use sandbox_docker::{DockerBackend, Options};
use sandbox_executor::client::{Client, JobEvent};
use sandbox_linux::executor_image;
use support::{docker, spec, state_in, things, variable};
use tokio::runtime::Runtime;

/// What a planted program says where it runs.
const PLANTED: &str = "#!/bin/busybox sh\n/bin/busybox touch /workspace/planted\n";

fn main() {
    let (Some(engine), Some(archive)) = (variable("SANDBOX_TEST_ENGINE"), variable("SANDBOX_TEST_ARCHIVE")) else {
        println!("skipped: SANDBOX_TEST_ENGINE names no engine (tests/engines/run starts some)");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options { address: Some(engine.clone()), image: None };
    let backend = DockerBackend::new(&state_in(folder.path()), options).expect("the backend starts");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    let stage = Stage { backend, engine, archive: archive.into(), folder: folder.path().to_owned(), runtime };
    let tests: [(&str, Test); 5] = [
        ("an_image_became_the_executor_of_every_sandbox", Stage::fill),
        ("a_link_of_an_image_led_root_to_a_planted_program", Stage::link),
        ("a_renamed_folder_led_root_to_a_planted_program", Stage::rename),
        ("an_image_got_a_volume_on_disk_without_an_end", Stage::volumes),
        ("an_image_closed_the_folders_in_memory", Stage::modes),
    ];
    let mut failed = 0;
    for (name, test) in tests {
        let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| test(&stage)));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        failed += i32::from(outcome.is_err());
    }
    std::process::exit(i32::from(failed > 0));
}

type Test = fn(&Stage);

struct Stage {
    backend: DockerBackend,
    engine: String,
    archive: PathBuf,
    folder: PathBuf,
    runtime: Runtime,
}

impl Stage {
    /// An image of the archive and what `plant` puts beside it, with a line of a recipe.
    fn image(&self, name: &str, line: &str, plant: impl FnOnce(&Path)) -> Reference {
        let (planted, archive) = (self.folder.join(name), self.folder.join(format!("{name}.tar")));
        fs::create_dir(&planted).expect("a folder");
        tar(&["-xf".as_ref(), self.archive.as_ref(), "-C".as_ref(), planted.as_ref()]);
        plant(&planted);
        tar(&["-cf".as_ref(), archive.as_ref(), "-C".as_ref(), planted.as_ref(), ".".as_ref()]);
        let image = format!("localhost/sandbox-{name}:latest");
        let change: &[&str] = if line.is_empty() { &[] } else { &["--change", line] };
        docker(&self.engine, &[&["import"], change, &[&archive.to_string_lossy(), &image]].concat());
        image.parse().expect("a name")
    }

    fn create(&self, spec: &SandboxSpec) -> sandbox_core::Result<std::sync::Arc<dyn Sandbox>> {
        self.runtime.block_on(self.backend.create(spec))
    }

    /// Runs a script over a connection of its own: on engines that are reached by streams the second one is a bridge.
    fn script(&self, sandbox: &dyn Sandbox, script: &str) -> String {
        self.runtime.block_on(async {
            let channel = sandbox.connect().await.expect("a connection");
            let client = Client::connect(channel).await.expect("our executor answers");
            let mut job = client.spawn(&Exec::shell(script)).await.expect("a command");
            let mut said = Vec::new();
            loop {
                match job.next().await.expect("its output") {
                    JobEvent::Output { data, .. } => said.extend(data),
                    JobEvent::Exited { .. } => return String::from_utf8_lossy(&said).trim().to_owned(),
                    JobEvent::Gap { .. } | JobEvent::Current => {}
                }
            }
        })
    }

    fn end(&self, sandbox: &dyn Sandbox) {
        self.runtime.block_on(sandbox.destroy()).expect("removed");
    }

    /// The program that root starts from in this sandbox is ours.
    fn program_is_ours(&self, spec: &SandboxSpec) {
        let copy = self.folder.join(format!("copy-{}", spec.id));
        let inside = format!("sandbox-mcp-{}:/.sandbox-mcp-{}/executor", spec.id, spec.id);
        docker(&self.engine, &["cp", &inside, &copy.to_string_lossy()]);
        assert!(fs::read(copy).expect("a copy") == executor_image::program());
    }

    /// A volume of that name has what an image brought, as long as the real one.
    fn fill(&self) {
        let volume = format!("sandbox-mcp-program-{}", executor_image::HASH);
        let image = self.image("filling", "", |planted| {
            for folder in ["opt/sandbox/program", "filling"] {
                plant(&planted.join(folder).join("executor"), executor_image::program().len());
            }
        });
        docker(&self.engine, &["volume", "rm", "--force", &volume]);
        let mount = format!("{volume}:/filling");
        let filling = ["create", "--name", "filling", "--network", "none", "-v", &mount, image.as_str(), "/nothing"];
        docker(&self.engine, &filling);
        docker(&self.engine, &["rm", "filling"]);
        let spec = spec(&image);
        let sandbox = self.create(&spec).expect("a sandbox");
        self.program_is_ours(&spec);
        assert_eq!(self.script(&*sandbox, "echo here; ls /workspace"), "here");
        self.end(&*sandbox);
    }

    /// runc gives a folder in memory the mode of the image's own.
    fn modes(&self) {
        let image = self.image("closing", "VOLUME /data", |planted| {
            for folder in ["tmp", "var/tmp", "data"] {
                let folder = planted.join(folder);
                fs::create_dir_all(&folder).expect("a folder");
                fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("a mode");
            }
        });
        let sandbox = self.create(&spec(&image)).expect("a sandbox");
        let script = "for f in /tmp /var/tmp /data; do echo x > $f/x && echo $f; done";
        assert_eq!(self.script(&*sandbox, script), "/tmp\n/var/tmp\n/data");
        self.end(&*sandbox);
    }

    fn link(&self) {
        let image = self.image("linking", "", |planted| {
            fs::create_dir_all(planted.join("opt")).expect("a folder");
            symlink("/workspace/s", planted.join("opt/sandbox")).expect("a link");
            symlink("/workspace/s", planted.join(".sandbox-mcp")).expect("a link");
            for folder in ["workspace/s", "workspace/s/program"] {
                plant(&planted.join(folder).join("executor"), PLANTED.len());
            }
        });
        let spec = spec(&image);
        let sandbox = self.create(&spec).expect("a sandbox");
        let script = "cd /workspace; b=/bin/busybox; $b mv s t && $b mkdir -p s/program && $b cp t/executor s/ && \
                      $b cp t/executor s/program/ && echo put there";
        assert_eq!(self.script(&*sandbox, script), "put there");
        self.program_is_ours(&spec);
        assert_eq!(self.script(&*sandbox, "ls /workspace"), "s\nt", "what was planted did not run");
        self.end(&*sandbox);
    }

    /// Root inside may change everything but what it is started from.
    fn rename(&self) {
        let image = self.image("renaming", "", |_| {});
        let spec = SandboxSpec { policy: Policy::preset("yolo-4").expect("a preset"), ..spec(&image) };
        let sandbox = self.create(&spec).expect("a sandbox");
        let ours = format!("/.sandbox-mcp-{}", spec.id);
        let script = format!(
            "b=/bin/busybox; echo x >/root-is-writable && echo writable; $b id -u
             $b mv {ours} /moved 2>/dev/null && echo moved; $b rm -rf {ours} 2>/dev/null && echo removed
             $b rmdir {ours} 2>/dev/null && echo removed; $b touch {ours}/x 2>/dev/null && echo written
             $b mkdir /other && $b mv -T /other {ours} 2>/dev/null && echo replaced; $b ls -d {ours}"
        );
        assert_eq!(self.script(&*sandbox, &script), format!("writable\n0\n{ours}"));
        self.program_is_ours(&spec);
        assert_eq!(self.script(&*sandbox, "echo again"), "again");
        self.end(&*sandbox);
    }

    fn volumes(&self) {
        let made = || self.runtime.block_on(things(&self.engine));
        let before = made();
        for (number, wanted) in ["rel", "/x/../y", "/data:exec", "/x//y", "/a,b"].iter().enumerate() {
            let line = format!("VOLUME [\"{wanted}\"]");
            let image = self.image(&format!("wanting-{number}"), &line, |_| {});
            let told = self.create(&spec(&image)).map(drop).expect_err(wanted).to_string();
            assert!(told.contains("the image is refused"), "{wanted}: {told}");
            assert_eq!(made(), before, "{wanted}");
        }
        let image = self.image("wanting", "VOLUME [\"/data\"]", |_| {});
        let spec = spec(&image);
        let sandbox = self.create(&spec).expect("a sandbox");
        let mounted =
            self.script(&*sandbox, "/bin/busybox grep ' /data ' /proc/mounts; echo x >/data/x && echo written");
        assert!(mounted.starts_with("tmpfs ") || mounted.starts_with("none "), "{mounted}");
        assert!(mounted.contains("size=") && mounted.ends_with("written"), "{mounted}");
        self.end(&*sandbox);
        assert_eq!(made(), before);
    }
}

fn tar(words: &[&OsStr]) {
    assert!(Command::new("tar").args(words).status().expect("tar").success());
}

/// A program of this length.
fn plant(path: &Path, length: usize) {
    fs::create_dir_all(path.parent().expect("its folder")).expect("a folder");
    let mut content = PLANTED.as_bytes().to_vec();
    content.resize(length, b'\n');
    fs::write(path, content).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("to be executed");
}
