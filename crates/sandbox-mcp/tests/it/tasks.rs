//! The life of a task: progress, time, cancelling, questions, a server that is killed, many at once.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    agents::{finished, server},
    harness::{
        Answer, Client, Era, mark, parent_of, processes_with, start, start_as, start_in, start_with, start_with_a_user,
    },
    model::{Say, Server, bash, call, text},
    person::{Person, text as printed},
};

/// Steps for the mock agent, as a file that comes with a task.
pub fn script(steps: Value) -> Value {
    json!([{"path": "mock-script.json", "content": json!({ "steps": steps }).to_string()}])
}

#[tokio::test]
async fn progress_is_told_in_plain_words() {
    let client = start().await;
    let steps = json!([{"step": "Reading sales.csv"}, {"sleep": 1.6}, {"run": "pip install pandas --no-index -q || true"}, {"finish": "ok"}]);
    let meta = json!({"progressToken": "p"});
    let done = client.call_with("execute_task", json!({"task": "x", "files": script(steps)}), meta).await;
    assert_eq!(done.value["output"], "ok", "{done:?}");
    let told: Vec<String> = client
        .notifications()
        .await
        .iter()
        .filter_map(|note| note["params"]["message"].as_str().map(str::to_owned))
        .collect();
    assert!(told.iter().any(|word| word == "Reading sales.csv"), "{told:?}");
}

#[tokio::test]
async fn a_task_that_takes_too_long_is_stopped_and_its_files_are_kept() {
    let client = start().await;
    let number = mark();
    let steps = json!([{"write": {"path": "half.txt", "content": "half"}}, {"run": format!("sleep {number}")}]);
    let done = finished(&client, json!({"task": "x", "timeout": 2, "files": script(steps)})).await;
    assert_eq!((&done["status"], &done["files_created"]), (&json!("timeout"), &json!(["half.txt"])), "{done}");
    let got = client.ok("get_files", json!({"session_id": done["session_id"], "paths": ["half.txt"]})).await;
    assert_eq!(got["files"][0]["content"], "aGFsZg==");
    until(Duration::from_secs(2), || processes_with(&number) == 0).await;
    // No task is given more time than the operator allows.
    let client = start_with(Era::Legacy, &[("MAX_TIMEOUT_SECONDS", "1")]).await;
    let long = json!({"task": "x", "timeout": 900, "files": script(json!([{"sleep": 30}]))});
    let done = finished(&client, long).await;
    assert!(done["status"] == "timeout" && done["notes"].to_string().contains("lowered from 900 s"), "{done}");
}

async fn until(within: Duration, holds: impl Fn() -> bool) {
    let end = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < end, "it does not come about");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn cancelling_stops_a_task_within_two_seconds() {
    let model = Server::start(|_| Say::Silence).await;
    let number = mark();
    for client in [server(&model.settings(), &[]).await, start().await] {
        let steps = json!([{"run": format!("sleep {number}")}]);
        let params = json!({"name": "execute_task", "arguments": {"task": "x", "files": script(steps)}, "_meta": {"progressToken": 1}});
        let (id, _answer) = client.begin("tools/call", params).await;
        tokio::time::sleep(Duration::from_millis(1200)).await;
        let cancel = json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}});
        client.send_line(&cancel.to_string()).await;
        let state = client.state().to_owned();
        let is_cancelled = || {
            let receipts =
                std::fs::read_dir(state.join("tasks")).unwrap().map(|entry| entry.unwrap().path().join("receipt.json"));
            receipts
                .filter_map(|file| std::fs::read_to_string(file).ok())
                .any(|text| text.contains("\"status\": \"cancelled\""))
        };
        until(Duration::from_secs(2), || is_cancelled() && processes_with(&number) == 0).await;
    }
}

#[tokio::test]
async fn a_long_task_answers_that_it_runs_and_can_be_talked_to() {
    let client = start().await;
    let steps = json!([{"step": "Waiting for a word"}, "wait", {"finish": "You said: {answer}"}]);
    let asked = json!({"task": "x", "wait_seconds": 1, "files": script(steps)});
    let running = client.ok("execute_task", asked).await;
    assert_eq!((&running["status"], &running["step"]), (&json!("running"), &json!("Waiting for a word")), "{running}");
    let status = client.ok("get_sandbox_status", json!({"session_id": running["session_id"]})).await;
    assert_eq!(status["sandboxes"][0]["task"]["status"], "running", "{status}");
    let more = json!({"task": "make it blue", "session_id": running["session_id"]});
    let done = client.ok("execute_task", more).await;
    assert_eq!((&done["output"], &done["task_id"]), (&json!("You said: make it blue"), &running["task_id"]));
}

#[tokio::test]
async fn where_the_client_knows_tasks_it_gets_one() {
    let folder = tempfile::tempdir().unwrap();
    let client = crate::harness::start_as_able(
        folder.path(),
        json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}),
    )
    .await;
    let quick = client.ok("execute_task", json!({"task": "quick"})).await;
    assert_eq!(quick["status"], "completed");
    let steps = json!([{"step": "Thinking hard"}, {"sleep": 2.5}, {"ask": {"question": "Which colour?", "choices": ["red", "blue"], "default": "red"}}, {"finish": "It is {answer}."}]);
    let made = client
        .request("tools/call", json!({"name": "execute_task", "arguments": {"task": "x", "files": script(steps)}}))
        .await;
    let task = made["result"]["taskId"].clone();
    assert_eq!(made["result"]["resultType"], "task", "{made}");
    let mut answered = false;
    let done = loop {
        let state = client.request("tasks/get", json!({"taskId": task})).await["result"].clone();
        match state["status"].as_str().unwrap() {
            "input_required" if !answered => {
                answered = true;
                let question = state["inputRequests"]["question-1"]["params"].clone();
                assert!(question["message"].as_str().unwrap().contains("Which colour?"), "{state}");
                let answer = json!({"question-1": {"action": "accept", "content": {"answer": "blue"}}});
                client.request("tasks/update", json!({"taskId": task, "inputResponses": answer})).await;
            }
            "completed" => break state,
            "working" | "input_required" => tokio::time::sleep(Duration::from_millis(100)).await,
            other => panic!("{other}: {state}"),
        }
    };
    assert_eq!(done["result"]["structuredContent"]["output"], "It is blue.", "{done}");
    // And it can be cancelled.
    let number = mark();
    let long = json!({"name": "execute_task", "arguments": {"task": "x", "files": script(json!([{"run": format!("sleep {number}")}]))}});
    let made = client.request("tools/call", long).await;
    client.request("tasks/cancel", json!({"taskId": made["result"]["taskId"]})).await;
    until(Duration::from_secs(2), || processes_with(&number) == 0).await;
}

#[tokio::test]
async fn a_question_of_an_agent_reaches_the_person() {
    let ask = json!({"question": "Which year?", "choices": ["2025", "2026"], "default": "2026"});
    let model = Server::turns(vec![vec![call("q", "ask_person", ask)], vec![text("Thank you.")]]).await;
    let settings = model.settings();
    let mut all: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let client = start_with_a_user(Era::Legacy, &all).await;
    let answer = json!({"action": "accept", "content": {"answer": "2025"}});
    let (done, question) = client.call_answering("execute_task", json!({"task": "x"}), answer).await;
    let message = question.unwrap()["params"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("in its own words: “Which year?”") && done.value["status"] == "completed",
        "{message} {done:?}"
    );
    let heard = model.requests()[1].body["messages"][2]["content"][0]["content"][0]["text"].clone();
    assert_eq!(heard, "2025");
    // Nobody answers, and nobody is there: the default holds.
    all.push(("SANDBOX_MCP_ANSWER_SECONDS", "1"));
    let silent = start_with_a_user(Era::Legacy, &all).await;
    assert_eq!(finished(&silent, json!({"task": "x"})).await["status"], "completed");
    let nobody = start_with(Era::Legacy, &all).await;
    assert_eq!(finished(&nobody, json!({"task": "x"})).await["status"], "completed");
    let requests = model.requests();
    for request in [&requests[3], &requests[5]] {
        let heard = request.body["messages"][2]["content"][0]["content"][0]["text"].as_str().unwrap().to_owned();
        assert!(heard.contains("Nobody answered") && heard.contains("2026"), "{heard}");
    }
}

#[tokio::test]
async fn a_task_whose_server_was_killed_is_reported_and_its_files_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut client = start_in(folder.path(), Era::Legacy, &[]).await;
    let steps = json!([{"step": "Writing the first half"}, {"spend": {"input": 1000, "output": 100}}, {"spend": {"input": 1000, "output": 100}},
        {"write": {"path": "half.txt", "content": "half"}}, {"step": "Going on"}, {"sleep": 60}]);
    let running =
        client.ok("execute_task", json!({"task": "write much", "wait_seconds": 1, "files": script(steps)})).await;
    assert_eq!(running["status"], "running", "{running}");
    client.kill().await;
    let again = start_in(folder.path(), Era::Legacy, &[]).await;
    let session = running["session_id"].as_str().unwrap();
    let status = again.ok("get_sandbox_status", json!({"session_id": session})).await;
    let task = &status["sandboxes"][0]["task"];
    assert_eq!((&task["status"], &task["task_id"]), (&json!("interrupted"), &running["task_id"]), "{status}");
    assert!(task["error"].as_str().unwrap().contains("give the task again"), "{task}");
    let got = again.ok("get_files", json!({"session_id": session, "paths": ["half.txt"]})).await;
    assert_eq!(got["files"][0]["content"], "aGFsZg==", "{got}");
    let receipt = std::fs::read_to_string(
        again.state().join("tasks").join(running["task_id"].as_str().unwrap()).join("receipt.json"),
    )
    .unwrap();
    assert!(receipt.contains("Writing the first half"), "{receipt}");
    let receipt: Value = serde_json::from_str(&receipt).unwrap();
    assert_eq!((&receipt["files_created"][0]["path"], &receipt["cost"]["turns"]), (&json!("half.txt"), &json!(2)));
}

#[tokio::test]
async fn ten_tasks_of_the_built_in_agent_at_once_succeed() {
    let turns = crate::agents::csv_turns();
    let model = Server::start(move |asked| Say::Slow(Duration::from_millis(50), turns[asked.step].clone())).await;
    let client = std::sync::Arc::new(server(&model.settings(), &[]).await);
    let tasks = (0..10).map(|number| {
        let client = client.clone();
        tokio::spawn(async move {
            let csv = format!("month,region,sum\njan,north,{number}\n");
            finished(&client, json!({"task": "sum up", "files": [{"path": "sales.csv", "content": csv}]})).await
        })
    });
    for (number, task) in tasks.collect::<Vec<_>>().into_iter().enumerate() {
        let done = task.await.unwrap();
        assert_eq!(done["status"], "completed", "{done}");
        let report = client.output(done["session_id"].as_str().unwrap(), "cat report.md").await;
        assert!(report.contains(&format!("Total: {number}")), "{report}");
    }
}

async fn mock_tasks_in_a_row(count: usize) {
    let client = start().await;
    let mut failed = 0;
    for number in 0..count {
        let done = client.call("execute_task", json!({"task": format!("task {number}")})).await.value;
        failed += usize::from(done["status"] != "completed");
        client.ok("cleanup_session", json!({"session_id": done["session_id"]})).await;
    }
    assert_eq!(failed, 0, "of {count} tasks");
}

#[tokio::test]
async fn two_hundred_mock_tasks_in_a_row_succeed() {
    mock_tasks_in_a_row(200).await;
}

#[tokio::test]
#[ignore = "takes a minute; part of ./test --full"]
async fn a_thousand_mock_tasks_in_a_row_succeed() {
    mock_tasks_in_a_row(1000).await;
}

#[tokio::test]
async fn a_task_leaves_a_receipt_that_tells_everything() {
    let turns = vec![
        vec![bash("pip install nothing-at-all --no-index -q; curl -sS -m 3 http://10.1.2.3/; echo made > made.txt")],
        vec![text("Made.")],
    ];
    let model = Server::turns(turns).await;
    let client = server(&model.settings(), &[]).await;
    let done =
        finished(&client, json!({"task": "make <b>it</b>", "files": [{"path": "given.txt", "content": "x"}]})).await;
    let folder = client.state().join("tasks").join(done["task_id"].as_str().unwrap());
    let receipt: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("receipt.json")).unwrap()).unwrap();
    assert_eq!(
        (&receipt["task"], &receipt["status"], &receipt["level"]),
        (&json!("make <b>it</b>"), &json!("completed"), &json!("yolo-3"))
    );
    assert_eq!(receipt["files_created"][0]["path"], "made.txt");
    assert!(receipt["files_created"][0]["sha256"].as_str().unwrap().len() == 64, "{receipt}");
    assert_eq!((&receipt["files_given"], &receipt["packages"]), (&json!(["given.txt"]), &json!(["nothing-at-all"])));
    let host = &receipt["hosts"][0];
    assert!(
        host["target"].as_str().unwrap().contains("10.1.2.3") && host["refused"].as_u64().unwrap() >= 1,
        "{receipt}"
    );
    assert!(
        receipt["denials"].to_string().contains("10.1.2.3") && receipt["enforced"]["memory"]["held"].is_string(),
        "{receipt}"
    );
    assert!(
        receipt["cost"]["usd"].as_f64().unwrap() > 0.0
            && receipt["steps"].to_string().contains("Installing nothing-at-all")
    );
    let page = std::fs::read_to_string(folder.join("receipt.html")).unwrap();
    assert!(
        page.contains("make &lt;b&gt;it&lt;/b&gt;") && page.contains("10.1.2.3") && page.contains("SHA-256"),
        "{page}"
    );
    // The person at the terminal sees the same.
    let person = Person::new();
    let shown = person
        .types(&["task", "show", &done["task_id"].as_str().unwrap()[..12]])
        .env("WORKSPACE_BASE", client.state())
        .output()
        .unwrap();
    assert!(
        printed(&shown.stdout).contains("make <b>it</b>") && printed(&shown.stdout).contains("receipt.html"),
        "{shown:?}"
    );
    let list = person.types(&["task", "list"]).env("WORKSPACE_BASE", client.state()).output().unwrap();
    assert!(printed(&list.stdout).contains(done["task_id"].as_str().unwrap()), "{list:?}");
}

#[tokio::test]
async fn a_task_can_be_stopped_from_a_terminal() {
    let client = start().await;
    let running = client
        .ok("execute_task", json!({"task": "x", "wait_seconds": 1, "files": script(json!([{"step": "Waiting for nobody"}, {"sleep": 60}]))}))
        .await;
    let shown = Person::new()
        .types(&["task", "show", running["task_id"].as_str().unwrap()])
        .env("WORKSPACE_BASE", client.state())
        .output()
        .unwrap();
    assert!(printed(&shown.stdout).contains("Waiting for nobody"), "what was done so far: {shown:?}");
    let stop = Person::new()
        .types(&["task", "stop", running["task_id"].as_str().unwrap()])
        .env("WORKSPACE_BASE", client.state())
        .output()
        .unwrap();
    assert!(stop.status.success(), "{stop:?}");
    let status = client.ok("get_sandbox_status", json!({"session_id": running["session_id"], "wait_seconds": 5})).await;
    assert_eq!(status["sandboxes"][0]["task"]["status"], "cancelled", "{status}");
}

/// A task that has made a file and goes on with a command of this mark, as its server answers.
async fn half_done(client: &Client, number: &str) -> Value {
    let steps = json!([{"write": {"path": "half.txt", "content": "half"}}, {"run": format!("exec sleep {number}")}]);
    let asked = json!({"task": "write much", "wait_seconds": 1, "files": script(steps)});
    let running = client.ok("execute_task", asked).await;
    until(Duration::from_secs(60), || processes_with(number) > 0).await;
    running
}

#[tokio::test]
async fn what_a_task_had_made_went_with_a_server_that_was_asked_to_end() {
    for by_signal in [true, false] {
        let (folder, number) = (tempfile::tempdir().unwrap(), mark());
        let mut client = start_in(folder.path(), Era::Legacy, &[]).await;
        let running = half_done(&client, &number).await;
        if by_signal {
            client.terminate().await;
        } else {
            client.close().await;
        }
        let again = start_in(folder.path(), Era::Legacy, &[]).await;
        let session = running["session_id"].as_str().unwrap();
        let status = again.ok("get_sandbox_status", json!({"session_id": session})).await;
        let task = &status["sandboxes"][0]["task"];
        assert_eq!((&task["status"], &task["task_id"]), (&json!("interrupted"), &running["task_id"]), "{status}");
        assert_eq!(task["files_created"], json!(["half.txt"]), "{status}");
        assert_eq!(again.output(session, "cat half.txt").await, "half");
        until(Duration::from_secs(2), || processes_with(&number) == 0).await;
    }
}

#[tokio::test]
async fn a_question_that_nobody_answered_kept_a_task_of_the_protocol_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let able = json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let client = start_as(folder.path(), Era::Modern, able, &[("SANDBOX_MCP_ANSWER_SECONDS", "1")]).await;
    let ask = json!({"ask": {"question": "Which colour?", "choices": ["red", "blue"], "default": "red"}});
    let steps = json!([{"sleep": 2.5}, ask, {"sleep": 1.5}, {"finish": "It is {answer}."}]);
    let asked = json!({"name": "execute_task", "arguments": {"task": "x", "files": script(steps)}});
    let made = client.request("tools/call", asked).await;
    let (mut seen, end) = (Vec::new(), Instant::now() + Duration::from_secs(30));
    let done = loop {
        let state = client.request("tasks/get", json!({"taskId": made["result"]["taskId"]})).await["result"].clone();
        let status = state["status"].as_str().unwrap().to_owned();
        if seen.last() != Some(&status) {
            seen.push(status);
        }
        if state["status"] == "completed" {
            break state;
        }
        assert!(Instant::now() < end, "it does not end: {seen:?} {state}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(done["result"]["structuredContent"]["output"], "It is red.", "{done}");
    assert!(seen.ends_with(&["input_required", "working", "completed"].map(str::to_owned)), "{seen:?}");
}

#[tokio::test]
async fn a_sandbox_was_cleaned_up_while_its_agent_waited_for_the_model() {
    let model = Server::start(|asked| match asked.step {
        0 => Say::Turn(vec![bash("echo kept > kept.txt")]),
        1 => Say::Slow(Duration::from_secs(8), vec![bash("cat kept.txt; echo more > more.txt")]),
        _ => Say::Turn(vec![text("Done.")]),
    })
    .await;
    let client = server(&model.settings(), &[("AUTO_CLEANUP_MINUTES", "0.05")]).await;
    let done = finished(&client, json!({"task": "x"})).await;
    assert_eq!(
        (&done["status"], &done["files_created"]),
        (&json!("completed"), &json!(["kept.txt", "more.txt"])),
        "{done}"
    );
}

#[tokio::test]
async fn two_tasks_at_once_were_let_loose_in_one_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let one = start_in(folder.path(), Era::Legacy, &[]).await;
    let other = start_in(folder.path(), Era::Legacy, &[]).await;
    for second in [&one, &other] {
        let steps = script(json!([{"run": "sleep 2"}, {"finish": "ok"}]));
        let asked = json!({"task": "x", "session_id": one.sandbox().await, "files": steps});
        let answers = tokio::join!(one.call("execute_task", asked.clone()), second.call("execute_task", asked.clone()));
        let (done, refused) = if answers.0.is_error { (answers.1, answers.0) } else { answers };
        assert!(!done.is_error && done.value["status"] == "completed", "{done:?} {refused:?}");
        let why = ["two agents would work on the same files", "a task still runs in this sandbox"];
        assert!(refused.is_error && why.iter().any(|why| refused.text.contains(why)), "{refused:?}");
    }
}

#[tokio::test]
async fn what_was_said_while_a_task_was_being_written_down_was_lost() {
    let client = start().await;
    let session = client.sandbox().await;
    // Much to look at: the agent has ended long before its receipt is there.
    let much = "mkdir many; cd many; seq 1 500 | xargs touch; truncate -s 100M big";
    let steps = script(json!([{ "run": much }, {"finish": "first"}]));
    let asked = json!({"task": "x", "session_id": session, "files": steps});
    let (_, answer) = client.begin("tools/call", json!({"name": "execute_task", "arguments": asked})).await;
    // What it remembers is its last word.
    let remembered = client.state().join("conversations").join(&session).join("mock.json");
    until(Duration::from_secs(60), || remembered.exists()).await;
    let more = finished(&client, json!({"task": "and now the second", "session_id": session})).await;
    let first = Answer::of(answer.await.unwrap()).value;
    assert_ne!(more["task_id"], first["task_id"], "{first} {more}");
    assert!(more["status"] == "completed" && more["output"].to_string().contains("and now the second"), "{more}");
}

#[tokio::test]
async fn a_task_whose_sandbox_ended_said_that_it_had_changed_nothing() {
    let (client, number) = (start().await, mark());
    let running = half_done(&client, &number).await;
    let executor = rustix::process::Pid::from_raw(parent_of(&format!("sleep {number}")) as i32).unwrap();
    rustix::process::kill_process(executor, rustix::process::Signal::KILL).unwrap();
    let asked = json!({"session_id": running["session_id"], "wait_seconds": 60});
    let status = client.ok("get_sandbox_status", asked).await;
    let task = &status["sandboxes"][0]["task"];
    assert_eq!(task["status"], "failed", "{status}");
    assert!(task["notes"].to_string().contains("what it changed in /workspace is not known"), "{status}");
}

#[tokio::test]
async fn a_task_that_was_cancelled_said_that_it_had_made_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let able = json!({"elicitation": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}});
    let client = start_as(folder.path(), Era::Modern, able, &[]).await;
    let number = mark();
    let steps = json!([{"write": {"path": "half.txt", "content": "half"}}, {"run": format!("sleep {number}")}]);
    let asked = json!({"name": "execute_task", "arguments": {"task": "x", "files": script(steps)}});
    let made = client.request("tools/call", asked).await;
    until(Duration::from_secs(60), || processes_with(&number) > 0).await;
    client.request("tasks/cancel", json!({"taskId": made["result"]["taskId"]})).await;
    let session = client.ok("get_sandbox_status", json!({})).await["sandboxes"][0]["session_id"].clone();
    let status = client.ok("get_sandbox_status", json!({"session_id": session, "wait_seconds": 5})).await;
    let task = &status["sandboxes"][0]["task"];
    assert_eq!((&task["status"], &task["files_created"]), (&json!("cancelled"), &json!(["half.txt"])), "{status}");
    assert!(task["enforced"]["memory"].is_string(), "{status}");
}

#[tokio::test]
async fn a_task_whose_program_was_killed_was_running_until_some_server_began() {
    let (client, person, number) = (start().await, Person::new(), mark());
    let steps = json!([{"write": {"path": "half.txt", "content": "half"}}, {"run": format!("sleep {number}")}]);
    std::fs::write(person.folder("mock-script.json"), json!({ "steps": steps }).to_string()).unwrap();
    let mut run = person.types(&["run", "x", "--agent", "mock", "--file", "mock-script.json"]);
    let mut run =
        run.env("WORKSPACE_BASE", client.state()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until(Duration::from_secs(60), || processes_with(&number) > 0).await;
    run.kill().unwrap();
    run.wait().unwrap();
    let session = client.ok("get_sandbox_status", json!({})).await["sandboxes"][0]["session_id"].clone();
    let status = client.ok("get_sandbox_status", json!({"session_id": session})).await;
    let task = &status["sandboxes"][0]["task"];
    assert_eq!((&task["status"], &task["files_created"]), (&json!("interrupted"), &json!(["half.txt"])), "{status}");
}
