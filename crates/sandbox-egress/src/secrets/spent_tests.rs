//! Answers as they really look, in pieces of every size.

use proptest::prelude::*;

use super::*;

const MESSAGE: &str = r#"{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","content":[{"type":"text","text":"a \"usage\": b"}],"stop_reason":"end_turn","usage":{"input_tokens":12,"cache_creation_input_tokens":3,"cache_read_input_tokens":4,"output_tokens":56,"service_tier":"standard"}}"#;
const MESSAGE_EVENTS: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"model\":\"claude-x\",\"usage\":{\"input_tokens\":12,\"cache_creation_input_tokens\":3,\"cache_read_input_tokens\":4,\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"delta\":{\"type\":\"text_delta\",\"text\":\"hi\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":56}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
const CHAT: &str = r#"{"object":"chat.completion","model":"gpt-x","choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":16,"completion_tokens":56,"total_tokens":72,"prompt_tokens_details":{"cached_tokens":4}}}"#;
const CHAT_EVENTS: &str = "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}],\"usage\":null}\r\n\r\ndata: {\"model\":\"gpt-x\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"completion_tokens\":56,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\r\n\r\ndata: [DONE]\r\n\r\n";
const RESPONSE_EVENTS: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"model\":\"gpt-x\",\"usage\":{\"input_tokens\":16,\"input_tokens_details\":{\"cached_tokens\":4},\"output_tokens\":56}}}\n\n";

fn read(form: Form, text: &str, piece: usize) -> Option<Spent> {
    let mut account = Account { form, ..Account::default() };
    text.as_bytes().chunks(piece).for_each(|piece| account.read(piece));
    account.close("s", 400)
}

fn spent(model: &str, cache_written: u64) -> Spent {
    let (service, model) = ("s".into(), Some(model.to_owned()));
    Spent { service, model, input: 12, output: 56, cache_read: 4, cache_written, basis: Basis::Told }
}

#[test]
fn every_form_of_answer_is_understood_in_pieces_of_every_size() {
    for piece in [1, 2, 7, 1000] {
        assert_eq!(read(Form::Whole, MESSAGE, piece), Some(spent("claude-x", 3)));
        assert_eq!(read(Form::Events, MESSAGE_EVENTS, piece), Some(spent("claude-x", 3)));
        assert_eq!(read(Form::Whole, CHAT, piece), Some(spent("gpt-x", 0)));
        assert_eq!(read(Form::Events, CHAT_EVENTS, piece), Some(spent("gpt-x", 0)));
        assert_eq!(read(Form::Events, RESPONSE_EVENTS, piece), Some(spent("gpt-x", 0)));
    }
}

#[test]
fn who_breaks_off_before_the_cost_is_told_pays_an_estimate() {
    let until = MESSAGE_EVENTS.find("event: message_delta").expect("an event");
    let broken = read(Form::Events, &MESSAGE_EVENTS[..until], 5).expect("a cost");
    assert_eq!((broken.input, broken.output, broken.cache_read, broken.basis), (12, 2, 4, Basis::Estimated));
    let untold = "data: {\"model\":\"gpt-x\",\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n".repeat(9);
    let untold = read(Form::Events, &untold, 5).expect("a cost");
    assert_eq!((untold.input, untold.output, untold.basis), (100, 9, Basis::Estimated));
}

#[test]
fn what_is_no_answer_of_a_model_costs_nothing() {
    for text in ["", "{}", "[]", "{\"usage\":7}", "{\"usage\":{\"input_tokens\":-1}}", "no json", "\u{0}"] {
        assert_eq!(read(Form::Whole, text, 3), None, "{text}");
    }
    assert_eq!(read(Form::Events, "", 3), None);
}

#[test]
fn long_answers_take_little_memory_and_their_end_is_read() {
    let filler = format!("\"{}\",", "x".repeat(1000)).repeat(3000);
    let text = MESSAGE.replace("\"content\":[", &format!("\"content\":[{filler}"));
    let mut account = Account::default();
    for piece in text.as_bytes().chunks(5000) {
        account.read(piece);
        assert!(account.text.len() <= LONGEST_ANSWER);
    }
    let found = account.close("s", 0).expect("a cost");
    assert_eq!((found.input, found.output, found.basis), (12, 56, Basis::Told));
    let mut endless = Account { form: Form::Events, ..Account::default() };
    for _ in 0..1000 {
        endless.read(&[b'x'; 5000]);
        assert!(endless.text.len() <= LONGEST_LINE);
    }
    let told = "\ndata: {\"usage\":{\"input_tokens\":1,\"output_tokens\":2}}\n";
    endless.read(told.as_bytes());
    assert_eq!(endless.close("s", 0).map(|spent| spent.output), Some(2));
}

proptest! {
    #[test]
    fn nothing_panics(text in "[\\PC\n]{0,200}", piece in 1usize..40) {
        for form in [Form::Whole, Form::Events] {
            let _ = read(form, &text, piece);
            let _ = read(form, &format!("data: {{\"usage\":{text}}}\n"), piece);
        }
        let _ = end(format!("\"usage\":{text}").as_bytes());
    }
}
