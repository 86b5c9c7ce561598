//! open_port: what people see of web servers inside, and what others do not.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    harness::{Era, cgroups_with, mounts_with, processes_with, start, start_in},
    visitor::{Preview, page},
};

#[tokio::test]
async fn a_page_from_inside_is_seen_at_an_address_that_stays() {
    let client = start().await;
    let session = client.sandbox().await;
    let command = "echo hello from inside > index.html; exec python3 -m http.server 8000 --bind 127.0.0.1";
    client.ok("run_command", json!({"session_id": session, "command": command, "wait_seconds": 0})).await;
    let preview = client.open_port(&session, 8000).await;
    preview.wait().await;
    let label = session.replace('_', "-");
    assert!(preview.authority.contains(&format!(".{label}.localhost:")), "{preview:?}");
    assert_eq!(preview.get("/").await.text(), "hello from inside\n");
    let again = client.ok("open_port", json!({"session_id": session, "port": 8000})).await;
    assert_eq!(again, json!({"url": preview.url, "port": 8000, "listening": true}));
    // A client of its own, which finds such names by itself.
    let curl =
        tokio::process::Command::new("curl").args(["-sS", "--noproxy", "*", &preview.url]).output().await.unwrap();
    assert_eq!(String::from_utf8_lossy(&curl.stdout), "hello from inside\n", "{curl:?}");
    let events = client.history(&session, "port_opened", 1).await;
    assert_eq!(events.iter().filter(|event| event["event"] == "port_opened" && event["port"] == 8000).count(), 1);
    let key = preview.authority.split_once('.').unwrap().0;
    assert!(!events.iter().any(|event| event.to_string().contains(key)), "the address is not written down");
}

#[tokio::test]
async fn until_somebody_listens_the_address_says_so_and_waits() {
    let client = start().await;
    let session = client.sandbox().await;
    let opened = client.ok("open_port", json!({"session_id": session, "port": 9000})).await;
    assert_eq!(opened["listening"], false);
    let preview = Preview::of(&opened);
    let told = preview.get("/").await;
    assert_eq!(told.status, 502);
    assert!(told.text().contains("Nobody listens on port 9000") && told.text().contains("Start it inside"), "{told:?}");
    let shown = preview.get_with("/", "Accept: text/html,*/*\r\n").await;
    assert!(shown.has("content-type: text/html") && shown.text().contains("http-equiv=refresh content=2"), "{shown:?}");
    assert!(shown.has("cache-control: no-store"));
    client.web_server(&session, 9000).await;
    assert_eq!(preview.get("/asked").await.status, 200, "the same address");
    let garbage = "exec python3 -c 'import socket as s; l = s.create_server((\"127.0.0.1\", 9001))
while True: c = l.accept()[0]; c.sendall(b\"SSH-2.0-x\\r\\n\"); c.close()'";
    client.ok("run_command", json!({"session_id": session, "command": garbage, "wait_seconds": 0})).await;
    let other = client.open_port(&session, 9001).await;
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !other.get("/").await.text().contains("gave no answer") {
        assert!(std::time::Instant::now() < until, "{:?}", other.get("/").await);
    }
}

#[tokio::test]
async fn whoever_does_not_name_the_whole_address_gets_nothing_in_and_learns_nothing() {
    let client = start().await;
    let session = client.sandbox().await;
    let preview = client.web_server(&session, 8000).await;
    let Preview { authority, port, .. } = &preview;
    let (key, rest) = authority.split_once('.').unwrap();
    let host = authority.split_once(':').unwrap().0;
    let wrong = [
        format!("localhost:{port}"),
        format!("127.0.0.1:{port}"),
        format!("evil.example:{port}"),
        rest.to_owned(),
        format!("{}.{rest}", "0".repeat(key.len())),
        host.to_owned(),
        format!("{host}.:{port}"),
        format!("{authority}, {authority}"),
        String::new(),
    ];
    let mut requests: Vec<String> =
        wrong.iter().map(|host| format!("GET /secret HTTP/1.1\r\nHost: {host}\r\n\r\n")).collect();
    requests.push("GET /secret HTTP/1.0\r\n\r\n".to_owned());
    requests.push(format!("GET /secret HTTP/1.1\r\nHost: {authority}\r\nHost: {authority}\r\n\r\n"));
    requests.push(format!("GET http://evil.example:{port}/secret HTTP/1.1\r\nHost: {authority}\r\n\r\n"));
    requests.push(format!("GET http://{authority}/secret HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n"));
    for request in requests {
        let told = preview.say(&request).await;
        assert_eq!(told.status, 421, "{request}: {told:?}");
        let all = format!("{}{}", told.head, told.text());
        assert!(!all.contains(key) && !all.contains(&session) && told.text().contains("whole address"), "{told:?}");
    }
    let tunnel = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    assert_eq!(preview.say(&tunnel).await.status, 405);
    let absolute = format!("GET http://{authority}/headers HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n");
    assert_eq!(preview.say(&absolute).await.json()[1], "/headers");
    let asked = preview.get("/asked").await.json().to_string();
    assert!(!asked.contains("secret"), "{asked}");
}

#[tokio::test]
async fn nothing_of_ours_goes_in_and_nothing_that_looks_like_ours_comes_out() {
    let client = start().await;
    let session = client.sandbox().await;
    let preview = client.web_server(&session, 8000).await;
    let ours = "Authorization: Bearer sandbox_mcp_secret\r\nCookie: a=1; sandbox_mcp_session=secret; b=2\r\n\
                Cookie: __Host-sandbox-mcp=secret\r\nX-Forwarded-For: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\n\
                Proxy-Authorization: Basic secret\r\nX-Theirs: kept\r\n";
    let told = preview.get_with("/headers", ours).await.json();
    let text = told.to_string();
    assert!(!text.contains("secret") && !text.contains("9.9.9.9"), "{text}");
    let headers: Vec<(String, String)> = serde_json::from_value(told[2].clone()).unwrap();
    let value = |wanted: &str| headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).unwrap().1.clone();
    assert_eq!((value("cookie"), value("x-theirs")), ("a=1; b=2".into(), "kept".into()));
    assert_eq!((value("host"), value("x-forwarded-host")), (preview.authority.clone(), preview.authority.clone()));
    assert_eq!((value("x-forwarded-for"), value("x-forwarded-proto")), ("127.0.0.1".into(), "http".into()));
    let theirs = preview.get_with("/headers", "Authorization: Bearer theirs\r\n").await.json().to_string();
    assert!(theirs.contains("Bearer theirs"), "{theirs}");

    let answer = preview.get("/cookies").await;
    assert!(
        answer.head.contains("Set-Cookie: mine=1; Path=/\r\n") && answer.head.contains("X-Mine: kept"),
        "{answer:?}"
    );
    for gone in ["domain", "sandbox", "strict-transport", "clear-site"] {
        assert!(!answer.has(gone), "{gone}: {answer:?}");
    }
}

#[tokio::test]
async fn websockets_work_and_each_direction_ends_by_itself() {
    let client = start().await;
    let session = client.sandbox().await;
    let preview = client.web_server(&session, 8000).await;
    let mut stream = preview.connect().await.unwrap();
    let asked = format!(
        "GET /echo HTTP/1.1\r\nHost: {}\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        preview.authority
    );
    stream.write_all(asked.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101") && head.contains("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="), "{head}");
    let message: Vec<u8> = (0..300_000u32).map(|number| (number % 251) as u8).collect();
    let (mut reader, mut writer) = stream.into_split();
    let sent = message.clone();
    tokio::spawn(async move {
        writer.write_all(&sent).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut back = Vec::new();
    reader.read_to_end(&mut back).await.unwrap();
    assert_eq!((back.len(), &back[message.len()..]), (message.len() + 3, b"bye".as_slice()));
    assert!(back.starts_with(&message));

    let h2c = preview.get_with("/headers", "Upgrade: h2c\r\nHTTP2-Settings: x\r\n").await;
    assert!(h2c.status == 200 && !h2c.text().to_lowercase().contains("h2c"), "{h2c:?}");
}

#[tokio::test]
async fn much_goes_through_whole_and_as_it_comes() {
    const SIZE: usize = 50 << 20;
    let client = start().await;
    let session = client.sandbox().await;
    // Every part of it is different, so that a lost or doubled one is seen.
    let content: String = (1..).map(|number: u32| format!("{number}\n")).take(SIZE / 7).collect();
    let content = &content.as_bytes()[..SIZE];
    let hash = sha256(content);
    let command =
        format!("seq 1 {} | head -c {SIZE} > big; exec python3 -m http.server 8001 --bind 127.0.0.1", SIZE / 7);
    client.ok("run_command", json!({"session_id": session, "command": command, "wait_seconds": 0})).await;
    let files = client.open_port(&session, 8001).await;
    files.wait().await;
    let big = files.get("/big").await;
    assert_eq!((big.body.len(), sha256(&big.body)), (SIZE, hash.clone()));

    let preview = client.web_server(&session, 8000).await;
    let mut stream = preview.connect().await.unwrap();
    let length = big.body.len();
    let head = format!(
        "POST / HTTP/1.1\r\nHost: {}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n",
        preview.authority
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&big.body).await.unwrap();
    assert_eq!(page(&mut stream).await.text(), hash);

    let mut slow = preview.connect().await.unwrap();
    let asked = format!("GET /slowly HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", preview.authority);
    slow.write_all(asked.as_bytes()).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"first\r\n") {
        seen.push(slow.read_u8().await.unwrap());
    }
    preview.get("/go-on").await;
    slow.read_to_end(&mut seen).await.unwrap();
    assert!(String::from_utf8_lossy(&seen).contains("second"), "what comes later comes too");
}

#[tokio::test]
async fn a_connection_is_used_again_and_many_work_at_once() {
    let client = start().await;
    let session = client.sandbox().await;
    let preview = client.web_server(&session, 8000).await;
    let mut stream = preview.connect().await.unwrap();
    let mut ports = Vec::new();
    for round in 0..5 {
        let last = if round == 4 { "Connection: close\r\n" } else { "" };
        let asked = format!("GET /connection HTTP/1.1\r\nHost: {}\r\n{last}\r\n", preview.authority);
        stream.write_all(asked.as_bytes()).await.unwrap();
        if round < 4 {
            let mut seen = String::new();
            while seen.split_once("\r\n\r\n").is_none_or(|(_, body)| body.len() < 5) {
                seen.push(char::from(stream.read_u8().await.unwrap()));
            }
            ports.push(seen.split_once("\r\n\r\n").unwrap().1.to_owned());
        } else {
            ports.push(page(&mut stream).await.text().to_owned());
        }
    }
    assert!(ports.iter().all(|port| *port == ports[0]), "one connection inside serves one outside: {ports:?}");
    let visits = (0..150).map(|_| {
        let preview = preview.clone();
        tokio::spawn(async move { preview.get("/headers").await.status })
    });
    for visit in visits.collect::<Vec<_>>() {
        assert_eq!(visit.await.unwrap(), 200);
    }
}

#[tokio::test]
async fn an_address_ends_with_its_sandbox_and_with_its_server() {
    let folder = tempfile::tempdir().unwrap();
    let mut first = start_in(folder.path(), Era::Legacy, &[]).await;
    let mut second = start_in(folder.path(), Era::Modern, &[]).await;
    let session = first.sandbox().await;
    let preview = first.web_server(&session, 8000).await;
    // Another server of this user has an address of its own.
    let other = second.open_port(&session, 8000).await;
    assert_ne!(preview.authority, other.authority);
    assert_eq!(other.get("/headers").await.status, 200);
    let mut open = other.connect().await.unwrap();
    first.ok("cleanup_session", json!({"session_id": session})).await;
    assert!(preview.connect().await.is_err(), "it is gone when the answer comes");
    other.gone().await;
    assert!(matches!(open.read(&mut [0; 9]).await, Ok(0) | Err(_)), "connections end too");
    let events = first.history(&session, "port_closed", 2).await;
    assert!(events.iter().any(|event| event["event"] == "port_closed" && event["port"] == 8000), "{events:?}");
    first.refused("open_port", json!({"session_id": session, "port": 8000})).await;

    let kept = second.sandbox_with(json!({"persistent": true})).await;
    let preview = second.web_server(&kept, 8000).await;
    second.close().await;
    preview.gone().await;
    assert_eq!(first.open_port(&kept, 8000).await.get("/headers").await.status, 200, "the server inside lives on");
    first.ok("cleanup_session", json!({"session_id": kept})).await;
    first.close().await;
}

#[tokio::test]
async fn a_page_that_waits_keeps_no_idle_sandbox_and_its_end_closes_the_port() {
    let client = crate::harness::start_with(Era::Legacy, &[("AUTO_CLEANUP_MINUTES", "0.05")]).await;
    let session = client.sandbox().await;
    let preview = client.open_port(&session, 8000).await;
    let until = std::time::Instant::now() + Duration::from_secs(30);
    while client.folder(&session).exists() {
        assert!(std::time::Instant::now() < until, "it is kept by whoever looks at a page that waits");
        if let Ok(mut stream) = preview.connect().await {
            let asked = format!("GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", preview.authority);
            let _ = stream.write_all(asked.as_bytes()).await;
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    preview.gone().await;
}

#[tokio::test]
async fn what_cannot_be_opened_is_refused_with_what_to_do() {
    let client = start().await;
    let session = client.sandbox().await;
    let refused = async |port: Value| client.refused("open_port", json!({"session_id": session, "port": port})).await;
    for port in [0, 3128, 3129, 3153] {
        assert!(refused(json!(port)).await.contains("cannot be opened"), "{port}");
    }
    assert!(refused(json!(65536)).await.contains("from 1 to 65535"));
    assert!(refused(json!("web")).await.contains("whole number"));
    let unknown = json!({"session_id": session, "port": 80, "host": "0.0.0.0"});
    assert!(client.refused("open_port", unknown).await.contains("there is no field"));
    let others = json!({"session_id": session, "port": 80, "user_id": "somebody"});
    assert!(client.refused("open_port", others).await.contains("there is no sandbox"));
    for port in 8000..8008 {
        client.open_port(&session, port).await;
    }
    let full = refused(json!(8008)).await;
    assert!(full.contains("8 open ports (8000, 8001,") && full.contains("may have 8"), "{full}");
    client.open_port(&session, 8003).await;
    client.open_port(&client.sandbox().await, 8008).await;
}

#[tokio::test]
async fn every_level_can_show_its_pages_and_reaches_no_listener_outside() {
    let client = start().await;
    for policy in ["yolo-1", "yolo-4", "full_isolation", "build", "development"] {
        let session = client.sandbox_with(json!({"policy": policy})).await;
        let preview = client.web_server(&session, 8000).await;
        assert_eq!(preview.get("/headers").await.status, 200, "{policy}");
        let knock = format!(
            "/usr/bin/python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {}), 2)'",
            preview.port
        );
        assert_ne!(client.run(&session, &knock).await["exit_code"], 0, "{policy} reaches this machine's loopback");
        client.ok("cleanup_session", json!({"session_id": session})).await;
    }
}

#[tokio::test]
async fn only_loopback_is_listened_on_and_the_key_is_seen_nowhere() {
    let client = start().await;
    let session = client.sandbox().await;
    let preview = client.open_port(&session, 8000).await;
    let number = format!(":{:04X} ", preview.port);
    let listening = |table: &str| -> Vec<String> {
        let table = std::fs::read_to_string(table).unwrap_or_default();
        let lines = table.lines().filter(|line| line.split_whitespace().nth(3) == Some("0A"));
        lines.filter_map(|line| line.split_whitespace().nth(1)).map(|local| format!("{local} ")).collect()
    };
    let found = [listening("/proc/net/tcp"), listening("/proc/net/tcp6")].concat();
    let ours: Vec<&String> = found.iter().filter(|local| local.ends_with(&number)).collect();
    let loopback =
        |local: &&&String| local.starts_with("0100007F") || local.starts_with("00000000000000000000000001000000");
    assert!(!ours.is_empty() && ours.iter().all(|local| loopback(&local)), "{ours:?}");
    // A session id is seen by every user of this machine, at least as the name of a cgroup. A key is not.
    let key = preview.authority.split_once('.').unwrap().0;
    assert_eq!((processes_with(key), cgroups_with(key), mounts_with(key)), (0, Vec::new(), 0));
}

#[tokio::test]
async fn the_terminal_opens_a_port_until_it_is_stopped_or_the_sandbox_ends() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let client = start().await;
    let session = client.sandbox().await;
    client.web_server(&session, 8000).await;
    let open = async || {
        let mut command = tokio::process::Command::new(crate::harness::BINARY);
        command.args(["open", &session, "8000"]).env("WORKSPACE_BASE", client.state()).kill_on_drop(true);
        let mut child =
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).await.unwrap();
        (child, Preview::at(url.trim()))
    };
    let (mut child, preview) = open().await;
    assert_eq!(preview.get("/headers").await.status, 200);
    let pid = rustix::process::Pid::from_raw(child.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(child.wait().await.unwrap().success());
    assert!(preview.connect().await.is_err());
    let (child, preview) = open().await;
    client.ok("cleanup_session", json!({"session_id": session})).await;
    let ended = child.wait_with_output().await.unwrap();
    assert!(String::from_utf8_lossy(&ended.stderr).contains("the sandbox has ended"), "{ended:?}");
    assert!(preview.connect().await.is_err());
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
