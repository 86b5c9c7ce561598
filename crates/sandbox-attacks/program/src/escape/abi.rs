//! System calls by other tables than the native one, where a filter that forgets them has a hole.

use crate::{Attack, arguments::Arguments, outcome::Outcome};

pub const ATTACKS: &[(&str, Attack)] = &[("calls_32_bit", calls_32_bit), ("calls_x32", calls_x32)];

#[cfg(target_arch = "x86_64")]
fn calls_32_bit(_: &Arguments) -> Outcome {
    let tried = crate::sys::fork(|| i32::from(crate::sys::getpid_32_bit() != std::process::id() as i32));
    match tried.and_then(crate::sys::wait) {
        Ok(0) => Outcome::BrokeThrough("a 32-bit getpid answered".to_owned()),
        Ok(code) if code < 0 => Outcome::NotApplicable(format!("this kernel has no 32-bit calls (signal {})", -code)),
        Ok(_) => Outcome::Held("a 32-bit getpid was refused".to_owned()),
        Err(error) => Outcome::NotApplicable(format!("no child: {error}")),
    }
}

#[cfg(target_arch = "x86_64")]
fn calls_x32(_: &Arguments) -> Outcome {
    const X32: libc::c_long = 0x4000_0000;
    match crate::sys::call(X32 | libc::SYS_getpid, []) {
        Ok(_) => Outcome::BrokeThrough("an x32 getpid answered".to_owned()),
        Err(error) => Outcome::Held(format!("an x32 getpid: {error}")),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn calls_32_bit(_: &Arguments) -> Outcome {
    Outcome::NotApplicable("only x86-64 has such calls in a 64-bit program".to_owned())
}

#[cfg(not(target_arch = "x86_64"))]
fn calls_x32(_: &Arguments) -> Outcome {
    Outcome::NotApplicable("only x86-64 has such calls".to_owned())
}
