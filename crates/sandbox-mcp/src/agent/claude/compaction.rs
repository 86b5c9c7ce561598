//! A conversation that grew too long becomes a short one: the task, and what the model itself says about the work so far.
//! Where it cannot even be asked that, old results are left out first.

use serde_json::{Value, json};

use super::{
    prompt,
    turns::{Failed, Turns},
};
use crate::agent::WorkError;

/// Messages at the end that are left as they are.
const LAST: usize = 4;
/// Results that are longer are left out, where they are old.
const SHORT: usize = 400;

/// The conversation, shortened.
pub(super) async fn shortened(turns: &Turns<'_>) -> Result<Vec<Value>, WorkError> {
    let mut messages = turns.messages.clone();
    let summary = match turns.ask_about(&asking(&messages)).await {
        Err(Failed::TooLong) => {
            leave_out_results(&mut messages);
            match turns.ask_about(&asking(&messages)).await {
                Err(Failed::TooLong) => None,
                reply => Some(reply.map_err(Failed::into_work)?.text()),
            }
        }
        reply => Some(reply.map_err(Failed::into_work)?.text()),
    };
    let summary = summary.filter(|text| !text.trim().is_empty());
    let summary = summary.unwrap_or_else(|| prompt::NO_SUMMARY.to_owned());
    Ok(vec![
        json!({"role": "user", "content": [{"type": "text", "text": prompt::after_summary(&turns.task, &summary)}]}),
    ])
}

/// The conversation with the wish for a summary at its end.
fn asking(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    let wish = json!({"type": "text", "text": prompt::SUM_UP});
    match messages.last_mut().filter(|last| last["role"] == "user").and_then(|last| last["content"].as_array_mut()) {
        Some(blocks) => blocks.push(wish),
        None => messages.push(json!({"role": "user", "content": [wish]})),
    }
    messages
}

/// Old results become a word; what was done is still told by the calls.
fn leave_out_results(messages: &mut [Value]) {
    let old = messages.len().saturating_sub(LAST);
    for (number, message) in messages.iter_mut().enumerate() {
        let Some(blocks) = message["content"].as_array_mut() else { continue };
        for block in blocks.iter_mut().filter(|block| block["type"] == "tool_result") {
            let long = block["content"].to_string().len() > if number < old { SHORT } else { 10 * SHORT };
            if long {
                block["content"] = json!("[left out to make room]");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_results_are_left_out_and_calls_stay() {
        let turn = |number: u32| {
            [
                json!({"role": "assistant", "content": [{"type": "tool_use", "id": number, "name": "bash", "input": {}}]}),
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": number, "content": "x".repeat(1000)}]}),
            ]
        };
        let mut messages: Vec<Value> = (0..5).flat_map(turn).collect();
        leave_out_results(&mut messages);
        assert_eq!(messages[1]["content"][0]["content"], "[left out to make room]");
        assert_eq!(messages[9]["content"][0]["content"].as_str().map(str::len), Some(1000));
        assert_eq!(messages.iter().filter(|message| message["content"][0]["type"] == "tool_use").count(), 5);
        let asked = asking(&messages);
        assert_eq!((asked.len(), asked[9]["content"].as_array().map(Vec::len)), (10, Some(2)));
    }
}
