//! Who is known inside: `passwd`, `group` and their shadows. Pure.
//!
//! With a root that can be changed, packages are installed and users added; both ask for the system's own users. Those
//! of this machine are taken over by name and number; people are not, and no secret is.

/// The first id that belongs to people.
const FIRST_PERSON: u32 = 1000;

/// The lines of `ours` (`passwd` or `group`), and after them those of `theirs` that name system users or groups which
/// are not there yet. Members of groups are left out: they are people, or come with their packages.
pub fn with_system(ours: &str, theirs: &str) -> String {
    let mut text = ours.to_owned();
    for line in theirs.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let (Some(name), Some(Ok(id))) = (fields.first(), fields.get(2).map(|id| id.parse::<u32>())) else { continue };
        let known = text.lines().any(|line| {
            let mut fields = line.split(':');
            fields.next() == Some(name) || fields.nth(1) == Some(&id.to_string())
        });
        if id == 0 || id >= FIRST_PERSON || known {
            continue;
        }
        match fields[..] {
            [name, _, id, _members] => text.push_str(&format!("{name}:x:{id}:\n")),
            [name, _, id, group, _, home, shell] => {
                text.push_str(&format!("{name}:x:{id}:{group}:{name}:{home}:{shell}\n"));
            }
            _ => {}
        }
    }
    text
}

/// A `shadow` for this `passwd`: nobody has a password.
pub fn shadow(passwd: &str) -> String {
    names(passwd).map(|name| format!("{name}:*:19000:0:99999:7:::\n")).collect()
}

/// A `gshadow` for this `group`.
pub fn gshadow(group: &str) -> String {
    names(group).map(|name| format!("{name}:*::\n")).collect()
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| line.split(':').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_users_are_taken_over_and_people_are_not() {
        let ours = "root:x:0:0:root:/root:/bin/sh\nsandbox:x:1000:1000::/home/sandbox:/bin/sh\n";
        let theirs = "root:x:0:0:Jane Doe:/root:/bin/bash\ndaemon:x:1:1:Jane:/usr/sbin:/usr/sbin/nologin\n\
            jane:x:1000:1000:Jane Doe:/home/jane:/bin/bash\nbroken\nodd:x:12\n";
        let both = with_system(ours, theirs);
        assert_eq!(both, format!("{ours}daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"));
        assert_eq!(
            shadow(&both),
            "root:*:19000:0:99999:7:::\nsandbox:*:19000:0:99999:7:::\ndaemon:*:19000:0:99999:7:::\n"
        );
    }

    #[test]
    fn groups_come_without_their_members() {
        assert_eq!(with_system("tty:x:5:\n", "tty:x:5:jane\nmail:x:8:jane,joe\n"), "tty:x:5:\nmail:x:8:\n");
        assert_eq!(gshadow("tty:x:5:\n"), "tty:*::\n");
    }
}
