//! What people type, each way; and text that nobody types.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use sandbox_core::{Policy, Reason, exec::Exec};

use super::{Verdict, advise, disguise};

fn judge(script: &str) -> Verdict {
    advise(&Exec::shell(script), &Policy::default())
}

fn denied(script: &str) -> super::Refused {
    match judge(script) {
        Verdict::Denied(refused) => refused,
        other => panic!("{script}: {other:?}"),
    }
}

#[test]
fn what_people_type_is_allowed() {
    for script in [
        "echo \"sudo is not available\"",
        "grep -r 'rm -rf /' .",
        "git commit -m \"docker: fix\"",
        "git commit -m 'use sudo; reboot' && git push",
        "ls /usr/bin/sudo",
        "which docker",
        "command -v ssh || echo none",
        "rm -rf ./build /tmp/x",
        "rm -rf \"$DIR/build\"",
        "rm -rf node_modules/ *.log",
        "chmod 755 x",
        "chmod -R u+rwX,go+rX .",
        "dd if=/dev/zero of=file bs=1M count=1",
        "man ssh",
        "pip install paramiko",
        "npm run at",
        "npm run format && ./format.sh",
        "apt-get install -y openssh-client",
        "cat Dockerfile | grep -v sudo > out 2>&1",
        "make -j4 2>/dev/null | tee build.log",
        "python3 -c 'import sys; print(sys.version)'",
        "python3 -c \"import re; print(re.compile('su').match('sudo'))\"",
        "python3 - <<'EOF'\nimport json\nprint(json.dumps({'a': 1}))\nEOF",
        "node -e 'console.log(/a/.exec(\"sudo\"))'",
        "for f in *.py; do python3 \"$f\"; done",
        "if [ -f x ]; then echo yes; else echo no; fi",
        "while read -r line; do echo \"$line\"; done < file",
        "case \"$1\" in start) echo a;; *) echo b;; esac",
        "x=$(date +%s); echo $((x + 1)) ${x:-none} ${#x}",
        "find . -name '*.pyc' -delete",
        "find / -name '*.conf' 2>/dev/null | head",
        "find . -type f -exec grep -l sudo {} +",
        "ls | xargs -n1 echo",
        "[[ $a == b && ( $c -gt 1 ) ]] && echo yes",
        "awk '{ print $1 }' file | sort | uniq -c",
        "awk -F: '$3 > 1000 { print $1 | \"sort\" }' /etc/passwd",
        "sed -i 's/ssh/http/g' config",
        "curl -fsSL https://example.org/x.tar.gz | tar xz",
        "tar czf - . > /dev/null",
        "cat > deploy.sh <<'EOF'\nsudo systemctl restart nginx\nEOF",
        "env FOO=1 python3 app.py",
        "timeout 10 python3 -m pytest -k 'su'",
        "f() { echo \"$1\"; }; f sudo",
        "\"$VENV/bin/python\" -m pip list",
        "docker_image=x; echo $docker_image",
        "cd / && ls",
        "rm -rf ~/.cache/pip",
        "(cd build && cmake ..) & wait",
        "# sudo reboot\ntrue",
        "diff <(sort a) <(sort b)",
        "test -e /dev/sda && echo disk",
        "! grep -q x file",
        "time make",
        "bash -c 'echo hello'",
        "sh -euc 'cd /tmp; ls'",
        "git log --format='%h %s' | head -5",
        "cargo test -- --nocapture",
        "arr=(a b c); echo \"${arr[@]}\"",
        "ssh-keygen -t ed25519 -f key -N ''",
        "echo at midnight; echo \"{sudo,id}\"",
        "history | grep ssh",
    ] {
        assert_eq!(judge(script), Verdict::Allowed, "{script}");
    }
}

#[test]
fn what_the_policy_denies_is_denied_wherever_it_stands() {
    for script in [
        "sudo id",
        "/usr/bin/sudo id",
        "./sudo",
        "'s'u\"do\" id",
        "\\sudo id",
        "s\\udo id",
        "$'\\x73udo' id",
        "$'\\163\\165do' id",
        "su\\\ndo id",
        "ls; sudo id",
        "ls && sudo id || true",
        "ls | sudo tee x",
        "ls & sudo id",
        "(sudo id)",
        "{ sudo id; }",
        "if true; then sudo id; fi",
        "if sudo id; then ls; fi",
        "while sudo id; do ls; done",
        "until false; do sudo id; done",
        "for x in a b; do sudo id; done",
        "for ((i=0;i<3;i++)); do sudo id; done",
        "select x in a; do sudo id; done",
        "case a in a) sudo id ;; esac",
        "f() { sudo id; }; f",
        "f() { sudo id; }",
        "function f { sudo id; }; f",
        "f() { \"$@\"; }; f sudo id",
        "f() { $1 id; }; f sudo",
        "coproc sudo id",
        "coproc X { sudo id; }",
        "! sudo id",
        "time sudo id",
        "time -p sudo id",
        "echo $(sudo id)",
        "echo `sudo id`",
        "echo \"a $(sudo id) b\"",
        "echo \"a `sudo id` b\"",
        "x=$(sudo id)",
        "x=1 sudo id",
        "echo ${x:-$(sudo id)}",
        "echo $(( $(sudo id) + 1 ))",
        "(( $(sudo id) ))",
        "[[ -n $(sudo id) ]]",
        "ls > $(sudo id)",
        "cat <(sudo id)",
        "ls > >(sudo tee x)",
        "cat <<EOF\n$(sudo id)\nEOF",
        "sh <<EOF\nsudo id\nEOF",
        "sh <<'EOF'\nsudo id\nEOF",
        "bash <<< 'sudo id'",
        "echo 'sudo id' | sh",
        "printf 'su%s id' do | sh",
        "echo c3VkbyBpZA== | base64 -d | sh",
        "echo 'di odus' | rev | sh",
        "sh -c 'sudo id'",
        "bash -lc 'sudo id'",
        "bash -o pipefail -c 'sudo id'",
        "bash -c 'bash -c \"bash -c \\\"sudo id\\\"\"'",
        "bash -c '\"$0\" id' sudo",
        "sh -c '$1 id' x sudo",
        "eval sudo id",
        "eval 'su''do id'",
        "eval \"$(echo sudo id)\"",
        "x=sudo; $x id",
        "x=sudo; ${x} id",
        "x=sudo; \"$x\" id",
        "x=su; y=do; $x$y id",
        "x=su; x+=do; $x id",
        "x='sudo id'; $x",
        "IFS=,; x=sudo,id; $x",
        "sudo${IFS}id",
        "{sudo,id}",
        "s{u,x}do",
        "su${unset}do id",
        "su$@do id",
        "x=sXudo; ${x/X/} id",
        "x=XXsudo; ${x#XX} id",
        "x=sudo.old; ${x%.old} id",
        "x=SUDO; ${x,,} id",
        "x=xsudox; ${x:1:4} id",
        "${x:-sudo} id",
        "x=sudo; y=x; ${!y} id",
        "a=(sudo id); \"${a[@]}\"",
        "a=(ls sudo); ${a[1]} id",
        "set -- sudo id; \"$@\"",
        "read x <<< sudo; $x id",
        "echo sudo | while read x; do $x id; done",
        "export x=sudo; sh -c '$x id'",
        "x=sudo sh -c '$x id'",
        "printf -v x sudo; $x id",
        "x=ls; true && x=sudo; $x id",
        "for x in ls sudo; do $x id; done",
        "$(echo sudo) id",
        "`echo sudo` id",
        "$(which sudo) id",
        "$(command -v sudo) id",
        "$SUDO sudo id",
        "$nothing reboot",
        "/usr/bin/sud? id",
        "/usr/bin/s[u]do id",
        "alias x=sudo; x id",
        "alias ls='sudo ls'; ls",
        "hash -p /usr/bin/sudo x; x id",
        "env sudo id",
        "env -i A=b sudo id",
        "env -u X sudo id",
        "env -S 'sudo id'",
        "command sudo id",
        "command -p sudo id",
        "exec sudo id",
        "exec -a ls sudo id",
        "builtin eval sudo id",
        "nohup sudo id &",
        "nice -n 5 sudo id",
        "nice -5 sudo id",
        "timeout 5 sudo id",
        "timeout -k 1 -s KILL 5 sudo id",
        "stdbuf -oL sudo id",
        "stdbuf -o L sudo id",
        "setsid -w sudo id",
        "echo id | xargs sudo",
        "echo sudo | xargs -I{} {} id",
        "echo sudo id | xargs env",
        "xargs -n 1 sudo < list",
        "echo x | xargs sh -c 'sudo id'",
        "find . -exec sudo id \\;",
        "find . -name x -execdir sudo id {} +",
        "find . -exec sh -c 'sudo id' \\;",
        "find / -delete",
        "parallel sudo ::: id",
        "parallel ::: 'sudo id'",
        "watch -n 1 sudo id",
        "flock /tmp/l sudo id",
        "flock /tmp/l -c 'sudo id'",
        "script -c 'sudo id' /dev/null",
        "script -qc 'sudo id'",
        "busybox su",
        "busybox sh -c 'sudo id'",
        "trap 'sudo id' EXIT",
        "/lib64/ld-linux-x86-64.so.2 /usr/bin/sudo id",
        "/lib/ld-musl-x86_64.so.1 --library-path /x /usr/bin/sudo id",
        "python3 -c 'import os; os.system(\"sudo id\")'",
        "python3 -c \"__import__('os').system('sudo id')\"",
        "python3 -c 'import subprocess; subprocess.run([\"sudo\", \"id\"])'",
        "python3 -c 'import subprocess as s; s.check_output(\"sudo id\", shell=True)'",
        "python3 -c 'import os; os.execlp(\"sudo\", \"sudo\", \"id\")'",
        "python3 -c 'import os; os.system(\"su\" + \"do id\")'",
        "python3 -c 'exec(\"import os; os.system(\\\"sudo id\\\")\")'",
        "python3 - <<EOF\nimport os\nos.system('sudo id')\nEOF",
        "echo 'import os; os.system(\"sudo id\")' | python3",
        "perl -e 'system(\"sudo id\")'",
        "perl -e 'exec \"sudo\", \"id\"'",
        "perl -e 'print `sudo id`'",
        "perl -e 'print qx{sudo id}'",
        "ruby -e 'system \"sudo id\"'",
        "ruby -e 'puts `sudo id`'",
        "ruby -e 'puts %x(sudo id)'",
        "node -e 'require(\"child_process\").execSync(\"sudo id\")'",
        "node -e 'require(\"child_process\").spawnSync(\"sudo\", [\"id\"])'",
        "php -r 'system(\"sudo id\");'",
        "lua -e 'os.execute(\"sudo id\")'",
        "awk 'BEGIN{system(\"sudo id\")}'",
        "awk 'BEGIN{\"sudo id\" | getline x}'",
        "awk -v x=1 'BEGIN{print 1 | \"sudo id\"}'",
        "git -c core.pager='sudo id' log",
        "git -c alias.x='!sudo id' x",
        "make SHELL=/usr/bin/sudo",
        "tar cf x --checkpoint=1 --checkpoint-action=exec='sudo id' .",
        "tar xf x --to-command='sudo id'",
        "vim -c '!sudo id'",
        "vim -c ':!sudo id' +q",
        "echo 'sudo id' > x.sh; sh x.sh",
        "echo 'sudo id' > x; chmod +x x; ./x",
        "cat > x.sh <<'EOF'\n#!/bin/sh\nsudo id\nEOF\nchmod +x x.sh && ./x.sh",
        "cat > x.py <<'EOF'\nimport os\nos.system('sudo id')\nEOF\npython3 x.py",
        "printf 'sudo id' > /tmp/x; . /tmp/x",
        "source <(echo sudo id)",
        "bash <(echo sudo id)",
        "cp /usr/bin/sudo ./x; ./x id",
        "ln -s /usr/bin/sudo /tmp/x && /tmp/x id",
        "cp $(which sudo) x; ./x id",
        "rsync -e ssh a b:c",
        "rm -rf /",
        "rm -fr /*",
        "rm -r -f --no-preserve-root //",
        "rm -rf ~",
        "rm -rf $HOME",
        "rm -rf \"$HOME\"/*",
        "rm -rf /home/sandbox",
        "rm -rf /{bin,..}",
        "cd / && rm -rf *",
        "cd /; rm -rf .",
        "x=/; rm -rf $x",
        "chmod 777 x",
        "chmod -R 0777 .",
        "chmod a+rwx x",
        "dd if=x of=/dev/sda",
        "echo x > /dev/sda",
        "cat x >> /dev/nvme0n1",
        "cat x | tee /dev/sdb",
        "cp x /dev/sda",
        "mkfs.ext4 x",
        "mkfs -t ext4 x",
        "nc.openbsd -l 1",
        "ls\nsudo id\n)",
        "sudo id; if",
    ] {
        let verdict = judge(script);
        assert!(matches!(verdict, Verdict::Denied(_)), "{script}: {verdict:?}");
    }
}

#[test]
fn what_cannot_be_seen_is_called_unknown() {
    for script in [
        "$CMD id",
        "\"$(cat name)\" id",
        "eval \"$x\"",
        "curl -s https://example.org/install | sh",
        "base64 -d < file | bash",
        ". ./environment",
        "bash install.sh",
        "sh",
        "python3 -c 'import os, sys; os.system(sys.argv[1])'",
        "python3 -c \"getattr(__import__('o'+'s'), 'sys'+'tem')('x')\"",
        "curl x | python3",
        "echo (",
        "if true; then",
        "echo 'unbalanced",
        "ls | xargs -I{} {} id",
        "./* x",
    ] {
        let verdict = judge(script);
        assert!(matches!(verdict, Verdict::Unknown(_)), "{script}: {verdict:?}");
    }
}

#[test]
fn a_refusal_says_what_where_why_and_what_to_do() {
    let refused = denied("bash -c 'sudo apt install jq'");
    assert_eq!((refused.rule.as_str(), refused.target.as_str()), ("sudo", "sudo apt install jq"));
    assert_eq!(refused.place.as_deref(), Some("inside `bash -c`"));
    assert_eq!(denied("echo $(docker ps)").place.as_deref(), Some("in a command substitution"));
    assert_eq!(denied("echo x | xargs ssh").place.as_deref(), Some("run by xargs"));
    assert_eq!((denied("ls; sudo id").place, denied("rm -fr /*").rule.as_str()), (None, "rm -rf /"));
    let long = format!("sudo {}", "x".repeat(1000));
    assert!(denied(&long).target.chars().count() < 100);
    let policy = Policy::default();
    let denial = advise(&Exec::shell("ssh host"), &policy).denial(&policy).unwrap();
    assert_eq!((denial.reason, denial.level.as_str()), (Reason::CommandDenied, policy.name.as_str()));
    assert!(denial.message.contains("`ssh host`") && !denial.how_to_ask.is_empty());
}

#[test]
fn programs_without_a_shell_are_judged_too() {
    let judge = |argv: &[&str]| advise(&Exec::argv(argv.iter().copied()), &Policy::default());
    assert!(matches!(judge(&["sudo", "id"]), Verdict::Denied(_)));
    assert!(matches!(judge(&["env", "A=b", "/bin/sudo", "id"]), Verdict::Denied(_)));
    assert!(matches!(judge(&["bash", "-c", "sudo id"]), Verdict::Denied(_)));
    assert!(matches!(judge(&["rm", "-rf", "/"]), Verdict::Denied(_)));
    assert_eq!(judge(&["echo", "$(sudo id)"]), Verdict::Allowed);
    assert_eq!(judge(&["echo", "a;", "sudo"]), Verdict::Allowed);
    assert_eq!(judge(&[]), Verdict::Allowed);
}

#[test]
fn variables_of_the_command_are_followed() {
    let mut exec = Exec::shell("$TOOL id");
    exec.env.insert("TOOL".to_owned(), "sudo".to_owned());
    assert!(matches!(advise(&exec, &Policy::default()), Verdict::Denied(_)));
}

#[test]
fn with_a_list_of_allowed_programs_all_others_are_denied() {
    let mut policy = Policy::default();
    policy.commands.allow = Some(["git", "python3", "sh", "sudo", "/opt/tools/"].map(str::to_owned).into());
    let judge = |script: &str| advise(&Exec::shell(script), &policy);
    for script in
        ["git status | sh -c 'echo x'", "f() { git log; }; f; cd x; [ -e y ]", "/opt/tools/x", "/usr/bin/python3 x"]
    {
        assert_eq!(judge(script), Verdict::Allowed, "{script}");
    }
    for script in ["make", "git log | less", "sh -c 'make'", "./x", "/tmp/git"] {
        let Verdict::Denied(refused) = judge(script) else { panic!("{script}") };
        assert_eq!((refused.reason, refused.rule.as_str()), (Reason::CommandNotAllowed, "commands.allow"), "{script}");
    }
    // A shell's own words are programs where there is no shell.
    let plain = |words: &[&str]| advise(&Exec::argv(words.iter().copied()), &policy);
    let Verdict::Denied(refused) = plain(&["true"]) else { panic!("`true` is not listed") };
    assert_eq!(refused.reason, Reason::CommandNotAllowed);
    assert_eq!(plain(&["sh", "-c", "true"]), Verdict::Allowed);
    let Verdict::Denied(refused) = judge("sudo id") else { panic!("denied wins over allowed") };
    assert_eq!(refused.reason, Reason::CommandDenied);
}

#[test]
fn the_examples_in_the_guide_are_true() {
    let guide = include_str!("../../../../docs/commands.md");
    let mut seen = 0;
    for block in guide.split("```").filter_map(|block| block.split_once('\n')) {
        for script in block.1.lines().filter(|_| ["allowed", "denied", "unknown"].contains(&block.0)) {
            let verdict = match judge(script) {
                Verdict::Allowed => "allowed",
                Verdict::Denied(_) => "denied",
                Verdict::Unknown(_) => "unknown",
            };
            assert_eq!(verdict, block.0, "{script}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn every_preset_has_rules_that_can_be_read() {
    for policy in sandbox_core::policy::PRESETS.iter().filter_map(|name| Policy::preset(name)) {
        assert!(super::Rules::parse(&policy.commands).is_ok(), "{}", policy.name);
    }
}

#[test]
fn disguises_are_seen_through_where_the_name_can_be_found() {
    let disguises = disguise::disguises(1, 2000, &disguise::Targets::default());
    assert!(disguises.len() >= 1000, "{}", disguises.len());
    let mut caught = 0;
    let mut unknown = 0;
    let mut missed = Vec::new();
    for disguise in &disguises {
        match judge(&disguise.text) {
            Verdict::Denied(_) => caught += 1,
            verdict => {
                unknown += usize::from(matches!(verdict, Verdict::Unknown(_)));
                if disguise.seen == disguise::Seen::Early {
                    missed.push((disguise, verdict));
                }
            }
        }
    }
    assert!(missed.is_empty(), "{} of those that name it openly: {:#?}", missed.len(), &missed[..missed.len().min(5)]);
    let all = disguises.len();
    println!(
        "of {all} disguises {caught} are denied early, {unknown} called unknown, {} allowed",
        all - caught - unknown
    );
    assert!(caught * 100 >= all * 70, "{caught} of {all}");
}

/// The longest text that is looked at.
const LARGEST: usize = super::syntax::LONGEST - 16;

/// Judges on a thread with no more stack than the server's threads have.
fn bounded(script: &str) -> Duration {
    let script = script.to_owned();
    let judged = std::thread::Builder::new().stack_size(2 << 20).spawn(move || {
        let start = Instant::now();
        let verdict = judge(&script);
        (start.elapsed(), verdict)
    });
    let (took, _) = judged.unwrap().join().unwrap();
    took
}

#[test]
fn text_that_is_made_to_hurt_is_judged_in_bounded_time() {
    let nested = [
        ("$(", "ls", ")"),
        ("(", "ls", ")"),
        ("((", "1", "))"),
        ("$((", "1", "))"),
        ("{ ", "ls;", "}"),
        ("${x:-", "y", "}"),
        ("${x#", "*", "}"),
        ("if ", "ls", "; then ls; fi"),
        ("while ", "ls", "; do ls; done"),
        ("case x in a) ", "ls", ";; esac"),
        ("f() { ", "ls", "; }"),
        ("\"$(", "ls", ")\""),
        ("<(", "ls", ")"),
        ("{a,", "b", "}"),
        ("{a,b}", "", ""),
        ("[[ ( ", "a", " ) ]]"),
        ("! ", "ls", ""),
        ("time ", "ls", ""),
        ("env ", "ls", ""),
        ("nohup env -S '", "ls", "'"),
        ("sh -c \"", "ls", "\""),
        ("eval ", "ls", ""),
        ("coproc ", "ls", ""),
        ("`", "ls", "`"),
        ("\\`", "ls", "\\`"),
        ("ls | ", "ls", ""),
        ("ls && ", "ls", ""),
        ("a=$a$a; ", "$a", ""),
        ("x=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; ${x%*a*a*a*a*a*b}; ", "", ""),
        ("a+=xyzzy; echo $a$a$a; ", "", ""),
        ("v$x=1; v=$v; sh -c v=1; ", "", ""),
        ("cat <<E\n$(", "ls", ")\nE\n"),
        ("cat <<E;", "", "\nE\n"),
        ("f() { f; f; }; f; ", "", ""),
        ("for a in {1..60}; do ", "$a", "; done"),
        ("@(", "x", ")"),
        ("$'\\x41", "", "'"),
        ("python3 -c 'exec(\"", "x", "\")'"),
        ("alias a=a; a; ", "", ""),
        ("echo x | rev | tr a b | ", "sh", ""),
        ("'", "", ""),
        ("\"", "", ""),
        ("\\", "", ""),
        ("\n", "", ""),
        ("word ", "", ""),
        ("99999999999999999999>x ", "", ""),
        ("echo {1..99999999999999999999} ~99999999999999999999 ${x:99999999999999999999} ", "", ""),
    ];
    for (before, middle, after) in nested {
        for times in [1, 30, 1000, usize::MAX] {
            let times = times.min(LARGEST / (before.len() + after.len()));
            for script in
                [before.repeat(times) + middle + &after.repeat(times), before.repeat(times), after.repeat(times)]
            {
                let took = bounded(&script);
                assert!(took < Duration::from_secs(10), "{before} × {times}: {took:?}");
            }
        }
    }
    for size in [1 << 20, 1 << 24] {
        assert!(bounded(&"sudo (".repeat(size / 6)) < Duration::from_millis(500));
    }
    // Functions that call each other: twice as much with each.
    let doubling: String = (0..60).map(|at| format!("f{}() {{ f{at}; f{at}; }}; ", at + 1)).collect::<String>() + "f60";
    assert!(bounded(&doubling) < Duration::from_secs(10));
}

/// Pieces that mean something to a shell, in any order.
fn shellish() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "$(",
        ")",
        "(",
        "((",
        "))",
        "`",
        "'",
        "\"",
        "\\",
        "\n",
        " ",
        ";",
        "&&",
        "||",
        "|",
        "&",
        "<",
        ">",
        "<<",
        "<<<",
        "<<E",
        "E",
        "{",
        "}",
        "${",
        "$",
        "x",
        "=",
        "sudo",
        "sh",
        "-c",
        "eval",
        "if",
        "then",
        "fi",
        "for",
        "in",
        "do",
        "done",
        "case",
        "esac",
        ";;",
        "[[",
        "]]",
        "*",
        "?",
        "[",
        "]",
        "#",
        "%",
        "/",
        ":",
        "!",
        "~",
        "@",
        ",",
        "..",
        "1",
        "99999999999",
        "xargs",
        "-I{}",
        "find",
        "-exec",
        "env",
        "-S",
        "python3",
        "os.system(",
        "awk",
        "echo",
        "printf",
        "%s",
        "base64",
        "-d",
        "tr",
        "a-z",
        "\u{0}",
        "\u{1}",
        "ü",
        "time",
        "coproc",
        "function",
        "f()",
        "$'",
        "\\x",
        "set",
        "--",
        "\"$@\"",
        "read",
        "alias",
        "git",
        "+=",
        "rm -rf /",
    ]);
    prop::collection::vec(pieces, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_makes_it_panic(text in any::<String>(), shellish in shellish(), spaced in shellish()) {
        for script in [text, spaced.replace("sudo", " sudo "), shellish] {
            let start = Instant::now();
            judge(&script);
            advise(&Exec::argv(script.split(' ')), &Policy::default());
            prop_assert!(start.elapsed() < Duration::from_secs(5));
        }
    }

    #[test]
    fn what_stands_openly_between_harmless_commands_is_always_found(
        before in prop::sample::select(vec!["ls", "x=1", "echo 'a b'", "cd /tmp", "f() { ls; }", "true || false"]),
        after in prop::sample::select(vec!["ls", "echo $x", "wait", "[ -e x ]"]),
        between in prop::sample::select(vec![";", "\n", "&&", "||", "&"]),
    ) {
        let script = format!("{before} {between} sudo id {between} {after}");
        prop_assert!(matches!(judge(&script), Verdict::Denied(_)), "{}", script);
    }
}
