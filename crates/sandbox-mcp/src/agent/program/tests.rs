//! Lines that the real programs printed (in `recorded/`), and what they mean.

#![allow(clippy::unwrap_used)]

use sandbox_core::exec::Exit;
use serde_json::Value;

use super::{
    claude_code::ClaudeCode,
    dialect::{Dialect, Resume, Said, Start},
    opencode::OpenCode,
};
use crate::{agent::Note, config::ModelApi};

fn hear(dialect: &mut dyn Dialect, recorded: &str) -> Vec<Said> {
    recorded.lines().flat_map(|line| dialect.line(&serde_json::from_str::<Value>(line).unwrap())).collect()
}

/// One word for each thing that was said.
fn shown(said: &[Said]) -> Vec<String> {
    let word = |said: &Said| match said {
        Said::Session(id) => format!("session {id}"),
        Said::Note(Note::Text { text }) => format!("text {text}"),
        Said::Note(Note::Thinking { text }) => format!("thinking {text}"),
        Said::Note(Note::Call { tool, words, .. }) => format!("call {tool}: {words}"),
        Said::Note(Note::Result { well, summary, .. }) => format!("result {well}: {}", summary.trim()),
        Said::Note(Note::Retry { attempt, after, why }) => format!("retry {attempt} after {after:?}: {why}"),
        Said::Note(other) => format!("{other:?}"),
        Said::Began(id) => format!("began {id}"),
        Said::Ended(id) => format!("ended {id}"),
        Said::Asks(asked) => {
            format!("asks {}", asked.inquiries.iter().map(|one| one.question.as_str()).collect::<String>())
        }
        Said::Hears(answer) => format!("hears {}", String::from_utf8_lossy(answer).trim()),
        Said::Turn => "turn".to_owned(),
    };
    said.iter().map(word).collect()
}

fn start(trusts_workspace: bool, resume: &Resume) -> Start<'_> {
    Start {
        program: "/opt/agents/x/x",
        address: "http://127.0.0.1:3128/services/model-1",
        api: ModelApi::Messages,
        model: "claude-opus-5-5",
        context: 200_000,
        answer: 16_000,
        resume,
        session: "s-1",
        trusts_workspace,
        asks: false,
        prompt: "Be brief.",
        prompt_file: "/home/sandbox/p.md",
    }
}

#[test]
fn claude_code_is_followed_from_beginning_to_end() {
    let mut dialect = ClaudeCode::default();
    let said = hear(&mut dialect, include_str!("recorded/claude-code.jsonl"));
    let expected = [
        "session 11111111-2222-4333-8444-555555555555",
        "thinking Let me think",
        "text I",
        "text look.",
        "call Bash: Making a file",
        "began toolu_1",
        "result true: made.txt",
        "ended toolu_1",
        "text All",
        "text is",
        "text done.",
        "turn",
    ];
    assert_eq!(shown(&said), expected);
    assert_eq!(dialect.outcome(Exit::Code(0)), Ok("Allisdone.".to_owned()));
    assert!(!dialect.has_forgotten());
}

#[test]
fn claude_code_asks_a_person_and_is_given_everything_else() {
    let mut dialect = ClaudeCode::default();
    let question = r#"{"type":"control_request","request_id":"r-1","request":{"subtype":"can_use_tool","tool_name":"AskUserQuestion",
        "input":{"questions":[
            {"question":"Which year?","header":"Year","multiSelect":false,"options":[{"label":"2025","description":"closed"},{"label":"2026"}]},
            {"question":"Which charts?","header":"Charts","multiSelect":true,"options":[{"label":"bars"},{"label":"lines"}]}]}}}"#;
    let said = dialect.line(&serde_json::from_str(question).unwrap()).pop().unwrap();
    let Said::Asks(asked) = said else { panic!("{said:?}") };
    let texts: Vec<_> = asked.inquiries.iter().map(|one| (one.question.as_str(), one.choices.len())).collect();
    assert_eq!(texts, [("Which year? (2025: closed)", 2), ("Which charts? Several of: bars, lines.", 0)]);
    let answer: Value = serde_json::from_slice(&dialect.answer(&asked, &[Some("2026".into()), None])).unwrap();
    let (id, given) = (&answer["response"]["request_id"], &answer["response"]["response"]["updatedInput"]["answers"]);
    assert_eq!((id.as_str(), given["Which year?"].as_str()), (Some("r-1"), Some("2026")));
    assert!(given["Which charts?"].as_str().unwrap().contains("nobody answered"), "{given}");
    let mut hears = |line: &str| shown(&dialect.line(&serde_json::from_str(line).unwrap())).concat();
    let step = r#"{"type":"control_request","request_id":"r","request":{"subtype":"can_use_tool","tool_name":"Bash","input":{"command":"ls"}}}"#;
    let heard = hears(step);
    assert!(heard.contains(r#""behavior":"allow""#) && heard.contains(r#"{"command":"ls"}"#), "{heard}");
    assert!(
        hears(r#"{"type":"control_request","request":{"subtype":"hook_callback"}}"#).contains(r#""subtype":"error""#)
    );
}

#[test]
fn a_failure_that_is_called_success_is_a_failure() {
    let mut dialect = ClaudeCode::default();
    let said = shown(&hear(&mut dialect, include_str!("recorded/claude-code-529.jsonl")));
    assert!(said.iter().any(|word| word == "retry 1 after 599ms: 529 overloaded"), "{said:?}");
    let why = dialect.outcome(Exit::Code(1)).unwrap_err();
    assert!(why.contains("api_error") && why.contains("529"), "{why}");
    assert!(ClaudeCode::default().outcome(Exit::Signal(15)).unwrap_err().contains("gave no result"));
}

#[test]
fn a_conversation_that_is_gone_is_noticed() {
    let mut dialect = ClaudeCode::default();
    hear(&mut dialect, include_str!("recorded/claude-code-forgotten.jsonl"));
    assert!(dialect.has_forgotten() && dialect.outcome(Exit::Code(1)).is_err());
}

#[test]
fn opencode_is_followed_from_beginning_to_end() {
    let mut dialect = OpenCode::default();
    let said = hear(&mut dialect, include_str!("recorded/opencode.jsonl"));
    let expected = [
        "session ses_e13b22485fferdXY3ZqZVAYw6K",
        "text Ilook.",
        "call bash: Making a file",
        "result true: made.txt",
        "session ses_e13b22485fferdXY3ZqZVAYw6K",
        "text Allisdone.",
    ];
    assert_eq!(shown(&said), expected);
    assert_eq!(dialect.outcome(Exit::Code(0)), Ok("Allisdone.".to_owned()));
}

#[test]
fn opencode_has_finished_only_if_its_last_step_says_so() {
    let outcome = |lines: &[&str], exit| {
        let mut dialect = OpenCode::default();
        hear(&mut dialect, &lines.join("\n"));
        dialect.outcome(exit)
    };
    let stopped = r#"{"type":"step_finish","part":{"reason":"tool-calls"}}"#;
    assert!(outcome(&[stopped], Exit::Code(0)).unwrap_err().contains("in the middle"));
    let failed = r#"{"type":"error","error":{"name":"APIError","data":{"message":"Unauthorized"}}}"#;
    assert!(outcome(&[stopped, failed], Exit::Code(1)).unwrap_err().contains("APIError: Unauthorized"));
    let finished = r#"{"type":"step_finish","part":{"reason":"stop"}}"#;
    assert_eq!(outcome(&[failed, finished], Exit::Code(0)), Ok(String::new()), "it was made good");
    assert!(outcome(&[finished], Exit::Code(1)).is_err() && outcome(&[], Exit::Code(0)).is_err());
}

#[test]
fn nothing_that_a_program_says_breaks_anything() {
    for line in ["null", "[]", "7", "{}", r#"{"type":7}"#, r#"{"type":"assistant","message":{"content":[7]}}"#] {
        let value: Value = serde_json::from_str(line).unwrap();
        assert!(ClaudeCode::default().line(&value).is_empty(), "{line}");
        assert!(OpenCode::default().line(&value).is_empty(), "{line}");
    }
    let odd = r#"{"type":"user","message":{"content":[{"type":"tool_result","content":{"a":1}}]}}"#;
    assert_eq!(ClaudeCode::default().line(&serde_json::from_str(odd).unwrap()).len(), 2);
    let odd = r#"{"type":"tool_use","part":{"state":{"time":{"start":1e300,"end":-1e300}}}}"#;
    assert_eq!(OpenCode::default().line(&serde_json::from_str(odd).unwrap()).len(), 2);
}

#[test]
fn what_lies_in_the_workspace_is_left_alone_unless_it_is_trusted() {
    let claude = |trusts| ClaudeCode::default().invocation(&start(trusts, &Resume::Nothing));
    assert!(claude(false).argv.windows(2).any(|pair| pair == ["--setting-sources", ""]));
    assert!(claude(false).argv.contains(&"--strict-mcp-config".to_owned()));
    assert!(!claude(true).argv.iter().any(|word| word == "--setting-sources" || word == "--strict-mcp-config"));
    assert!(claude(false).argv.windows(2).any(|pair| pair == ["--session-id", "s-1"]));
    let again = ClaudeCode::default().invocation(&start(false, &Resume::Named("old".to_owned())));
    assert!(again.argv.windows(2).any(|pair| pair == ["--resume", "old"]));
    let open = |trusts| OpenCode::default().invocation(&start(trusts, &Resume::Named("ses_1".to_owned())));
    assert_eq!(open(false).env["OPENCODE_DISABLE_PROJECT_CONFIG"], "1");
    assert!(!open(true).env.contains_key("OPENCODE_DISABLE_PROJECT_CONFIG"));
    assert!(open(false).argv.windows(2).any(|pair| pair == ["--session", "ses_1"]));
    assert!(OpenCode::default().invocation(&start(false, &Resume::Last)).argv.contains(&"--continue".to_owned()));
    let config: Value = serde_json::from_str(&open(false).env["OPENCODE_CONFIG_CONTENT"]).unwrap();
    let options = &config["provider"]["sandbox"]["options"];
    assert_eq!(options["baseURL"], "http://127.0.0.1:3128/services/model-1/v1");
    assert_eq!(config["permission"], "allow");
}
