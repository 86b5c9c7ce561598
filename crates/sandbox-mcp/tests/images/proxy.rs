//! Stands between the program and a registry, and cuts connections.

use std::{
    io::{Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Passes bytes on.
pub struct Proxy {
    pub port: u16,
    /// The first lines and headers of all requests.
    pub asked: Arc<Mutex<Vec<String>>>,
}

impl Proxy {
    /// To this port. The first `cuts` blobs that are longer than `after` end there.
    pub fn start(to: u16, cuts: usize, after: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, left) = (asked.clone(), Arc::new(AtomicUsize::new(cuts)));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (seen, left) = (seen.clone(), left.clone());
                std::thread::spawn(move || pass(stream, to, &seen, &left, after));
            }
        });
        Self { port, asked }
    }

    /// How many requests had this in them.
    pub fn count(&self, text: &str) -> usize {
        self.asked.lock().unwrap().iter().filter(|asked| asked.contains(text)).count()
    }
}

fn pass(mut client: TcpStream, to: u16, seen: &Mutex<Vec<String>>, left: &AtomicUsize, after: usize) -> Option<()> {
    let mut request = vec![0; 64 << 10];
    let length = client.read(&mut request).ok()?;
    seen.lock().unwrap().push(String::from_utf8_lossy(&request[..length]).into_owned());
    let is_blob = String::from_utf8_lossy(&request[..length]).contains("/blobs/");
    let mut server = TcpStream::connect(("127.0.0.1", to)).ok()?;
    server.write_all(&request[..length]).ok()?;
    let (mut passed, mut buffer) = (0, vec![0; 16 << 10]);
    loop {
        let length = server.read(&mut buffer).ok().filter(|length| *length > 0)?;
        let cut = |left: usize| left.checked_sub(1);
        let too_long = is_blob && passed + length > after;
        if too_long && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, cut).is_ok() {
            let _ = client.write_all(&buffer[..after - passed]);
            let _ = client.shutdown(Shutdown::Both);
            return None;
        }
        client.write_all(&buffer[..length]).ok()?;
        passed += length;
    }
}
