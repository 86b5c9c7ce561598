//! A visitor of preview addresses who writes requests by hand, so that it can also say what no browser says.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::harness::Client;

/// The web server of `tests/support/server.py`.
const SERVER: &str = include_str!("../support/server.py");

/// A preview address.
#[derive(Clone, Debug)]
pub struct Preview {
    pub url: String,
    /// `KEY.SESSION.localhost:PORT`
    pub authority: String,
    pub port: u16,
}

/// An answer, its head as text.
#[derive(Debug)]
pub struct Page {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Page {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub fn has(&self, header: &str) -> bool {
        self.head.to_lowercase().contains(&header.to_lowercase())
    }
}

impl Preview {
    pub fn of(opened: &Value) -> Self {
        Self::at(opened["url"].as_str().unwrap())
    }

    pub fn at(url: &str) -> Self {
        let authority = url.strip_prefix("http://").unwrap().strip_suffix('/').unwrap().to_owned();
        let port = authority.split_once(':').unwrap().1.parse().unwrap();
        Self { url: url.to_owned(), authority, port }
    }

    pub async fn connect(&self) -> std::io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", self.port)).await
    }

    /// The answer to these bytes, read to the end of the connection.
    pub async fn say(&self, request: &str) -> Page {
        let mut stream = self.connect().await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        page(&mut stream).await
    }

    pub async fn get(&self, path: &str) -> Page {
        self.get_with(path, "").await
    }

    /// With more headers, each with its end of line.
    pub async fn get_with(&self, path: &str, headers: &str) -> Page {
        let authority = &self.authority;
        self.say(&format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\n{headers}Connection: close\r\n\r\n")).await
    }

    /// Waits until somebody inside answers.
    pub async fn wait(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.get("/").await.status == 502 {
            assert!(Instant::now() < until, "nobody answers inside");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until nobody listens outside.
    pub async fn gone(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.connect().await.is_ok() {
            assert!(Instant::now() < until, "somebody still listens");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Reads an answer that ends with its connection.
pub async fn page(stream: &mut TcpStream) -> Page {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut bytes)).await;
    read.expect("an answer in time").unwrap();
    let end = bytes.windows(4).position(|part| part == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Page { status, head, body: bytes[end + 4..].to_vec() }
}

impl Client {
    /// Starts the web server in a sandbox, on this port, and opens it.
    pub async fn web_server(&self, session: &str, port: u16) -> Preview {
        let files = json!([{"path": "server.py", "content": SERVER}]);
        self.ok("write_files", json!({"session_id": session, "files": files})).await;
        let command = format!("exec /usr/bin/python3 server.py {port}");
        self.ok("run_command", json!({"session_id": session, "command": command, "wait_seconds": 0})).await;
        let preview = self.open_port(session, port).await;
        preview.wait().await;
        preview
    }

    pub async fn open_port(&self, session: &str, port: u16) -> Preview {
        Preview::of(&self.ok("open_port", json!({"session_id": session, "port": port})).await)
    }
}
