//! What a client says first when it begins TLS: whom it wants to talk with. Nothing is decrypted.
//!
//! A client may name somebody else where only the server can read it (ECH, RFC 9849), and the name that we read is then
//! only that of the provider. Browsers send the same extension with random content where they have no key (GREASE), so
//! that nobody on the way can tell; neither can we. A program gets no key from us, for names are answered with addresses
//! only, but it can bring one along. So a hello that may hide a name is not let through where names decide. What is lost
//! with that is little: few programs but browsers send it, and those can be told not to.

use tls_parser::{TlsExtension, TlsMessage, TlsMessageHandshake, TlsRecordType};

use crate::host::Name;

/// Longer than any that a real client sends.
pub const LONGEST: usize = 32 << 10;
/// Longer than any that a real server reads: OpenSSL takes the longest, of 131,396 bytes.
const LONGEST_READ: usize = 256 << 10;
/// Size of a record's head: kind, version, length.
const RECORD_HEAD: usize = 5;
/// Size of a message's head: kind, length.
const MESSAGE_HEAD: usize = 4;
/// What is sent along with a hello at once: a server that does not want it passes over it, and behind it could stand another
/// hello that is not looked at.
const EARLY_DATA: u16 = 42;
/// The extensions that hide the name: that of RFC 9849, and an older one.
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;
const ENCRYPTED_SERVER_NAME: u16 = 0xffce;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// More is needed to tell.
    Incomplete,
    /// Something else than TLS.
    Other,
    /// TLS, but not as it should be.
    Broken,
    /// TLS with this server.
    Hello {
        /// Whom the client names.
        server: Option<Name>,
        /// Whether it also names somebody whom only the server can read, or pretends to.
        encrypted: bool,
    },
}

/// Reads what a client says as it comes: each byte once, in however many parts and records it arrives.
#[derive(Clone, Debug, Default)]
pub struct Reader {
    /// The hello so far, without the heads of records.
    message: Vec<u8>,
    /// Up to where the records were read.
    end: usize,
    told: Option<Beginning>,
}

/// What the records so far hold.
enum Message {
    Part,
    Whole,
    Broken,
    /// So long that no server would read it as a hello.
    NoHello,
}

impl Reader {
    /// Reads on. `bytes` are all so far, from the first one. What was told stays so.
    pub fn read(&mut self, bytes: &[u8]) -> Beginning {
        self.tell(|reader| match bytes {
            [] => Beginning::Incomplete,
            [0x16, 3, ..] | [0x16] => reader.hello(bytes, Beginning::Broken),
            // Some servers skip alerts before a hello, take any version in a record, or a hello in the form of SSL 2,
            // which names nobody. Nobody sends that who does not want to be read in two ways.
            [0x14..=0x18, ..] => Beginning::Broken,
            [0x80..=0xff, _, 1, ..] => Beginning::Broken,
            [0x80..=0xff] | [0x80..=0xff, _] => Beginning::Incomplete,
            _ => Beginning::Other,
        })
    }

    /// Reads on what a client says when it has said hello. A server may ask for another hello, which is looked at like the
    /// first; nobody else sends one.
    pub fn read_next(&mut self, bytes: &[u8]) -> Beginning {
        // Says that what follows is encrypted, also where it is not yet. Once is enough.
        let rest = match bytes {
            [0x14, 3, _, 0, 1, _, rest @ ..] => rest,
            all => all,
        };
        self.tell(|reader| match rest {
            [0x14, ..] if rest.len() < bytes.len() => Beginning::Broken,
            // Servers pass over a warning, and wait for the hello that they have asked for. What ends the connection ends it.
            [0x15, _, _, 0, 2, 1, 1..=255, ..] => Beginning::Broken,
            [0x15, _, _, high, low, ..] if rest.len() == bytes.len() && [*high, *low] != [0, 2] => Beginning::Broken,
            [0x15, ..] if rest.len() < 7 => Beginning::Incomplete,
            [0x16, _, _, 0, 0, ..] => Beginning::Broken,
            // One of 256 first bytes of something encrypted is this too, and then nearly always says an absurd length.
            [0x16, _, _, _, _, 1, ..] => reader.hello(rest, Beginning::Other),
            [] | [0x14 | 0x16, ..] if rest.len() < 6 => Beginning::Incomplete,
            _ => Beginning::Other,
        })
    }

    /// Where the hello ends that was read.
    pub fn end(&self) -> usize {
        self.end
    }

    fn tell(&mut self, look: impl FnOnce(&mut Self) -> Beginning) -> Beginning {
        if let Some(told) = &self.told {
            return told.clone();
        }
        let found = look(self);
        self.told = Some(found.clone()).filter(|found| *found != Beginning::Incomplete);
        found
    }

    fn hello(&mut self, bytes: &[u8], too_long: Beginning) -> Beginning {
        // Wherever it is cut, what is too long is so.
        match self.read_records(&bytes[..bytes.len().min(LONGEST)]) {
            Message::Whole => parse(&self.message),
            Message::Broken => Beginning::Broken,
            Message::NoHello => too_long,
            Message::Part if bytes.len() >= LONGEST => Beginning::Broken,
            Message::Part => Beginning::Incomplete,
        }
    }

    /// Takes the first message out of its records, as far as they are there whole.
    fn read_records(&mut self, bytes: &[u8]) -> Message {
        while let Some((head, rest)) = bytes[self.end..].split_at_checked(RECORD_HEAD) {
            let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
            if head[0] != u8::from(TlsRecordType::Handshake) || head[1] != 3 || length == 0 {
                return Message::Broken;
            }
            let Some(body) = rest.get(..length) else { return Message::Part };
            self.message.extend_from_slice(body);
            self.end += RECORD_HEAD + length;
            if let [kind, a, b, c, ..] = self.message[..] {
                let whole = MESSAGE_HEAD + u32::from_be_bytes([0, a, b, c]) as usize;
                match self.message.len() {
                    _ if kind == 1 && whole > LONGEST_READ => return Message::NoHello,
                    _ if kind != 1 || whole > LONGEST => return Message::Broken,
                    length if length == whole => return Message::Whole,
                    // A client says nothing after its hello until it is answered.
                    length if length > whole => return Message::Broken,
                    _ => {}
                }
            }
        }
        Message::Part
    }
}

/// Reads the first bytes of a connection.
pub fn read(bytes: &[u8]) -> Beginning {
    Reader::default().read(bytes)
}

/// What a client says next when it has said hello.
pub fn read_next(bytes: &[u8]) -> Beginning {
    Reader::default().read_next(bytes)
}

fn parse(message: &[u8]) -> Beginning {
    let Ok((_, TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello)))) =
        tls_parser::parse_tls_message_handshake(message)
    else {
        return Beginning::Broken;
    };
    let extensions = match hello.ext.map(tls_parser::parse_tls_client_hello_extensions) {
        None => Vec::new(),
        Some(Ok(([], extensions))) => extensions,
        Some(_) => return Beginning::Broken,
    };
    let encrypted = extensions.iter().any(|extension| {
        let kind = u16::from(tls_parser::TlsExtensionType::from(extension));
        [ENCRYPTED_CLIENT_HELLO, ENCRYPTED_SERVER_NAME, EARLY_DATA].contains(&kind)
    });
    let mut names = extensions.iter().filter_map(|extension| match extension {
        TlsExtension::SNI(names) => Some(names),
        _ => None,
    });
    // One list with one name in it: whoever sends more wants two readers to see two things.
    match (names.next().map(Vec::as_slice), names.next()) {
        (None, None) => Beginning::Hello { server: None, encrypted },
        (Some([(tls_parser::SNIType::HostName, name)]), None) => match server(name) {
            Some(server) => Beginning::Hello { server: Some(server), encrypted },
            None => Beginning::Broken,
        },
        _ => Beginning::Broken,
    }
}

/// Letter for letter: a server would not find itself in what only means its name.
fn server(name: &[u8]) -> Option<Name> {
    let text = std::str::from_utf8(name).ok()?;
    text.parse::<Name>().ok().filter(|parsed| parsed.as_str().eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A hello with these extensions, in records of at most this size.
    fn hello(extensions: &[(u16, Vec<u8>)], record: usize) -> Vec<u8> {
        let all: Vec<u8> = extensions
            .iter()
            .flat_map(|(kind, body)| [&kind.to_be_bytes()[..], &(body.len() as u16).to_be_bytes(), body].concat())
            .collect();
        let mut body = vec![3, 3];
        body.extend([7; 32]);
        body.extend([0, 0, 2, 0x13, 0x01, 1, 0]);
        body.extend((all.len() as u16).to_be_bytes());
        body.extend(all);
        let mut message = vec![1];
        message.extend(&(body.len() as u32).to_be_bytes()[1..]);
        message.extend(body);
        message
            .chunks(record)
            .flat_map(|part| [&[0x16, 3, 1][..], &(part.len() as u16).to_be_bytes(), part].concat())
            .collect()
    }

    fn names(names: &[&str]) -> (u16, Vec<u8>) {
        let list: Vec<u8> = names
            .iter()
            .flat_map(|name| [&[0][..], &(name.len() as u16).to_be_bytes(), name.as_bytes()].concat())
            .collect();
        (0, [&(list.len() as u16).to_be_bytes()[..], &list].concat())
    }

    fn server(name: &str, encrypted: bool) -> Beginning {
        Beginning::Hello { server: Some(name.parse().expect(name)), encrypted }
    }

    #[test]
    fn the_name_is_found_however_it_is_cut() {
        for record in [1, 2, 5, 100, 16384] {
            let bytes = hello(&[(43, vec![2, 3, 4]), names(&["Example.com"])], record);
            assert_eq!(read(&bytes), server("example.com", false), "records of {record}");
            for length in 0..bytes.len() {
                assert_eq!(read(&bytes[..length]), Beginning::Incomplete, "{length} bytes of {}", bytes.len());
            }
            assert_eq!(read(&[&bytes[..], b"more"].concat()), server("example.com", false));
        }
    }

    #[test]
    fn a_second_hello_is_found_behind_whatever_comes_before_it() {
        let (first, second) = (hello(&[names(&["a.example"])], 50), hello(&[names(&["b.example"])], 7));
        let mut reader = Reader::default();
        assert_eq!(reader.read(&[&first[..], &second].concat()), server("a.example", false));
        assert_eq!(reader.end(), first.len());
        let cipher = [0x14, 3, 3, 0, 1, 1];
        for before in [&[][..], &cipher] {
            let bytes = [before, &second].concat();
            assert_eq!(read_next(&bytes), server("b.example", false));
            for length in 0..bytes.len() {
                assert_eq!(read_next(&bytes[..length]), Beginning::Incomplete, "{length}");
            }
        }
        for other in [
            &[0x17, 3, 3, 0, 9, 1][..],
            &[0x16, 3, 3, 0, 9, 16],
            &[0x15, 3, 3, 0, 2, 2, 48],
            &[0x15, 3, 3, 0, 2, 1, 0],
            &[&cipher[..], &[0x15, 3, 3, 0, 26, 1, 90]].concat(),
            &[&cipher[..], &[0x17]].concat(),
            // A session that is resumed: what is encrypted begins like a hello by chance.
            &[&cipher[..], &[0x16, 3, 3, 0, 8, 1, 0x9c, 3, 0xe1, 7, 7, 7, 7]].concat(),
        ] {
            assert_eq!(read_next(other), Beginning::Other, "{other:?}");
        }
        // A server that has asked for another hello passes over a warning before it.
        let warning = [0x15, 3, 3, 0, 2, 1, 90];
        for broken in [
            &[0x16, 3, 3, 0, 0, 1][..],
            &[0x16, 1, 1, 0, 9, 1],
            &[cipher, cipher].concat(),
            &[&warning[..], &second].concat(),
            &[&cipher[..], &warning, &second].concat(),
            &[0x15, 3, 3, 0, 1, 1, 0x15],
        ] {
            assert_eq!(read_next(broken), Beginning::Broken, "{broken:?}");
        }
    }

    #[test]
    fn hidden_missing_and_double_names_are_told_apart() {
        assert_eq!(read(&hello(&[], 9999)), Beginning::Hello { server: None, encrypted: false });
        let hidden = hello(&[names(&["a.example"]), (ENCRYPTED_CLIENT_HELLO, vec![0; 10])], 9999);
        assert_eq!(read(&hidden), server("a.example", true));
        for broken in [
            hello(&[names(&["a.example", "b.example"])], 9999),
            hello(&[names(&["a.example"]), names(&["b.example"])], 9999),
            hello(&[names(&["a.example\0.b.example"])], 9999),
            hello(&[names(&["127.0.0.1"])], 9999),
            hello(&[names(&[])], 9999),
            hello(&[(0, vec![0, 9, 0])], 9999),
            [&[0x16, 3, 1, 0, 4][..], &[2, 0, 0, 0]].concat(),
            [0x16, 3, 1, 0, 0].to_vec(),
            [0x16, 1, 1, 0, 4].to_vec(),
            [&[0x15, 3, 1, 0, 2, 1, 0x5a][..], &hello(&[names(&["a.example"])], 9999)].concat(),
            [0x80, 0x2e, 1, 3, 1].to_vec(),
            hello(&[names(&["ａ.example"])], 9999),
            hello(&[names(&["a.example."])], 9999),
            [&[0x16, 3, 1, 0, 4][..], &[1, 0xff, 0xff, 0xff]].concat(),
        ] {
            assert_eq!(read(&broken), Beginning::Broken, "{broken:?}");
        }
        for other in [&b"GET / HTTP/1.1\r\n"[..], b"SSH-2.0-x", &[5, 1, 0], &[0x80, 1, 2]] {
            assert_eq!(read(other), Beginning::Other);
        }
    }

    #[test]
    fn a_hello_in_the_smallest_parts_is_read_once() {
        let bytes = hello(&[names(&["a.example"]), (21, vec![0; 5000])], 1);
        let (start, mut reader) = (std::time::Instant::now(), Reader::default());
        for length in 0..bytes.len() {
            assert_eq!(reader.read(&bytes[..length]), Beginning::Incomplete);
        }
        assert_eq!(reader.read(&bytes), server("a.example", false));
        assert_eq!((reader.end(), reader.message.len()), (bytes.len(), bytes.len() / 6));
        // Reading all of it again for each byte takes many times as long.
        assert!(start.elapsed().as_secs_f64() < 0.5, "{:?}", start.elapsed());
    }

    #[test]
    fn what_is_too_long_is_so_wherever_it_is_cut() {
        let bytes = hello(&[names(&["a.example"]), (21, vec![0; 9000])], 1);
        assert!(bytes.len() > LONGEST);
        assert_eq!((read(&bytes), read(&bytes[..LONGEST])), (Beginning::Broken, Beginning::Broken));
        assert_eq!(read(&bytes[..LONGEST - 1]), Beginning::Incomplete);
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u16..60) {
            read(&bytes);
            read(&[&[0x16, 3, 1, 0, bytes.len() as u8][..], &bytes].concat());
            read_next(&bytes);
            read_next(&[&[0x16, 3, 1, 0, bytes.len() as u8, 1][..], &bytes].concat());
            read(&hello(&[(kind, bytes)], 9999));
        }
    }
}
