//! What must be true of everything that reads hostile bytes, whatever they are.
//!
//! Each function takes any bytes and panics if something does not hold. `fuzz/` feeds them for hours with bytes that reach
//! ever more code; the ordinary tests do so for seconds (`tests/fuzz_corpus.rs`). Nothing here is for use otherwise.

mod http;
mod rules;

use hickory_proto::{
    op::{Message, MessageType},
    rr::RData,
};

pub use self::{http::http_head, rules::rules};
use crate::{
    Host, Name, Pattern, StandIns, Target,
    client_hello::{self, Beginning},
    dns::{self, Asked},
    socks,
};

/// Panics unless it holds for these bytes.
pub type Property = fn(&[u8]);

/// All of them, by name.
pub const ALL: [(&str, Property); 6] = [
    ("target", target),
    ("http_head", http_head),
    ("socks", socks),
    ("client_hello", client_hello),
    ("dns", dns),
    ("rules", rules),
];

/// Never part of a host, however it is written.
const NEVER: &[char] = &['\0', '@', '/', '\\', '?', '#', '%', ' ', '\t', '\r', '\n', '<', '>', '^', '|'];

/// What is taken for a target is written in one form only, and that form means the same.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for parsed in [text.parse::<Target>(), Target::from_authority(text, Some(80))] {
        let Ok(target) = parsed else { continue };
        assert!(!text.contains(NEVER), "{text:?} is taken as {target}");
        assert_eq!(target.to_string().parse(), Ok(target.clone()), "{text:?} is not read back");
        assert_ne!(target.port, 0);
        check_host(&target.host);
    }
    if let Ok(host) = text.parse::<Host>() {
        assert!(!text.contains(NEVER), "{text:?} is taken as {host}");
        assert_eq!(host.to_string().parse(), Ok(host.clone()), "{text:?} is not read back");
        check_host(&host);
    }
    if let Ok(pattern) = text.parse::<Pattern>() {
        assert_eq!(pattern.to_string().parse(), Ok(pattern), "{text:?} is not read back");
    }
}

fn check_host(host: &Host) {
    match host {
        Host::Name(name) => {
            let name = name.as_str();
            let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
            assert!(name.bytes().all(plain) && (1..=253).contains(&name.len()), "{name:?}");
            assert!(name.parse::<std::net::IpAddr>().is_err(), "{name:?} is an address");
        }
        Host::Address(address) => assert_eq!(crate::address::plain(*address), *address),
    }
}

/// However a message is cut, it is read the same, and what comes after it changes nothing.
pub fn socks(data: &[u8]) {
    check_socks(data, socks::greeting);
    check_socks(data, socks::request);
    if let Ok(Some((target, _))) = socks::request(data) {
        assert_eq!(target.to_string().parse(), Ok(target.clone()));
        check_host(&target.host);
    }
}

fn check_socks<T: PartialEq + std::fmt::Debug>(data: &[u8], read: impl Fn(&[u8]) -> socks::Read<T>) {
    let whole = read(data);
    if let Ok(Some((_, length))) = &whole {
        assert!(*length <= data.len() && *length <= socks::LONGEST);
    }
    for length in 0..data.len().min(socks::LONGEST) {
        let part = read(&data[..length]);
        assert!(part == Ok(None) || part == whole, "{part:?}, then {whole:?}");
    }
}

/// However a hello is cut, it is read the same, and what was told stays so.
pub fn client_hello(data: &[u8]) {
    for next in [false, true] {
        let read = |reader: &mut client_hello::Reader, bytes: &[u8]| match next {
            true => reader.read_next(bytes),
            false => reader.read(bytes),
        };
        let mut at_once = client_hello::Reader::default();
        let whole = read(&mut at_once, data);
        let mut reader = client_hello::Reader::default();
        for length in parts(data.len()) {
            let part = read(&mut client_hello::Reader::default(), &data[..length]);
            assert!(part == Beginning::Incomplete || part == whole, "{length} bytes: {part:?}, then {whole:?}");
            assert_eq!(read(&mut reader, &data[..length]), part, "{length} bytes");
        }
        assert_eq!(read(&mut reader, data), whole);
        assert!(at_once.end() <= data.len().min(client_hello::LONGEST));
        if let Beginning::Hello { .. } = whole {
            assert_eq!(reader.end(), at_once.end());
        }
        if let Beginning::Hello { server: Some(name), .. } = whole {
            check_host(&Host::Name(name));
        }
    }
}

/// Where to cut: everywhere at the start, and now and then after that.
fn parts(length: usize) -> impl Iterator<Item = usize> {
    (0..length).filter(move |at| *at < 48 || at % (length / 24).max(1) == 0 || at + 2 > length)
}

/// An answer is one to the question that was asked, no longer than it must be, and its address leads back to the name.
pub fn dns(data: &[u8]) {
    let mut stand_ins = StandIns::default();
    let allowed = |name: &Name| name.as_str().len().is_multiple_of(2);
    let (asked, reply) = dns::answer(data, allowed, &mut stand_ins);
    let Some(bytes) = reply else { return assert_eq!(asked, Asked::Nonsense) };
    let (Ok(question), Ok(reply)) = (Message::from_vec(data), Message::from_vec(&bytes)) else {
        panic!("a reply that nobody can read, or to nothing: {bytes:?}")
    };
    assert_eq!((reply.metadata.id, reply.metadata.message_type), (question.metadata.id, MessageType::Response));
    assert_eq!(reply.metadata.op_code, question.metadata.op_code);
    assert!(reply.queries.is_empty() || reply.queries == question.queries);
    assert!(reply.authorities.is_empty() && reply.additionals.is_empty() && bytes.len() <= data.len().max(12) + 28);
    for answer in &reply.answers {
        let address = match answer.data {
            RData::A(address) => address.0.into(),
            RData::AAAA(address) => address.0.into(),
            ref other => panic!("{other:?} is told"),
        };
        let Some(known) = stand_ins.name(address) else { panic!("{address} stands for nobody") };
        assert_eq!(asked, Asked::Known(known.clone()));
        assert_ne!(crate::reach(address), crate::Reach::Public);
    }
    if let Asked::Denied(name) = asked {
        assert!(!allowed(&name) && reply.answers.is_empty());
    }
}
