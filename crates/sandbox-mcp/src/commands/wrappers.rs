//! Programs that run other programs: which of their words are the other one.

use super::run::quote;

/// What a program runs.
pub enum Runs {
    /// Nothing that its words say.
    Nothing,
    /// A program with words.
    Program(Vec<String>),
    /// Several.
    Programs(Vec<Vec<String>>),
    /// Text, by a shell.
    Script(String),
    /// Several texts.
    Scripts(Vec<String>),
    /// A program with words, and more that come from its input.
    InputWith(FromInput),
}

/// A program whose words come from the input.
pub struct FromInput {
    /// What is said in advance.
    pub words: Vec<String>,
    /// What stands for each word of the input; without it they come after the others.
    pub replaces: Option<String>,
}

/// A program that takes options, then so many words of its own, then a program.
struct Wrapper {
    name: &'static str,
    /// Options that have a value in the next word: letters, and long names.
    letters: &'static str,
    long: &'static [&'static str],
    own: usize,
}

const fn wrapper(name: &'static str, letters: &'static str, long: &'static [&'static str], own: usize) -> Wrapper {
    Wrapper { name, letters, long, own }
}

const WRAPPERS: &[Wrapper] = &[
    wrapper("builtin", "", &[], 0),
    wrapper("busybox", "", &[], 0),
    wrapper("catchsegv", "", &[], 0),
    wrapper("choom", "n", &["--adjust"], 0),
    wrapper("chronic", "", &[], 0),
    wrapper("chrt", "TPD", &[], 1),
    wrapper("dbus-run-session", "", &["--config-file"], 0),
    wrapper("doas", "uC", &[], 0),
    wrapper("eatmydata", "", &[], 0),
    wrapper("exec", "a", &[], 0),
    wrapper("fakeroot", "", &[], 0),
    wrapper("faketime", "", &[], 1),
    wrapper("firejail", "", &[], 0),
    wrapper("gosu", "", &[], 1),
    wrapper("ionice", "cnp", &["--class", "--classdata"], 0),
    wrapper("linux32", "", &[], 0),
    wrapper("linux64", "", &[], 0),
    wrapper("ltrace", "eolsu", &[], 0),
    wrapper("nice", "n", &["--adjustment"], 0),
    wrapper("nohup", "", &[], 0),
    wrapper("numactl", "CNmi", &[], 0),
    wrapper("perf-stat", "", &[], 0),
    wrapper("prlimit", "", &[], 0),
    wrapper("proxychains", "f", &[], 0),
    wrapper("runcon", "utrl", &[], 0),
    wrapper("setarch", "", &[], 1),
    wrapper("setpriv", "", &["--reuid", "--regid", "--groups"], 0),
    wrapper("setsid", "", &[], 0),
    wrapper("ssh-agent", "aEPt", &[], 0),
    wrapper("stdbuf", "ioe", &["--input", "--output", "--error"], 0),
    wrapper("strace", "eopsaEPu", &[], 0),
    wrapper("sudo", "ugChpTRDr", &[], 0),
    wrapper("systemd-inhibit", "", &[], 0),
    wrapper("taskset", "", &[], 1),
    wrapper("time", "fo", &["--format", "--output"], 0),
    wrapper("timeout", "ks", &["--kill-after", "--signal"], 1),
    wrapper("torsocks", "", &[], 0),
    wrapper("toybox", "", &[], 0),
    wrapper("unbuffer", "", &[], 0),
    wrapper("valgrind", "", &[], 0),
    wrapper("xvfb-run", "efnspw", &[], 0),
];

/// Programs whose one option has text that a shell runs, or a command of their own that does.
const TEXTS: &[(&str, &[&str])] = &[
    ("script", &["-c", "--command"]),
    ("tar", &["--to-command", "-I", "--use-compress-program", "--rsh-command", "--checkpoint-action=exec"]),
    ("rsync", &["-e", "--rsh"]),
    ("zip", &["-TT", "--unzip-command"]),
    ("man", &["-P", "--pager", "-H"]),
    ("split", &["--filter"]),
    ("sort", &["--compress-program"]),
    ("rg", &["--pre"]),
    ("entr", &["-s"]),
    ("nix-shell", &["--run", "--command"]),
    ("hyperfine", &["--prepare", "--setup"]),
    ("xterm", &["-e"]),
];

/// Programs that take commands of their own, some of which go to a shell: the option that brings them, and how such a
/// command begins.
const ESCAPES: &[(&[&str], &[&str], &[&str])] = &[
    (&["vim", "vi", "nvim", "ex", "view"], &["-c", "--cmd", "+"], &["!", ":!", "silent !", ":silent !"]),
    (&["gdb"], &["-ex", "-iex", "--eval-command"], &["!", "shell ", "! "]),
    (&["sqlite3"], &["", "-cmd"], &[".shell ", ".system "]),
    (&["psql", "mysql"], &["-c", "-e", "--command"], &["\\! ", "\\!"]),
    (&["sed", "gsed"], &["", "-e", "--expression"], &["e ", "1e ", "$e "]),
    (&["ed"], &[""], &["!"]),
    (&["gnuplot", "bc"], &["-e"], &["!"]),
];

/// What this program runs, by its words.
pub fn runs(name: &str, words: &[String]) -> Runs {
    if let Some(wrapper) = WRAPPERS.iter().find(|wrapper| wrapper.name == name) {
        let rest = after_options(words, wrapper.long, wrapper.letters);
        return program(rest.get(wrapper.own..).unwrap_or_default());
    }
    if let Some((_, options)) = TEXTS.iter().find(|(program, _)| *program == name) {
        return scripts(options.iter().flat_map(|option| values(words, option)).collect());
    }
    for (programs, options, beginnings) in ESCAPES {
        if programs.contains(&name) {
            let commands = options.iter().flat_map(|option| values(words, option));
            let escaping =
                |command: String| beginnings.iter().find_map(|start| Some(command.strip_prefix(start)?.to_owned()));
            return scripts(commands.filter_map(escaping).collect());
        }
    }
    match name {
        "env" => env(words),
        "command" if words.iter().take_while(|word| word.starts_with('-')).any(|word| word.contains(['v', 'V'])) => {
            // It only says where the program is.
            Runs::Script(format!(
                "which {}",
                words.iter().skip(1).map(|word| quote(word)).collect::<Vec<_>>().join(" ")
            ))
        }
        "command" => program(after_options(words, &[], "")),
        "xargs" => xargs(words),
        "parallel" => parallel(words),
        "find" | "fd" => find(words),
        "watch" => {
            let rest = after_options(words, &["--interval"], "n");
            Runs::Script(rest.join(" "))
        }
        "flock" => {
            let rest = after_options(words, &["--timeout", "--wait", "--conflict-exit-code"], "wE");
            match rest.get(1).map(String::as_str) {
                Some("-c" | "--command") => scripts(rest.get(2).cloned().into_iter().collect()),
                _ => program(rest.get(1..).unwrap_or_default()),
            }
        }
        "git" => git(words),
        "make" | "gmake" => {
            let shells =
                words.iter().filter_map(|word| word.strip_prefix("SHELL=")).map(|shell| vec![shell.to_owned()]);
            programs(shells.collect())
        }
        "gcc" | "cc" | "g++" | "clang" => {
            let wrapped = values(words, "-wrapper");
            programs(wrapped.map(|words| words.split(',').map(str::to_owned).collect()).collect())
        }
        "tmux" | "screen" => {
            let text = words.iter().rfind(|word| word.contains(' ')).cloned();
            scripts(text.into_iter().collect())
        }
        "uv" | "poetry" | "pipenv" | "pdm" | "hatch" | "rye" | "conda" | "bundle" | "dotenv" => {
            match words.iter().position(|word| word == "run" || word == "exec") {
                Some(0) => program(after_options(&words[1..], &["--with", "--python"], "np")),
                _ => Runs::Nothing,
            }
        }
        _ => Runs::Nothing,
    }
}

/// Whether this is the loader of programs, which runs the one that it is given.
pub fn is_loader(name: &str) -> bool {
    name == "ld.so" || (name.starts_with("ld-") && name.contains(".so"))
}

/// The words after the options. Some options have a value in the next word: long ones by name, short ones by letter.
pub fn after_options<'a>(words: &'a [String], long: &[&str], letters: &str) -> &'a [String] {
    let mut at = 0;
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-') && word.len() > 1) {
        at += 1;
        if word == "--" {
            break;
        }
        let valued = match word.starts_with("--") {
            true => long.contains(&word.as_str()),
            // The value may be in the same word.
            false => {
                word.chars().last().is_some_and(|last| letters.contains(last))
                    && word.chars().skip(1).all(char::is_alphabetic)
            }
        };
        at += usize::from(valued);
    }
    words.get(at..).unwrap_or_default()
}

/// The values of an option, in whichever way they are written. An option without name stands for all operands.
fn values<'a>(words: &'a [String], option: &'a str) -> impl Iterator<Item = String> + 'a {
    words.iter().enumerate().filter_map(move |(at, word)| {
        if option.is_empty() {
            return (!word.starts_with('-')).then(|| word.clone());
        }
        let rest = word.strip_prefix(option);
        match rest {
            Some("") => words.get(at + 1).cloned(),
            Some(rest) if option.starts_with("--") => rest.strip_prefix('=').map(str::to_owned),
            Some(rest) => Some(rest.to_owned()),
            // `-qc TEXT`: letters may stand together.
            None => {
                let letter = option.strip_prefix('-').filter(|letter| letter.len() == 1)?;
                let grouped =
                    word.starts_with('-') && !word.starts_with("--") && word.len() < 5 && word.ends_with(letter);
                grouped.then(|| words.get(at + 1).cloned()).flatten()
            }
        }
    })
}

fn program(words: &[String]) -> Runs {
    if words.is_empty() { Runs::Nothing } else { Runs::Program(words.to_vec()) }
}

fn programs(commands: Vec<Vec<String>>) -> Runs {
    if commands.is_empty() { Runs::Nothing } else { Runs::Programs(commands) }
}

fn scripts(texts: Vec<String>) -> Runs {
    if texts.is_empty() { Runs::Nothing } else { Runs::Scripts(texts) }
}

fn env(words: &[String]) -> Runs {
    if let Some(text) = values(words, "-S").next().or_else(|| values(words, "--split-string").next()) {
        return Runs::Script(text);
    }
    // A dash alone is an option here.
    let words: Vec<String> =
        words.iter().map(|word| if word == "-" { "-i".to_owned() } else { word.clone() }).collect();
    let rest = after_options(&words, &["--unset", "--chdir", "--argv0"], "uCa");
    let assigned = rest.iter().take_while(|word| word.contains('=')).count();
    // Said again so that a shell inside has the variables too.
    let mut fields: Vec<String> = vec!["export".to_owned()];
    fields.extend(rest.iter().take(assigned).cloned());
    match rest.get(assigned..).filter(|rest| !rest.is_empty()) {
        Some(command) if assigned > 0 => Runs::Programs(vec![fields, command.to_vec()]),
        Some(command) => program(command),
        None => Runs::Nothing,
    }
}

fn xargs(words: &[String]) -> Runs {
    let replaces = values(words, "-I").next().or_else(|| {
        let mark = words.iter().any(|word| word == "-i" || word == "--replace");
        mark.then(|| "{}".to_owned())
    });
    let long = [
        "--max-args",
        "--max-procs",
        "--delimiter",
        "--arg-file",
        "--max-lines",
        "--max-chars",
        "--eof",
        "--process-slot-var",
    ];
    let words = after_options(words, &long, "InPdaLsE").to_vec();
    if words.is_empty() {
        return Runs::Nothing;
    }
    Runs::InputWith(FromInput { words, replaces })
}

/// `parallel COMMAND ::: WORDS`: the command is text.
fn parallel(words: &[String]) -> Runs {
    let rest = after_options(words, &["--jobs", "--delay", "--timeout", "--colsep"], "jNnIaP");
    let sources = rest.iter().position(|word| word.starts_with(":::")).unwrap_or(rest.len());
    let (command, given) = (&rest[..sources], rest.get(sources + 1..).unwrap_or_default());
    let text = command.join(" ");
    if given.is_empty() {
        let words = vec!["sh".to_owned(), "-c".to_owned(), text];
        return Runs::InputWith(FromInput { words, replaces: Some("{}".to_owned()) });
    }
    let one = |word: &String| match text.as_str() {
        "" => word.clone(),
        text if text.contains("{}") => text.replace("{}", word),
        text => format!("{text} {word}"),
    };
    scripts(given.iter().take(16).map(one).collect())
}

fn find(words: &[String]) -> Runs {
    const STARTS: [&str; 8] = ["-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"];
    let mut commands = Vec::new();
    for (at, _) in words.iter().enumerate().filter(|(_, word)| STARTS.contains(&word.as_str())) {
        let rest = words.get(at + 1..).unwrap_or_default();
        let length = rest.iter().position(|word| word == ";" || word == "+").unwrap_or(rest.len());
        commands.push(rest[..length].to_vec());
    }
    let operands: Vec<&String> = words.iter().take_while(|word| !word.starts_with('-')).collect();
    let tests = words.iter().skip(operands.len()).filter(|word| word.starts_with('-'));
    let mut everything =
        tests.filter(|word| !matches!(word.as_str(), "-depth" | "-mindepth" | "-xdev" | "-mount" | "-delete"));
    if words.iter().any(|word| word == "-delete") && everything.next().is_none() {
        commands
            .push(["rm", "-rf"].iter().map(|word| (*word).to_owned()).chain(operands.into_iter().cloned()).collect());
    }
    programs(commands)
}

fn git(words: &[String]) -> Runs {
    const PROGRAMS: [&str; 9] = [
        "core.pager",
        "core.editor",
        "core.sshcommand",
        "core.fsmonitor",
        "core.askpass",
        "sequence.editor",
        "diff.external",
        "credential.helper",
        "gpg.program",
    ];
    let mut texts = Vec::new();
    for setting in values(words, "-c").chain(values(words, "--config")) {
        let Some((key, value)) = setting.split_once('=') else { continue };
        let key = key.to_lowercase();
        if let Some(text) = value.strip_prefix('!') {
            texts.push(text.to_owned());
        } else if PROGRAMS.contains(&key.as_str()) || key.starts_with("pager.") {
            texts.push(value.to_owned());
        }
    }
    for (at, word) in words.iter().enumerate() {
        let rest = words.get(at + 1..).unwrap_or_default();
        match word.as_str() {
            "foreach" if words.iter().any(|word| word == "submodule") => texts.push(rest.join(" ")),
            "run" if at > 0 && words[at - 1] == "bisect" => return program(rest),
            "--exec" | "-x" if words.iter().any(|word| word == "rebase") => texts.extend(rest.first().cloned()),
            "--upload-pack" | "--receive-pack" => texts.extend(rest.first().cloned()),
            _ => {}
        }
    }
    scripts(texts)
}
