//! What an agent does, in the words of somebody who cannot program; and which packages a command installs.

use sandbox_core::exec::Exit;
use serde_json::Value;

/// Longest sentence.
const LONGEST: usize = 100;

/// What a call of a tool does.
pub fn of_call(tool: &str, input: &Value) -> String {
    let field = |name: &str| input[name].as_str().unwrap_or_default();
    let own = field("description").trim();
    if !own.is_empty() {
        return one_line(own);
    }
    let file = || one_line(name_of(field("path")));
    match tool {
        "bash" => of_command(field("command")),
        "str_replace_based_edit_tool" => match field("command") {
            "view" if matches!(field("path").trim_end_matches('/'), "" | "/workspace" | ".") => {
                "Looking at the files".to_owned()
            }
            "view" => format!("Reading {}", file()),
            "create" => format!("Writing {}", file()),
            _ => format!("Changing {}", file()),
        },
        "open_port" => format!("Showing what runs on port {}", input["port"]),
        "request_access" => format!("Asking for access to {}", one_line(field("target"))),
        "ask_person" => "Asking you a question".to_owned(),
        other => format!("Using {}", one_line(other)),
    }
}

/// What a shell command does, as far as its first words tell.
pub fn of_command(command: &str) -> String {
    let packages = packages(command);
    if !packages.is_empty() {
        return one_line(&format!("Installing {}", packages.join(", ")));
    }
    let lower = command.to_lowercase();
    if ["savefig", "matplotlib", "gnuplot", "plotly", "<svg"].iter().any(|sign| lower.contains(sign)) {
        return "Drawing the chart".to_owned();
    }
    let words: Vec<&str> = command.split_whitespace().collect();
    let program = words.first().map(|word| name_of(word)).unwrap_or_default();
    let argument = words.iter().skip(1).find(|word| !word.starts_with('-')).copied().unwrap_or_default();
    let argument = argument.trim_matches(['"', '\'']);
    match program {
        "cat" | "head" | "tail" | "less" | "wc" | "file" if !argument.is_empty() && !argument.contains("<<") => {
            one_line(&format!("Reading {}", name_of(argument)))
        }
        "ls" | "find" | "tree" | "pwd" | "du" => "Looking at the files".to_owned(),
        "grep" | "rg" => "Searching in the files".to_owned(),
        "curl" | "wget" => {
            let address = words.iter().find_map(|word| word.trim_matches(['"', '\'']).split_once("://"));
            let host = address.map(|(_, rest)| rest.split('/').next().unwrap_or_default()).unwrap_or("something");
            one_line(&format!("Fetching from {host}"))
        }
        "python" | "python3" | "node" | "bash" | "sh" | "perl" | "ruby" if is_file(argument) => {
            one_line(&format!("Running {}", name_of(argument)))
        }
        "python" | "python3" => "Working with the data".to_owned(),
        "unzip" | "tar" | "zip" | "gzip" | "gunzip" => one_line(&format!("Packing or unpacking {}", name_of(argument))),
        "mkdir" | "mv" | "cp" | "rm" => "Sorting the files".to_owned(),
        "sleep" => "Waiting".to_owned(),
        _ => one_line(&format!("Running {command}")),
    }
}

/// How a command ended.
pub fn of_exit(exit: Exit) -> String {
    match exit {
        Exit::Code(code) => format!("ended with code {code}"),
        Exit::Signal(signal) => format!("was ended by signal {signal}"),
        Exit::Limit(control) => format!("was ended by the {control} limit"),
    }
}

/// That a command failed: the first line of it, how it ended, and the last line that it printed, which mostly says why.
pub fn of_failure(command: &str, exit: Exit, output: &str) -> String {
    let mut lines = command.lines().filter(|line| !line.trim().is_empty());
    let first = one_line(lines.next().unwrap_or_default());
    let more = if lines.next().is_some() { " (and more lines)" } else { "" };
    let last = output.lines().rev().find(|line| !line.trim().is_empty());
    let said = last.map_or_else(|| " and printed nothing".to_owned(), |line| format!(": {}", one_line(line)));
    format!("the command `{first}`{more} {}{said}", of_exit(exit))
}

/// Packages that a command asks a package manager to install.
pub fn packages(command: &str) -> Vec<String> {
    let mut found = Vec::new();
    for part in command.split(['\n', ';', '&', '|']) {
        let words: Vec<&str> = part.split_whitespace().collect();
        let is = |word: &&str, names: &[&str]| names.contains(&name_of(word));
        let Some(at) = words.iter().position(|word| is(word, &["install", "i", "add"])) else { continue };
        let before = &words[..at];
        let manager = before.iter().any(|word| {
            is(word, &["pip", "pip3", "npm", "apt-get", "apt", "apk", "cargo", "gem", "yarn", "pnpm", "uv", "conda"])
        });
        if manager {
            let package =
                |word: &&&str| !word.starts_with(['-', '>', '2']) && !word.contains(['/', '=']) || word.contains("==");
            let names = words[at + 1..].iter().filter(package).map(|word| word.trim_matches(['"', '\'']).to_owned());
            found.extend(names.filter(|name| !name.is_empty()));
        }
    }
    found
}

fn is_file(word: &str) -> bool {
    word.contains('.') && !word.contains("<<")
}

fn name_of(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// On one line, and short. It may be hostile, so nothing that a screen takes for a command.
fn one_line(text: &str) -> String {
    let plain: String = text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    let joined = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    match joined.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &joined[..end]),
        None => joined,
    }
}

#[cfg(test)]
mod tests {
    use sandbox_core::Control;
    use serde_json::json;

    use super::*;

    #[test]
    fn steps_are_told_in_plain_words() {
        for (command, words) in [
            ("head -5 /workspace/sales.csv", "Reading sales.csv"),
            ("cd /workspace && pip install -q pandas matplotlib", "Installing pandas, matplotlib"),
            ("sudo apt-get install -y jq", "Installing jq"),
            ("python3 - <<'EOF'\nimport matplotlib\nEOF", "Drawing the chart"),
            ("python3 analyse.py", "Running analyse.py"),
            ("python3 - <<'EOF'\nprint(1)\nEOF", "Working with the data"),
            ("ls -la", "Looking at the files"),
            ("curl -s https://example.com/a.csv -o a.csv", "Fetching from example.com"),
            ("make\tit\nso", "Running make it so"),
        ] {
            assert_eq!(of_command(command), words, "{command}");
        }
        let call = |tool: &str, input| of_call(tool, &input);
        assert_eq!(
            call("bash", json!({"command": "x", "description": "Adding up\u{1b}[2J the sales"})),
            "Adding up [2J the sales"
        );
        assert_eq!(
            call("str_replace_based_edit_tool", json!({"command": "create", "path": "/workspace/report.md"})),
            "Writing report.md"
        );
        assert_eq!(
            call("str_replace_based_edit_tool", json!({"command": "view", "path": "/workspace"})),
            "Looking at the files"
        );
        assert!(of_command(&"x".repeat(5000)).chars().count() <= LONGEST + 1);
    }

    #[test]
    fn a_command_that_failed_is_told_in_one_line_with_what_it_said_last() {
        let script = "\npython3 - <<'EOF'\nimport nothing\nEOF\n";
        let output = "Traceback (most recent call last):\nModuleNotFoundError: No module named 'nothing'\n\n";
        assert_eq!(
            of_failure(script, Exit::Code(1), output),
            "the command `python3 - <<'EOF'` (and more lines) ended with code 1: ModuleNotFoundError: No module named 'nothing'"
        );
        assert_eq!(
            of_failure("sleep 9", Exit::Signal(9), "\n"),
            "the command `sleep 9` was ended by signal 9 and printed nothing"
        );
        let long = of_failure(&"x".repeat(5000), Exit::Limit(Control::Memory), &"y\u{1b}[2J".repeat(900));
        assert!(long.chars().count() < 300 && !long.contains('\u{1b}') && long.contains("the memory limit"), "{long}");
    }

    #[test]
    fn packages_are_found_in_commands() {
        assert_eq!(
            packages("pip install --quiet 'pandas==2.2' openpyxl && npm i -g cowsay"),
            ["pandas==2.2", "openpyxl", "cowsay"]
        );
        assert_eq!(packages("python3 -m pip install numpy 2>/dev/null"), ["numpy"]);
        assert_eq!(packages("pip install -r requirements.txt"), ["requirements.txt"]);
        assert!(packages("echo install nothing; install -d folder").is_empty());
    }
}
