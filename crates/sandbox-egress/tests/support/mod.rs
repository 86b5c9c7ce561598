//! Everything around one sandbox's way out: a server on loopback, a name server that lies when it is told to, and the doors.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use hickory_proto::{
    op::Message,
    rr::{RData, Record as DnsRecord, RecordType, rdata},
};
use sandbox_egress::{Doors, Effect, Engine, Protocol, Record, Resolver, Rule, Rules, Secrets, Setup};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, UdpSocket},
};

/// Where the servers of tests are.
pub const HERE: &[&str] = &["127.0.0.0/8"];

/// Everything around one sandbox's way out.
pub struct World {
    pub engine: Arc<Engine>,
    pub proxy: SocketAddr,
    pub dns: SocketAddr,
    pub records: Arc<Mutex<Vec<Record>>>,
    pub questions: Arc<AtomicUsize>,
    /// Connections that arrived at the server.
    pub arrived: Arc<AtomicUsize>,
    pub port: u16,
}

pub fn allow(hosts: &[&str], within: &[&str]) -> Rule {
    Rule {
        name: hosts.join(" "),
        effect: Effect::Allow,
        hosts: hosts.iter().map(|host| host.parse().unwrap()).collect(),
        ports: Vec::new(),
        protocol: Protocol::Tcp,
        within: within.iter().map(|block| block.parse().unwrap()).collect(),
    }
}

pub fn deny(hosts: &[&str]) -> Rule {
    Rule { effect: Effect::Deny, ..allow(hosts, &[]) }
}

impl World {
    /// With a server on loopback that answers each line with `served: ` and the line, and a name server that gives these
    /// addresses one after the other, and then the last for ever.
    pub async fn new(rules: Vec<Rule>, addresses: &[&str]) -> Self {
        Self::with(rules, addresses, Secrets::default()).await
    }

    pub async fn with(rules: Vec<Rule>, addresses: &[&str], secrets: Secrets) -> Self {
        let (records, questions, arrived) = (Arc::default(), Arc::default(), Arc::default());
        let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        tokio::spawn(serve(server, Arc::clone(&arrived)));
        let names = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let resolver = Resolver::with_server(names.local_addr().unwrap()).unwrap();
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        tokio::spawn(lie(names, addresses, Arc::clone(&questions)));
        let recorder: sandbox_egress::Recorder = {
            let records: Arc<Mutex<Vec<Record>>> = Arc::clone(&records);
            Box::new(move |record| records.lock().unwrap().push(record))
        };
        let rules = Rules(rules);
        let engine = Engine::new(Setup { secrets, ..Setup::new(rules, resolver, recorder) });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = listener.local_addr().unwrap();
        let asked = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let dns = asked.local_addr().unwrap();
        let doors = Doors { proxy: vec![listener], dns: vec![asked], ..Doors::default() };
        tokio::spawn(Arc::clone(&engine).serve(doors));
        Self { engine, proxy, dns, records, questions, arrived, port }
    }

    /// Says this to the proxy and ends; everything that it answers.
    pub async fn say(&self, words: &[u8]) -> String {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        stream.write_all(words).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub async fn connect(&self, host: &str, then: &[u8]) -> String {
        let head = format!("CONNECT {host}:{} HTTP/1.1\r\nHost: x\r\n\r\n", self.port);
        self.say(&[head.as_bytes(), then].concat()).await
    }

    pub async fn socks(&self, name: &str, then: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.proxy).await.unwrap();
        let request =
            [&[5, 1, 0, 5, 1, 0, 3, name.len() as u8][..], name.as_bytes(), &self.port.to_be_bytes(), then].concat();
        stream.write_all(&request).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        answer
    }

    pub fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    /// The verdict of the last connection that has ended.
    pub async fn last(&self) -> Record {
        for _ in 0..200 {
            if let Some(record) = self.records.lock().unwrap().last() {
                return record.clone();
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("nothing was recorded")
    }
}

async fn serve(listener: TcpListener, arrived: Arc<AtomicUsize>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let arrived = Arc::clone(&arrived);
        tokio::spawn(async move {
            let mut words = Vec::new();
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = stream.read(&mut buffer).await {
                if words.is_empty() {
                    arrived.fetch_add(1, Ordering::SeqCst);
                }
                words.extend_from_slice(&buffer[..length]);
                if words.ends_with(b"\n") {
                    break;
                }
            }
            let text = String::from_utf8_lossy(&words).replace('\r', "");
            let body = format!("served: {text}");
            let reply = if text.starts_with("GET") {
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
            } else {
                body
            };
            let _ = stream.write_all(reply.as_bytes()).await;
        });
    }
}

/// A name server whose answers change.
async fn lie(socket: UdpSocket, addresses: Vec<IpAddr>, questions: Arc<AtomicUsize>) {
    let mut buffer = [0; 1024];
    while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
        let question = Message::from_vec(&buffer[..length]).unwrap();
        let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
        let query = question.queries[0].clone();
        if query.query_type() == RecordType::A {
            let at = questions.fetch_add(1, Ordering::SeqCst);
            if let Some(IpAddr::V4(address)) = addresses.get(at).or(addresses.last()) {
                reply.add_answers([DnsRecord::from_rdata(query.name().clone(), 0, RData::A(rdata::A(*address)))]);
            }
        }
        reply.add_query(query);
        socket.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
    }
}
