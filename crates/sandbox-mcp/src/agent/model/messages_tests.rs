//! Questions and answers of the Messages API, as real servers have them.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tokio::sync::mpsc;

use super::*;

fn read(events: &[Value]) -> (Result<Reply, ModelError>, Vec<Piece>) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let mut reading = Box::<Reading>::default();
    let failed = events.iter().find_map(|event| reading.event(event, &sender).err());
    drop(sender);
    let pieces = std::iter::from_fn(|| receiver.try_recv().ok()).collect();
    (failed.map_or_else(|| reading.finish(), Err), pieces)
}

fn stream() -> Vec<Value> {
    vec![
        json!({"type": "message_start", "message": {"model": "claude-x", "usage": {"input_tokens": 9, "cache_read_input_tokens": 5, "output_tokens": 1}}}),
        json!({"type": "ping"}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "I should look."}}),
        json!({"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "c2ln"}}),
        json!({"type": "content_block_stop", "index": 0}),
        json!({"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Let me "}}),
        json!({"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "look."}}),
        json!({"type": "content_block_stop", "index": 1}),
        json!({"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t1", "name": "bash", "input": {}}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": ""}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "{\"comm"}}),
        json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "and\": \"ls\"}"}}),
        json!({"type": "content_block_stop", "index": 2}),
        json!({"type": "content_block_start", "index": 3, "content_block": {"type": "tool_use", "id": "t2", "name": "now", "input": {}}}),
        json!({"type": "content_block_delta", "index": 3, "delta": {"type": "input_json_delta", "partial_json": ""}}),
        json!({"type": "content_block_stop", "index": 3}),
        json!({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}}),
        json!({"type": "something_new"}),
        json!({"type": "message_stop"}),
    ]
}

#[test]
fn a_stream_becomes_the_blocks_that_were_meant() {
    let (reply, pieces) = read(&stream());
    let reply = reply.unwrap();
    assert_eq!(reply.content[0], json!({"type": "thinking", "thinking": "I should look.", "signature": "c2ln"}));
    assert_eq!(reply.content[1], json!({"type": "text", "text": "Let me look."}));
    assert_eq!(reply.content[2]["input"], json!({"command": "ls"}));
    assert_eq!(reply.content[3]["input"], json!({}));
    assert_eq!((reply.stop.clone(), reply.model.as_str()), (Stop::Tools, "claude-x"));
    assert_eq!(reply.tokens, Tokens { input: 9, output: 30, cache_read: 5, cache_written: 0 });
    assert_eq!(pieces[0], Piece::Thinking("I should look.".to_owned()));
    assert_eq!(reply.text(), "Let me look.");
}

#[test]
fn what_breaks_off_is_no_answer() {
    let events = stream();
    for end in 0..events.len() - 1 {
        assert!(matches!(read(&events[..end]).0, Err(ModelError::Cut(_))), "{end}");
    }
    let mut broken = events[..8].to_vec();
    broken.push(json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}));
    assert!(matches!(read(&broken).0, Err(ModelError::Stream { kind, .. }) if kind == "overloaded_error"));
}

#[test]
fn what_was_told_of_the_cost_is_known_also_where_the_answer_ends_too_early() {
    let (nobody, _pieces) = mpsc::unbounded_channel();
    let mut reading = Reading::default();
    stream()[..8].iter().for_each(|event| reading.event(event, &nobody).unwrap());
    assert_eq!(reading.tokens(), Tokens { input: 9, output: 1, cache_read: 5, cache_written: 0 });
}

#[test]
fn arguments_that_are_no_json_are_marked() {
    let mut events = stream();
    events[13] = json!({"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "and: oops"}});
    let reply = read(&events).0.unwrap();
    assert_eq!((reply.unreadable, &reply.content[2]["input"]), (vec!["t1".to_owned()], &json!({})));
}

#[test]
fn every_reason_to_stop_has_a_meaning() {
    let call = [json!({"type": "tool_use", "id": "t"})];
    for (reason, stop) in [
        (Some("end_turn"), Stop::End),
        (Some("stop_sequence"), Stop::End),
        (Some("pause_turn"), Stop::Pause),
        (Some("compaction"), Stop::Pause),
        (Some("max_tokens"), Stop::Length),
        (Some("model_context_window_exceeded"), Stop::Context),
        (Some("refusal"), Stop::Refusal),
        (Some("tired"), Stop::Other("tired".to_owned())),
        (None, Stop::Other("no reason".to_owned())),
    ] {
        assert_eq!(meaning(reason, &call), stop);
    }
    assert_eq!((meaning(Some("tool_use"), &call), meaning(Some("tool_use"), &[])), (Stop::Tools, Stop::End));
}

#[test]
fn a_question_marks_what_the_cache_may_keep() {
    let tools = [json!({"name": "bash"}), json!({"name": "edit"})];
    let messages = [json!({"role": "user", "content": "hello"})];
    let ask = Ask { model: "claude-x", system: "be good", tools: &tools, messages: &messages, most: 100 };
    let body = body(&ask, true, true);
    assert_eq!(body["tools"][1]["cache_control"]["type"], "ephemeral");
    assert!(body["tools"][0].get("cache_control").is_none());
    assert_eq!(body["system"][0]["cache_control"]["type"], "ephemeral");
    assert_eq!(body["messages"][0]["content"][0]["cache_control"]["type"], "ephemeral");
    assert_eq!(body["thinking"]["type"], "adaptive");
    for never in ["temperature", "top_p", "top_k", "tool_choice"] {
        assert!(body.get(never).is_none(), "{never}");
    }
    let other = Ask { model: "llama", ..ask };
    assert!(super::body(&other, false, true).get("thinking").is_none());
}

#[test]
fn an_answer_as_a_whole_is_the_same() {
    let answer = json!({"type": "message", "model": "claude-x", "content": [{"type": "text", "text": "hi"}],
        "stop_reason": "end_turn", "usage": {"input_tokens": 3, "output_tokens": 4}});
    let reply = whole(answer).unwrap();
    assert_eq!((reply.text().as_str(), reply.stop, reply.tokens.output), ("hi", Stop::End, 4));
    for wrong in [json!({}), json!({"content": "text"}), json!({"content": ["text"]}), json!(7)] {
        assert!(whole(wrong).is_err());
    }
}

proptest! {
    #[test]
    fn events_in_any_order_do_not_panic(order in proptest::collection::vec(0usize..21, 0..60), index in any::<u64>()) {
        let events = stream();
        let mut chosen: Vec<Value> = order.iter().map(|number| events[*number].clone()).collect();
        if let Some(first) = chosen.first_mut() {
            first["index"] = json!(index);
        }
        let _ = read(&chosen);
    }
}
