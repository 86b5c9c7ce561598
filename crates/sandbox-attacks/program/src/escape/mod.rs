//! Ways out: of the mount tree, of the namespaces, of the user, into the first process, into the kernel.

mod abi;
mod devices;
mod doors;
mod first_process;
mod mounts;
mod namespaces;
mod openings;
mod privileges;
mod settings;

use crate::Attack;

pub fn attacks() -> Vec<&'static [(&'static str, Attack)]> {
    vec![
        abi::ATTACKS,
        devices::ATTACKS,
        doors::ATTACKS,
        first_process::ATTACKS,
        mounts::ATTACKS,
        namespaces::ATTACKS,
        openings::ATTACKS,
        privileges::ATTACKS,
        settings::ATTACKS,
    ]
}
