//! The command line, as people and scripts use it.

use std::{
    fs,
    io::{Read, Write},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::BINARY;

/// A person with a home of their own.
struct Person {
    home: TempDir,
}

impl Person {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Our program with these words.
    fn types(&self, words: &[&str]) -> Command {
        self.starts(BINARY, words)
    }

    fn starts(&self, program: &str, words: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.home.path()).stdin(Stdio::null());
        command.env("XDG_STATE_HOME", self.folder("state")).env("XDG_CONFIG_HOME", self.folder("config"));
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.types(words).output().unwrap()
    }

    fn shell(&self, script: &str) -> Output {
        self.starts("sh", &["-c", script]).env("BIN", BINARY).process_group(0).output().unwrap()
    }

    /// The one JSON value that a command answers with.
    fn json(&self, words: &[&str]) -> Value {
        let output = self.run(&[words, &["--json"]].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
    }
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap().trim()
}

#[test]
fn exec_is_like_running_the_command_here() {
    let person = Person::new();
    let output = person.run(&["exec", "--env", "COLOUR=blue", "--", "sh", "-c", "echo $COLOUR; echo oh >&2; exit 3"]);
    assert_eq!((output.status.code(), text(&output.stdout), text(&output.stderr)), (Some(3), "blue", "oh"));
    let missing = person.run(&["exec", "--", "no-such-program"]);
    assert_eq!(missing.status.code(), Some(127), "{missing:?}");
    assert!(text(&missing.stderr).contains("no-such-program"), "{missing:?}");
    let killed = person.run(&["exec", "--", "sh", "-c", "kill -TERM $$"]);
    assert_eq!(killed.status.code(), Some(143));
    let late = person.run(&["exec", "--timeout", "300ms", "--", "sleep", "60"]);
    assert_eq!(late.status.code(), Some(124), "{late:?}");
    assert!(text(&late.stderr).contains("ran out of time"), "{late:?}");
}

#[test]
fn exec_passes_input_and_output_through_pipes_and_files() {
    let person = Person::new();
    let mut child = person.types(&["exec", "--", "sort"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"pear\napple\n").unwrap();
    assert_eq!(text(&child.wait_with_output().unwrap().stdout), "apple\npear");
    fs::write(person.folder("in"), "two\none\n").unwrap();
    let output = person.shell("$BIN exec -- sort <in >out 2>err; echo $?; cat out err");
    assert_eq!(text(&output.stdout), "0\none\ntwo");
}

#[test]
fn a_fresh_exec_opens_no_database_and_leaves_no_sandbox() {
    let person = Person::new();
    assert!(person.run(&["exec", "--", "true"]).status.success());
    assert_eq!(text(&person.shell("$BIN exec -- echo hello >out; cat out").stdout), "hello");
    let state = person.folder("state/sandbox-mcp");
    assert!(!state.join("history.db").exists());
    assert_eq!(fs::read_dir(state.join("sandboxes")).unwrap().count(), 0);
    assert_eq!(person.json(&["list"]), serde_json::json!([]));
}

#[test]
fn a_command_cannot_signal_who_started_it_nor_reach_their_terminal() {
    let person = Person::new();
    let signalled = "sleep 30 & other=$!; $BIN exec -- sh -c 'kill -TERM 0; kill -TERM -- -1; true' 2>&1 | cat
        kill -0 $other && echo unharmed; kill $other";
    assert_eq!(text(&person.shell(signalled).stdout), "unharmed");
    // `script` gives a terminal; the command gets pipes, and could otherwise open it by name.
    let typed =
        "script -qec \"$BIN exec -- sh -c 'echo typed >/dev/tty && echo reached' </dev/null 2>&1 | cat\" /dev/null";
    let output = person.shell(typed);
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("/dev/tty"), "the command did not even try: {output:?}");
    assert!(!shown.contains("reached") && !shown.lines().any(|line| line.trim() == "typed"), "{shown}");
}

#[test]
fn a_person_at_a_terminal_gets_one_inside() {
    let person = Person::new();
    let output =
        person.shell("script -qec \"$BIN exec -- sh -c 'test -t 0 && test -t 1 && stty size && tty'\" /dev/null");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("/dev/pts/"), "{shown}");
}

/// What a person sees at a real terminal, when a question comes up and they type this.
fn at_a_terminal(person: &Person, script: &str, typed: &str) -> String {
    let mut command = person.starts("script", &["-qec", script, "/dev/null"]);
    command.env("BIN", BINARY).env("SANDBOX_MCP_ANSWER_SECONDS", "20").process_group(0);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut shown, mut answered) = (Vec::new(), false);
    let mut bytes = [0; 4096];
    while let Ok(length @ 1..) = screen.read(&mut bytes) {
        shown.extend_from_slice(&bytes[..length]);
        if !answered && String::from_utf8_lossy(&shown).contains("anything else: no] ") {
            keys.write_all(typed.as_bytes()).unwrap();
            answered = true;
        }
    }
    child.wait().unwrap();
    String::from_utf8_lossy(&shown).into_owned()
}

#[test]
fn a_person_at_a_terminal_is_asked_about_a_denied_command() {
    let person = Person::new();
    // With a relay, and in a pipe where the command has our own descriptors.
    for script in ["$BIN exec -- ssh -V; echo code $?", "$BIN exec -- ssh -V </dev/null 2>/dev/tty | cat; echo code $?"]
    {
        let seen = at_a_terminal(&person, script, "y\n");
        assert!(
            seen.contains("Your command asks") && !seen.contains("sandbox_local_") && seen.contains("“ssh”"),
            "{seen}"
        );
        assert!(seen.contains("code 0") || seen.contains("No such file"), "{seen}");
        assert!(!seen.contains("was not run") && !seen.contains("said no"), "{seen}");
    }
    let seen = at_a_terminal(&person, "$BIN exec -- ssh -V; echo code $?", "n\n");
    assert!(seen.contains("The person at the terminal said no") && seen.contains("code 126"), "{seen}");
    assert!(!seen.contains("request_access") && !seen.contains("ask again"), "{seen}");
    let never = at_a_terminal(&person, "SANDBOX_MCP_ASK=never $BIN exec -- ssh -V; echo code $?", "y\n");
    assert!(!never.contains("anything else: no]") && never.contains("code 126"), "{never}");
}

#[test]
fn without_a_person_a_denied_command_is_refused_with_the_reason() {
    let person = Person::new();
    let output = person.run(&["exec", "--", "sudo", "id"]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    assert!(text(&output.stderr).contains("commands.permit = [\"sudo\"]"), "{output:?}");
    assert!(!text(&output.stderr).contains("request_access"), "{output:?}");
    let twice = person.run(&["exec", "--", "rm", "-rf", "/"]);
    assert_eq!(text(&twice.stderr).matches("was not run").count(), 1, "{twice:?}");
    let output = person.run(&["exec", "--json", "--", "sudo", "id"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let denial = &told["denials"][0];
    assert_eq!(
        (&told["status"], &denial["reason"], &denial["kind"]),
        (&"denied".into(), &"command_denied".into(), &"command".into())
    );
}

#[test]
fn run_takes_files_in_and_results_out() {
    let person = Person::new();
    fs::write(person.folder("sales.csv"), "month,sum\njan,3\n").unwrap();
    let output = person.run(&["run", "add up the sums", "--file", "sales.csv", "--out", "results"]);
    assert!(output.status.success(), "{output:?}");
    let made = fs::read_to_string(person.folder("results/output.txt")).unwrap();
    assert!(made.contains("add up the sums"), "{made}");
    assert!(!person.folder("results/sales.csv").exists(), "what was brought is no result");
    let again = person.run(&["run", "once more", "--out", "results"]);
    assert!(!again.status.success(), "it replaces a file that it was not told to: {again:?}");
    assert!(fs::read_to_string(person.folder("results/output.txt")).unwrap().contains("add up"), "nothing is lost");
    assert!(person.run(&["run", "once more", "--out", "results", "--force"]).status.success());
    let missing = person.run(&["run", "read it", "--file", "nothing.csv"]);
    assert!(!missing.status.success() && text(&missing.stderr).contains("nothing.csv"), "{missing:?}");
}

#[test]
fn a_kept_sandbox_is_listed_used_logged_and_removed() {
    let person = Person::new();
    let run = person.json(&["run", "make something", "--keep", "--out", "results"]);
    let id = run["session_id"].as_str().unwrap_or_else(|| panic!("{run}")).to_owned();
    let list = person.json(&["list"]);
    assert_eq!(list[0]["session_id"], id.as_str(), "{list}");
    let inside = person.run(&["exec", "--session", &id, "--", "cat", "/workspace/output.txt"]);
    assert!(text(&inside.stdout).contains("make something"), "{inside:?}");
    let logs = person.run(&["logs", &id]);
    assert!(logs.status.success() && text(&logs.stdout).contains("make something"), "{logs:?}");
    assert!(person.run(&["rm", &id]).status.success());
    assert_eq!(person.json(&["list"]), serde_json::json!([]));
    let gone = person.run(&["exec", "--session", &id, "--", "true"]);
    assert_eq!(gone.status.code(), Some(125), "{gone:?}");
}

#[test]
fn a_misspelt_setting_is_refused_with_the_nearest_one() {
    let person = Person::new();
    fs::create_dir_all(person.folder("config/sandbox-mcp")).unwrap();
    fs::write(person.folder("config/sandbox-mcp/config.toml"), "max_timeout_second = 5\n").unwrap();
    let output = person.run(&["exec", "--", "true"]);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(text(&output.stderr).contains("max_timeout_seconds"), "{output:?}");
}

#[test]
fn what_cannot_be_used_is_told_in_plain_words_and_once() {
    let person = Person::new();
    fs::write(person.folder("file"), "").unwrap();
    let file = person.folder("file").display().to_string();
    for (image, why) in [("/nope", "no such folder"), ("/", "whole machine"), (file.as_str(), "not a folder")] {
        let output = person.run(&["exec", "--image", image, "--", "id"]);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(told.contains(why) && told.contains("`host`") && !told.contains("layering"), "{told}");
    }
    let output = person.run(&["exec", "--config", "/nope.toml", "--", "id"]);
    assert_eq!(text(&output.stderr).matches("No such file").count(), 1, "{output:?}");
    let output = person.run(&["run", "x", "--level", "5"]);
    assert!(text(&output.stderr).contains("a level is 1, 2, 3 or 4"), "{output:?}");
    let output = person.run(&["run", "x", "--timeout", "1ms"]);
    assert!(!text(&output.stderr).contains("in 0.0 s"), "{output:?}");
    let output = person.run(&["logs", "sandbox_local_000000000000000000000000"]);
    assert!(text(&output.stderr).contains("nothing is known of sandbox_local_0000"), "{output:?}");
}

#[test]
fn a_list_of_programs_holds_for_a_shells_own_words_too() {
    let person = Person::new();
    fs::write(person.folder("few.toml"), "commands.allow = [\"cat\", \"nosuchprog\"]\n").unwrap();
    let output = person.run(&["exec", "--policy", "./few.toml", "--", "true"]);
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    assert!(text(&output.stderr).contains("`true` is not one of them"), "{output:?}");
}

#[test]
fn strict_is_refused_once_with_all_that_it_takes() {
    let person = Person::new();
    let output = person.types(&["exec", "--", "true"]).env("SANDBOX_MCP_STRICT", "1").output().unwrap();
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(told.contains("watched by this program, not held by the kernel"), "{told}");
    let (_, list) = told.split_once("allow_unenforced = [").unwrap();
    let accepted = list.split(']').next().unwrap().replace('"', "");
    let mut again = person.types(&["exec", "--", "true"]);
    again.env("SANDBOX_MCP_STRICT", "1").env("SANDBOX_MCP_ALLOW_UNENFORCED", accepted);
    assert!(again.output().unwrap().status.success(), "what the refusal names is all that it takes: {told}");
}

#[test]
fn doctor_says_what_works_here() {
    let person = Person::new();
    let output = person.run(&["doctor"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stdout.contains(&0x1b), "colours are for terminals");
    let told = person.json(&["doctor"]);
    assert!(told.is_object(), "{told}");
}

#[test]
fn doctor_fix_says_so_where_there_is_nothing_to_fix() {
    if fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|answer| answer.starts_with('Y')) {
        return eprintln!("AppArmor is here, and this machine is not ours to change: tests/guest tries it");
    }
    let person = Person::new();
    let output = person.run(&["doctor", "--fix"]);
    assert!(output.status.success() && text(&output.stdout).contains("nothing to fix"), "{output:?}");
    assert_eq!(person.json(&["doctor", "--fix"]), serde_json::json!([]));
}

#[test]
fn doctor_attacks_its_own_sandboxes() {
    let person = Person::new();
    let told = person.json(&["doctor", "--attack", "--policy", "yolo-1", "--only", "mount_tmpfs"]);
    assert_eq!(told["breaches"], 0, "{told}");
    assert_eq!(told["policies"][0]["records"][0]["outcome"], "held", "{told}");
    let output = person.run(&["doctor", "--attack", "--policy", "yolo-1", "--group", "network"]);
    assert!(output.status.success() && !output.stdout.contains(&0x1b), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("All walls held"), "{output:?}");
    assert_eq!(person.run(&["doctor", "--group", "network"]).status.code(), Some(2), "only with --attack");
}

#[test]
fn fifty_at_once_all_work() {
    let person = Person::new();
    let children: Vec<_> = (0..50)
        .map(|number| {
            person.types(&["exec", "--", "echo", &number.to_string()]).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (number, mut child) in children.into_iter().enumerate() {
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((child.wait().unwrap().code(), said.trim()), (Some(0), number.to_string().as_str()));
    }
}
