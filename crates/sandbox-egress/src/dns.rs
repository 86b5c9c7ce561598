//! Answers to questions for names, as a sandbox hears them.
//!
//! No question leaves this machine from here: a name that some rule would allow gets a stand-in, any other is said not to
//! exist. So names carry nothing out. Only addresses are told; other kinds of records would let a program learn of ways
//! that we do not check (HTTPS records carry the keys that hide a server's name).

use hickory_proto::{
    op::{Message, MessageType, OpCode, ResponseCode},
    rr::{DNSClass, RData, Record, RecordType, rdata},
};

use crate::{Name, StandIns};

/// For how long a program may remember an answer, in seconds. A stand-in is valid as long as its sandbox.
const TTL: u32 = 60;

/// What was asked and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A name that is allowed.
    Known(Name),
    /// One that is not.
    Denied(Name),
    /// Too many names were asked for.
    TooMany(Name),
    /// Nothing that could be answered.
    Nonsense,
}

/// Answers a message; nothing is said to what is not a question.
pub fn answer(
    message: &[u8],
    allowed: impl FnOnce(&Name) -> bool,
    stand_ins: &mut StandIns,
) -> (Asked, Option<Vec<u8>>) {
    let Ok(question) = Message::from_vec(message) else { return (Asked::Nonsense, None) };
    if question.metadata.message_type != MessageType::Query {
        return (Asked::Nonsense, None);
    }
    let mut reply = Message::response(question.metadata.id, question.metadata.op_code);
    reply.metadata.recursion_desired = question.metadata.recursion_desired;
    reply.metadata.recursion_available = true;
    let (asked, code) = match &question.queries[..] {
        [query] if question.metadata.op_code == OpCode::Query && query.query_class() == DNSClass::IN => {
            reply.add_query(query.clone());
            match query.name().to_ascii().parse::<Name>() {
                Ok(name) if !allowed(&name) => (Asked::Denied(name), ResponseCode::NXDomain),
                Ok(name) => match stand_ins.addresses(&name) {
                    Some((short, long)) => {
                        let data = match query.query_type() {
                            RecordType::A => Some(RData::A(rdata::A(short))),
                            RecordType::AAAA => Some(RData::AAAA(rdata::AAAA(long))),
                            _ => None,
                        };
                        reply.add_answers(data.map(|data| Record::from_rdata(query.name().clone(), TTL, data)));
                        (Asked::Known(name), ResponseCode::NoError)
                    }
                    None => (Asked::TooMany(name), ResponseCode::ServFail),
                },
                Err(_) => (Asked::Nonsense, ResponseCode::NXDomain),
            }
        }
        _ => (Asked::Nonsense, ResponseCode::NotImp),
    };
    reply.metadata.response_code = code;
    (asked, reply.to_vec().ok())
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Query;
    use proptest::prelude::*;

    use super::*;

    fn ask(name: &str, kind: RecordType) -> (Asked, Message) {
        let mut question = Message::query();
        question.add_query(Query::query(hickory_proto::rr::Name::from_ascii(name).expect("a name"), kind));
        let bytes = question.to_vec().expect("a question");
        let allowed = |name: &Name| name.as_str().ends_with("example.com");
        let (asked, reply) = answer(&bytes, allowed, &mut StandIns::default());
        let reply = Message::from_vec(&reply.expect("an answer")).expect("a message");
        assert_eq!((reply.metadata.id, &reply.queries), (question.metadata.id, &question.queries));
        (asked, reply)
    }

    #[test]
    fn names_that_are_allowed_get_stand_ins_and_nothing_else() {
        let (asked, reply) = ask("A.example.com.", RecordType::A);
        assert_eq!(asked, Asked::Known("a.example.com".parse().expect("a name")));
        assert_eq!(reply.answers.len(), 1);
        assert!(matches!(&reply.answers[0].data, RData::A(address) if address.octets().starts_with(&[198, 18])));
        let (_, reply) = ask("a.example.com.", RecordType::AAAA);
        assert_eq!(reply.answers.len(), 1);
        for kind in [RecordType::TXT, RecordType::HTTPS, RecordType::SVCB, RecordType::MX, RecordType::ANY] {
            let (_, reply) = ask("a.example.com.", kind);
            assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NoError, 0), "{kind}");
        }
    }

    #[test]
    fn other_names_do_not_exist() {
        for name in ["secret-data.evil.org.", "localhost.", "1.0.0.127.in-addr.arpa."] {
            let (asked, reply) = ask(name, RecordType::A);
            assert!(matches!(asked, Asked::Denied(_)), "{name}: {asked:?}");
            assert_eq!((reply.metadata.response_code, reply.answers.len()), (ResponseCode::NXDomain, 0), "{name}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            answer(&bytes, |_| true, &mut StandIns::default());
            let head = [&[0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], &bytes].concat();
            answer(&head, |_| true, &mut StandIns::default());
        }
    }
}
