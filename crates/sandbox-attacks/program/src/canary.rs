//! The other role, on the host's side: holds things with a mark that must not be seen or reached from inside.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, UdpSocket},
    os::{
        linux::net::SocketAddrExt,
        unix::net::{SocketAddr, UnixListener},
    },
    process::ExitCode,
};

use crate::{
    arguments::Arguments,
    sys::{Argument, call, n},
};

/// Says what it holds, and holds it until its input ends.
pub fn hold(arguments: &Arguments) -> ExitCode {
    let mark = arguments.mark();
    let folder = arguments.text("folder").unwrap_or("/tmp").to_owned();
    let tcp4 = TcpListener::bind("127.0.0.1:0").ok();
    let tcp6 = TcpListener::bind("[::1]:0").ok();
    let udp4 = UdpSocket::bind("127.0.0.1:0").ok();
    let port =
        |listener: &Option<TcpListener>| listener.as_ref().and_then(|l| l.local_addr().ok()).map_or(0, |a| a.port());
    let (port4, port6) = (port(&tcp4), port(&tcp6));
    let udp_port = udp4.as_ref().and_then(|socket| socket.local_addr().ok()).map_or(0, |address| address.port());
    let hidden = SocketAddr::from_abstract_name(&mark).and_then(|address| UnixListener::bind_addr(&address));
    let named = UnixListener::bind(format!("{folder}/socket"));
    let shared = fs::write(format!("/dev/shm/{mark}"), &mark);
    let segment = call(libc::SYS_shmget, [n(arguments.number("segment", 0) as i64), n(4096), n(0o1666)]);
    let name = std::ffi::CString::new(mark.clone()).unwrap_or_default();
    let queue = call(libc::SYS_mq_open, [Argument::Text(&name), n(libc::O_CREAT | libc::O_RDWR), n(0o666), n(0)]);
    let short = std::ffi::CString::new(mark.get(..15).unwrap_or(&mark)).unwrap_or_default();
    let _ = call(libc::SYS_prctl, [n(15), Argument::Text(&short)]);
    if let Some(socket) = udp4 {
        std::thread::spawn(move || {
            let mut buffer = [0; 64];
            while let Ok((_, guest)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(b"here", guest);
            }
        });
    }
    let held = [hidden.is_ok(), named.is_ok(), shared.is_ok(), segment.is_ok(), queue.is_ok()];
    let _ = writeln!(std::io::stdout(), "{{\"tcp4\":{port4},\"tcp6\":{port6},\"udp4\":{udp_port},\"held\":{held:?}}}");
    let _ = std::io::stdin().read(&mut [0; 1]);
    let _ = fs::remove_file(format!("/dev/shm/{mark}"));
    let _ = call(libc::SYS_mq_unlink, [Argument::Text(&name)]);
    if let Ok(segment) = segment {
        let _ = call(libc::SYS_shmctl, [n(segment), n(libc::IPC_RMID), n(0)]);
    }
    ExitCode::SUCCESS
}
