//! A way out that leads to servers on loopback, and such servers.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use sandbox_egress::{Doors, Effect, Engine, Limits, Places, Protocol, Record, Resolver, Rule, Rules, Setup};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

/// A way out that leads to servers on loopback.
pub struct Way {
    pub engine: Arc<Engine>,
    pub proxy: SocketAddr,
    pub records: Arc<Mutex<Vec<Record>>>,
    pub silence: UdpSocket,
}

impl Way {
    pub async fn new(limits: Limits) -> Self {
        Self::among(limits, Places::default()).await
    }

    pub async fn among(limits: Limits, places: Places) -> Self {
        let rule = Rule {
            name: "here".into(),
            effect: Effect::Allow,
            hosts: ["127.0.0.1", "*.example"].map(|host| host.parse().unwrap()).into(),
            ports: Vec::new(),
            protocol: Protocol::Tcp,
            within: vec!["127.0.0.0/8".parse().unwrap()],
        };
        // A name server that never answers.
        let silence = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let records: Arc<Mutex<Vec<Record>>> = Arc::default();
        let written = Arc::clone(&records);
        let engine = Engine::new(Setup {
            rules: Rules(vec![rule]),
            resolver: Resolver::with_server(silence.local_addr().unwrap()).unwrap(),
            limits,
            places,
            recorder: Box::new(move |record| written.lock().unwrap().push(record)),
            on_refusal: Box::new(|_| {}),
            secrets: sandbox_egress::Secrets::default(),
            reader: sandbox_egress::Reader::Model,
            own: None,
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        tokio::spawn(Arc::clone(&engine).serve(Doors { proxy: vec![listener], ..Doors::default() }));
        Self { engine, proxy, records, silence }
    }

    /// A tunnel, by CONNECT.
    pub async fn tunnel(&self, port: u16) -> TcpStream {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        stream.write_all(format!("CONNECT 127.0.0.1:{port} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&head));
        stream
    }

    /// The records, once there are so many.
    pub async fn records(&self, count: usize) -> Vec<Record> {
        for _ in 0..300 {
            let found = self.records.lock().unwrap().clone();
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{:?}", self.records.lock().unwrap())
    }
}

/// A server that sends so many bytes to whoever comes, swallows what it is sent, and ends when both are done.
pub async fn source(bytes: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let (bytes, mut sink) = (vec![0; bytes], tokio::io::sink());
                let _ = tokio::join!(writer.write_all(&bytes), tokio::io::copy(&mut reader, &mut sink));
            });
        }
    });
    port
}

pub async fn drain(mut stream: TcpStream) -> (usize, std::io::Result<()>) {
    let (mut total, mut buffer) = (0, vec![0; 64 << 10]);
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) => return (total, Ok(())),
            Ok(length) => total += length,
            Err(error) => return (total, Err(error)),
        }
    }
}
