//! Commands: how they start, what they say, how they end.

use std::time::{Duration, Instant};

use sandbox_core::{
    Control, JobId,
    exec::{Exec, Exit, Stdin, TerminalSize},
};
use sandbox_executor::{
    client::{InputEnd, JobEvent, Until},
    protocol::{Reason, Target},
};

use crate::harness::{Carrier, Outcome, Program, on_both, reason};

#[tokio::test]
async fn commands_run_with_their_arguments_variables_and_folder() {
    on_both(async |program| {
        let outcome = program.run("echo out; echo err >&2; echo $GREETING $HOME; pwd; exit 3").await;
        let workspace = program.workspace();
        assert_eq!(outcome.text(), format!("out\nhello\n{}\n", workspace.display()));
        assert_eq!(outcome.stderr, b"err\n");
        assert_eq!(outcome.exit, Some(Exit::Code(3)));

        let mut exec = Exec::argv(["printf", "%s|", "a b", "$c", ""]);
        exec.env.insert("X".to_owned(), "1".to_owned());
        assert_eq!(program.exec(&exec).await.text(), "a b|$c||");
        exec = Exec::shell("echo $X$GREETING; pwd");
        exec.env.insert("X".to_owned(), "1".to_owned());
        exec.cwd = Some("/".to_owned());
        assert_eq!(program.exec(&exec).await.text(), "1hello\n/\n");
    })
    .await;
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    on_both(async |program| {
        let refused = async |exec: Exec| program.client.spawn(&exec).await.err().expect("it started").to_string();
        let message = refused(Exec::argv(["no-such-program"])).await;
        assert!(message.contains("program `no-such-program` not found in PATH=/usr"), "{message}");
        assert!(refused(Exec::argv(["/etc/passwd"])).await.contains("cannot be started"));
        assert!(refused(Exec::argv(["./x"])).await.contains("not found"));
        let mut exec = Exec::shell("true");
        exec.cwd = Some("/nowhere".to_owned());
        assert!(refused(exec).await.contains("/nowhere"));
        std::fs::write(program.workspace().join("script"), "#!/no/interpreter\n").unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(program.workspace().join("script"), mode).unwrap();
        assert!(refused(Exec::argv(["./script"])).await.contains("interpreter"));
        assert_eq!(reason(program.client.spawn(&Exec::argv(Vec::<String>::new())).await), Reason::Invalid);
        assert_eq!(reason(program.client.spawn(&Exec::argv(["a\0b"])).await), Reason::Invalid);
    })
    .await;
}

#[tokio::test]
async fn commands_inherit_nothing_of_the_executor() {
    on_both(async |program| {
        let outcome = program.run("env | sort; ls /proc/self/fd; grep -E 'SigBlk|SigIgn' /proc/self/status").await;
        let text = outcome.text();
        assert!(text.starts_with("GREETING=hello\nPATH="), "{text}");
        assert!(text.contains("\n0\n1\n2\n3\nSigBlk"), "{text}");
        assert!(text.contains("SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000"), "{text}");
        let parent = program.run("cat /proc/$PPID/environ || echo hidden").await;
        // Root on this machine may read anything; what counts is that there is nothing to read.
        assert!(parent.text().is_empty() || parent.text() == "hidden\n", "{}", parent.text());
    })
    .await;
}

#[tokio::test]
async fn exits_are_told_apart() {
    on_both(async |program| {
        assert_eq!(program.run("kill -SEGV $$").await.exit, Some(Exit::Signal(11)));
        let mut exec = Exec::shell("trap '' TERM; sleep 60");
        exec.timeout = Some(Duration::from_millis(100));
        let outcome = program.exec(&exec).await;
        assert_eq!(outcome.exit, Some(Exit::Limit(Control::Time)));
        assert!(outcome.elapsed < Duration::from_secs(30), "{outcome:?}");
        let mut exec = Exec::argv(["dd", "if=/dev/zero", "of=big", "bs=64k", "count=64"]);
        exec.limits.file_size = Some(1 << 20);
        assert_eq!(program.exec(&exec).await.exit, Some(Exit::Limit(Control::Disk)));
    })
    .await;
}

#[tokio::test]
async fn input_reaches_the_command() {
    on_both(async |program| {
        let mut exec = Exec::argv(["cat"]);
        exec.stdin = Stdin::Piped;
        let follow = program.client.spawn(&exec).await.unwrap();
        let job = follow.job();
        let much = vec![b'x'; 700_000];
        let feeding = async {
            program.client.input(job, b"first ", InputEnd::Keep).await.unwrap();
            program.client.input(job, &much, InputEnd::Close).await.unwrap();
        };
        let (outcome, ()) = tokio::join!(Outcome::of(follow), feeding);
        assert_eq!(outcome.end, 6 + much.len() as u64);
        assert_eq!(outcome.exit, Some(Exit::Code(0)));
        assert_eq!(program.run("cat").await.exit, Some(Exit::Code(0)), "without input it reads the end");
        let follow = program.client.spawn(&Exec::shell("sleep 1")).await.unwrap();
        assert_eq!(reason(program.client.input(follow.job(), b"x", InputEnd::Keep).await), Reason::WrongKind);
        assert_eq!(reason(program.client.input(JobId(999), b"x", InputEnd::Keep).await), Reason::NotFound);
    })
    .await;
}

#[tokio::test]
async fn a_whole_tree_is_killed_wherever_it_hides() {
    on_both(async |program| {
        let daemon = "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > daemon.pid; while :; do sleep 0.1; done' &) ";
        let script = format!("{daemon}; trap '' TERM; while :; do sleep 0.1; done");
        let follow = program.client.spawn(&Exec::shell(script)).await.unwrap();
        let file = program.workspace().join("daemon.pid");
        let pid = loop {
            match std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u32>().ok()) {
                Some(pid) => break pid,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let mut other = program.client.spawn(&Exec::shell("sleep 0.8; echo alive")).await.unwrap();
        program.client.signal(Target::Job(follow.job()), 15).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(is_alive(pid), "it ignores that signal");
        program.client.signal(Target::Job(follow.job()), 9).await.unwrap();
        let started = Instant::now();
        assert_eq!(Outcome::of(follow).await.exit, Some(Exit::Signal(9)));
        assert!(started.elapsed() < Duration::from_secs(10));
        assert!(!is_alive(pid));
        assert!(matches!(other.next().await.unwrap(), JobEvent::Output { .. }), "another job is not touched");
        std::fs::remove_file(file).unwrap();
        assert_eq!(reason(program.client.signal(Target::All, 200).await), Reason::Invalid);
    })
    .await;
}

fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

#[tokio::test]
async fn target_all_ends_only_what_descends_from_the_executor() {
    let mut bystander = std::process::Command::new("sleep").arg("20").spawn().unwrap();
    on_both(async |program| {
        let follow = program.client.spawn(&Exec::shell("(setsid sleep 30 &) ; sleep 30")).await.unwrap();
        while program.client.usage().await.unwrap().processes < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        program.client.signal(Target::All, 9).await.unwrap();
        assert_eq!(Outcome::of(follow).await.exit, Some(Exit::Signal(9)));
        assert_eq!(program.client.usage().await.unwrap().processes, 0);
    })
    .await;
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[tokio::test]
async fn who_starts_while_all_are_ended_is_not_ended_with_them() {
    on_both(async |program| {
        for _ in 0..50 {
            let follow = program.client.spawn(&Exec::shell("sleep 30")).await.unwrap();
            let next = async {
                assert_eq!(Outcome::of(follow).await.exit, Some(Exit::Signal(9)));
                Outcome::of(program.client.spawn(&Exec::shell("echo alive")).await.unwrap()).await
            };
            let (ended, next) = tokio::join!(program.client.signal(Target::All, 9), next);
            ended.unwrap();
            assert_eq!(next.exit, Some(Exit::Code(0)));
        }
    })
    .await;
}

#[tokio::test]
async fn a_gigabyte_of_output_is_drained_and_only_its_end_kept() {
    on_both(async |program| {
        let started = Instant::now();
        let follow = program.client.spawn(&Exec::shell("head -c 1000000000 /dev/zero; echo end")).await.unwrap();
        let job = follow.job();
        let mut follow = Some(follow);
        // Nobody reads: the job must not wait for anybody.
        drop(follow.take());
        let outcome = loop {
            let jobs = program.client.jobs().await.unwrap();
            if jobs.iter().any(|known| known.id == job && known.exit == Some(Exit::Code(0))) {
                break Outcome::of(program.client.attach(job, 0, Until::Exit).await.unwrap()).await;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        println!("1 GB drained in {:?}", started.elapsed());
        assert_eq!(outcome.end, 1_000_000_004);
        assert!(outcome.lost > 999_000_000);
        assert!(outcome.stdout.len() > 200_000 && outcome.stdout.len() <= 256 << 10);
        assert!(outcome.stdout.ends_with(b"\0\0end\n"));
    })
    .await;
}

#[tokio::test]
async fn attached_output_is_binary_safe_and_complete() {
    on_both(async |program| {
        let script = "head -c 30000000 /dev/urandom | tee copy | cat; echo problem >&2; exit 7";
        let mut attached = program.client.spawn_attached(&Exec::shell(script)).await.unwrap();
        let mut outcome = Outcome::default();
        loop {
            let event = attached.next().await.unwrap();
            if outcome.take(event) {
                break;
            }
        }
        assert_eq!(outcome.exit, Some(Exit::Code(7)));
        assert_eq!(outcome.lost, 0);
        assert!(outcome.stdout == std::fs::read(program.workspace().join("copy")).unwrap());
        assert_eq!(outcome.stderr, b"problem\n");
        assert_eq!(reason(program.client.attach(attached.job(), 0, Until::Now).await), Reason::WrongKind);
    })
    .await;
}

#[tokio::test]
async fn dropping_an_attached_job_ends_it() {
    on_both(async |program| {
        let attached = program.client.spawn_attached(&Exec::shell("sleep 30 & sleep 30")).await.unwrap();
        while program.client.usage().await.unwrap().processes < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(attached);
        let started = Instant::now();
        while program.client.usage().await.unwrap().processes > 0 {
            assert!(started.elapsed() < Duration::from_secs(20));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn handed_descriptors_are_the_commands_own() {
    let program = Program::start(Carrier::Local, |_| {}).await;
    let (reader, writer) = std::io::pipe().unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let stdio = [null.into(), writer.try_clone().unwrap().into(), writer.into()];
    let mut handed = program.client.spawn_handed(&Exec::shell("echo straight; exit 4"), stdio).await.unwrap();
    assert_eq!(handed.wait().await.unwrap().0, Exit::Code(4));
    assert_eq!(std::io::read_to_string(reader).unwrap(), "straight\n");
}

#[tokio::test]
async fn a_background_process_does_not_delay_the_end() {
    on_both(async |program| {
        let started = Instant::now();
        let follow = program.client.spawn(&Exec::shell("(sleep 2; echo late) & echo early")).await.unwrap();
        let job = follow.job();
        let outcome = Outcome::of(follow).await;
        assert_eq!(outcome.text(), "early\n");
        assert!(started.elapsed() < Duration::from_millis(1900), "{:?}", started.elapsed());
        while program.client.jobs().await.unwrap()[0].next_offset == 6 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let outcome = Outcome::of(program.client.attach(job, 6, Until::Now).await.unwrap()).await;
        assert_eq!(outcome.text(), "late\n", "what comes later is kept too");
    })
    .await;
}

#[tokio::test]
async fn a_terminal_has_a_size_and_takes_input() {
    on_both(async |program| {
        let mut exec =
            Exec::shell("tty >/dev/null && stty size; read line; stty size; echo got $line >&2; read x || echo eof");
        exec.terminal = Some(TerminalSize { rows: 24, columns: 80 });
        let mut attached = program.client.spawn_attached(&exec).await.unwrap();
        let mut outcome = Outcome::default();
        while !outcome.text().contains("24 80") {
            assert!(!outcome.take(attached.next().await.unwrap()), "{outcome:?}");
        }
        attached.resize(TerminalSize { rows: 50, columns: 132 }).await.unwrap();
        attached.input(b"line\n").await.unwrap();
        attached.close_input().await.unwrap();
        loop {
            let event = attached.next().await.unwrap();
            if outcome.take(event) {
                break;
            }
        }
        assert!(outcome.text().contains("50 132") && outcome.text().contains("got line"), "{outcome:?}");
        assert!(outcome.text().contains("eof"), "{outcome:?}");
        assert_eq!(outcome.exit, Some(Exit::Code(0)));
        assert!(outcome.stderr.is_empty());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commands_at_once_and_following_can_be_cancelled() {
    let program = Program::start(Carrier::Local, |_| {}).await;
    let mut running = Vec::new();
    for number in 0..50 {
        let client = program.client.clone();
        running.push(tokio::spawn(async move {
            let mut follow =
                client.spawn(&Exec::shell(format!("sleep 0.05; echo {number}; exit {number}"))).await.unwrap();
            let mut outcome = Outcome::default();
            loop {
                // Cancelled again and again; nothing is lost.
                match tokio::time::timeout(Duration::from_millis(1), follow.next()).await {
                    Ok(event) => {
                        if outcome.take(event.unwrap()) {
                            return outcome;
                        }
                    }
                    Err(_) => continue,
                }
            }
        }));
    }
    for (number, outcome) in running.into_iter().enumerate() {
        let outcome = outcome.await.unwrap();
        assert_eq!((outcome.text(), outcome.exit), (&*format!("{number}\n"), Some(Exit::Code(number as i32))));
    }
}
