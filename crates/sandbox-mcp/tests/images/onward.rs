//! Registries that send us where they are not: to this machine. In a network namespace of the test's own, in which the registry
//! has an address that anybody could reach.

use std::{fs, process::Command};

use crate::kit::{Ended, Here};

/// Answers everything with a challenge whose tokens are given on this machine, and writes down who asks there.
const SERVERS: &str = r#"
import http.server, sys, threading
folder = sys.argv[1]
class Tokens(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        open(folder + "/asked", "a").write(str(self.headers))
        self.send_response(403); self.end_headers()
class Registry(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if "moved" in self.path:
            self.send_response(307); self.send_header("Location", "http://127.0.0.1:5001/moved")
        else:
            self.send_response(401); self.send_header("WWW-Authenticate", 'Bearer realm="http://127.0.0.1:5001/token"')
        self.send_header("Content-Length", "0"); self.end_headers()
tokens = http.server.HTTPServer(("127.0.0.1", 5001), Tokens)
registry = http.server.HTTPServer((sys.argv[2], 5000), Registry)
threading.Thread(target=tokens.serve_forever, daemon=True).start()
open(folder + "/ready", "w").close()
registry.serve_forever()
"#;

/// In a namespace with this address, what pulling an image from there says, and whether this machine was asked.
fn pulled(registry: &str, image: &str) -> (Ended, String) {
    let here = Here::new();
    let folder = here.path().to_str().unwrap().to_owned();
    fs::write(here.path().join("servers.py"), SERVERS).unwrap();
    let known = r#"{"auths": {"R:5000": {"auth": "bWU6c2VjcmV0"}}}"#.replace('R', registry);
    fs::create_dir(here.path().join(".docker")).unwrap();
    fs::write(here.path().join(".docker/config.json"), known).unwrap();
    let pull = here.command(&["pull", &format!("{registry}:5000/{image}")]);
    let program = pull.get_program().to_str().unwrap();
    let script = format!(
        "ip link set lo up; ip addr add {registry}/32 dev lo 2>/dev/null; python3 {folder}/servers.py {folder} {registry} 2>/dev/null &
         server=$!; for _ in $(seq 100); do test -e {folder}/ready && break; sleep 0.1; done
         {program} pull {registry}:5000/{image}; code=$?; kill $server; exit $code"
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]).envs(pull.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env("SANDBOX_MCP_INSECURE_REGISTRIES", format!("{registry}:5000"));
    let ended = Ended::of(command.output().unwrap());
    (ended, fs::read_to_string(here.path().join("asked")).unwrap_or_default())
}

#[test]
fn a_registry_elsewhere_sent_a_password_to_this_machine() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root makes a network namespace with addresses of its own");
        return;
    }
    for image in ["x:1", "moved:1"] {
        let (ended, asked) = pulled("203.0.113.7", image);
        assert_eq!((ended.code, asked.as_str()), (Some(1), ""), "{image}: {ended:?}");
        assert!(ended.err.contains("leads to this machine or a private network"), "{image}: {ended:?}");
    }
    // A registry of this machine has its tokens here too.
    let (ended, asked) = pulled("127.0.0.2", "x:1");
    assert!(asked.contains("Basic bWU6c2VjcmV0"), "{asked} {ended:?}");
}
