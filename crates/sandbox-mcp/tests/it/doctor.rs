//! `doctor`, as people and scripts read it.

use std::fs;

use serde_json::Value;

use crate::person::{Person, at_a_terminal, text};

#[test]
fn doctor_says_what_works_here() {
    let person = Person::new();
    let output = person.run(&["doctor"]);
    assert!(output.status.success(), "{output:?}");
    assert!(!output.stdout.contains(&0x1b), "colours are for terminals");
    let shown = text(&output.stdout);
    let agents = shown.lines().find(|line| line.contains(" agents "));
    assert!(agents.is_some_and(|row| row.contains("set ANTHROPIC_API_KEY")), "a missing model is no failure: {shown}");
    let told = person.json(&["doctor"]);
    assert!(told.is_object(), "{told}");
}

#[test]
fn doctor_says_no_where_the_default_policy_is_refused() {
    let person = Person::new();
    // Nothing holds the time of a command but us, so a strict policy that does not let it go is refused everywhere.
    person.settles("strict = true\n");
    let output = person.run(&["doctor"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("broken  policy yolo-3") && shown.contains("broken  policy yolo-1"), "{shown}");
    assert!(!shown.contains("Sandboxes work") && shown.contains("No sandbox can be made with yolo-3"), "{shown}");
    let told = person.json(&["doctor"]);
    assert_eq!(told["usable"], false, "{told}");
}

#[test]
fn doctor_says_which_secrets_can_be_read() {
    let person = Person::new();
    let secret = |name: &str, source: &str| {
        format!("[secrets.{name}]\n{source}\nhosts = [\"{name}.example\"]\npolicies = [\"yolo-3\"]\n")
    };
    let good = secret("good", "command = [\"echo\", \"long-enough-value\"]");
    person.settles(&good);
    let output = person.run(&["doctor"]);
    assert!(output.status.success() && text(&output.stdout).contains("can be read; for yolo-3"), "{output:?}");
    let failing = secret("failing", "command = [\"sh\", \"-c\", \"echo log in first >&2; exit 3\"]");
    person.settles(&(good + &failing + &secret("short", "command = [\"echo\", \"x\"]")));
    let output = person.run(&["doctor"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("log in first") && shown.contains("8 to 4096 bytes"), "{shown}");
    assert!(!output.status.success() && shown.contains("No sandbox can be made with yolo-3"), "{shown}");
}

#[test]
fn doctor_names_policies_that_cannot_be_used() {
    let person = Person::new();
    let folder = person.folder("config/sandbox-mcp/policies");
    fs::create_dir_all(&folder).unwrap();
    for (name, content) in [("yolo-2.toml", ""), ("my pol.toml", ""), ("typo.toml", "[limits]\nmemry = 3\n")] {
        fs::write(folder.join(name), content).unwrap();
    }
    person.settles(&format!("policy_folder = {folder:?}\n"));
    let shown = person.run(&["doctor"]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("yolo-2.toml is ignored: `yolo-2` is a preset"), "{shown}");
    assert!(shown.contains("my pol.toml is ignored: its name must be"), "{shown}");
    assert!(shown.contains("broken  policy typo") && shown.contains("fix: correct "), "{shown}");
    assert!(!shown.contains("`sandbox-mcp doctor` looks at"), "{shown}");
    let unknown = person.run(&["exec", "--policy", "nope", "--", "true"]);
    assert_eq!(text(&unknown.stderr).matches("yolo-2").count(), 1, "{unknown:?}");
}

#[test]
fn the_matrix_of_doctor_fits_on_a_terminal() {
    let person = Person::new();
    let shown = person.run(&["doctor"]);
    let shown = text(&shown.stdout);
    let matrix: Vec<&str> = shown.lines().skip_while(|line| !line.starts_with("Every policy")).collect();
    assert!(matrix.iter().filter(|line| line.starts_with("full_isolation")).count() > 1, "{shown}");
    assert!(matrix.iter().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(shown.lines().all(|line| line.trim_end() == line), "{shown}");
    let script = "stty cols 80; NO_COLOR=1 $BIN doctor; $BIN exec -- ssh -V";
    let seen = at_a_terminal(&person, script, "n\n");
    assert!(seen.contains("was not run"), "{seen}");
    // A path is not broken, however long the folder of the tests is.
    let can_be_broken = |line: &&str| line.split(' ').all(|word| word.len() < 50);
    let long: Vec<&str> = seen.lines().filter(|line| line.chars().count() > 80).filter(can_be_broken).collect();
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn doctor_fix_says_what_is_left_to_do() {
    if fs::read_to_string("/sys/module/apparmor/parameters/enabled").is_ok_and(|answer| answer.starts_with('Y')) {
        return eprintln!("AppArmor is here, and this machine is not ours to change: tests/guest tries it");
    }
    let person = Person::new();
    let findings = person.json(&["doctor"])["findings"].as_array().unwrap().clone();
    let left: Vec<Value> = findings.into_iter().filter(|finding| finding["fix"].is_string()).collect();
    let told = person.json(&["doctor", "--fix"]);
    assert_eq!(told["repairs"], serde_json::json!([]));
    assert_eq!(told["by_hand"], Value::Array(left.clone()));
    let output = person.run(&["doctor", "--fix"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout).contains("nothing to fix."), left.is_empty(), "{output:?}");
    assert!(left.iter().all(|finding| text(&output.stdout).contains(finding["fix"].as_str().unwrap())), "{output:?}");
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
    assert!(String::from_utf8_lossy(&output.stdout).contains("on 1 policy."), "{output:?}");
    let mistyped = person.run(&["doctor", "--attack", "--policy", "yolo-1", "--only", "nope"]);
    assert_eq!(mistyped.status.code(), Some(1), "{mistyped:?}");
    assert!(text(&mistyped.stderr).contains("no attack is called `nope`"), "{mistyped:?}");
    assert_eq!(person.run(&["doctor", "--group", "network"]).status.code(), Some(2), "only with --attack");
}
