//! Tasks of a person at a terminal: files in and results out, questions, Ctrl-C, what is told in words.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    harness::{mark, parent_of, processes_with, start},
    model::{Say, Server, call, text},
    person::{Person, text as printed},
    tasks::script,
};

/// What the settings file of a person says who uses this model.
fn settled(model: &Server) -> String {
    format!("model_url = \"http://127.0.0.1:{}\"\n", model.port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_at_a_terminal_hands_over_a_csv_and_gets_a_report() {
    let model = Server::turns(crate::agents::csv_turns()).await;
    let person = Person::new();
    person.settles(&settled(&model));
    std::fs::create_dir_all(person.folder("in/deep")).unwrap();
    std::fs::write(person.folder("in/sales.csv"), "month,region,sum\njan,north,7\nfeb,south,8\n").unwrap();
    std::fs::write(person.folder("in/deep/notes.txt"), "x").unwrap();
    let output = person.run(&["run", "sum it up", "--file", "in", "--out", "results", "--budget", "1"]);
    assert!(output.status.success(), "{output:?}");
    let report = std::fs::read_to_string(person.folder("results/report.md")).unwrap();
    assert!(
        report.contains("Total: 15")
            && printed(&output.stdout).contains("chart.png")
            && printed(&output.stdout).contains("image, 60 × 30"),
        "{output:?}"
    );
    assert!(!person.folder("results/deep").exists(), "what was brought is no result");
    // The same into an archive that everybody can open.
    for (archive, list) in
        [("results.zip", vec!["python3", "-m", "zipfile", "-l"]), ("results.tar.gz", vec!["tar", "-tzvf"])]
    {
        let output = person.run(&["run", "sum it up", "--file", "in/*.csv", "--archive", archive]);
        assert!(output.status.success(), "{output:?}");
        let listed = person.starts(list[0], &list[1..]).arg(archive).output().unwrap();
        assert!(listed.status.success() && printed(&listed.stdout).contains("report.md"), "{listed:?}");
        assert!(!person.run(&["run", "again", "--archive", archive]).status.success(), "it would replace it");
    }
    let told = person.json(&["run", "sum it up", "--data", "sales.csv=bW9udGgsc3VtCmphbiw3Cg==", "--out", "more"]);
    assert_eq!((&told["agent"], &told["status"]), (&json!("claude"), &json!("completed")), "{told}");
    let page = told["receipt"].as_str().unwrap();
    assert!(std::fs::read_to_string(page).unwrap().contains("Adding up the sales"));
    let unknown = person.run(&["run", "x", "--agent", "claudia"]);
    assert!(!unknown.status.success() && printed(&unknown.stderr).contains("did you mean `claude`"), "{unknown:?}");
}

#[tokio::test]
async fn archives_hold_only_files_that_lead_down() {
    let person = Person::new();
    let steps = json!({"steps": [{"run": "ln -s /etc/passwd link; mkfifo pipe; mkdir d; echo x > 'd/..\\evil'; touch \"$(printf 'd/new\\nline')\"; chmod 4755 d/*; true"}, {"finish": "ok"}]});
    std::fs::write(person.folder("mock-script.json"), steps.to_string()).unwrap();
    for (archive, list) in [
        ("a.zip", "import zipfile, sys; print([i.filename for i in zipfile.ZipFile(sys.argv[1]).infolist()])"),
        (
            "a.tar.gz",
            "import tarfile, sys; print([(m.name, m.isfile(), oct(m.mode), m.uid) for m in tarfile.open(sys.argv[1])])",
        ),
    ] {
        let output = person.run(&["run", "x", "--agent", "mock", "--file", "mock-script.json", "--archive", archive]);
        let listed = person.starts("python3", &["-c", list, archive]).output().unwrap();
        let names = printed(&listed.stdout);
        assert!(
            names.contains("d/.._evil") && !names.contains("link") && !names.contains("pipe") && !names.contains('\n'),
            "{names} {output:?}"
        );
        assert!(!names.contains("0o4") && !names.contains("False"), "{names}");
    }
}

#[tokio::test]
async fn files_in_an_archive_are_as_old_as_they_are() {
    let person = Person::new();
    let steps = json!({"steps": [{"run": "touch -d '2021-06-01 12:00' old.txt"}, {"finish": "ok"}]});
    std::fs::write(person.folder("mock-script.json"), steps.to_string()).unwrap();
    for (archive, list) in [
        ("a.zip", "import zipfile, sys; print([i.date_time[0] for i in zipfile.ZipFile(sys.argv[1]).infolist()])"),
        ("a.tar.gz", "import tarfile, sys, time; print([time.gmtime(m.mtime)[0] for m in tarfile.open(sys.argv[1])])"),
    ] {
        let output = person.run(&["run", "x", "--agent", "mock", "--file", "mock-script.json", "--archive", archive]);
        let listed = person.starts("python3", &["-c", list, archive]).output().unwrap();
        assert_eq!(printed(&listed.stdout).trim(), "[2021]", "{output:?}");
    }
}

/// Runs these steps of the mock agent and tells all about it.
fn run_steps(person: &Person, steps: Value) -> Value {
    std::fs::write(person.folder("mock-script.json"), json!({ "steps": steps }).to_string()).unwrap();
    person.json(&["run", "x", "--agent", "mock", "--file", "mock-script.json", "--out", "out"])
}

#[tokio::test]
async fn results_beside_thousands_of_files_were_lost() {
    let person = Person::new();
    let many = "mkdir -p many && cd many && seq 1 10050 | xargs touch && cd .. && echo answer > report.md";
    let told = run_steps(&person, json!([{ "run": many }, { "finish": "ok" }]));
    assert!(told["missing"].is_null(), "{}", told["missing"]);
    assert_eq!(std::fs::read_to_string(person.folder("out/report.md")).unwrap(), "answer\n");
    assert_eq!(std::fs::read_dir(person.folder("out/many")).unwrap().count(), 10050);
}

#[tokio::test]
async fn results_in_a_closed_folder_vanished_without_a_word() {
    let person = Person::new();
    let steps = json!([{ "run": "mkdir closed; echo s > closed/result.txt; chmod 0 closed" }, { "finish": "ok" }]);
    let told = run_steps(&person, steps);
    let missing = told["missing"].as_str().unwrap_or_default();
    assert!(missing.contains("folders that cannot be read") && missing.contains("stays in /"), "{told}");
    let folder = missing.split_once("stays in ").unwrap().1.split_once(" for ").unwrap().0;
    assert!(std::path::Path::new(folder).join("closed").exists(), "{missing}");
}

#[test]
fn what_a_task_had_made_when_its_sandbox_ended_vanished_without_a_word() {
    let (person, number) = (Person::new(), mark());
    let steps = json!([{"write": {"path": "half.txt", "content": "half"}}, {"run": format!("exec sleep {number}")}]);
    std::fs::write(person.folder("mock-script.json"), json!({ "steps": steps }).to_string()).unwrap();
    let words = ["run", "x", "--agent", "mock", "--file", "mock-script.json", "--out", "out", "--json"];
    let run = person.types(&words).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while processes_with(&number) == 0 {
        assert!(Instant::now() < end, "it does nothing");
        std::thread::sleep(Duration::from_millis(50));
    }
    let executor = rustix::process::Pid::from_raw(parent_of(&format!("sleep {number}")) as i32).unwrap();
    rustix::process::kill_process(executor, rustix::process::Signal::KILL).unwrap();
    let output = run.wait_with_output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let missing = told["missing"].as_str().unwrap_or_default();
    assert!(missing.contains("could not be looked at") && told["files_truncated"] == true, "{output:?}");
    assert!(!output.status.success(), "{output:?}");
    let folder = missing.rsplit_once("stays in ").unwrap().1.split_once(" for ").unwrap().0;
    assert_eq!(std::fs::read_to_string(std::path::Path::new(folder).join("half.txt")).unwrap(), "half", "{missing}");
}

#[tokio::test]
async fn a_link_that_stays_inside_is_no_failure() {
    let person = Person::new();
    let steps = json!([{ "run": "echo x > a.txt; ln -s a.txt b.txt" }, { "finish": "ok" }]);
    std::fs::write(person.folder("mock-script.json"), json!({ "steps": steps }).to_string()).unwrap();
    let output = person.run(&["run", "x", "--agent", "mock", "--file", "mock-script.json", "--out", "out"]);
    assert!(output.status.success(), "{output:?}");
    assert!(printed(&output.stderr).contains("b.txt was not taken out: it is not a regular file"), "{output:?}");
}

#[tokio::test]
async fn a_second_agent_was_let_loose_on_the_files_of_the_first() {
    let client = start().await;
    let running = client
        .ok("execute_task", json!({"task": "x", "wait_seconds": 1, "files": script(json!([{"sleep": 60}]))}))
        .await;
    assert_eq!(running["status"], "running", "{running}");
    let person = Person::new();
    let session = running["session_id"].as_str().unwrap();
    let state = client.state();
    let second =
        person.types(&["run", "y", "--agent", "mock", "--session", session]).env("WORKSPACE_BASE", state).output();
    let second = second.unwrap();
    let said = printed(&second.stderr);
    assert!(said.contains("still goes on") && said.contains(running["task_id"].as_str().unwrap()), "{said}");
}

/// A task at a terminal, and what the person types.
fn typing(person: &Person, steps: Value, typed: &[(&str, &str)]) -> String {
    std::fs::write(person.folder("mock-script.json"), json!({ "steps": steps }).to_string()).unwrap();
    // Some shells end with a command that was interrupted, though it did not end by that.
    let script = "trap : INT; $BIN run 'do it' --agent mock --file mock-script.json --out results; echo code $?";
    crate::person::typing_at_a_terminal(person, script, typed)
}

const WHAT_TO_DO: &str = "press Enter: ";

#[test]
fn a_person_at_a_terminal_sees_steps_answers_questions_and_looks_at_results() {
    let steps = json!([
        {"step": "Reading sales.csv"}, {"spend": {"input": 1000, "output": 100}},
        {"ask": {"question": "Which colour?", "choices": ["red", "blue"], "default": "red"}},
        {"write": {"path": "table.csv", "content": "colour,count\n{answer},3\n"}}, {"finish": "It is {answer}."},
    ]);
    let seen = typing(&Person::new(), steps, &[("it decides] ", "2\n")]);
    for part in [
        "• Reading sales.csv",
        "in its own words: “Which colour?”",
        "1: red",
        "It is blue.",
        "results/table.csv",
        "blue    3",
        "code 0",
    ] {
        assert!(seen.contains(part), "{part}: {seen}");
    }
}

#[test]
fn ctrl_c_asks_whether_to_stop_a_task_or_to_leave_it_running() {
    let number = mark();
    let steps = |seconds: f64| json!([{"step": "Beginning"}, {"run": format!("sleep {number} & sleep {seconds}; kill $!")}, {"write": {"path": "done.txt", "content": "done"}}, {"finish": "done"}]);
    // Going on.
    let seen = typing(&Person::new(), steps(2.0), &[("Beginning", "\x03"), (WHAT_TO_DO, "no\n")]);
    assert!(seen.contains("results/done.txt") && seen.contains("code 0"), "{seen}");
    // Stopping: no process is left, what was made is there, and it is on record. Who presses it twice need not answer.
    for stop in ["s\n", "\x03"] {
        let person = Person::new();
        let mut steps = steps(60.0);
        steps.as_array_mut().unwrap().insert(0, json!({"write": {"path": "early.txt", "content": "early"}}));
        let seen = typing(&person, steps, &[("Beginning", "\x03"), (WHAT_TO_DO, stop)]);
        assert!(seen.contains("code 143") && processes_with(&number) == 0, "{seen}");
        assert!(seen.contains("results/early.txt") && person.folder("results/early.txt").exists(), "{seen}");
        assert_eq!(person.json(&["task", "list"])[0]["status"], "cancelled");
    }
    // Leaving: the task goes on and its results come.
    let person = Person::new();
    let seen = typing(&person, steps(3.0), &[("Beginning", "\x03"), (WHAT_TO_DO, "l\n")]);
    assert!(seen.contains("the task goes on by itself") && seen.contains("code 0"), "{seen}");
    assert!(!person.folder("results/done.txt").exists(), "{seen}");
    let end = Instant::now() + Duration::from_secs(15);
    while !person.folder("results/done.txt").exists() {
        assert!(Instant::now() < end, "the task does not go on: {}", person.json(&["task", "list"]));
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(person.json(&["task", "list"])[0]["status"], "completed");
}

#[test]
fn a_task_that_is_refused_the_network_says_so_and_leaves_it_on_record() {
    let person = Person::new();
    let steps = json!({"steps": [{"run": "curl -sS http://198.51.100.7/"}, {"write": {"path": "a.txt", "content": "a"}}, {"finish": "tried"}]});
    std::fs::write(person.folder("mock-script.json"), steps.to_string()).unwrap();
    let ran =
        person.run(&["run", "x", "--agent", "mock", "--level", "1", "--file", "mock-script.json", "--out", "results"]);
    let told = printed(&ran.stderr);
    assert!(
        ran.status.success() && told.contains("sandbox-mcp task show task_") && told.contains("receipt.html"),
        "{told}"
    );
    let task = &person.json(&["task", "list"])[0];
    let page = std::fs::read_to_string(task["receipt"].as_str().unwrap()).unwrap();
    assert!(page.contains(person.folder("results").to_str().unwrap()) && page.contains("GMT"), "{page}");
    if !crate::network::only_by_proxy() {
        assert!(told.contains("gives no network [policy `yolo-1`]"), "{told}");
        assert!(page.contains("gives no network"), "{page}");
        let logged = person.run(&["logs", "--network"]);
        assert!(printed(&logged.stdout).contains("no_network"), "{logged:?}");
    }
}

#[test]
fn words_without_quotes_and_budgets_beyond_the_limit_are_answered_in_words() {
    let person = Person::new();
    let unquoted = person.run(&["run", "x", "--file", "a.csv", "b.csv"]);
    assert!(printed(&unquoted.stderr).contains("--file '*.csv'") && unquoted.status.code() == Some(1), "{unquoted:?}");
    let rich = person.run(&["run", "x", "--agent", "mock", "--budget", "50", "--out", "results"]);
    assert!(printed(&rich.stderr).contains("$50.00 is lowered to $5.00"), "{rich:?}");
    assert!(!printed(&rich.stderr).contains("only pretends"), "who names it knows: {rich:?}");
    let nobody = person.run(&["run", "x", "--out", "more"]);
    assert!(printed(&nobody.stderr).contains("`mock`, which only pretends"), "{nobody:?}");
}

#[test]
fn a_model_that_is_not_there_is_said_soon_and_with_what_to_do() {
    let person = Person::new();
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    person.settles(&format!("model_url = \"http://{nobody}\"\n"));
    let began = Instant::now();
    let told = person.json(&["run", "x", "--agent", "claude", "--out", "results"]);
    assert!(told["error"].as_str().unwrap().contains("no model's server runs at"), "{told}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

/// A task that follows a script, where nobody sits at a terminal who could be asked.
fn alone(person: &Person, script: &str, content: &str) -> std::process::Output {
    std::fs::write(person.folder(script), content).unwrap();
    person.run(&["run", "x", "--agent", "mock", "--file", script, "--out", "results"])
}

#[test]
fn a_question_that_nobody_answers_is_told_at_the_end_and_is_among_the_steps() {
    let person = Person::new();
    let ask = json!({"ask": {"question": "Which region?", "default": "all of them"}});
    let ran = alone(&person, "mock-script.json", &json!({"steps": [ask, {"finish": "For {answer}."}]}).to_string());
    let told = printed(&ran.stderr);
    assert!(told.contains("“Which region?”: the agent went on with “all of them”"), "{told}");
    let task = person.json(&["task", "list"])[0].clone();
    let shown = person.run(&["task", "show", task["task_id"].as_str().unwrap()]);
    let shown = printed(&shown.stdout);
    assert!(shown.contains("asked: Which region?") && shown.contains("it went on with: all of them"), "{shown}");
    let page = std::fs::read_to_string(task["receipt"].as_str().unwrap()).unwrap();
    assert!(page.contains("nobody answered") && page.contains("all of them"), "{page}");
}

#[test]
fn what_went_wrong_is_told_line_by_line_and_a_script_by_its_first_line() {
    let person = Person::new();
    let steps = json!({"steps": [{"must": "echo begun\necho no such region\nexit 3"}]});
    let failed = alone(&person, "mock-script.json", &steps.to_string());
    let told = printed(&failed.stderr);
    assert!(told.contains("the command `echo begun` (and more lines) ended with code 3: no such region"), "{told}");
    let mistyped = alone(&person, "mock-script.toml", "[[steps]]\nfly = \"high\"\n");
    let told = printed(&mistyped.stderr);
    assert!(told.contains("fly") && !told.contains("\\u{a}"), "{told}");
}

/// The key in the first address of a preview in a text.
fn key(text: &str) -> &str {
    let end = text.find(".localhost:").unwrap_or_else(|| panic!("no address: {text}"));
    let begin = text[..end].rfind("http://").unwrap() + "http://".len();
    text[begin..end].split('.').next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_address_of_a_page_is_seen_while_it_lives_and_its_key_is_in_no_receipt() {
    let model = Server::start(|asked| {
        Say::Turn(vec![match asked.step {
            0 => call("a", "open_port", json!({"port": 8000})),
            // A model that does not do what it was told repeats it.
            _ => text(format!("Look at http://{}.localhost:1/", key(&asked.body["messages"].to_string()))),
        }])
    })
    .await;
    let person = Person::new();
    person.settles(&settled(&model));
    let script = "$BIN run 'show it' --out results --keep; echo code $?";
    let seen = crate::person::typing_at_a_terminal(&person, script, &[]);
    assert!(seen.contains("port 8000 is to be seen at http://") && seen.contains("code 0"), "{seen}");
    assert!(seen.contains("to see a page that it serves: sandbox-mcp open sandbox_local_"), "{seen}");
    let page = std::path::PathBuf::from(person.json(&["task", "list"])[0]["receipt"].as_str().unwrap());
    for file in [page.with_file_name("receipt.json"), page] {
        let written = std::fs::read_to_string(&file).unwrap();
        assert!(!written.contains(key(&seen)) && written.contains("Look at http://KEY."), "{written}");
    }
    assert!(person.run(&["rm", "--all"]).status.success());
}
