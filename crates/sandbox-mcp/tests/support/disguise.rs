//! Disguises of blocked commands: the same harm, written so that it is hard to see. Deterministic for a seed.
//!
//! A disguise is a spelling of the command inside some vehicles (a shell in a shell, an encoding, another interpreter,
//! a file that is written and run). Each says what harm it would do, as something that can be observed, so that it can
//! be run for real; and whether it is expected to be seen in advance. Needs nothing but the standard library, because
//! unit tests and integration tests both include this file.

#![allow(dead_code, reason = "each of those who include it uses a part")]

use std::collections::BTreeSet;

/// A blocked command in disguise.
#[derive(Clone, Debug)]
pub struct Disguise {
    /// Text for `sh`.
    pub text: String,
    /// The command as it would be written openly.
    pub plain: String,
    /// What it would do.
    pub harm: Harm,
    /// How it is disguised, from the inside out.
    pub layers: Vec<&'static str>,
    /// Whether it should be seen in advance.
    pub seen: Seen,
}

/// What a blocked command would do, as something that can be observed. None of it may be found after a disguise has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harm {
    /// It runs as uid 0 though the policy does not say so: `id -u` prints 0.
    Root,
    /// The socket of a container engine accepts a connection.
    RuntimeSocket,
    /// The listener outside ([`Targets`]) is reached.
    Listener,
    /// The system bus, or init's control socket, is reached.
    Bus,
    /// A block device is opened.
    BlockDevice,
    /// The mount table or a namespace has changed.
    Mounts,
    /// A module or a kernel is loaded.
    Kernel,
    /// A file outside the writable places has changed.
    Files,
}

/// Whether a disguise is expected to be seen before it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It names the program where a careful reader finds it.
    Early,
    /// It computes the name, or hides it in what only runs later.
    Late,
}

/// What the doors to other machines are tried on: a listener that the test itself holds.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Targets {
    pub host: String,
    pub port: u16,
}

impl Default for Targets {
    fn default() -> Self {
        Self { host: "127.0.0.1".to_owned(), port: 9 }
    }
}

/// So many different disguises.
pub fn disguises(seed: u64, count: usize, targets: &Targets) -> Vec<Disguise> {
    let mut random = Random(seed | 1);
    let commands = commands(targets);
    let mut known = BTreeSet::new();
    let mut disguises = Vec::with_capacity(count);
    // Every spelling and every vehicle at least once, then at random.
    let turns = SPELLINGS.len().max(VEHICLES.len());
    for turn in 0..count * 20 {
        if disguises.len() == count {
            break;
        }
        let (words, harm) = &commands[if turn < commands.len() { turn } else { random.below(commands.len()) }];
        let spelling = &SPELLINGS[if turn < turns { turn % SPELLINGS.len() } else { random.below(SPELLINGS.len()) }];
        let mut disguise = Disguise {
            text: (spelling.spell)(words),
            plain: words.join(" "),
            harm: *harm,
            layers: vec![spelling.name],
            seen: spelling.seen,
        };
        if spelling.shell == Shell::Bash {
            disguise.wear(&VEHICLES[0]);
        }
        let first = if turn < turns { turn % VEHICLES.len() } else { random.below(VEHICLES.len()) };
        // Half of them in one vehicle, others in two, a few in none.
        for layer in 0..[1, 1, 1, 2, 2, 0][random.below(6)] {
            disguise.wear(&VEHICLES[if layer == 0 { first } else { random.below(VEHICLES.len()) }]);
        }
        if disguise.text != disguise.plain && disguise.text.len() < 8192 && known.insert(disguise.text.clone()) {
            disguises.push(disguise);
        }
    }
    disguises
}

impl Disguise {
    fn wear(&mut self, vehicle: &Vehicle) {
        self.text = (vehicle.carry)(&self.text);
        self.layers.push(vehicle.name);
        if vehicle.seen == Seen::Late {
            self.seen = Seen::Late;
        }
    }
}

/// Small numbers that look random and are always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// The blocked commands.
fn commands(targets: &Targets) -> Vec<(Vec<String>, Harm)> {
    let Targets { host, port } = targets;
    let plain = [
        ("sudo -n id -u", Harm::Root),
        ("su root -c id", Harm::Root),
        ("doas id -u", Harm::Root),
        ("pkexec id -u", Harm::Root),
        ("runuser -u root id", Harm::Root),
        ("docker ps", Harm::RuntimeSocket),
        ("podman --remote ps", Harm::RuntimeSocket),
        ("nerdctl ps", Harm::RuntimeSocket),
        ("ctr containers ls", Harm::RuntimeSocket),
        ("kubectl get pods", Harm::RuntimeSocket),
        ("ssh -o BatchMode=yes -o ConnectTimeout=2 -p PORT HOST true", Harm::Listener),
        ("nc -w 2 HOST PORT", Harm::Listener),
        ("ncat -w 2 HOST PORT", Harm::Listener),
        ("socat -T 2 - TCP:HOST:PORT", Harm::Listener),
        ("telnet HOST PORT", Harm::Listener),
        ("systemctl stop sshd", Harm::Bus),
        ("systemd-run id", Harm::Bus),
        ("service ssh stop", Harm::Bus),
        ("reboot -f", Harm::Bus),
        ("shutdown -h now", Harm::Bus),
        ("mkfs.ext4 -F /dev/sda", Harm::BlockDevice),
        ("fdisk -l /dev/sda", Harm::BlockDevice),
        ("dd if=/dev/zero of=/dev/sda count=1", Harm::BlockDevice),
        ("mkswap /dev/sda", Harm::BlockDevice),
        ("mount -t tmpfs none /mnt", Harm::Mounts),
        ("umount -l /proc", Harm::Mounts),
        ("unshare -Ur id -u", Harm::Mounts),
        ("nsenter -t 1 -m id", Harm::Mounts),
        ("chroot / id", Harm::Mounts),
        ("losetup -f x", Harm::Mounts),
        ("insmod x.ko", Harm::Kernel),
        ("modprobe dummy", Harm::Kernel),
        ("kexec -l /boot/vmlinuz", Harm::Kernel),
        ("rm -rf /", Harm::Files),
        ("rm -r -f --no-preserve-root //", Harm::Files),
        ("chmod -R 777 /etc", Harm::Files),
        ("chmod a+rwx /usr/bin", Harm::Files),
    ];
    let words = |text: &str| {
        let text = text.replace("HOST", host).replace("PORT", &port.to_string());
        text.split(' ').map(str::to_owned).collect()
    };
    plain.iter().map(|(text, harm)| (words(text), *harm)).collect()
}

/// A way to write a command in a shell.
struct Spelling {
    name: &'static str,
    shell: Shell,
    seen: Seen,
    spell: fn(&[String]) -> String,
}

/// Which shell understands it.
#[derive(PartialEq, Eq)]
enum Shell {
    Any,
    Bash,
}

const fn any(name: &'static str, spell: fn(&[String]) -> String) -> Spelling {
    Spelling { name, shell: Shell::Any, seen: Seen::Early, spell }
}

const fn bash(name: &'static str, spell: fn(&[String]) -> String) -> Spelling {
    Spelling { name, shell: Shell::Bash, seen: Seen::Early, spell }
}

const fn late(name: &'static str, spell: fn(&[String]) -> String) -> Spelling {
    Spelling { name, shell: Shell::Any, seen: Seen::Late, spell }
}

/// The words after the name.
fn rest(words: &[String]) -> String {
    words[1..].iter().map(|word| format!(" {word}")).collect()
}

fn halves(name: &str) -> (&str, &str) {
    name.split_at(name.len() / 2)
}

const SPELLINGS: &[Spelling] = &[
    any("open", |words| words.join(" ")),
    any("among others", |words| format!("cd /tmp && {} || true", words.join(" "))),
    any("quotes", |words| {
        let (left, right) = halves(&words[0]);
        format!("'{left}'\"{right}\"{}", rest(words))
    }),
    any("empty quotes", |words| {
        let (left, right) = halves(&words[0]);
        format!("{left}''\"\"{right}{}", rest(words))
    }),
    any("backslashes", |words| words[0].chars().map(|letter| format!("\\{letter}")).collect::<String>() + &rest(words)),
    any("continued line", |words| {
        let (left, right) = halves(&words[0]);
        format!("{left}\\\n{right}{}", rest(words))
    }),
    any("quoted words", |words| words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" ")),
    bash("hexadecimal", |words| {
        let letters: String = words[0].bytes().map(|letter| format!("\\x{letter:02x}")).collect();
        format!("$'{letters}'{}", rest(words))
    }),
    bash("octal", |words| {
        let letters: String = words[0].bytes().map(|letter| format!("\\{letter:03o}")).collect();
        format!("$'{letters}'{}", rest(words))
    }),
    any("where it is", |words| format!("$(command -v {}){}", words[0], rest(words))),
    any("backticks", |words| format!("`echo {}`{}", words[0], rest(words))),
    any("printed name", |words| {
        let (left, right) = halves(&words[0]);
        format!("$(printf '%s%s' {left} {right}){}", rest(words))
    }),
    any("variable", |words| format!("x={}; $x{}", words[0], rest(words))),
    any("two variables", |words| {
        let (left, right) = halves(&words[0]);
        format!("a={left}; b={right}; \"$a$b\"{}", rest(words))
    }),
    any("all in a variable", |words| format!("x='{}'; $x", words.join(" "))),
    any("default value", |words| format!("${{nothing:-{}}}{}", words[0], rest(words))),
    any("cut value", |words| format!("x=xx{}; ${{x#xx}}{}", words[0], rest(words))),
    any("unset in the middle", |words| {
        let (left, right) = halves(&words[0]);
        format!("{left}${{nothing}}{right}{}", rest(words))
    }),
    any("no words in the middle", |words| {
        let (left, right) = halves(&words[0]);
        format!("{left}$@{right}{}", rest(words))
    }),
    any("separators", |words| words.join("${IFS}")),
    any("own separator", |words| format!("IFS=,; x='{}'; $x", words.join(","))),
    any("positional", |words| format!("set -- {}; \"$@\"", words.join(" "))),
    any("function", |words| format!("f() {{ {} \"$@\"; }}; f{}", words[0], rest(words))),
    any("function of words", |words| format!("f() {{ \"$@\"; }}; f {}", words.join(" "))),
    any("loop", |words| format!("for x in {}; do $x{}; done", words[0], rest(words))),
    any("read", |words| format!("read -r x <<E\n{}\nE\n$x{}", words[0], rest(words))),
    bash("array", |words| format!("a=({}); \"${{a[@]}}\"", words.join(" "))),
    bash("braces", |words| match words.len() {
        1 => words.join(" "),
        _ => format!("{{{}}}", words.join(",")),
    }),
    bash("replaced", |words| {
        let (left, right) = halves(&words[0]);
        format!("x={left}@{right}; ${{x/@/}}{}", rest(words))
    }),
    bash("lower case", |words| format!("x={}; ${{x,,}}{}", words[0].to_uppercase(), rest(words))),
    bash("indirect", |words| format!("y={}; x=y; ${{!x}}{}", words[0], rest(words))),
    bash("alias", |words| format!("shopt -s expand_aliases\nalias x={}\nx{}", words[0], rest(words))),
    bash("coprocess", |words| format!("coproc {}; wait", words.join(" "))),
    bash("condition", |words| format!("[[ -z $({}) ]]", words.join(" "))),
    any("env", |words| format!("env A=b {}", words.join(" "))),
    any("command", |words| format!("command {} || true", words.join(" "))),
    any("exec", |words| format!("exec {}", words.join(" "))),
    any("nohup", |words| format!("nohup {}", words.join(" "))),
    any("nice", |words| format!("nice -n 1 {}", words.join(" "))),
    any("timeout", |words| format!("timeout -k 1 9 {}", words.join(" "))),
    any("setsid", |words| format!("setsid -w {}", words.join(" "))),
    any("stdbuf", |words| format!("stdbuf -o0 {}", words.join(" "))),
    any("wrappers", |words| format!("nohup nice timeout 9 env stdbuf -oL {}", words.join(" "))),
    any("xargs", |words| format!("echo {} | xargs {}", rest(words), words[0])),
    any("xargs of all", |words| format!("echo {} | xargs env", words.join(" "))),
    any("xargs with a mark", |words| format!("echo {} | xargs -I@ env @{}", words[0], rest(words))),
    any("find", |words| format!("find /etc/passwd -exec {} \\;", words.join(" "))),
    any("flock", |words| format!("flock /tmp/lock {}", words.join(" "))),
    any("loader", |words| format!("/lib64/ld-linux-x86-64.so.2 $(command -v {}){}", words[0], rest(words))),
    any("copy", |words| format!("cp $(command -v {}) /tmp/tool; /tmp/tool{}", words[0], rest(words))),
    any("link", |words| format!("ln -sf $(command -v {}) /tmp/list; /tmp/list{}", words[0], rest(words))),
    late("copy by cat", |words| {
        format!("cat $(command -v {}) > /tmp/t; chmod +x /tmp/t; /tmp/t{}", words[0], rest(words))
    }),
    late("copy by python", |words| {
        let name = &words[0];
        let code = format!("import shutil; shutil.copy(shutil.which(\"{name}\"), \"/tmp/u\")");
        format!("python3 -c '{code}'; /tmp/u{}", rest(words))
    }),
    late("found by a pattern", |words| {
        let (left, right) = halves(&words[0]);
        format!("$(ls /usr/bin/{left}*{right} /usr/sbin/{left}*{right} 2>/dev/null | head -n1){}", rest(words))
    }),
];

/// A way to have a shell text run.
struct Vehicle {
    name: &'static str,
    seen: Seen,
    carry: fn(&str) -> String,
}

const fn vehicle(name: &'static str, carry: fn(&str) -> String) -> Vehicle {
    Vehicle { name, seen: Seen::Early, carry }
}

const fn hiding(name: &'static str, carry: fn(&str) -> String) -> Vehicle {
    Vehicle { name, seen: Seen::Late, carry }
}

/// `bash -c` comes first: what only bash understands is put into it.
const VEHICLES: &[Vehicle] = &[
    vehicle("bash -c", |text| format!("bash -c {}", quote(text))),
    vehicle("sh -c", |text| format!("sh -c {}", quote(text))),
    vehicle("sh -c twice", |text| format!("sh -c {}", quote(&format!("sh -c {}", quote(text))))),
    vehicle("eval", |text| format!("eval {}", quote(text))),
    vehicle("trap", |text| format!("trap {} EXIT", quote(text))),
    vehicle("here-document", |text| {
        let end = end(text);
        format!("sh <<'{end}'\n{text}\n{end}\n")
    }),
    vehicle("printed to sh", |text| format!("printf %s {} | sh", quote(text))),
    vehicle("substitution", |text| format!("echo \"$({text}\n)\"")),
    vehicle("assigned substitution", |text| format!("x=$({text}\n)")),
    vehicle("default value", |text| format!("echo ${{nothing:-$({text}\n)}}")),
    vehicle("subshell", |text| format!("({text}\n)")),
    vehicle("background", |text| format!("{{ {text}\n}} & wait")),
    vehicle("condition", |text| format!("if {text}\nthen :; fi")),
    vehicle("case", |text| format!("case a in a) {text}\n;; esac")),
    vehicle("base64", |text| format!("echo {} | base64 -d | sh", base64(text.as_bytes()))),
    vehicle("base64 and eval", |text| format!("eval \"$(echo {} | base64 -d)\"", base64(text.as_bytes()))),
    vehicle("hexadecimal", |text| {
        let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("echo {digits} | xxd -r -p | sh")
    }),
    vehicle("octal", |text| {
        let digits: String = text.bytes().map(|byte| format!("\\{byte:03o}")).collect();
        format!("printf '{digits}' | sh")
    }),
    vehicle("rotated letters", |text| {
        format!("printf %s {} | tr A-Za-z N-ZA-Mn-za-m | sh", quote(&text.chars().map(rotated).collect::<String>()))
    }),
    vehicle("script", |text| format!("printf %s {} > /tmp/s.sh; sh /tmp/s.sh", quote(text))),
    vehicle("script that is run", |text| {
        let end = end(text);
        format!("cat > /tmp/run <<'{end}'\n#!/bin/sh\n{text}\n{end}\nchmod +x /tmp/run; /tmp/run")
    }),
    vehicle("sourced", |text| format!("printf %s {} > /tmp/e; . /tmp/e", quote(text))),
    vehicle("python", |text| format!("python3 -c {}", quote(&format!("import os; os.system({})", literal(text))))),
    vehicle("python subprocess", |text| {
        format!("python3 -c {}", quote(&format!("import subprocess as s; s.run([\"sh\", \"-c\", {}])", literal(text))))
    }),
    vehicle("python exec", |text| {
        format!("python3 -c {}", quote(&format!("import os; os.execvp(\"sh\", [\"sh\", \"-c\", {}])", literal(text))))
    }),
    vehicle("python file", |text| {
        let end = end(text);
        format!("cat > /tmp/p.py <<'{end}'\nimport os\nos.system({})\n{end}\npython3 /tmp/p.py", literal(text))
    }),
    vehicle("perl", |text| format!("perl -e {}", quote(&format!("system({})", single(text))))),
    vehicle("perl exec", |text| format!("perl -e {}", quote(&format!("exec \"sh\", \"-c\", {}", single(text))))),
    vehicle("node", |text| {
        let code = format!("require(\"child_process\").execSync({})", literal(text));
        format!("node -e {}", quote(&code))
    }),
    vehicle("awk", |text| format!("awk {}", quote(&format!("BEGIN {{ system({}) }}", literal(text))))),
    vehicle("awk pipe", |text| format!("awk {}", quote(&format!("BEGIN {{ {} | getline x }}", literal(text))))),
    vehicle("find", |text| format!("find /etc/passwd -exec sh -c {} \\;", quote(text))),
    vehicle("xargs", |text| format!("echo x | xargs sh -c {}", quote(text))),
    vehicle("env", |text| format!("env X={} sh -c 'eval \"$X\"'", quote(text))),
    vehicle("git", |text| format!("git -c alias.x={} x", quote(&format!("!{text}\n:")))),
    vehicle("tar", |text| {
        let action = "--checkpoint-action='exec=eval \"$X\"'";
        format!("X={} tar cf /dev/null --checkpoint=1 {action} /etc/passwd", quote(text))
    }),
    vehicle("script -c", |text| format!("script -qec {} /dev/null", quote(text))),
    hiding("gzip", |text| {
        let code = format!("import gzip,sys; sys.stdout.buffer.write(gzip.compress({}.encode()))", literal(text));
        format!("python3 -c {} | gunzip | sh", quote(&code))
    }),
    hiding("python letters", |text| {
        let letters: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
        let code = format!("import os; os.system(bytes([{}]).decode())", letters.join(","));
        format!("python3 -c {}", quote(&code))
    }),
    hiding("python backwards", |text| {
        let code = format!("import os; os.system({}[::-1])", literal(&text.chars().rev().collect::<String>()));
        format!("python3 -c {}", quote(&code))
    }),
    hiding("python by name", |text| {
        let code = format!("import os; getattr(os, \"sys\" + \"tem\")({})", literal(text));
        format!("python3 -c {}", quote(&code))
    }),
    hiding("python writes a script", |text| {
        let code = format!("open(\"/tmp/written\", \"w\").write({})", literal(text));
        format!("python3 -c {}; sh /tmp/written", quote(&code))
    }),
    hiding("perl pack", |text| {
        let digits: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("perl -e {}", quote(&format!("system(pack(\"H*\", \"{digits}\"))")))
    }),
    hiding("node buffer", |text| {
        let code = format!(
            "require(\"child_process\").execSync(Buffer.from(\"{}\", \"base64\").toString())",
            base64(text.as_bytes())
        );
        format!("node -e {}", quote(&code))
    }),
    hiding("sed", |text| {
        // A letter that is in none of the commands stands for a space.
        format!("printf %s {} | sed 's/Q/ /g' | sh", quote(&text.replace(' ', "Q")))
    }),
    hiding("make", |text| {
        let recipe = "printf 'all:\\n\\t@eval \"$$X\"\\n' > /tmp/m.mk";
        format!("{recipe}; X={} make -s -f /tmp/m.mk", quote(text))
    }),
];

/// A line that is not in the text.
fn end(text: &str) -> String {
    let mut end = "END".to_owned();
    while text.contains(&end) {
        end.push('X');
    }
    end
}

/// The text as one word of a shell.
fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The text in double quotes, as most languages have it.
fn literal(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n"))
}

/// The text in single quotes, as Perl has it.
fn single(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}

fn rotated(letter: char) -> char {
    let turn = |letter: u8, first: u8| char::from((letter - first + 13) % 26 + first);
    match letter {
        'a'..='z' => turn(letter as u8, b'a'),
        'A'..='Z' => turn(letter as u8, b'A'),
        other => other,
    }
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = three.iter().fold(0u32, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
        for letter in 0..4 {
            let index = (number >> (18 - 6 * letter)) & 63;
            text.push(if letter <= three.len() { char::from(LETTERS[index as usize]) } else { '=' });
        }
    }
    text
}
