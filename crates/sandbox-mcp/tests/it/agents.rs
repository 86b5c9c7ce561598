//! Tasks done by the built-in agent, against a model server of the tests' own.

use serde_json::{Value, json};

use crate::{
    harness::{Client, Era, start_with},
    model::{KEY, Say, Server, bash, call, text},
};

const CSV: &str = "month,region,sum\njan,north,120\njan,south,80\nfeb,north,150\nfeb,south,95\n";

/// Sums up the file and draws a picture of it, with nothing but what comes with Python.
const ANALYSE: &str = r##"
import csv, struct, zlib
sums = {}
for row in csv.DictReader(open("sales.csv")):
    sums[row["month"]] = sums.get(row["month"], 0) + int(row["sum"])
with open("report.md", "w") as report:
    report.write("# Sales\n\n" + "".join(f"- {month}: {total}\n" for month, total in sums.items()))
    report.write(f"\nTotal: {sum(sums.values())}\n")
bars = "".join(f'<rect x="{20 + 60 * n}" y="{300 - total}" width="40" height="{total}" fill="#46a"/>' for n, total in enumerate(sums.values()))
open("chart.svg", "w").write(f'<svg xmlns="http://www.w3.org/2000/svg" width="200" height="300">{bars}</svg>')
width, height = 60, 30
rows = b"".join(b"\0" + bytes(255 if y * 10 < 300 - list(sums.values())[x * len(sums) // width] else 60 for x in range(width)) for y in range(height))
chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
open("chart.png", "wb").write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))
"##;

/// What a model does that was handed a CSV file and a sentence.
pub fn csv_turns() -> Vec<Vec<Value>> {
    let view = |id: &str, path: &str| call(id, "str_replace_based_edit_tool", json!({"command": "view", "path": path}));
    let create = json!({"command": "create", "path": "analyse.py", "file_text": ANALYSE});
    vec![
        vec![
            text("I look at the file."),
            view("a", "sales.csv"),
            call("b", "bash", json!({"command": "wc -l sales.csv"})),
        ],
        vec![call("c", "str_replace_based_edit_tool", create)],
        vec![call("d", "bash", json!({"command": "python3 analyse.py", "description": "Adding up the sales"}))],
        vec![view("e", "chart.png"), view("f", "/workspace")],
        vec![text("January came to 200 and February to 245. The report is in report.md, the chart in chart.svg.")],
    ]
}

pub async fn server(settings: &[(&'static str, String)], more: &[(&str, &str)]) -> Client {
    let mut all: Vec<(&str, &str)> = settings.iter().map(|(name, value)| (*name, value.as_str())).collect();
    all.extend(more);
    start_with(Era::Legacy, &all).await
}

fn sales() -> Value {
    json!({"task": "Sum up the sales by month and draw a chart", "files": [{"path": "sales.csv", "content": CSV}]})
}

async fn sales_are_right(client: &Client, done: &Value) {
    assert_eq!((&done["status"], &done["error"]), (&json!("completed"), &Value::Null), "{done}");
    assert!(done["output"].as_str().unwrap().contains("January came to 200"), "{done}");
    assert_eq!(done["files_created"], json!(["analyse.py", "chart.png", "chart.svg", "report.md"]));
    let report = client.output(done["session_id"].as_str().unwrap(), "cat report.md").await;
    assert!(report.contains("- jan: 200\n- feb: 245") && report.contains("Total: 445"), "{report}");
}

#[tokio::test]
async fn a_csv_file_and_a_sentence_become_a_report_and_a_chart() {
    let model = Server::turns(csv_turns()).await;
    let client = server(&model.settings(), &[]).await;
    let done = client.ok("execute_task", sales()).await;
    sales_are_right(&client, &done).await;
    let requests = model.requests();
    assert_eq!(requests.len(), 5);
    assert!(requests.iter().all(|request| request.path == "/v1/messages" && request.head.contains(KEY)));
    // Both results of the first turn go back together, and the picture is shown.
    let results = requests[1].body["messages"][2]["content"].as_array().unwrap().clone();
    assert_eq!(results.len(), 2, "{results:?}");
    assert!(results[0]["content"][0]["text"].as_str().unwrap().contains("1\tmonth,region,sum"), "{results:?}");
    let shown = &requests[4].body["messages"].as_array().unwrap().last().unwrap()["content"][0]["content"];
    assert_eq!(shown[1]["source"]["media_type"], "image/png", "{shown}");
    assert!(requests.iter().all(|request| !request.body.to_string().contains(KEY)));
}

#[tokio::test]
async fn any_server_that_speaks_like_openai_does_it_too() {
    let model = Server::turns(csv_turns()).await;
    let client = server(&model.chat_settings(), &[]).await;
    let done = client.ok("execute_task", sales()).await;
    sales_are_right(&client, &done).await;
    let requests = model.requests();
    assert!(requests.iter().all(|request| request.path == "/v1/chat/completions"), "{requests:?}");
    let last = requests[4].body["messages"].as_array().unwrap().clone();
    let image = &last.last().unwrap()["content"][0]["image_url"]["url"];
    assert!(image.as_str().unwrap().starts_with("data:image/png;base64,"), "{image}");
}

#[tokio::test]
async fn answers_that_come_as_a_whole_are_understood() {
    for chat in [false, true] {
        let turns = csv_turns();
        let model = Server::start(move |asked| Say::Whole(turns[asked.step].clone())).await;
        let settings = if chat { model.chat_settings() } else { model.settings() };
        let client = server(&settings, &[]).await;
        let done = client.ok("execute_task", sales()).await;
        sales_are_right(&client, &done).await;
    }
}

#[tokio::test]
async fn a_server_that_does_everything_wrong_first_is_asked_again() {
    for chat in [false, true] {
        let model = Server::start(|asked| match asked.number {
            0 => Say::Status(
                429,
                "retry-after: 1\r\n",
                r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#.to_owned(),
            ),
            1 => Say::Status(529, "", "{}".to_owned()),
            2 => Say::Cut,
            3 => Say::Turn(vec![bash("echo made > made.txt")]),
            4 => Say::Raw("data: {oops\n\n"),
            5 => Say::Broken,
            6 => Say::Hang,
            _ => Say::Turn(vec![text("All is well.")]),
        })
        .await;
        let settings = if chat { model.chat_settings() } else { model.settings() };
        let client = server(&settings, &[("SANDBOX_MCP_MODEL_IDLE_SECONDS", "1")]).await;
        let done = client.ok("execute_task", json!({"task": "make a file"})).await;
        let _ = done;
        let session = done["session_id"].as_str().unwrap();
        assert_eq!(client.output(session, "cat made.txt").await, "made\n");
        let requests = model.requests();
        assert!(requests.len() >= 8, "{}", requests.len());
        // After streams that broke, the answer is asked for as a whole.
        assert_eq!(requests.last().unwrap().body["stream"], false);
    }
}
