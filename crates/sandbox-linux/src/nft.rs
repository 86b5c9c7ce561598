//! The words of nftables as the kernel wants them: `linux/netfilter/nf_tables.h`.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::netlink::{Attributes, Message};

pub const BEGIN: u16 = libc::NFNL_MSG_BATCH_BEGIN as u16;
pub const END: u16 = libc::NFNL_MSG_BATCH_END as u16;
pub const INPUT: u32 = libc::NF_INET_LOCAL_IN as u32;
pub const OUTPUT: u32 = libc::NF_INET_LOCAL_OUT as u32;
pub const DROP: u32 = libc::NF_DROP as u32;
pub const ACCEPT: u32 = libc::NF_ACCEPT as u32;

const CREATE: u16 = (libc::NLM_F_CREATE | libc::NLM_F_EXCL) as u16;
/// The name of the one table.
const TABLE: &str = "sandbox";
/// Both families.
const INET: u8 = 1;
/// What is compared goes through this register, and what decides is this one.
const REGISTER: u32 = 1;
const VERDICT: u32 = 0;
/// Parts of a packet.
const NETWORK: u32 = 1;
const TRANSPORT: u32 = 2;

/// Both are list elements, names of tables, or the first value of an expression.
const FIRST: u16 = 1;
const SECOND: u16 = 2;
const THIRD: u16 = 3;
const FOURTH: u16 = 4;
const FIFTH: u16 = 5;
const SEVENTH: u16 = 7;

/// One expression of a rule.
pub type Expression = Vec<u8>;

/// The begin or the end of what is done all at once.
pub fn edge(kind: u16) -> Message {
    let subsystem = (libc::NFNL_SUBSYS_NFTABLES as u16).to_be_bytes();
    Message { kind, flags: 0, answered: false, body: [&[0, 0][..], &subsystem].concat() }
}

fn message(kind: i32, flags: u16, attributes: &Attributes) -> Message {
    let body = [&[INET, 0, 0, 0][..], attributes.bytes()].concat();
    Message { kind: (libc::NFNL_SUBSYS_NFTABLES as u16) << 8 | kind as u16, flags, answered: true, body }
}

pub fn table() -> Message {
    message(libc::NFT_MSG_NEWTABLE, CREATE, &Attributes::default().with_text(FIRST, TABLE))
}

pub fn chain(name: &str, kind: &str, hook: u32, priority: i32, policy: u32) -> Message {
    let hook = Attributes::default().with_number(FIRST, hook).with_number(SECOND, priority as u32);
    let chain = Attributes::default().with_text(FIRST, TABLE).with_text(THIRD, name).with_nested(FOURTH, &hook);
    let chain = chain.with_number(FIFTH, policy).with_text(SEVENTH, kind);
    message(libc::NFT_MSG_NEWCHAIN, CREATE, &chain)
}

pub fn rule(chain: &str, expressions: &[Expression]) -> Message {
    let list = expressions
        .iter()
        .fold(Attributes::default(), |list, expression| list.with(FIRST | libc::NLA_F_NESTED as u16, expression));
    let rule = Attributes::default().with_text(FIRST, TABLE).with_text(SECOND, chain).with_nested(FOURTH, &list);
    message(libc::NFT_MSG_NEWRULE, (libc::NLM_F_CREATE | libc::NLM_F_APPEND) as u16, &rule)
}

fn expression(name: &str, values: &Attributes) -> Expression {
    Attributes::default().with_text(FIRST, name).with_nested(SECOND, values).bytes().to_vec()
}

fn meta(key: i32) -> Expression {
    expression("meta", &Attributes::default().with_number(FIRST, REGISTER).with_number(SECOND, key as u32))
}

fn payload(part: u32, offset: u32, length: u32) -> Expression {
    let values = Attributes::default().with_number(FIRST, REGISTER).with_number(SECOND, part);
    expression("payload", &values.with_number(THIRD, offset).with_number(FOURTH, length))
}

fn masked(mask: &[u8]) -> Expression {
    let value = |bytes: &[u8]| Attributes::default().with(FIRST, bytes);
    let values = Attributes::default().with_number(FIRST, REGISTER).with_number(SECOND, REGISTER);
    let values = values.with_number(THIRD, mask.len() as u32).with_nested(FOURTH, &value(mask));
    expression("bitwise", &values.with_nested(FIFTH, &value(&vec![0; mask.len()])))
}

fn compared(how: i32, with: &[u8]) -> Expression {
    let value = Attributes::default().with(FIRST, with);
    let values = Attributes::default().with_number(FIRST, REGISTER).with_number(SECOND, how as u32);
    expression("cmp", &values.with_nested(THIRD, &value))
}

fn equals(with: &[u8]) -> Expression {
    compared(libc::NFT_CMP_EQ, with)
}

pub fn accept() -> Expression {
    let verdict = Attributes::default().with_number(FIRST, ACCEPT);
    let value = Attributes::default().with_nested(SECOND, &verdict);
    expression("immediate", &Attributes::default().with_number(FIRST, VERDICT).with_nested(SECOND, &value))
}

/// To this address, or those that begin like it.
pub fn to_v4(address: Ipv4Addr, mask: [u8; 4]) -> Vec<Expression> {
    let family = equals(&[libc::NFPROTO_IPV4 as u8]);
    vec![meta(libc::NFT_META_NFPROTO), family, payload(NETWORK, 16, 4), masked(&mask), equals(&address.octets())]
}

pub fn to_v6(address: Ipv6Addr) -> Vec<Expression> {
    let family = equals(&[libc::NFPROTO_IPV6 as u8]);
    vec![meta(libc::NFT_META_NFPROTO), family, payload(NETWORK, 24, 16), equals(&address.octets())]
}

pub fn over(protocol: i32) -> Vec<Expression> {
    vec![meta(libc::NFT_META_L4PROTO), equals(&[protocol as u8])]
}

/// To this port.
pub fn port(number: u16) -> Vec<Expression> {
    vec![payload(TRANSPORT, 2, 2), equals(&number.to_be_bytes())]
}

pub fn redirect(port: u16) -> Vec<Expression> {
    let value = Attributes::default().with(FIRST, &port.to_be_bytes());
    let load = Attributes::default().with_number(FIRST, REGISTER).with_nested(SECOND, &value);
    // The flag says that a port is given.
    let redirect = Attributes::default().with_number(FIRST, REGISTER).with_number(THIRD, 2);
    vec![expression("immediate", &load), expression("redir", &redirect)]
}

/// Part of a connection that is known, or about one.
pub fn belongs_to_known() -> Vec<Expression> {
    const ESTABLISHED_OR_RELATED: u32 = 2 | 4;
    let state = Attributes::default().with_number(FIRST, REGISTER).with_number(SECOND, libc::NFT_CT_STATE as u32);
    let state = expression("ct", &state);
    vec![state, masked(&ESTABLISHED_OR_RELATED.to_ne_bytes()), compared(libc::NFT_CMP_NEQ, &[0; 4])]
}

/// Said at once to whoever sent it.
pub fn reject() -> Expression {
    let values = Attributes::default().with_number(FIRST, libc::NFT_REJECT_ICMPX_UNREACH as u32);
    expression("reject", &values.with(SECOND, &[libc::NFT_REJECT_ICMPX_PORT_UNREACH as u8]))
}
