//! Paths and patterns as text: nothing here looks at a file.

/// Where the sandbox's user is at home.
pub const HOME: &str = "/home/sandbox";

/// Where commands start.
pub const WORKSPACE: &str = "/workspace";

/// The last name of a path.
pub fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// The path from the root, without `.`, `..` and doubled slashes; none, if it is relative to who knows where or partly
/// unknown.
pub fn resolve(path: &str, folder: Option<&str>) -> Option<String> {
    if path.contains(['\0', '\u{1}']) {
        return None;
    }
    let start = if path.starts_with('/') { "" } else { folder? };
    let mut names: Vec<&str> = Vec::new();
    for name in start.split('/').chain(path.split('/')) {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    Some(format!("/{}", names.join("/")))
}

/// Whether removing this removes the target: it is the target, all that is in it, or a folder that it is in.
pub fn covers(path: &str, target: &str, folder: Option<&str>) -> bool {
    let Some(path) = resolve(path, folder) else { return false };
    let Some(target) = resolve(target, None) else { return false };
    let everything = |name: &str| name.starts_with(['*', '?', '[']) || name.starts_with(".*");
    let path = match path.rsplit_once('/') {
        Some((parent, last)) if everything(last) => parent,
        _ => path.trim_end_matches('/'),
    };
    let target = target.trim_end_matches('/');
    target == path || target.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether this is in that folder.
pub fn is_beneath(path: &str, beneath: &str, folder: Option<&str>) -> bool {
    resolve(path, folder).is_some_and(|path| path.strip_prefix(beneath).is_some_and(|rest| rest.starts_with('/')))
}

/// Whether this looks like a device whose content matters, such as a disk.
pub fn is_device(path: &str, folder: Option<&str>) -> bool {
    const HARMLESS: [&str; 13] =
        ["null", "zero", "full", "random", "urandom", "stdin", "stdout", "stderr", "tty", "ptmx", "console", "log", ""];
    const FOLDERS: [&str; 6] = ["fd", "shm", "pts", "mqueue", "tcp", "udp"];
    let Some(path) = resolve(path, folder) else { return false };
    let Some(device) = path.strip_prefix("/dev/") else { return false };
    !HARMLESS.contains(&device) && !device.split('/').next().is_some_and(|folder| FOLDERS.contains(&folder))
}

/// Whether a text has characters that make it a pattern.
pub fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether the pattern stands for the whole text: `*`, `?` and `[…]`, in time that is at most their product.
pub fn matches(pattern: &str, text: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut next) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while next < text.len() {
        let step = match pattern.get(at) {
            Some('*') => {
                star = Some((at + 1, next));
                at += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class(&pattern, at, text[next]),
            Some(literal) if *literal == text[next] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(step), _) => (at, next) = (at + step, next + 1),
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (at, next) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern.iter().skip(at).all(|rest| *rest == '*')
}

/// The length of the class that starts here, if it has this character.
fn class(pattern: &[char], at: usize, character: char) -> Option<usize> {
    let length = pattern.iter().skip(at + 2).position(|end| *end == ']').map(|end| end + 3);
    let Some(length) = length else { return (character == '[').then_some(1) };
    let inner = &pattern[at + 1..at + length - 1];
    let (not, inner) = match inner.split_first() {
        Some(('!' | '^', rest)) => (true, rest),
        _ => (false, inner),
    };
    let range = |three: &[char]| matches!(three, [from, '-', to] if (*from..=*to).contains(&character));
    let found = inner.contains(&character) || inner.windows(3).any(range);
    (found != not).then_some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_a_shell() {
        for (pattern, text) in [
            ("s*do", "sudo"),
            ("sud?", "sudo"),
            ("su[d]o", "sudo"),
            ("[a-z]udo", "sudo"),
            ("*", ""),
            ("[!a]udo", "sudo"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("s*x", "sudo"), ("sud", "sudo"), ("[!s]udo", "sudo"), ("[", "sudo"), ("?", "")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn devices_are_told_from_what_is_only_in_their_folder() {
        for path in ["/dev/sda", "/dev/mapper/x", "//dev/./nvme0n1", "/dev/mem"] {
            assert!(is_device(path, None), "{path}");
        }
        for path in ["/dev/null", "/dev/fd/3", "/dev/shm/x", "/dev", "/dev/tty", "dev/sda", "/workspace/dev/sda"] {
            assert!(!is_device(path, Some("/workspace")), "{path}");
        }
    }
}
