//! Addresses that stand for names.
//!
//! A sandbox that asks for a name gets an address that leads nowhere but to us. When something connects to it, we know
//! which name was meant, so rules by name hold for programs that know no proxy, and the real address is looked up once,
//! outside, where nobody inside can have a say in it.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::host::Name;

/// Set aside for tests between networks (RFC 2544), so nobody's server is there.
const FIRST_V4: u32 = u32::from_be_bytes([198, 18, 0, 0]);
/// A block of our own among the private ones (RFC 4193).
const FIRST_V6: u128 = 0xfd73_616e_6462_6f78 << 64;
/// Names that one sandbox may ask for; more than any program does by itself.
const MOST: usize = 16_384;

/// The last that can be the first: in the second half of the block a sandbox has addresses of its own.
const ROOM: u32 = (1 << 16) - MOST as u32 - 2;

/// The names that one sandbox has asked for.
#[derive(Debug)]
pub struct StandIns {
    numbers: HashMap<Name, u32>,
    names: Vec<Name>,
    /// The number of the first name. It is another one each time, because a program may remember an address for longer than
    /// we remember the name: it is to lead nowhere then, and not to somebody else.
    first: u32,
}

impl Default for StandIns {
    fn default() -> Self {
        let mut random = [0; 4];
        // Without any chance to be had all begin with the same.
        let _ = getrandom::fill(&mut random);
        Self { numbers: HashMap::new(), names: Vec::new(), first: 1 + u32::from_ne_bytes(random) % ROOM }
    }
}

impl StandIns {
    /// The addresses that stand for a name; nothing if there were too many names.
    pub fn addresses(&mut self, name: &Name) -> Option<(Ipv4Addr, Ipv6Addr)> {
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if self.names.len() >= MOST => return None,
            None => {
                self.names.push(name.clone());
                let number = self.first + self.names.len() as u32 - 1;
                self.numbers.insert(name.clone(), number);
                number
            }
        };
        Some((Ipv4Addr::from_bits(FIRST_V4 + number), Ipv6Addr::from_bits(FIRST_V6 + u128::from(number))))
    }

    /// The name that an address stands for.
    pub fn name(&self, address: IpAddr) -> Option<&Name> {
        let number = match crate::address::plain(address) {
            IpAddr::V4(address) => u128::from(address.to_bits().checked_sub(FIRST_V4)?),
            IpAddr::V6(address) => address.to_bits().checked_sub(FIRST_V6)?,
        };
        self.names.get(usize::try_from(number.checked_sub(self.first.into())?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_leads_back_to_its_name() {
        let mut known = StandIns::default();
        let names: Vec<Name> = (0..300).map(|number| format!("n{number}.example").parse().expect("a name")).collect();
        for name in &names {
            let (short, long) = known.addresses(name).expect("an address");
            assert_eq!(known.addresses(name), Some((short, long)), "it stays the same");
            for address in [short.into(), long.into(), short.to_ipv6_mapped().into()] {
                assert_eq!(known.name(address), Some(name));
            }
            assert_ne!(crate::reach(short.into()), crate::Reach::Public);
            assert_ne!(crate::reach(long.into()), crate::Reach::Public);
        }
        for unknown in ["198.18.0.0", "198.18.255.255", "8.8.8.8", "0.0.0.0", "::1", "fd73:616e:6462:6f78::", "ffff::"]
        {
            assert_eq!(known.name(unknown.parse().expect(unknown)), None, "{unknown}");
        }
    }

    #[test]
    fn there_are_only_so_many() {
        let mut known = StandIns::default();
        for number in 0..MOST {
            assert!(known.addresses(&format!("n{number}").parse().expect("a name")).is_some());
        }
        assert_eq!(known.addresses(&"one-more".parse().expect("a name")), None);
        let highest = StandIns { first: ROOM, ..known };
        let last = Ipv4Addr::from_bits(FIRST_V4 + highest.first + MOST as u32 - 1);
        assert!(highest.name(last.into()).is_some() && last < Ipv4Addr::new(198, 19, 0, 0), "{last}");
        let mut known = StandIns { numbers: highest.numbers, names: highest.names, first: 1 };
        assert!(known.addresses(&"n7".parse().expect("a name")).is_some());
    }
}
