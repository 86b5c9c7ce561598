//! JSON Schemas of arguments and answers, and the check of arguments against them.
//!
//! Schemas come from the types themselves and are made small and plain: every byte is paid for by each model that
//! reads them, and clients differ in what they understand.

use rmcp::model::JsonObject;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Map, Value, json};

/// The schema of what a tool takes.
pub fn input<T: JsonSchema>() -> JsonObject {
    let mut schema = plain::<T>(SchemaSettings::draft2020_12());
    simplify(&mut schema, Nullable::Dropped);
    object(schema)
}

/// The schema of what a tool answers.
pub fn output<T: JsonSchema>() -> JsonObject {
    let mut schema = plain::<T>(SchemaSettings::draft2020_12().for_serialize());
    simplify(&mut schema, Nullable::Kept);
    object(schema)
}

/// Whether "or null" stays in a schema. Arguments may always be null where they may be left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nullable {
    Kept,
    Dropped,
}

fn plain<T: JsonSchema>(mut settings: SchemaSettings) -> Value {
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

fn object(schema: Value) -> JsonObject {
    match schema {
        Value::Object(mut object) => {
            object.remove("description");
            object
        }
        _ => JsonObject::new(),
    }
}

/// Drops what some clients warn about (`format: uint64`) and what says nothing (titles, `minimum: 0`).
fn simplify(schema: &mut Value, nullable: Nullable) {
    match schema {
        Value::Object(map) => {
            for noise in ["title", "format", "minimum", "default"] {
                if map.get(noise).is_some_and(|value| !value.is_object()) {
                    map.remove(noise);
                }
            }
            match nullable {
                Nullable::Dropped => drop_null(map),
                Nullable::Kept => split_null(map),
            }
            map.values_mut().for_each(|value| simplify(value, nullable));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| simplify(item, nullable)),
        _ => {}
    }
}

/// `["string", "null"]` becomes `anyOf` of two: some clients know only one type at a time.
fn split_null(map: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = map.get("type") {
        let choices = kinds.iter().map(|kind| json!({"type": kind})).collect();
        map.insert("anyOf".to_owned(), Value::Array(choices));
        map.remove("type");
    }
}

/// `["string", "null"]` becomes `"string"`, and `anyOf` with null becomes the other one.
fn drop_null(map: &mut Map<String, Value>) {
    if let Some(Value::Array(kinds)) = map.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [only] = kinds.as_slice() {
            let only = only.clone();
            map.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(values)) = map.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
    let Some(Value::Array(mut choices)) = map.remove("anyOf") else { return };
    choices.retain(|choice| choice["type"] != "null");
    match choices.pop() {
        Some(Value::Object(only)) if choices.is_empty() => {
            for (key, value) in only {
                map.entry(key).or_insert(value);
            }
        }
        Some(last) => {
            choices.push(last);
            map.insert("anyOf".to_owned(), Value::Array(choices));
        }
        None => {}
    }
}

/// The first thing in which arguments differ from their schema, in words; `None` if nothing does.
pub fn mismatch(schema: &JsonObject, arguments: &JsonObject) -> Option<String> {
    object_mismatch("", schema, arguments)
}

fn object_mismatch(at: &str, schema: &JsonObject, value: &JsonObject) -> Option<String> {
    let none = JsonObject::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    let names = || properties.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    for (name, value) in value {
        let place = format!("{at}{name}");
        let difference = match (properties.get(name), schema.get("additionalProperties")) {
            (Some(schema), _) => value_mismatch(&place, schema, value),
            (None, Some(Value::Bool(false))) => {
                let meant = nearest(name, properties.keys().map(String::as_str));
                let hint = meant.map_or_else(String::new, |meant| format!(" Did you mean `{meant}`?"));
                Some(format!("there is no field `{}`.{hint} The fields are {}", shortened(&place), names()))
            }
            (None, Some(schema)) => value_mismatch(&place, schema, value),
            (None, None) => None,
        };
        if difference.is_some() {
            return difference;
        }
    }
    let mut required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let missing = required.find(|name| value.get(*name).is_none_or(Value::is_null));
    missing.map(|name| format!("the field `{at}{name}` is missing{}", described(properties.get(name))))
}

fn value_mismatch(at: &str, schema: &Value, value: &Value) -> Option<String> {
    if value.is_null() {
        return None;
    }
    let expected = schema["type"].as_str().unwrap_or_default();
    let fits = match expected {
        "string" => value.is_string(),
        "integer" => value.as_u64().is_some(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => true,
    };
    if !fits {
        let expected = match expected {
            "integer" => "a whole number from 0 up".to_owned(),
            "array" | "object" => format!("an {expected}"),
            other => format!("a {other}"),
        };
        let hint = described(Some(schema));
        return Some(format!("the field `{}` must be {expected}, not {}{hint}", shortened(at), kind_of(value)));
    }
    if let (Some(allowed), Value::String(text)) = (schema["enum"].as_array(), value)
        && !allowed.contains(value)
    {
        let allowed: Vec<&str> = allowed.iter().filter_map(Value::as_str).collect();
        let hint =
            nearest(text, allowed.iter().copied()).map_or_else(String::new, |near| format!(". Did you mean `{near}`?"));
        return Some(format!("`{}` is not a value of `{at}`; it can be {}{hint}", shortened(text), allowed.join(", ")));
    }
    match (value, schema.as_object()) {
        (Value::Object(inner), Some(schema)) => object_mismatch(&format!("{at}."), schema, inner),
        (Value::Array(items), Some(schema)) => {
            let schema = schema.get("items")?;
            items.iter().enumerate().find_map(|(n, item)| match item {
                Value::Null => Some(format!("the field `{at}[{n}]` must not be null")),
                item => value_mismatch(&format!("{at}[{n}]"), schema, item),
            })
        }
        _ => None,
    }
}

fn kind_of(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => format!("the boolean {value}"),
        Value::Number(_) => format!("the number {value}"),
        Value::String(text) => format!("the text \"{}\"", shortened(text)),
        Value::Array(_) => "an array".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

fn described(schema: Option<&Value>) -> String {
    match schema.and_then(|schema| schema["description"].as_str()) {
        Some(text) => format!(" ({})", text.trim_end_matches('.')),
        None => String::new(),
    }
}

fn nearest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let typed = shortened(typed);
    let (score, name) = known
        .map(|name| (strsim::jaro_winkler(&typed, name), name))
        .max_by(|(one, _), (other, _)| one.total_cmp(other))?;
    (score > 0.8).then_some(name)
}

/// What was sent may be megabytes; a message is not.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Sample {
        name: String,
        /// In seconds.
        wait: Option<u64>,
        parts: Option<Vec<Part>>,
        kind: Option<Kind>,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code)]
    struct Part {
        path: String,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(rename_all = "snake_case")]
    enum Kind {
        Text,
        Base64,
    }

    fn complaint(arguments: Value) -> String {
        mismatch(&input::<Sample>(), arguments.as_object().unwrap()).unwrap_or_default()
    }

    #[test]
    fn a_schema_is_small_and_plain() {
        let schema = Value::Object(input::<Sample>());
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["properties"]["wait"], json!({"type": "integer", "description": "In seconds."}));
        assert_eq!(schema["properties"]["kind"], json!({"type": "string", "enum": ["text", "base64"]}));
        assert_eq!(schema["properties"]["parts"]["items"]["additionalProperties"], false);
        let text = schema.to_string();
        assert!(!text.contains("format") && !text.contains("$ref") && !text.contains("null"), "{text}");
    }

    #[test]
    fn what_is_wrong_is_said_by_name() {
        assert_eq!(complaint(json!({"name": "x"})), "");
        assert_eq!(complaint(json!({"name": "x", "wait": null})), "");
        assert_eq!(complaint(json!({})), "the field `name` is missing");
        assert!(complaint(json!({"name": "x", "wiat": 1})).contains("Did you mean `wait`?"));
        assert!(complaint(json!({"name": "x", "parts": 3})).contains("`parts` must be an array"));
        assert!(complaint(json!({"name": "x", "wait": "long"})).contains("`wait` must be a whole number"));
        assert!(complaint(json!({"name": "x", "wait": -1})).contains("not the number -1 (In seconds)"));
        assert!(complaint(json!({"name": "x", "parts": [{"path": "a"}, {"path": 3}]})).contains("`parts[1].path`"));
        assert!(complaint(json!({"name": "x", "kind": "base65"})).contains("Did you mean `base64`?"));
    }

    #[test]
    fn a_megabyte_of_field_name_makes_a_short_message() {
        assert!(complaint(json!({"x".repeat(1 << 20): 1})).len() < 500);
    }
}
