//! The receipt as a page. It needs nothing from elsewhere, runs no script, and everything in it is text.

use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

use crate::agent::dollars;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}\
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem;border-bottom:1px solid #ddd}\
table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.2rem .6rem;vertical-align:top;border-bottom:1px solid #eee;overflow-wrap:anywhere;min-width:5em}\
td:first-child{min-width:9em}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f6f6;padding:.6rem;margin:.2rem 0;max-height:20rem;overflow:auto}\
.good{color:#060}.bad{color:#a00;white-space:pre-wrap}.dim{color:#777;white-space:nowrap}";

/// The page of a receipt.
pub(super) fn page(receipt: &Value) -> String {
    let text = |field: &str| escaped(receipt[field].as_str().unwrap_or_default());
    let status = text("status");
    let look = if status == "completed" { "good" } else { "bad" };
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta http-equiv=\"Content-Security-Policy\" \
         content=\"default-src 'none'; style-src 'unsafe-inline'\"><title>{id}</title><style>{STYLE}</style>\n\
         <h1>Receipt of a task</h1><pre>{task}</pre>\n<p><b class=\"{look}\">{status}</b> after {seconds} s, by the agent {agent} \
         ({why}), begun {began}.</p>\n",
        id = text("task_id"),
        task = text("task"),
        seconds = receipt["duration_seconds"],
        agent = text("agent"),
        why = text("agent_why"),
        began = date(&receipt["began"]),
    );
    if let Some(folder) = receipt["results"].as_str() {
        page.push_str(&format!("<p>The results are in <b>{}</b>.</p>\n", escaped(folder)));
    }
    if let Some(error) = receipt["error"].as_str() {
        page.push_str(&format!("<p class=\"bad\">{}</p>\n", escaped(error)));
    }
    if !text("output").is_empty() {
        page.push_str(&format!("<h2>Answer</h2><pre>{}</pre>\n", text("output")));
    }
    files(&mut page, receipt);
    steps(&mut page, receipt);
    network(&mut page, receipt);
    list(&mut page, "Packages that were asked for", &receipt["packages"]);
    denials(&mut page, receipt);
    list(&mut page, "Secrets whose hosts were reached (by name; their values stay outside)", &receipt["secrets"]);
    cost(&mut page, receipt);
    walls(&mut page, receipt);
    page.push_str("</html>\n");
    page
}

/// Milliseconds since 1970, as a date that people read.
fn date(began: &Value) -> String {
    let began = UNIX_EPOCH.checked_add(Duration::from_millis(began.as_u64().unwrap_or_default()));
    // Nobody's clock is beyond that, and the library takes no later one.
    httpdate::fmt_http_date(began.unwrap_or(UNIX_EPOCH).min(UNIX_EPOCH + Duration::from_secs(253_402_300_799)))
}

fn files(page: &mut String, receipt: &Value) {
    let mut rows = Vec::new();
    for (field, word) in [("files_created", "new"), ("files_changed", "changed")] {
        for file in items(&receipt[field]) {
            // Of a task that was ended in the middle nothing but the names is known.
            let (size, unread) = match file["size_bytes"].as_u64() {
                Some(size) => (format!("{size} bytes"), "not read: too large"),
                None => (String::new(), ""),
            };
            let hash = file["sha256"].as_str().unwrap_or(unread);
            rows.push(vec![word.to_owned(), shown(&file["path"]), size, hash.to_owned()]);
        }
    }
    rows.extend(items(&receipt["files_deleted"]).map(|file| vec!["deleted".to_owned(), shown(file)]));
    rows.extend(items(&receipt["files_given"]).map(|file| vec!["given".to_owned(), shown(file)]));
    table(page, "Files", &["", "file", "size", "SHA-256"], &rows);
}

fn steps(page: &mut String, receipt: &Value) {
    let row = |step: &Value| {
        let (what, detail) = match step["note"].as_str().unwrap_or_default() {
            "step" => (shown(&step["words"]), String::new()),
            "text" => ("says".to_owned(), shown(&step["text"])),
            "thinking" => ("thinks".to_owned(), shown(&step["text"])),
            "call" => (shown(&step["words"]), call(step)),
            "result" => {
                let word = if step["well"] == true { "result" } else { "did not work" };
                (word.to_owned(), shown(&step["summary"]))
            }
            "file" => (format!("file {}", shown(&step["change"])), shown(&step["path"])),
            "cost" => return None,
            "question" => ("asks".to_owned(), shown(&step["question"])),
            "answer" => (format!("answer of {}", shown(&step["by"])), shown(&step["answer"])),
            "unanswered" => {
                let default = shown(&step["default"]);
                (format!("nobody answered ({})", shown(&step["why"])), format!("it goes on with: {default}"))
            }
            "retry" => ("the model is asked again".to_owned(), shown(&step["why"])),
            _ => return None,
        };
        Some(vec![format!("{} s", step["at"]), what, detail])
    };
    let rows: Vec<Vec<String>> = items(&receipt["steps"]).filter_map(row).collect();
    table(page, "What was done", &["", "", ""], &rows);
}

/// A call of a tool. A command is shown as it was written, line by line.
fn call(step: &Value) -> String {
    let (tool, input) = (shown(&step["tool"]), shown(&step["input"]));
    let command = super::command_of(&tool, &input).unwrap_or(input);
    match command.contains('\n') {
        true => format!("{tool}:\n{command}"),
        false => format!("{tool}: {command}"),
    }
}

fn network(page: &mut String, receipt: &Value) {
    let row = |host: &Value| {
        // Receipts of earlier programs do not have all of them.
        let count = |field: &str| host[field].as_u64().unwrap_or_default().to_string();
        vec![
            shown(&host["target"]),
            count("connections"),
            count("refused"),
            count("failed"),
            count("sent_bytes"),
            count("received_bytes"),
        ]
    };
    let rows: Vec<Vec<String>> = items(&receipt["hosts"]).map(row).collect();
    table(page, "Hosts", &["host", "connections", "refused", "failed", "bytes sent", "bytes received"], &rows);
    if let Some(missed) = receipt["hosts_missed"].as_u64().filter(|missed| *missed > 0) {
        let words = "came faster than they could be written down: connections may be missing here";
        page.push_str(&format!("<p class=\"bad\">{missed} events of this server {words}.</p>\n"));
    }
}

fn denials(page: &mut String, receipt: &Value) {
    let row = |denial: &Value| vec![shown(&denial["target"]), shown(&denial["message"]), shown(&denial["rule"])];
    let rows: Vec<Vec<String>> = items(&receipt["denials"]).map(row).collect();
    table(page, "What was refused", &["what", "why", "rule"], &rows);
}

fn cost(page: &mut String, receipt: &Value) {
    let cost = &receipt["cost"];
    let money = match cost["usd"].as_f64() {
        Some(usd) => format!("{} of {}", dollars(usd), dollars(receipt["budget_usd"].as_f64().unwrap_or_default())),
        None if cost["turns"] == 0 => "nothing: no model was asked".to_owned(),
        None => "no price is known".to_owned(),
    };
    let rows = vec![
        vec!["cost".to_owned(), money],
        vec!["questions to the model".to_owned(), format!("{} of {}", cost["turns"], receipt["budget_turns"])],
        vec!["model".to_owned(), shown(&cost["model"])],
        vec![
            "tokens".to_owned(),
            format!(
                "{} read, {} from the cache, {} into it, {} written",
                cost["input"], cost["cache_read"], cost["cache_written"], cost["output"]
            ),
        ],
    ];
    table(page, "Cost", &["", ""], &rows);
}

fn walls(page: &mut String, receipt: &Value) {
    let mut rows = vec![
        vec!["policy".to_owned(), shown(&receipt["level"])],
        vec!["image".to_owned(), shown(&receipt["image"])],
        vec!["backend".to_owned(), shown(&receipt["backend"])],
        vec!["sandbox".to_owned(), shown(&receipt["session_id"])],
    ];
    for (control, holding) in receipt["enforced"].as_object().into_iter().flatten() {
        rows.push(vec![control.clone(), format!("{}, by {}", shown(&holding["held"]), shown(&holding["by"]))]);
    }
    table(page, "What held it", &["", ""], &rows);
}

fn list(page: &mut String, title: &str, values: &Value) {
    let rows: Vec<Vec<String>> = items(values).map(|value| vec![shown(value)]).collect();
    table(page, title, &[""], &rows);
}

fn table(page: &mut String, title: &str, heads: &[&str], rows: &[Vec<String>]) {
    if rows.is_empty() {
        return;
    }
    page.push_str(&format!("<h2>{title}</h2><table>"));
    if heads.iter().any(|head| !head.is_empty()) {
        let heads: String = heads.iter().map(|head| format!("<th>{head}</th>")).collect();
        page.push_str(&format!("<tr>{heads}</tr>"));
    }
    for row in rows {
        let cell = |text: &String| match text.contains('\n') {
            true => format!("<td><pre>{}</pre></td>", escaped(text)),
            false => format!("<td>{}</td>", escaped(text)),
        };
        page.push_str(&format!("<tr>{}</tr>\n", row.iter().map(cell).collect::<String>()));
    }
    page.push_str("</table>\n");
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Text that a browser takes for text; what hides or reorders letters is spelled out.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\n' | '\t' => safe.push(letter),
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                safe.extend(letter.escape_unicode());
            }
            letter if letter.is_control() => safe.extend(letter.escape_unicode()),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_command_of_many_lines_is_shown_as_it_was_written() {
        let script = "set -e\npython3 a.py <data";
        let call = |tool: &str, input: String| json!({"at": 1, "note": "call", "words": "Running", "tool": tool, "input": input});
        let steps = json!([
            call("bash", script.to_owned()),
            call("Bash", json!({"command": script}).to_string()),
            call("str_replace_based_edit_tool", json!({"command": "view", "path": "a\nb"}).to_string()),
            {"at": 2, "note": "unanswered", "question": "Which?", "default": "all", "why": "no answer came in time"},
        ]);
        let page = page(&json!({ "steps": steps }));
        for part in [
            "<pre>bash:\nset -e\npython3 a.py &lt;data</pre>",
            "<pre>Bash:\nset -e\npython3",
            "&quot;path&quot;:&quot;a\\nb&quot;",
            "nobody answered (no answer came in time)</td><td>it goes on with: all",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }

    #[test]
    fn what_may_be_missing_among_hosts_is_said() {
        let host = json!({"target": "(others)", "connections": 3, "refused": 41, "sent_bytes": 5, "received_bytes": 6});
        let page = |missed: u64| page(&json!({ "hosts": [host], "hosts_missed": missed }));
        assert!(page(12).contains("12 events of this server came faster"), "{}", page(12));
        assert!(page(0).contains("<td>(others)</td><td>3</td><td>41</td><td>0</td><td>5</td>"), "{}", page(0));
        assert!(!page(0).contains("came faster"));
    }

    #[test]
    fn nothing_from_inside_becomes_part_of_the_page() {
        let evil = "</pre><script>alert(1)</script><img src=x onerror='y'>\u{202e}";
        let receipt = json!({
            "task_id": "task_1", "status": "completed", "task": evil, "output": evil, "error": evil, "agent": "mock", "agent_why": evil,
            "files_created": [{"path": evil, "size_bytes": 3, "sha256": "ab"}], "files_deleted": [evil],
            "steps": [{"at": 1, "note": "call", "words": evil, "tool": evil, "input": evil}, {"at": 2, "note": "result", "well": false, "summary": evil}],
            "hosts": [{"target": evil, "connections": 1, "refused": 0, "sent_bytes": 5, "received_bytes": 6}],
            "denials": [{"target": evil, "message": evil, "rule": evil}], "packages": [evil], "secrets": ["github"],
            "cost": {"turns": 2, "usd": 0.5, "model": evil}, "budget_usd": 5.0, "began": 1_794_792_577_000_u64, "results": evil, "enforced": {"memory": {"held": "kernel", "by": evil}},
        });
        let page = page(&receipt);
        assert!(!page.contains("<script") && !page.contains("<img") && !page.contains('\u{202e}'), "{page}");
        for part in [
            "$0.50 of $5.00",
            "did not work",
            "github",
            "&lt;script&gt;",
            "SHA-256",
            "begun Mon, 16 Nov 2026 01:29:37 GMT",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }
}
