//! The client of [`super::traffic`], which runs wherever it is measured from: this program, started as `bench client`.
//!
//! It takes its own times and prints them in seconds, so what it takes to start it does not count.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    thread,
    time::Instant,
};

use anyhow::{Context, Result, anyhow, ensure};
use clap::{Parser, ValueEnum};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::traffic::{ASK, HELD};

const PIECE: usize = 256 << 10;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Job {
    /// So many downloads at once; prints the time of all.
    Download,
    /// So many connections one after the other; prints the time of each until its first byte.
    Connect,
    /// So many connections at once, until the server lets them go.
    Hold,
}

/// How to get to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// A connection.
    Straight,
    /// The same, with a request over HTTP on it.
    StraightHttp,
    /// A tunnel through the proxy that the environment names.
    Tunnel,
    /// A request for a whole address to that proxy.
    ProxyHttp,
}

/// What `bench client` is told.
#[derive(Parser)]
pub struct Client {
    job: Job,
    how: How,
    /// Host and port of the server.
    server: String,
    /// How many.
    count: usize,
    /// How large a download is.
    #[arg(default_value_t = 1)]
    bytes: u64,
}

/// Runs as a client if this process was started as one.
pub fn run_if_asked() -> Option<Result<()>> {
    let mut words = std::env::args();
    let program = words.next()?;
    (words.next()? == "client").then(|| Client::parse_from([program].into_iter().chain(words)).run())
}

impl Client {
    fn run(&self) -> Result<()> {
        let road = Road::find(self.how, &self.server)?;
        let times = match self.job {
            Job::Download => vec![self.download(&road)?],
            Job::Connect => self.connect(&road)?,
            Job::Hold => self.hold(&road)?,
        };
        let mut out = std::io::stdout().lock();
        times.iter().try_for_each(|time| writeln!(out, "{time:.9}"))?;
        Ok(())
    }

    fn download(&self, road: &Road) -> Result<f64> {
        let start = Instant::now();
        let one = || -> Result<()> {
            let mut stream = road.ask(self.bytes)?;
            let (mut left, mut piece) = (self.bytes, vec![0; PIECE]);
            while left > 0 {
                let length = stream.read(&mut piece)?;
                ensure!(length > 0, "{left} of {} bytes did not come", self.bytes);
                left -= length as u64;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let all: Vec<_> = (0..self.count).map(|_| scope.spawn(one)).collect();
            all.into_iter().try_for_each(|one| one.join().map_err(|_| anyhow!("a thread panicked"))?)
        })?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn connect(&self, road: &Road) -> Result<Vec<f64>> {
        let once = || {
            let start = Instant::now();
            road.ask(1)?.read_exact(&mut [0])?;
            Ok(start.elapsed().as_secs_f64())
        };
        (0..self.count).map(|_| once()).collect()
    }

    fn hold(&self, road: &Road) -> Result<Vec<f64>> {
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?;
        let held = |number| -> Result<_> {
            let mut stream = road.ask(HELD).with_context(|| format!("connection {number}"))?;
            stream.read_exact(&mut [0; HELD as usize])?;
            Ok(stream)
        };
        let all = (1..=self.count).map(held).collect::<Result<Vec<_>>>()?;
        // An end is as good as a reset: both say that it is over.
        all.into_iter().for_each(|mut stream| drop(stream.read(&mut [0])));
        Ok(Vec::new())
    }
}

/// Where to connect to, and what to say first.
struct Road {
    how: How,
    first: SocketAddr,
    server: String,
}

impl Road {
    /// Names are looked up here, before anything is measured.
    fn find(how: How, server: &str) -> Result<Self> {
        let first = match how {
            How::Straight | How::StraightHttp => server.to_owned(),
            How::Tunnel | How::ProxyHttp => {
                let proxy = std::env::var("http_proxy").context("http_proxy names no proxy")?;
                proxy.trim_start_matches("http://").trim_end_matches('/').to_owned()
            }
        };
        let found = first.to_socket_addrs().with_context(|| first.clone())?.next();
        Ok(Self { how, first: found.with_context(|| format!("{first} has no address"))?, server: server.to_owned() })
    }

    /// A connection on which so many bytes come next.
    fn ask(&self, bytes: u64) -> Result<Box<dyn Read + Send>> {
        let mut stream = TcpStream::connect(self.first)?;
        stream.set_nodelay(true)?;
        let server = &self.server;
        match self.how {
            How::Straight => ask_plainly(stream, bytes),
            How::Tunnel => {
                let request = format!("CONNECT {server} HTTP/1.1\r\nhost: {server}\r\n\r\n");
                stream.write_all(request.as_bytes())?;
                // Nothing follows the answer, for the far end waits to be asked.
                read_head(&mut BufReader::new(&stream))?;
                ask_plainly(stream, bytes)
            }
            How::StraightHttp => ask_over_http(stream, &format!("/{bytes}"), server),
            How::ProxyHttp => ask_over_http(stream, &format!("http://{server}/{bytes}"), server),
        }
    }
}

fn ask_plainly(mut stream: TcpStream, bytes: u64) -> Result<Box<dyn Read + Send>> {
    let [a, b, c, d, e, f, g, h] = bytes.to_le_bytes();
    stream.write_all(&[ASK, a, b, c, d, e, f, g, h])?;
    Ok(Box::new(stream))
}

fn ask_over_http(mut stream: TcpStream, address: &str, server: &str) -> Result<Box<dyn Read + Send>> {
    let request = format!("GET {address} HTTP/1.1\r\nhost: {server}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    read_head(&mut reader)?;
    Ok(Box::new(reader))
}

fn read_head(reader: &mut impl BufRead) -> Result<()> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    ensure!(line.contains(" 200 "), "the answer was {line:?}");
    while line.len() > 2 {
        line.clear();
        reader.read_line(&mut line)?;
    }
    Ok(())
}
