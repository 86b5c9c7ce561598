//! Whether an answer is what its tool's output schema says: clients check, so we do.

use serde_json::Value;

/// The first difference, in words.
pub fn difference(schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(choices) = schema["anyOf"].as_array() {
        let none_fits = choices.iter().all(|choice| difference(choice, value, at).is_some());
        return none_fits.then(|| format!("{at}: {value} fits none of {schema}"));
    }
    let fits = match schema["type"].as_str() {
        None => true,
        Some("null") => value.is_null(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("unknown type {other}"),
    };
    let listed = schema["enum"].as_array().is_none_or(|allowed| allowed.contains(value));
    if !fits || !listed {
        return Some(format!("{at}: {value} is not {schema}"));
    }
    let missing = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|name| value[name.as_str().unwrap()].is_null() && value.get(name.as_str().unwrap()).is_none());
    if let Some(name) = missing {
        return Some(format!("{at}: {name} is missing"));
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        let schema = schema["properties"].get(name).or(schema.get("additionalProperties"));
        let place = format!("{at}.{name}");
        match schema {
            Some(Value::Bool(true)) => {}
            Some(schema) => {
                if let found @ Some(_) = difference(schema, inner, &place) {
                    return found;
                }
            }
            None => return Some(format!("{place} is not in the schema")),
        }
    }
    let items = value.as_array().into_iter().flatten();
    items.enumerate().find_map(|(n, item)| difference(schema.get("items")?, item, &format!("{at}[{n}]")))
}
