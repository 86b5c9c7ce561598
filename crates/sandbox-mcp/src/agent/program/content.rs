//! What a question holds beyond its text: pictures and documents, whose size in bytes says nothing about what reading them
//! costs, and things that the model's server would have to fetch from elsewhere, which are refused.
//!
//! It is read more strictly than JSON asks for: where a field stands twice, two who read it need not agree on which counts.

use serde::{Deserialize, de};
use serde_json::{Map, Value, value::RawValue};

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Pictures that come with the question.
    pub pictures: u64,
    /// Bytes that these take in it.
    pub picture_bytes: u64,
    /// Documents and recordings: nobody has counted their pages or seconds.
    pub documents: u64,
}

/// JSON in which no field stands twice.
pub(super) fn read(text: &RawValue) -> Result<Value, String> {
    let strict: Strict = serde_json::from_str(text.get()).map_err(|error| format!("it cannot be read: {error}"))?;
    Ok(strict.0)
}

/// Whether something of this is to stay in the cache for longer than usual. What a tool was called with may say so too,
/// and then the price is too high rather than too low.
pub(super) fn stays_long(value: &Value) -> bool {
    match value {
        Value::Array(parts) => parts.iter().any(stays_long),
        Value::Object(fields) => {
            let time = fields.get("ttl").and_then(Value::as_str);
            time.is_some_and(|time| time != "5m") || fields.values().any(stays_long)
        }
        _ => false,
    }
}

impl Content {
    /// Looks through messages; or says what would have to be fetched.
    pub(super) fn look(&mut self, value: &Value) -> Result<(), String> {
        match value {
            Value::Array(parts) => parts.iter().try_for_each(|part| self.look(part)),
            Value::Object(fields) => self.look_at(fields),
            _ => Ok(()),
        }
    }

    fn look_at(&mut self, fields: &Map<String, Value>) -> Result<(), String> {
        for name in ["file_id", "file_url"] {
            if fields.get(name).is_some_and(|value| !value.is_null()) {
                return Err(format!("`{name}`"));
            }
        }
        if let Some(Value::Object(source)) = fields.get("source") {
            match (source.get("type").and_then(Value::as_str), fields.get("type").and_then(Value::as_str)) {
                (Some("base64"), Some("image")) => self.picture(source.get("data")),
                (Some("base64"), _) => self.documents += 1,
                (Some("text" | "content"), _) => {}
                _ => return Err("a `source` that is not in the question itself".to_owned()),
            }
        }
        if let Some(image) = fields.get("image_url").filter(|image| !image.is_null()) {
            let address = image.get("url").unwrap_or(image);
            match address.as_str() {
                Some(data) if data.starts_with("data:") => self.picture(Some(address)),
                _ => return Err("an `image_url` that leads elsewhere".to_owned()),
            }
        }
        self.documents += ["file", "input_audio"].iter().filter(|name| fields.get(**name).is_some()).count() as u64;
        // What a tool was called with is the tool's own, and only text to the model.
        let is_call = fields.get("type").is_some_and(|kind| kind == "tool_use");
        fields.iter().filter(|(name, _)| !(is_call && *name == "input")).try_for_each(|(_, value)| self.look(value))
    }

    fn picture(&mut self, data: Option<&Value>) {
        self.pictures += 1;
        self.picture_bytes += data.and_then(Value::as_str).map_or(0, |data| data.len() as u64);
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Visitor).map(Self)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut parts: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = parts.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some((name, Strict(value))) = map.next_entry::<String, Strict>()? {
            if fields.insert(name, value).is_some() {
                return Err(de::Error::custom("a field stands there twice"));
            }
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn look(text: &str) -> Result<Content, String> {
        let mut content = Content::default();
        let raw: &RawValue = serde_json::from_str(text).unwrap();
        read(raw).and_then(|value| content.look(&value)).map(|()| content)
    }

    #[test]
    fn pictures_and_documents_are_counted_wherever_they_are() {
        let found = look(
            r#"[{"role":"user","content":[{"type":"tool_result","content":[
                {"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}]},
                {"type":"document","source":{"type":"base64","data":"BBBB"}},
                {"type":"document","source":{"type":"text","data":"plain"}},
                {"type":"image_url","image_url":{"url":"data:image/png;base64,CC"}}]}]"#,
        );
        assert_eq!(found.unwrap(), Content { pictures: 2, picture_bytes: 4 + 24, documents: 1 });
        let call = r#"[{"type":"tool_use","input":{"file_id":"x","source":{"type":"url"}}}]"#;
        assert_eq!(look(call).unwrap(), Content::default(), "what a tool was called with");
        assert_eq!(look(r#"[{"type":"search_result","source":"https://x.example"}]"#).unwrap(), Content::default());
    }

    #[test]
    fn nothing_is_fetched_by_the_models_server() {
        for text in [
            r#"[{"content":[{"type":"document","source":{"type":"url","url":"https://x.example/?data"}}]}]"#,
            r#"[{"type":"image","source":{"type":"file","file_id":"f"}}]"#,
            r#"[{"type":"image","source":{}}]"#,
            r#"[{"type":"container_upload","file_id":"f"}]"#,
            r#"[{"type":"image_url","image_url":{"url":"https://x.example/a.png"}}]"#,
            r#"[{"type":"image_url","image_url":"http://x.example/a.png"}]"#,
            r#"[{"type":"tool_result","content":[{"source":{"type":"base64","type":"url"}}]}]"#,
            r#"[{"source":{"type":"base64"},"source":{"type":"url"}}]"#,
        ] {
            assert!(look(text).is_err(), "{text}");
        }
    }
}
