//! What readers of TOML say about something that they do not understand, for people who do not know the reader.

use super::nearest;

/// Whether what was found may be shown: in a table of secrets it could be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Shown,
    Hidden,
}

/// The same in plain words.
pub(super) fn plain(message: &str, found: Found) -> String {
    if let Some(field) = message.strip_prefix("missing field `") {
        return format!("`{}` is missing", field.trim_end_matches('`'));
    }
    for kind in ["unknown field `", "unknown variant `"] {
        if let Some((name, rest)) = message.strip_prefix(kind).and_then(|rest| rest.split_once('`')) {
            let known: Vec<&str> = rest.split('`').skip(1).step_by(2).collect();
            let near = nearest(name, known.iter().copied()).map(|name| format!(" (did you mean `{name}`?)"));
            return format!("`{name}` is not known here{}. Known: {}", near.unwrap_or_default(), known.join(", "));
        }
    }
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    match rest.and_then(|rest| rest.rsplit_once(", expected ")) {
        Some((what, wanted)) => {
            format!("it is {}, but must be {}", what_was_found(what, found), wanted_in_words(wanted))
        }
        None => message.lines().next().unwrap_or_default().to_owned(),
    }
}

/// An error about a table that was read already: the path of what is wrong, and what it is.
pub(super) fn in_table(error: &toml::de::Error, table: &str) -> String {
    let text = error.to_string();
    let path = text.lines().find_map(|line| line.strip_prefix("in `")?.strip_suffix('`'));
    let at = path.map(|path| format!("{table}.{path}")).unwrap_or_else(|| table.to_owned());
    let words = plain(error.message(), Found::Hidden);
    let example = path.and_then(|path| example(path.rsplit('.').next()?));
    let missing = error.message().strip_prefix("missing field `").and_then(|field| example_of(field));
    let example = example.or(missing).map(|example| format!(", such as {example}")).unwrap_or_default();
    format!("{at}: {words}{example}")
}

fn example_of(field: &str) -> Option<&'static str> {
    example(field.trim_end_matches('`'))
}

fn example(field: &str) -> Option<&'static str> {
    Some(match field {
        "command" => "[\"gh\", \"auth\", \"token\"]",
        "hosts" => "[\"api.github.com\"]",
        "policies" => "[\"yolo-3\"] (sandboxes with these policies may use it; \"*\" is all)",
        "ports" => "[443]",
        "within" => "[\"10.0.0.0/8\"]",
        "variables" => "[\"ANTHROPIC_BASE_URL\"]",
        "url" => "\"https://api.anthropic.com\"",
        _ => return None,
    })
}

fn what_was_found(what: &str, found: Found) -> String {
    let (kind, content) = match what.split_once([' ', '`']) {
        _ if what.starts_with("floating point") => ("number", what.split('`').nth(1)),
        Some((kind, _)) => (kind, what.split(['`', '"']).nth(1)),
        None => (what, None),
    };
    let content = content.filter(|_| found == Found::Shown);
    match (kind, content) {
        ("string", Some(text)) => format!("the text \"{text}\""),
        ("string", None) => "text".to_owned(),
        ("sequence", _) => "a list".to_owned(),
        ("map", _) => "a table".to_owned(),
        ("boolean", None) => "true or false".to_owned(),
        (_, Some(content)) => content.to_owned(),
        ("integer" | "number", None) => "a number".to_owned(),
        (other, None) => format!("a {other}"),
    }
}

fn wanted_in_words(wanted: &str) -> String {
    match wanted {
        "u16" => "a port, which is a whole number from 1 to 65535".to_owned(),
        "u8" | "u32" | "u64" | "usize" | "i64" => "a whole number, and not below 0".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a sequence" => "a list in [ ]".to_owned(),
        "a string" | "path string" | "a borrowed string" => "text in quotes".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a map" => "a table".to_owned(),
        other if other.starts_with("struct ") => "a table".to_owned(),
        other => other.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_to_know_rust() {
        for (message, said) in [
            (
                "invalid type: string \"5432\", expected u16",
                "it is the text \"5432\", but must be a port, which is a whole number from 1 to 65535",
            ),
            (
                "invalid value: integer `70000`, expected u16",
                "it is 70000, but must be a port, which is a whole number from 1 to 65535",
            ),
            (
                "invalid type: string \"example.com\", expected a sequence",
                "it is the text \"example.com\", but must be a list in [ ]",
            ),
            (
                "invalid value: integer `-1`, expected a size, such as \"512MiB\"",
                "it is -1, but must be a size, such as \"512MiB\"",
            ),
            ("invalid type: sequence, expected a string", "it is a list, but must be text in quotes"),
            (
                "invalid type: floating point `1.5`, expected u32",
                "it is 1.5, but must be a whole number, and not below 0",
            ),
            ("missing field `policies`", "`policies` is missing"),
            (
                "unknown field `enf`, expected one of `value`, `env`",
                "`enf` is not known here (did you mean `env`?). Known: value, env",
            ),
        ] {
            assert_eq!(plain(message, Found::Shown), said);
        }
        let hidden = plain("invalid type: integer `12345678`, expected a string", Found::Hidden);
        assert_eq!(hidden, "it is a number, but must be text in quotes");
    }
}
