//! The command line, as people and scripts use it.

use std::{
    fs,
    io::{Read, Write},
    process::Stdio,
};

use serde_json::Value;

use crate::person::{Person, at_a_terminal, at_a_terminal_after, text};

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
    // Nothing that is granted outlives this program, so nothing longer is offered, nor taken.
    for longer in ["m\n", "s\n"] {
        let seen = at_a_terminal(&person, "$BIN exec -- ssh -V; echo code $?", longer);
        assert!(!seen.contains("10 minutes") && seen.contains("code 126"), "{seen}");
    }
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
    let aside: Vec<_> =
        fs::read_dir(person.folder("sandbox-output")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    let made = fs::read_to_string(aside[0].join("output.txt")).unwrap();
    assert!(made.contains("once more") && text(&again.stderr).contains("sandbox-output/"), "{again:?}");
    assert!(person.run(&["run", "once more", "--out", "results", "--force"]).status.success());
    let missing = person.run(&["run", "read it", "--file", "nothing.csv"]);
    assert!(!missing.status.success() && text(&missing.stderr).contains("nothing.csv"), "{missing:?}");
}

#[test]
fn run_does_not_begin_what_would_lose_files() {
    let person = Person::new();
    for folder in ["d1", "d2"] {
        fs::create_dir(person.folder(folder)).unwrap();
        fs::write(person.folder(folder).join("a.txt"), folder).unwrap();
    }
    let same = person.run(&["run", "-f", "d1/a.txt", "-f", "d2/a.txt", "look at them"]);
    assert_eq!(same.status.code(), Some(1), "{same:?}");
    assert!(text(&same.stderr).contains("d1/a.txt and d2/a.txt have the same name"), "{same:?}");
    let nowhere = person.run(&["run", "look at it", "-f", "d1/a.txt", "--out", "d1/a.txt"]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    fs::write(person.folder("sandbox-output"), "in the way").unwrap();
    let default = person.run(&["run", "look at it"]);
    assert_eq!(default.status.code(), Some(1), "{default:?}");
    assert!(!person.folder("state/sandbox-mcp/history.db").exists(), "it began: {default:?}");
}

#[test]
fn what_the_ceiling_takes_is_said() {
    let person = Person::new();
    person.settles("ceiling = \"yolo-1\"\n");
    fs::write(person.folder("mine.toml"), "extends = \"yolo-4\"\n").unwrap();
    for policy in ["yolo-4", "./mine.toml"] {
        let said = person.run(&["exec", "--policy", policy, "--", "true"]);
        assert!(said.status.success() && text(&said.stderr).contains("the ceiling `yolo-1` says so"), "{said:?}");
        let output = person.run(&["exec", "--policy", policy, "--json", "--", "true"]);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(!told["narrowed"].as_array().unwrap().is_empty(), "{told}");
    }
    let told = person.json(&["run", "make something", "--level", "4"]);
    assert!(!told["narrowed"].as_array().unwrap().is_empty(), "{told}");
    let unasked = person.run(&["exec", "--", "true"]);
    assert_eq!(text(&unasked.stderr), "", "the default is nobody's wish");
    let outside = person.run(&["exec", "--policy", "builtin", "--", "true"]);
    assert!(text(&outside.stderr).contains("`builtin` is not for sandboxes"), "{outside:?}");
}

#[test]
fn errors_are_json_where_json_is_asked_for() {
    let person = Person::new();
    let unknown = "sandbox_local_0123456789abcdef01234567";
    let cases: [(&[&str], i32); 8] = [
        (&["exec", "--policy", "nope", "--json", "--", "true"], 125),
        (&["exec", "--session", unknown, "--json", "--", "true"], 125),
        (&["exec", "--json", "--", "no-such-program"], 127),
        (&["run", "read it", "--file", "nothing.csv", "--json"], 1),
        (&["logs", unknown, "--json"], 1),
        (&["doctor", "--attack", "--only", "nope", "--json"], 1),
        (&["list", "--jsn", "--json"], 2),
        (&["serve", "--json"], 2),
    ];
    for (words, code) in cases {
        let output = person.run(words);
        let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        assert!(told["error"]["message"].is_string(), "{words:?}: {told}");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {output:?}");
    }
    assert_eq!(person.json(&["rm", "--all"]), serde_json::json!([]));
    assert_eq!(person.json(&["rm", "--ended"]), serde_json::json!([]));
    assert!(person.json(&["rm", unknown])[0]["error"]["message"].is_string());
    let short = person.run(&["exec", "--session", "sandbox_local_4f2a1111", "--", "true"]);
    assert!(text(&short.stderr).contains("24 digits") && text(&short.stderr).contains("`list`"), "{short:?}");
}

#[test]
fn a_server_at_a_terminal_says_what_it_waits_for_and_a_log_file_has_no_colours() {
    let person = Person::new();
    let seen = at_a_terminal_after(&person, "timeout --foreground 20 $BIN serve", "waits for an MCP client", "\x03");
    assert!(seen.contains("serve --help") && seen.contains("^C"), "{seen}");
    let call = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"nope","arguments":{}}}"#;
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    fs::write(
        person.folder("in"),
        format!("{hello}\n{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}}\n{call}\n"),
    )
    .unwrap();
    let log = |level: &str| {
        let answered = "for i in $(seq 200); do grep -q '\"id\":2' out && break; sleep 0.1; done";
        let serve = format!("SANDBOX_MCP_LOG={level} $BIN serve >out 2>err.log");
        let script = format!(": >out; (cat in; {answered}) | {serve}; cat out >&2; cat err.log");
        let output = person.shell(&script);
        assert!(String::from_utf8_lossy(&output.stderr).contains("\"id\":2"), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(log("warn"), "", "what a client does wrong is answered, not logged");
    let much = log("debug");
    assert!(!much.is_empty() && !much.contains('\x1b'), "{much}");
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
    assert_eq!(text(&logs.stdout).get(19..20), Some("Z"), "the times are universal, and say so: {logs:?}");
    let logs = person.run(&["logs", &id, "--json"]);
    let events = text(&logs.stdout).lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let finished: Vec<Value> = events.filter(|event| event["event"] == "task_finished").collect();
    assert!(finished[0]["duration_seconds"].is_number(), "{finished:?}");
    assert!(person.run(&["rm", &id]).status.success());
    assert_eq!(person.json(&["list"]), serde_json::json!([]));
    let gone = person.run(&["exec", "--session", &id, "--", "true"]);
    assert_eq!(gone.status.code(), Some(125), "{gone:?}");
    assert!(text(&gone.stderr).contains("`sandbox-mcp list`"), "{gone:?}");
}

#[test]
fn a_misspelt_setting_is_refused_with_the_nearest_one() {
    let person = Person::new();
    person.settles("max_timeout_second = 5\n");
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
fn fifty_at_once_all_work() {
    let person = Person::new();
    let children: Vec<_> = (0..50)
        .map(|number| {
            let mut command = person.types(&["exec", "--", "echo", &number.to_string()]);
            // Whoever needs a relay, because something is no pipe, counts as a sandbox of a person who may have 32.
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for (number, mut child) in children.into_iter().enumerate() {
        let mut said = String::new();
        child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!((child.wait().unwrap().code(), said.trim()), (Some(0), number.to_string().as_str()));
    }
}
