//! The tool `str_replace_based_edit_tool`: looks at files, folders and images, and changes text.

use base64::{Engine, prelude::BASE64_STANDARD};
use sandbox_executor::protocol::FileKind;
use serde_json::{Value, json};

use super::{Outcome, shortened, text};
use crate::agent::{WorkError, Worker};

/// Largest file that is looked at or changed.
const LARGEST: u64 = 4 << 20;
/// Largest image: servers take five megabytes, in base64.
const LARGEST_IMAGE: usize = 3_500_000;
/// Entries of a folder.
const ENTRIES: u32 = 300;

pub(super) fn definition() -> Value {
    json!({
        "name": "str_replace_based_edit_tool",
        "description": "Looks at and changes files. view shows a text file with line numbers, a folder, or an image (PNG, JPEG, \
            GIF, WebP). create writes a whole file. str_replace replaces one piece of text that occurs exactly once. insert \
            puts text after a line. Paths are absolute or relative to /workspace.",
        "input_schema": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert"]},
                "path": {"type": "string"},
                "view_range": {"type": "array", "items": {"type": "integer"}, "description": "For view: first and last line; -1 is the end."},
                "file_text": {"type": "string", "description": "For create."},
                "old_str": {"type": "string", "description": "For str_replace."},
                "new_str": {"type": "string", "description": "For str_replace and insert."},
                "insert_line": {"type": "integer", "description": "For insert: after which line; 0 is the beginning."},
            },
            "required": ["command", "path"],
        },
    })
}

pub(super) async fn edit(worker: &Worker<'_>, input: &Value) -> Result<Outcome, WorkError> {
    let path = text(input, "path");
    if path.is_empty() || path.contains('\0') {
        return Ok(Outcome::failed("`path` is missing."));
    }
    match input["command"].as_str() {
        Some("view") => view(worker, &path, input).await,
        Some("create") => match input["file_text"].as_str() {
            Some(content) => write(worker, &path, content, "written").await,
            None => Ok(Outcome::failed("`file_text` is missing.")),
        },
        Some("str_replace") => {
            let Some(old) = input["old_str"].as_str().filter(|old| !old.is_empty()) else {
                return Ok(Outcome::failed("`old_str` is missing."));
            };
            let content = read_text(worker, &path).await?;
            match replaced(&content, old, input["new_str"].as_str().unwrap_or_default()) {
                Ok(content) => write(worker, &path, &content, "changed").await,
                Err(why) => Ok(Outcome::failed(why)),
            }
        }
        Some("insert") => {
            let new = input["insert_text"].as_str().or(input["new_str"].as_str()).unwrap_or_default();
            let content = read_text(worker, &path).await?;
            match inserted(&content, input["insert_line"].as_i64().unwrap_or(-1), new) {
                Ok(content) => write(worker, &path, &content, "changed").await,
                Err(why) => Ok(Outcome::failed(why)),
            }
        }
        _ => Ok(Outcome::failed("`command` is view, create, str_replace or insert.")),
    }
}

async fn view(worker: &Worker<'_>, path: &str, input: &Value) -> Result<Outcome, WorkError> {
    if worker.stat(path).await?.kind == FileKind::Folder {
        let (entries, more) = worker.list(path, 2, ENTRIES).await?;
        let line = |entry: &sandbox_executor::protocol::FileInfo| {
            let name = String::from_utf8_lossy(&entry.path.0).into_owned();
            match entry.kind {
                FileKind::Folder => format!("{name}/"),
                _ => format!("{name}  {} bytes", entry.size),
            }
        };
        let mut lines: Vec<String> = entries.iter().map(line).collect();
        if lines.is_empty() {
            lines.push("(the folder is empty)".to_owned());
        }
        if more {
            lines.push("[… and more]".to_owned());
        }
        return Ok(Outcome::text(lines.join("\n")));
    }
    let content = worker.read(path, LARGEST).await?;
    if let Some(kind) = image_kind(&content) {
        if content.len() > LARGEST_IMAGE {
            let why = format!(
                "This image has {} bytes, and at most {LARGEST_IMAGE} can be shown: make a smaller copy first.",
                content.len()
            );
            return Ok(Outcome::failed(why));
        }
        return Ok(Outcome::image(
            kind,
            &BASE64_STANDARD.encode(&content),
            format!("{path} ({kind}, {} bytes)", content.len()),
        ));
    }
    let Ok(content) = String::from_utf8(content) else {
        return Ok(Outcome::failed(
            "This file is no text and no image that can be shown. Use a command to look into it.",
        ));
    };
    let whole = numbered(&content, &input["view_range"]);
    Ok(Outcome::text(shortened(&whole, "use view_range")))
}

async fn read_text(worker: &Worker<'_>, path: &str) -> Result<String, WorkError> {
    let content = worker.read(path, LARGEST).await?;
    String::from_utf8(content).map_err(|_| WorkError::Agent(format!("{path} is no text: change it with a command")))
}

async fn write(worker: &Worker<'_>, path: &str, content: &str, done: &str) -> Result<Outcome, WorkError> {
    worker.write(path, content.as_bytes()).await?;
    Ok(Outcome::text(format!("{path} was {done} ({} bytes).", content.len())))
}

fn replaced(content: &str, old: &str, new: &str) -> Result<String, String> {
    match content.matches(old).count() {
        1 => Ok(content.replacen(old, new, 1)),
        0 => {
            Err("`old_str` does not occur in the file. View it, and copy the text exactly, with its spaces.".to_owned())
        }
        often => {
            Err(format!("`old_str` occurs {often} times. Take more of what is around it, so that it occurs once."))
        }
    }
}

fn inserted(content: &str, after: i64, new: &str) -> Result<String, String> {
    let lines: Vec<&str> = content.split_inclusive('\n').collect();
    let Some(after) = usize::try_from(after).ok().filter(|line| *line <= lines.len()) else {
        return Err(format!("`insert_line` must be from 0 to {}.", lines.len()));
    };
    let mut before = lines[..after].concat();
    if !before.is_empty() && !before.ends_with('\n') {
        before.push('\n');
    }
    let end = if new.is_empty() || new.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{before}{new}{end}{}", lines[after..].concat()))
}

fn numbered(content: &str, range: &Value) -> String {
    let first = range[0].as_i64().filter(|line| *line > 0).unwrap_or(1) as usize;
    let last = range[1].as_i64().filter(|line| *line > 0).map_or(usize::MAX, |line| line as usize);
    let lines = content.lines().enumerate().map(|(number, line)| (number + 1, line));
    let chosen = lines.skip(first - 1).take_while(|(number, _)| *number <= last);
    let text = chosen.map(|(number, line)| format!("{number:>6}\t{line}")).collect::<Vec<_>>().join("\n");
    if text.is_empty() { "(nothing is there)".to_owned() } else { text }
}

/// The kinds of images that models can look at, told by their first bytes.
fn image_kind(content: &[u8]) -> Option<&'static str> {
    match content {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_meant_is_replaced() {
        assert_eq!(replaced("a b c", "b", "x"), Ok("a x c".to_owned()));
        assert!(replaced("a b b", "b", "x").is_err_and(|why| why.contains("2 times")));
        assert!(replaced("a", "b", "x").is_err_and(|why| why.contains("does not occur")));
    }

    #[test]
    fn lines_are_put_where_they_belong() {
        assert_eq!(inserted("a\nb\n", 0, "x"), Ok("x\na\nb\n".to_owned()));
        assert_eq!(inserted("a\nb", 2, "x\n"), Ok("a\nb\nx\n".to_owned()));
        assert!(inserted("a\n", 5, "x").is_err() && inserted("a\n", -1, "x").is_err());
    }

    #[test]
    fn lines_are_numbered_and_can_be_chosen() {
        assert_eq!(numbered("a\nb\nc", &json!([2, -1])), "     2\tb\n     3\tc");
        assert_eq!(numbered("a\nb\nc", &json!([1, 1])), "     1\ta");
        assert_eq!(numbered("", &Value::Null), "(nothing is there)");
        assert_eq!(numbered("a", &json!([i64::MAX, 2])), "(nothing is there)");
    }
}
