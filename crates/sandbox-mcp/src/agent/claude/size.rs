//! How much a model has to read, as near as can be told without asking it.

use serde_json::Value;

/// An image of usual size.
const IMAGE: u64 = 1600;

/// About so many tokens.
pub(super) fn tokens(messages: &[Value]) -> u64 {
    messages.iter().map(of).sum()
}

/// As JSON.
pub(super) fn bytes(values: &[Value]) -> u64 {
    values.iter().map(|value| value.to_string().len() as u64).sum()
}

fn of(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64 / 4 + 1,
        Value::Array(items) => items.iter().map(of).sum(),
        Value::Object(fields) if fields.get("type").is_some_and(|kind| kind == "image") => IMAGE,
        Value::Object(fields) => fields.values().map(of).sum(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_image_is_not_counted_by_its_letters() {
        let image = json!({"type": "image", "source": {"data": "A".repeat(1_000_000)}});
        assert_eq!(tokens(&[image]), IMAGE);
        assert!((100..120).contains(&tokens(&[json!({"role": "user", "content": "x".repeat(400)})])));
    }
}
