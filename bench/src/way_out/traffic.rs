//! A server on loopback that sends as many bytes as it is asked for, over a protocol of its own or over HTTP.
//!
//! Its own: a client says [`ASK`] and a number, and gets that many bytes. A client may stay connected after that; who
//! is held so is counted, and let go all at once.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The first byte of a request. It begins neither TLS nor HTTP.
pub const ASK: u8 = 1;
/// Where this program itself can be fetched, so that it can be run where no file of ours is seen.
pub const PROGRAM: &str = "/program";

const PIECE: usize = 256 << 10;
/// Connections are threads, and a thousand of them are held.
const STACK: usize = 64 << 10;

/// The server, until the program ends.
pub struct Traffic {
    /// Where it listens.
    pub port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Traffic {
    /// Listens in the network namespace behind this file, or in our own. There every address is fine, for nobody else is
    /// there; here it is loopback.
    pub fn start(namespace: Option<PathBuf>) -> Result<Self> {
        let open = Arc::new(Mutex::new(Vec::new()));
        let accepting = Arc::clone(&open);
        // A namespace belongs to a thread, and a socket stays in the one in which it was made.
        let listen = move || -> Result<TcpListener> {
            let address = match namespace {
                Some(path) => {
                    let namespace = File::open(&path).with_context(|| path.display().to_string())?;
                    let network = Some(LinkNameSpaceType::Network);
                    move_into_link_name_space(std::os::fd::AsFd::as_fd(&namespace), network)?;
                    "0.0.0.0:0"
                }
                None => "127.0.0.1:0",
            };
            Ok(TcpListener::bind(address)?)
        };
        let listener = thread::spawn(listen).join().map_err(|_| anyhow!("a thread panicked"))??;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            let piece: Arc<[u8]> = vec![b'.'; PIECE].into();
            for stream in listener.incoming().flatten() {
                let (open, piece) = (Arc::clone(&accepting), Arc::clone(&piece));
                // Who cannot be served notices.
                let _ = thread::Builder::new().stack_size(STACK).spawn(move || serve(stream, &piece, &open));
            }
        });
        Ok(Self { port, open })
    }

    /// Waits until so many clients have what they asked for and stay.
    pub fn await_held(&self, count: usize, patience: Duration) -> Result<()> {
        let start = Instant::now();
        loop {
            let held = self.open.lock().unwrap_or_else(PoisonError::into_inner).len();
            if held == count {
                return Ok(());
            }
            ensure!(start.elapsed() < patience, "{held} of {count} connections were held");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Lets all go.
    pub fn release(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// One client. If it breaks off, that is its own concern.
fn serve(mut stream: TcpStream, piece: &[u8], open: &Mutex<Vec<TcpStream>>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut first = [0; 9];
    stream.read_exact(&mut first[..1])?;
    if first[0] != ASK {
        return serve_http(stream, first[0], piece);
    }
    stream.read_exact(&mut first[1..])?;
    let [_, count @ ..] = first;
    send(&mut stream, u64::from_le_bytes(count), piece)?;
    if u64::from_le_bytes(count) == HELD {
        open.lock().unwrap_or_else(PoisonError::into_inner).push(stream.try_clone()?);
    }
    // The client closes first, so that the ports that linger are its own.
    stream.read(&mut first).map(drop)
}

/// Who asks for so many bytes wants to stay.
pub const HELD: u64 = 2;

fn serve_http(mut stream: TcpStream, first: u8, piece: &[u8]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut request, mut line) = (String::from(char::from(first)), String::new());
    reader.read_line(&mut request)?;
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    if path == PROGRAM {
        let program = fs::read(std::env::current_exe()?)?;
        head(&mut stream, program.len() as u64)?;
        return stream.write_all(&program);
    }
    let count = path.trim_start_matches('/').parse().unwrap_or(0);
    head(&mut stream, count)?;
    send(&mut stream, count, piece)?;
    stream.shutdown(Shutdown::Write)?;
    stream.read(&mut [0; 1]).map(drop)
}

fn head(stream: &mut TcpStream, length: u64) -> std::io::Result<()> {
    stream.write_all(format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n").as_bytes())
}

fn send(stream: &mut TcpStream, mut count: u64, piece: &[u8]) -> std::io::Result<()> {
    while count > 0 {
        let length = count.min(piece.len() as u64);
        stream.write_all(&piece[..length as usize])?;
        count -= length;
    }
    Ok(())
}
