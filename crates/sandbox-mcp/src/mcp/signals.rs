//! Names of signals, as people write them.

use super::error::ToolError;

/// By number, from 1.
const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM",
    "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO",
    "PWR", "SYS",
];

/// The name of a signal.
pub fn name(number: i32) -> String {
    let known = usize::try_from(number).ok().and_then(|number| NAMES.get(number.checked_sub(1)?));
    known.map_or_else(|| format!("signal {number}"), |name| format!("SIG{name}"))
}

/// The number of a signal: `SIGINT`, `int` and `2` are the same.
pub fn parse(text: &str) -> Result<i32, ToolError> {
    let upper: String = text.trim().chars().take(20).collect::<String>().to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let by_name = NAMES.iter().position(|name| *name == bare).map(|at| at as i32 + 1);
    let number = by_name.or_else(|| bare.parse().ok().filter(|number| (1..=31).contains(number)));
    number.ok_or_else(|| {
        ToolError::Invalid(format!(
            "`{upper}` is not a signal: use SIGINT, SIGTERM, SIGKILL, … or a number from 1 to 31"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_agree() {
        for number in 1..=31 {
            assert_eq!(parse(&name(number)).ok(), Some(number));
            assert_eq!(parse(&number.to_string()).ok(), Some(number));
        }
        assert_eq!((parse("term").ok(), name(34)), (Some(15), "signal 34".to_owned()));
        assert!(parse("SIGBOGUS").is_err() && parse("0").is_err() && parse("99").is_err());
    }
}
