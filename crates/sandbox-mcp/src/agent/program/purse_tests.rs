//! Tests of the purse.
#![allow(clippy::unwrap_used)]

use futures::FutureExt;
use sandbox_egress::Basis;
use tokio::sync::mpsc;

use super::*;
use crate::config::{Flags, Settings, Typed};

const BUDGET: Budget = Budget { turns: 100, usd: 1.0, tokens: 1_000_000 };
const MODEL: &str = "claude-opus-5-5";

fn purse(budget: Budget) -> (Purse, mpsc::UnboundedReceiver<Told>) {
    let mut typed = Typed::default();
    typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() }).unwrap();
    let (sender, told) = mpsc::unbounded_channel();
    (Purse::new(budget, Settings::from_typed(typed).unwrap().model, MODEL.to_owned(), sender), told)
}

fn body(most: u64) -> String {
    format!(r#"{{"model":"{MODEL}","max_tokens":{most},"messages":[]}}"#)
}

/// What is answered at once; nothing if it waits.
fn ask(purse: &Purse, body: &str) -> Option<Result<Leave, String>> {
    let asked = purse.ask(Question { method: "POST", path: "/v1/messages", body: body.as_bytes() }).now_or_never()?;
    Some(asked.map_err(|no| format!("{no:?}")))
}

fn answer(output: u64, model: &str) -> Spent {
    let (service, model, basis) = ("model".to_owned(), Some(model.to_owned()), Basis::Told);
    Spent { service, model, input: 0, output, cache_read: 0, cache_written: 0, basis }
}

/// One request with its answer.
fn turn(purse: &Purse, most: u64, output: u64) -> Leave {
    let leave = ask(purse, &body(most)).unwrap().unwrap();
    purse.answered(leave.number, 200);
    purse.spent(leave.number, &answer(output, MODEL));
    purse.over(leave.number);
    leave
}

#[test]
fn when_the_budget_is_used_up_nothing_more_is_asked() {
    let (purse, mut told) = purse(BUDGET);
    turn(&purse, 16_000, 60_000);
    assert!(matches!(told.try_recv().unwrap(), Told::Spent { .. }));
    assert!(matches!(told.try_recv().unwrap(), Told::Empty(why) if why.contains("$1.20")));
    assert!(ask(&purse, &body(1)).unwrap().unwrap_err().contains("its budget is $1.00"));
}

#[test]
fn a_model_without_a_price_is_not_free() {
    let (purse, mut told) = purse(BUDGET);
    purse.spent(1, &answer(60_000, "unheard-of"));
    assert!(matches!(told.try_recv().unwrap(), Told::Spent { model, .. } if model == MODEL));
    assert!(ask(&purse, &body(1)).unwrap().is_err());
}

#[test]
fn until_something_is_known_requests_go_one_after_the_other() {
    let (purse, _told) = purse(BUDGET);
    let first = ask(&purse, &body(1000)).unwrap().unwrap();
    assert!((0..100).all(|_| ask(&purse, &body(1000)).is_none()));
    purse.answered(first.number, 200);
    purse.spent(first.number, &answer(10_000, MODEL));
    purse.over(first.number);
    // $0.20 are gone, and each of these may cost $0.20.
    let allowed: Vec<_> = (0..100).filter_map(|_| ask(&purse, &body(10_000))).collect();
    assert_eq!(allowed.len(), 3, "what each may cost is set aside");
    let one = allowed[0].as_ref().unwrap().number;
    purse.answered(one, 200);
    purse.spent(one, &answer(10, MODEL));
    purse.over(one);
    assert!(ask(&purse, &body(9_000)).is_some(), "what was not needed is there for the next");
}

#[test]
fn the_last_answers_are_as_short_as_what_is_left_pays_for() {
    let (purse, mut told) = purse(BUDGET);
    assert_eq!(turn(&purse, 40_000, 40_000).body, None);
    let shorter = String::from_utf8(ask(&purse, &body(40_000)).unwrap().unwrap().body.unwrap()).unwrap();
    let most: serde_json::Value = serde_json::from_str(&shorter).unwrap();
    assert!((9_000..10_000).contains(&most["max_tokens"].as_u64().unwrap()), "{shorter}");
    let (other, _) = self::purse(Budget { usd: 0.81, ..BUDGET });
    turn(&other, 40_000, 40_000);
    let large = format!(r#"{{"model":"{MODEL}","max_tokens":9,"messages":["{}"]}}"#, "x".repeat(9000));
    assert!(ask(&other, &large).unwrap().unwrap_err().contains("may cost"));
    while let Ok(heard) = told.try_recv() {
        assert!(matches!(heard, Told::Spent { .. }), "{heard:?}");
    }
}

#[test]
fn whoever_is_not_told_the_price_of_an_answer_counts_the_most_that_it_can_be() {
    let (purse, _told) = purse(BUDGET);
    let leave = ask(&purse, &body(40_000)).unwrap().unwrap();
    purse.answered(leave.number, 200);
    purse.over(leave.number);
    assert!(purse.state().bill.usd.unwrap() >= 0.8);
    // Nobody is charged for an error.
    let (purse, _told) = self::purse(BUDGET);
    for status in [429, 500, 529] {
        let leave = ask(&purse, &body(40_000)).unwrap().unwrap();
        purse.answered(leave.number, status);
        purse.over(leave.number);
    }
    let leave = ask(&purse, &body(40_000)).unwrap().unwrap();
    purse.failed(leave.number, "reset");
    purse.over(leave.number);
    assert_eq!(purse.state().bill, Bill::default());
}

/// An answer of which only the beginning came.
fn broken_off(cache_read: u64) -> Spent {
    Spent { input: 1_000, output: 3, cache_read, basis: Basis::Estimated, ..answer(0, MODEL) }
}

#[test]
fn whoever_breaks_an_answer_off_before_its_price_is_told_pays_for_all_of_it() {
    let (purse, mut told) = purse(BUDGET);
    let mut asked = 0;
    while let Ok(leave) = ask(&purse, &body(16_000)).unwrap() {
        purse.answered(leave.number, 200);
        purse.spent(leave.number, &broken_off(0));
        purse.over(leave.number);
        asked += 1;
    }
    let bill = purse.close();
    // $0.32 for each, and what was left for the last.
    assert!(asked <= 4 && (0.9..=1.01).contains(&bill.usd.unwrap()), "{asked} {bill:?}");
    assert!(matches!(told.try_recv().unwrap(), Told::Spent { spent, .. } if spent.output == 16_000));
}

#[test]
fn a_stream_of_chat_completions_that_leaves_its_usage_out_costs_the_longest_answer() {
    let (purse, _told) = purse(BUDGET);
    let text = body(10_000).replace("\"messages\"", "\"stream\":true,\"messages\"");
    let question = Question { method: "POST", path: "/v1/chat/completions", body: text.as_bytes() };
    let leave = purse.ask(question).now_or_never().unwrap().unwrap();
    purse.answered(leave.number, 200);
    purse.spent(leave.number, &broken_off(0));
    purse.over(leave.number);
    assert!(purse.close().usd.unwrap() >= 0.2);
}

#[test]
fn whoever_goes_before_there_is_an_answer_pays_for_the_longest() {
    let (purse, _told) = purse(BUDGET);
    let leave = ask(&purse, &body(10_000)).unwrap().unwrap();
    purse.over(leave.number);
    assert!(purse.close().usd.unwrap() >= 0.2);
}

#[test]
fn an_answer_that_its_server_broke_off_costs_what_came_of_it_and_what_was_read_stays_known() {
    let (purse, _told) = purse(BUDGET);
    let leave = ask(&purse, &body(40_000)).unwrap().unwrap();
    purse.answered(leave.number, 200);
    purse.spent(leave.number, &Spent { basis: Basis::Failed, ..broken_off(0) });
    purse.over(leave.number);
    assert!(purse.state().bill.usd.unwrap() < 0.01);
    let large = format!(r#"{{"model":"{MODEL}","max_tokens":9,"messages":["{}"]}}"#, "x".repeat(90_000));
    let leave = ask(&purse, &large).unwrap().unwrap();
    purse.answered(leave.number, 200);
    purse.spent(leave.number, &broken_off(20_000));
    purse.over(leave.number);
    assert!(purse.close().usd.unwrap() < 0.03, "from the cache, and not at the price of 45,000 tokens that are new");
}

#[test]
fn what_is_kept_for_an_hour_costs_twice_what_is_read() {
    let (purse, _told) = purse(BUDGET);
    let system = r#""system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral","ttl":"1h"}}],"messages""#;
    let leave = ask(&purse, &body(10).replace("\"messages\"", system)).unwrap().unwrap();
    purse.answered(leave.number, 200);
    purse.spent(leave.number, &Spent { cache_written: 100_000, ..answer(0, MODEL) });
    purse.over(leave.number);
    assert!((purse.close().usd.unwrap() - 0.8).abs() < 1e-9);
}

#[tokio::test]
async fn who_waits_goes_on_when_others_are_done() {
    let (purse, _told) = purse(BUDGET);
    let first = ask(&purse, &body(1000)).unwrap().unwrap();
    let text = body(1000);
    let waiting = purse.ask(Question { method: "POST", path: "/v1/messages", body: text.as_bytes() });
    let (second, ()) = tokio::join!(waiting, async {
        tokio::task::yield_now().await;
        purse.answered(first.number, 200);
        purse.spent(first.number, &answer(10, MODEL));
        purse.over(first.number);
    });
    assert_eq!(second.unwrap().number, 2);
    purse.close();
    assert!(ask(&purse, &text).unwrap().unwrap_err().contains("over"));
}

#[test]
fn silence_is_measured_while_somebody_waits() {
    let (purse, mut told) = purse(BUDGET);
    assert_eq!(purse.silence(), Duration::ZERO);
    let leave = ask(&purse, &body(10)).unwrap().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(purse.silence() >= Duration::from_millis(20));
    purse.heard(leave.number, 1);
    assert!(purse.silence() < Duration::from_millis(20));
    purse.answered(leave.number, 500);
    purse.over(leave.number);
    assert_eq!(purse.silence(), Duration::ZERO);
    purse.unreached("refused");
    purse.unreached("refused");
    for times in 1..=3 {
        assert!(matches!(told.try_recv().unwrap(), Told::Failed { times: found, .. } if found == times));
    }
}

#[test]
fn what_is_under_way_when_a_task_ends_is_on_the_bill_and_counted_once() {
    let (purse, _told) = purse(BUDGET);
    turn(&purse, 1_000, 1_000);
    let open: Vec<u64> = (0..3).map(|_| ask(&purse, &body(10_000)).unwrap().unwrap().number).collect();
    purse.answered(open[0], 200);
    let bill = purse.close();
    assert_eq!(bill.turns, 4);
    assert!(bill.usd.unwrap() >= 0.02 + 3.0 * 0.2, "{bill:?}");
    purse.spent(open[0], &answer(10_000, MODEL));
    open.iter().for_each(|number| purse.over(*number));
    assert_eq!(purse.close(), bill);
    assert!(ask(&purse, &body(1)).unwrap().is_err());
}

#[test]
fn documents_at_once_are_held_by_the_budget_whatever_their_size() {
    let (purse, _told) = purse(BUDGET);
    turn(&purse, 1_000, 1_000);
    let of = |source: &str| {
        format!(
            r#"{{"model":"{MODEL}","max_tokens":10,"messages":[{{"content":[{{"type":"document","source":{source}}}]}}]}}"#
        )
    };
    let elsewhere = of(r#"{"type":"url","url":"https://x.example/large.pdf"}"#);
    assert!(ask(&purse, &elsewhere).unwrap().unwrap_err().contains("Unfit"));
    let here = of(r#"{"type":"base64","media_type":"application/pdf","data":"AAAA"}"#);
    let allowed = (0..20).filter(|_| matches!(ask(&purse, &here), Some(Ok(_)))).count();
    assert!(allowed <= 1, "{allowed} of 20 could each read all that the model can");
}

#[test]
fn a_model_that_nobody_knows_the_price_of_is_not_asked_for_the_price_of_another() {
    let (purse, _told) = purse(BUDGET);
    let dear = body(10).replace(MODEL, "claude-dearest-1");
    assert!(ask(&purse, &dear).unwrap().unwrap_err().contains("prices"));
    assert!(ask(&purse, &body(10).replace(MODEL, "claude-sonnet-5")).unwrap().is_ok());
}
