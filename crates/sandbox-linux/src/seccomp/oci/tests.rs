//! Every field of a profile, what it means and how it is refused; and profiles made of chance against a plain model.

use super::{super::machine, *};
use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

/// A profile as container engines have them, written for these tests.
const LIKE_AN_ENGINES: &str = include_str!("../../../tests/profiles/engine.json");
/// The one that is shown in docs/seccomp.md.
const SHOWN: &str = include_str!("../../../tests/profiles/shown.json");

fn machine() -> Machine {
    Machine { capabilities: Capabilities::NONE, kernel: (6, 1) }
}

fn understood(document: &Value) -> Result<Profile, ProfileError> {
    parse(document.to_string().as_bytes(), &machine())
}

/// A profile that allows everything but for these entries.
fn with(entries: Value) -> Value {
    json!({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": entries})
}

fn answer(document: &Value, name: &str, arguments: [u64; 6]) -> Answer {
    understood(document).unwrap().answer(names::number(name).unwrap(), &arguments)
}

fn refused(document: &Value) -> String {
    understood(document).map(drop).unwrap_err().to_string()
}

#[test]
fn a_profile_like_those_of_container_engines_loads() {
    let profile = parse(LIKE_AN_ENGINES.as_bytes(), &machine()).unwrap();
    let ask = |name: &str, first: u64| profile.answer(names::number(name).unwrap(), &[first, 0, 0, 0, 0, 0]);
    assert_eq!(ask("read", 0), Answer::Allow);
    assert_eq!(ask("clone", libc::CLONE_NEWNS as u64), Answer::REFUSE);
    assert_eq!(ask("clone3", 0), Answer::ABSENT);
    assert_eq!(ask("socket", 40), Answer::REFUSE);
    assert_eq!((ask("personality", 8), ask("personality", 9)), (Answer::Allow, Answer::REFUSE));
    assert_eq!(ask("ptrace", 0), Answer::Allow, "from kernel 4.8 on");
    assert_eq!(ask("chroot", 0), Answer::REFUSE, "only with the capability");
    let capable = Machine { capabilities: Capabilities::CONTAINER, ..machine() };
    let capable = parse(LIKE_AN_ENGINES.as_bytes(), &capable).unwrap();
    assert_eq!(capable.answer(names::number("chroot").unwrap(), &[0; 6]), Answer::Allow);
}

#[test]
fn the_profile_in_the_documentation_is_the_one_that_is_tested() {
    let documentation = include_str!("../../../../../docs/seccomp.md");
    assert!(
        documentation.contains(SHOWN.trim()),
        "docs/seccomp.md shows another profile than tests/profiles/shown.json"
    );
    let profile = parse(SHOWN.as_bytes(), &machine()).unwrap();
    let ask = |name: &str, arguments: [u64; 6]| profile.answer(names::number(name).unwrap(), &arguments);
    assert_eq!(ask("ptrace", [0; 6]), Answer::REFUSE);
    assert_eq!(ask("socket", [libc::AF_INET as u64, 0, 0, 0, 0, 0]), Answer::Errno(libc::EAFNOSUPPORT as u16));
    assert_eq!(ask("socket", [libc::AF_UNIX as u64, 0, 0, 0, 0, 0]), Answer::Allow);
}

#[test]
fn default_action_is_for_calls_that_no_rule_speaks_of() {
    assert_eq!(answer(&with(json!([])), "ptrace", [0; 6]), Answer::Allow);
    assert_eq!(answer(&with(json!(null)), "ptrace", [0; 6]), Answer::Allow);
    assert!(refused(&json!({"syscalls": []})).contains("defaultAction"));
    assert!(refused(&json!({"defaultAction": "SCMP_ACT_MAYBE"})).contains("SCMP_ACT_MAYBE"));
    let log = json!({"defaultAction": "SCMP_ACT_LOG"});
    assert_eq!(answer(&log, "ptrace", [0; 6]), Answer::Allow);
}

#[test]
fn default_errno_is_what_refused_calls_fail_with() {
    let mut document: Value = serde_json::from_str(LIKE_AN_ENGINES).unwrap();
    document["defaultErrnoRet"] = json!(13);
    assert_eq!(answer(&document, "keyctl", [0; 6]), Answer::Errno(13));
    document["defaultErrnoRet"] = json!(4096);
    assert!(refused(&document).contains("`defaultErrnoRet` is 4096"));
    let useless = json!({"defaultAction": "SCMP_ACT_ALLOW", "defaultErrnoRet": 1});
    assert!(refused(&useless).contains("defaultErrnoRet"));
}

#[test]
fn actions_allow_refuse_or_are_refused_themselves() {
    let entry = |action: &str| with(json!([{"names": ["ptrace"], "action": action}]));
    for action in ["SCMP_ACT_ERRNO", "SCMP_ACT_KILL", "SCMP_ACT_KILL_THREAD", "SCMP_ACT_KILL_PROCESS", "SCMP_ACT_TRAP"]
    {
        assert_eq!(answer(&entry(action), "ptrace", [0; 6]), Answer::REFUSE, "{action}");
    }
    for action in ["SCMP_ACT_ALLOW", "SCMP_ACT_LOG"] {
        assert_eq!(answer(&entry(action), "ptrace", [0; 6]), Answer::Allow, "{action}");
    }
    for action in ["SCMP_ACT_TRACE", "SCMP_ACT_NOTIFY", "SCMP_ACT_MAYBE"] {
        assert!(refused(&entry(action)).contains(action));
    }
    assert!(refused(&with(json!([{"names": ["ptrace"]}]))).contains("action"));
}

#[test]
fn errno_is_for_one_entry() {
    let entry = |number: u32| with(json!([{"names": ["ptrace"], "action": "SCMP_ACT_ERRNO", "errnoRet": number}]));
    assert_eq!(answer(&entry(38), "ptrace", [0; 6]), Answer::ABSENT);
    assert_eq!(answer(&entry(0), "ptrace", [0; 6]), Answer::Errno(0), "pretends that it worked");
    assert!(refused(&entry(5000)).contains("`errnoRet` is 5000"));
    let useless = with(json!([{"names": ["ptrace"], "action": "SCMP_ACT_KILL", "errnoRet": 1}]));
    assert!(refused(&useless).contains("errnoRet"));
}

#[test]
fn architectures_must_have_this_one() {
    let listed = |names: Value| json!({"defaultAction": "SCMP_ACT_ALLOW", "architectures": names});
    assert!(understood(&listed(json!([NATIVE.0, "SCMP_ARCH_X86"]))).is_ok());
    assert!(understood(&listed(json!([]))).is_ok());
    assert!(refused(&listed(json!(["SCMP_ARCH_S390X"]))).contains("SCMP_ARCH_S390X"));
    assert!(refused(&listed(json!(["amd64"]))).contains("amd64"));
    let map = json!([{"architecture": "SCMP_ARCH_S390X", "subArchitectures": ["SCMP_ARCH_S390"]}]);
    assert!(understood(&json!({"defaultAction": "SCMP_ACT_ALLOW", "archMap": map})).is_ok());
    let twice = json!({"defaultAction": "SCMP_ACT_ALLOW", "archMap": map, "architectures": [NATIVE.0]});
    assert!(refused(&twice).contains("archMap"));
}

#[test]
fn flags_that_change_nothing_are_accepted() {
    let flags = |flag: &str| json!({"defaultAction": "SCMP_ACT_ALLOW", "flags": [flag]});
    assert!(understood(&flags("SECCOMP_FILTER_FLAG_TSYNC")).is_ok());
    assert!(understood(&flags("SECCOMP_FILTER_FLAG_LOG")).is_ok());
    assert!(refused(&flags("SECCOMP_FILTER_FLAG_SPEC_ALLOW")).contains("SPEC_ALLOW"));
}

#[test]
fn names_that_this_kernel_does_not_have_are_passed_over() {
    let names = json!(["ptrace", "_llseek", "no_such_call"]);
    let document = with(json!([{"names": names, "action": "SCMP_ACT_ERRNO"}]));
    assert_eq!(answer(&document, "ptrace", [0; 6]), Answer::REFUSE);
    let one = with(json!([{"name": "ptrace", "action": "SCMP_ACT_ERRNO", "comment": "the old form"}]));
    assert_eq!(answer(&one, "ptrace", [0; 6]), Answer::REFUSE);
    assert!(refused(&with(json!([{"action": "SCMP_ACT_ERRNO"}]))).contains("names"));
    assert!(refused(&with(json!([{"names": [], "action": "SCMP_ACT_ERRNO"}]))).contains("names"));
    assert!(refused(&with(json!([{"names": ["kcmp"], "name": "kcmp", "action": "SCMP_ACT_ERRNO"}]))).contains("names"));
}

#[test]
fn fields_that_are_unknown_are_refused_by_name() {
    assert!(refused(&json!({"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x"})).contains("listenerPath"));
    let entry = |field: &str| with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", field: {}}]));
    assert!(refused(&entry("include")).contains("include"));
    let inner = |field: &str| with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "includes": {field: []}}]));
    assert!(refused(&inner("capabilities")).contains("capabilities"));
    let argument = json!({"index": 0, "value": 0, "op": "SCMP_CMP_EQ", "valuetwo": 1});
    let document = with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "args": [argument]}]));
    assert!(refused(&document).contains("valuetwo"));
    assert!(refused(&json!([])).contains("not an OCI seccomp profile"));
}

fn compared(op: &str, value: u64, two: u64) -> Value {
    let argument = json!({"index": 1, "value": value, "valueTwo": two, "op": op});
    with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "args": [argument]}]))
}

#[test]
fn arguments_are_compared_as_whole_numbers() {
    const LARGE: u64 = 7 << 32 | 5;
    let expected = [
        ("SCMP_CMP_NE", [true, false, true]),
        ("SCMP_CMP_LT", [true, false, false]),
        ("SCMP_CMP_LE", [true, true, false]),
        ("SCMP_CMP_EQ", [false, true, false]),
        ("SCMP_CMP_GE", [false, true, true]),
        ("SCMP_CMP_GT", [false, false, true]),
    ];
    for (op, holds) in expected {
        let ask = |value: u64| answer(&compared(op, LARGE, 0), "kcmp", [0, value, 0, 0, 0, 0]) == Answer::REFUSE;
        assert_eq!([LARGE - 1, LARGE, LARGE + 1].map(ask), holds, "{op}");
        assert_eq!([5 << 32 | 9, LARGE, 8 << 32].map(ask), holds, "{op}: the high half counts more");
    }
    assert!(refused(&compared("SCMP_CMP_LIKE", 0, 0)).contains("SCMP_CMP_LIKE"));
}

#[test]
fn masked_equal_looks_at_the_bits_of_the_first_value() {
    let mask = 1 << 40 | 0xf0;
    let ask = |value: u64| {
        let document = compared("SCMP_CMP_MASKED_EQ", mask, 1 << 40 | 0x20 | 0x3);
        answer(&document, "kcmp", [0, value, 0, 0, 0, 0]) == Answer::REFUSE
    };
    assert!(ask(1 << 40 | 0x20) && ask(1 << 40 | 1 << 50 | 0x2f));
    assert!(!ask(0x20) && !ask(1 << 40 | 0x30));
}

#[test]
fn an_argument_has_an_index_from_0_to_5() {
    for index in [6, 256, u64::MAX] {
        let argument = json!({"index": index, "value": 0, "op": "SCMP_CMP_EQ"});
        let document = with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "args": [argument]}]));
        assert!(refused(&document).contains(&index.to_string()));
    }
}

#[test]
fn all_arguments_must_fit_unless_two_tests_are_about_the_same() {
    let entry = |first: u32, second: u32| {
        let args = json!([
            {"index": first, "value": 1, "op": "SCMP_CMP_EQ"}, {"index": second, "value": 2, "op": "SCMP_CMP_EQ"}
        ]);
        with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "args": args}]))
    };
    let ask = |document: &Value, a: u64, b: u64| answer(document, "kcmp", [a, b, 0, 0, 0, 0]) == Answer::REFUSE;
    let (both, either) = (entry(0, 1), entry(0, 0));
    assert!(ask(&both, 1, 2) && !ask(&both, 1, 0) && !ask(&both, 0, 2));
    assert!(ask(&either, 1, 0) && ask(&either, 2, 0) && !ask(&either, 3, 0));
}

#[test]
fn of_two_rules_that_fit_the_one_that_refuses_wins() {
    let allow = json!({"names": ["kcmp"], "action": "SCMP_ACT_ALLOW"});
    let refuse = json!({"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "errnoRet": 5});
    let later = json!({"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "errnoRet": 6});
    for order in [json!([allow, refuse, later]), json!([refuse, later, allow])] {
        assert_eq!(answer(&with(order), "kcmp", [0; 6]), Answer::Errno(5));
    }
}

fn applies(condition: Value, machine: &Machine) -> bool {
    let mut entry = json!({"names": ["kcmp"], "action": "SCMP_ACT_ERRNO"});
    entry.as_object_mut().unwrap().extend(condition.as_object().unwrap().clone());
    let profile = parse(with(json!([entry])).to_string().as_bytes(), machine).unwrap();
    profile.answer(names::number("kcmp").unwrap(), &[0; 6]) == Answer::REFUSE
}

#[test]
fn conditions_on_capabilities_look_at_the_policys() {
    let none = machine();
    let some = Machine { capabilities: Capabilities::from_names(["chown", "kill"]).unwrap(), ..machine() };
    let (one, both, other) = (json!(["CAP_CHOWN"]), json!(["CAP_CHOWN", "CAP_KILL"]), json!(["CAP_CHOWN", "CAP_BPF"]));
    let includes = |caps: &Value| json!({"includes": {"caps": caps}});
    let excludes = |caps: &Value| json!({"excludes": {"caps": caps}});
    assert!(applies(includes(&json!([])), &none) && applies(excludes(&json!(null)), &none));
    assert!(!applies(includes(&one), &none) && applies(includes(&both), &some) && !applies(includes(&other), &some));
    assert!(applies(excludes(&one), &none) && !applies(excludes(&both), &some) && !applies(excludes(&other), &some));
    let unknown = with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "excludes": {"caps": ["CAP_FLY"]}}]));
    assert!(refused(&unknown).contains("CAP_FLY"));
}

#[test]
fn conditions_on_architectures_look_at_this_one() {
    let includes = |arches: Value| applies(json!({"includes": {"arches": arches}}), &machine());
    let excludes = |arches: Value| applies(json!({"excludes": {"arches": arches}}), &machine());
    assert!(includes(json!([NATIVE.1, "s390x"])) && !includes(json!(["s390x"])) && includes(json!([])));
    assert!(!excludes(json!([NATIVE.1, "s390x"])) && excludes(json!(["s390x"])));
}

#[test]
fn conditions_on_the_kernel_look_at_the_running_one() {
    let includes = |least: &str| applies(json!({"includes": {"minKernel": least}}), &machine());
    let excludes = |least: &str| applies(json!({"excludes": {"minKernel": least}}), &machine());
    assert!(includes("4.8") && includes("6.1") && !includes("6.2") && !includes("10.0"));
    assert!(!excludes("4.8") && !excludes("6.1") && excludes("6.2"));
    let odd = with(json!([{"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "includes": {"minKernel": "new"}}]));
    assert!(refused(&odd).contains("new"));
    assert!(running_kernel() >= (5, 11), "{:?}", running_kernel());
}

#[test]
fn calls_that_the_executor_needs_are_named_when_they_are_refused() {
    let missing = |names: Value| refused(&with(json!([{"names": names, "action": "SCMP_ACT_ERRNO"}])));
    let said = missing(json!(["execve", "kcmp", "wait4", "prctl", "clone"]));
    assert!(said.ends_with("execve, wait4, clone, prctl"), "{said}");
    let nothing = refused(&json!({"defaultAction": "SCMP_ACT_ERRNO"}));
    assert!(nothing.contains("execve") && nothing.contains("read"), "{nothing}");
    let argument = json!({"index": 2, "value": 64, "valueTwo": 64, "op": "SCMP_CMP_MASKED_EQ"});
    let no_new_files = with(json!([{"names": ["openat"], "action": "SCMP_ACT_ERRNO", "args": [argument]}]));
    assert!(refused(&no_new_files).ends_with("openat"), "also in part");
}

#[test]
fn a_file_is_read_once_it_is_known_to_be_one_and_short() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let reading = |path: &Path| read(path, Capabilities::NONE).map(drop).map_err(|error| error.to_string());
    assert!(reading(&path).unwrap_err().contains("cannot be read"));
    std::fs::write(&path, LIKE_AN_ENGINES).unwrap();
    assert_eq!(reading(&path), Ok(()));
    assert_eq!(reading(folder.path()).unwrap_err(), "it is not a file");
    std::fs::write(&path, vec![b' '; (LONGEST_FILE + 1) as usize]).unwrap();
    assert!(reading(&path).unwrap_err().contains("longer"));
    std::fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0).unwrap();
    assert_eq!(reading(&path).unwrap_err(), "it is not a file", "and nobody waited for a writer");
}

#[test]
fn a_profile_that_becomes_too_long_is_refused() {
    let refuse = |names: &[&str], values: u64| {
        let args: Vec<Value> =
            (0..values).map(|value| json!({"index": 0, "value": value << 33, "op": "SCMP_CMP_EQ"})).collect();
        with(json!([{"names": names, "action": "SCMP_ACT_ERRNO", "args": args}]))
    };
    assert!(understood(&refuse(&["kcmp"], 500)).is_ok());
    assert!(refused(&refuse(&["kcmp"], 1000)).contains("instructions"));
    assert!(refused(&refuse(&["kcmp"; 500], 500)).contains("rules"), "before memory is full of them");
}

proptest! {
    /// The model reads the JSON itself: no type of ours stands between the text and the expected answer.
    #[test]
    fn a_profile_does_what_its_text_says(
        entries in vec(entries(), 0..12), default_allows: bool,
        calls in vec((prop::sample::select(vec!["kcmp", "ptrace", "shmget"]), prop::array::uniform6(0..4u64)), 32),
    ) {
        let (default, rest) = if default_allows { ("SCMP_ACT_ALLOW", None) } else { ("SCMP_ACT_ERRNO", Some(everything_else())) };
        let listed: Vec<Value> = entries.iter().cloned().chain(rest).collect();
        let document = json!({"defaultAction": default, "syscalls": listed});
        let profile = understood(&document).unwrap();
        let program = compile::compile(&profile);
        for (name, arguments) in calls {
            let expected = model(&entries, if default_allows { None } else { Some(1) }, name, arguments);
            let number = names::number(name).unwrap();
            prop_assert_eq!(machine::run_native(&program, number, arguments), expected, "{} {:?}", name, arguments);
        }
    }
}

/// What the executor needs and more, so that profiles which refuse by default load.
fn everything_else() -> Value {
    let names: Vec<&str> = names::all().map(|(name, _)| name).collect();
    let free: Vec<&&str> = names.iter().filter(|name| !["kcmp", "ptrace", "shmget"].contains(name)).collect();
    json!({"names": free, "action": "SCMP_ACT_ALLOW"})
}

fn entries() -> impl Strategy<Value = Value> {
    let operators = [
        "SCMP_CMP_NE",
        "SCMP_CMP_LT",
        "SCMP_CMP_LE",
        "SCMP_CMP_EQ",
        "SCMP_CMP_GE",
        "SCMP_CMP_GT",
        "SCMP_CMP_MASKED_EQ",
    ];
    let argument = (0..6u8, 0..4u64, 0..4u64, prop::sample::select(operators.to_vec()))
        .prop_map(|(index, value, two, op)| json!({"index": index, "value": value, "valueTwo": two, "op": op}));
    let names = prop::sample::subsequence(vec!["kcmp", "ptrace", "shmget"], 1..=3);
    (names, prop::option::of(0..200u32), vec(argument, 0..4)).prop_map(|(names, errno, args)| match errno {
        Some(number) => json!({"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": number, "args": args}),
        None => json!({"names": names, "action": "SCMP_ACT_ALLOW", "args": args}),
    })
}

/// What the kernel would be told: nothing for allowed, else the error. First refusals, then permissions, then default.
fn model(entries: &[Value], default: Option<u64>, name: &str, arguments: [u64; 6]) -> Option<u64> {
    let fits = |entry: &&Value| {
        let args = entry["args"].as_array().unwrap();
        let holds = |argument: &Value| {
            let given = arguments[argument["index"].as_u64().unwrap() as usize];
            let (value, two) = (argument["value"].as_u64().unwrap(), argument["valueTwo"].as_u64().unwrap());
            match argument["op"].as_str().unwrap() {
                "SCMP_CMP_NE" => given != value,
                "SCMP_CMP_LT" => given < value,
                "SCMP_CMP_LE" => given <= value,
                "SCMP_CMP_EQ" => given == value,
                "SCMP_CMP_GE" => given >= value,
                "SCMP_CMP_GT" => given > value,
                _ => given & value == two & value,
            }
        };
        let mut indices: Vec<_> = args.iter().map(|argument| argument["index"].as_u64()).collect();
        indices.sort();
        indices.dedup();
        let any = indices.len() < args.len();
        let named = entry["names"].as_array().unwrap().iter().any(|known| known == name);
        named && if any { args.iter().any(holds) } else { args.iter().all(holds) }
    };
    let fitting: Vec<&Value> = entries.iter().filter(fits).collect();
    match fitting.iter().find_map(|entry| entry["errnoRet"].as_u64()) {
        Some(number) => Some(number),
        None if fitting.is_empty() => default,
        None => None,
    }
}
