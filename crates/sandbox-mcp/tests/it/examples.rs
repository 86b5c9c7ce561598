//! The tasks of docs/SANDBOX.md, as written there. The mock agent follows what a model would do; sandbox, files, way out and
//! results are real.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use crate::person::{Person, text};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/tasks").join(name)
}

/// Runs the task of an example, with these words more.
fn run(person: &Person, name: &str, task: &str, more: &[&str]) -> Output {
    let (script, input) = (example(name).join("script.toml"), example(name).join("in"));
    let out = person.folder("results");
    let mut command = person.types(&["run", task, "--agent", "mock", "--out", out.to_str().unwrap()]);
    if input.exists() {
        command.arg("--file").arg(input);
    }
    command.args(more).env("SANDBOX_MCP_MOCK_SCRIPT", script).output().unwrap()
}

fn task(name: &str) -> String {
    fs::read_to_string(example(name).join("task.txt")).unwrap().trim().to_owned()
}

/// Every file that is expected is there, and is the same.
fn compare(expected: &Path, found: &Path) {
    for entry in fs::read_dir(expected).unwrap().map(Result::unwrap) {
        let (expected, found) = (entry.path(), found.join(entry.file_name()));
        if expected.is_dir() {
            compare(&expected, &found);
            continue;
        }
        let content = fs::read(&found).unwrap_or_else(|error| panic!("{}: {error}", found.display()));
        assert!(content == fs::read(&expected).unwrap(), "{} is another one", found.display());
    }
}

fn works(name: &str) {
    let person = Person::new();
    let output = run(&person, name, &task(name), &[]);
    assert!(output.status.success(), "{output:?}");
    compare(&example(name).join("expected"), &person.folder("results"));
}

#[test]
fn a_table_becomes_a_report_and_a_chart() {
    works("sales-chart");
}

#[test]
fn a_folder_is_put_in_order() {
    works("tidy-folder");
}

#[test]
fn the_page_for_people_has_every_example_as_it_is() {
    let page = include_str!("../../../../docs/SANDBOX.md");
    for entry in fs::read_dir(example("")).unwrap().map(Result::unwrap) {
        let task = task(entry.file_name().to_str().unwrap());
        let first = task.split(['.', ':']).next().unwrap();
        let begins = first.split(" from the page").next().unwrap();
        assert!(page.contains(begins), "docs/SANDBOX.md does not have `{begins}`");
    }
    assert!(text(page.as_bytes()).starts_with("# "));
}
