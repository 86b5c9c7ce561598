//! Limits: each is tried by going over it.

use std::time::Duration;

use sandbox_core::{
    Bytes, Control, Error, Held, SandboxSpec,
    exec::{Exec, Exit},
};
use sandbox_executor::protocol::Target;

use crate::workbench::{Workbench, ends_with_all, has_own_kernel, is_out_of_memory, is_said, is_unheld, run, sh};

pub async fn memory_is_held(bench: Workbench) {
    if is_unheld(&bench, Control::Memory).await {
        return;
    }
    let small = |spec: &mut SandboxSpec| spec.policy.limits.memory = Bytes::mib(200);
    let hog = "x = [bytearray(b'x') * (1 << 20) for _ in range(1000)]";
    if ends_with_all(&bench, Control::Memory, small, &Exec::argv(["python3", "-c", hog])).await {
        return;
    }
    let (sandbox, client) = bench.sandbox_with(small).await;
    // One process, then many that are small each.
    for script in [
        "import time\nx = bytearray(400 << 20)\ntime.sleep(5)",
        "import os, time\nfor _ in range(8):\n if os.fork() == 0:\n  x = bytearray(60 << 20); time.sleep(20); os._exit(0)\nfor _ in range(8):\n if os.wait()[1]: os._exit(9)",
    ] {
        let outcome = run(&client, &Exec::argv(["python3", "-c", script])).await;
        let refused = String::from_utf8_lossy(&outcome.stderr).contains("MemoryError");
        assert!(refused || is_out_of_memory(sandbox.as_ref(), &outcome), "{outcome:?}");
    }
    assert_eq!(sh(&client, "echo alive").await.text(), "alive");
}

pub async fn memory_that_has_no_owner_is_held_or_refused(bench: Workbench) {
    if is_unheld(&bench, Control::Memory).await {
        return;
    }
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.memory = Bytes::mib(200)).await;
    // Shared memory without a file, then through the device; most of it unmapped again, so that no process has it.
    for source in ["mmap.mmap(-1, 1 << 20)", "mmap.mmap(os.open('/dev/zero', os.O_RDWR), 1 << 20)"] {
        let script = format!(
            "import mmap, os, time\nkept = []\nfor _ in range(500):\n m = {source}\n m.write(b'x' * (1 << 20))\n kept.append(m)\ntime.sleep(1)"
        );
        let outcome = run(&client, &Exec::argv(["python3", "-c", &script])).await;
        assert_ne!(outcome.exit, Exit::Code(0), "{source} took 500 MiB of 200");
    }
    let outcome =
        run(&client, &Exec::argv(["python3", "-c", "import os\nprint(len(open('/dev/zero', 'rb').read(1 << 20)))"]))
            .await;
    assert_eq!(outcome.text(), "1048576", "zeros can be read: {outcome:?}");
}

pub async fn a_fork_bomb_is_held_and_the_executor_still_answers(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.pids = 64).await;
    let bomb = client.spawn(&Exec::shell("bomb() { bomb | bomb & }; bomb; sleep 1000")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let running = tokio::time::timeout(Duration::from_secs(5), client.usage()).await;
    let running = running.expect("the executor answers").unwrap();
    assert!(running.processes <= 64, "{running:?}");
    client.signal(Target::All, 9).await.unwrap();
    drop(bomb);
    for _ in 0..50 {
        if client.usage().await.unwrap().processes == 0 {
            break;
        }
        client.signal(Target::All, 9).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(sh(&client, "echo alive").await.text(), "alive");
}

pub async fn tmp_is_held(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.tmp = Bytes::mib(16)).await;
    let outcome = sh(&client, "head -c 20000000 /dev/zero > /tmp/full").await;
    assert_ne!(outcome.exit, Exit::Code(0));
    assert_eq!(sh(&client, "test $(stat -c %s /tmp/full) -le 16777216 && echo held").await.text(), "held");
}

pub async fn disk_is_held(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.disk = Bytes::mib(100)).await;
    let one = sh(&client, "head -c 200000000 /dev/zero > one").await;
    assert_ne!(one.exit, Exit::Code(0), "one file over the limit");
    sh(&client, "rm one").await;
    let mut exec = Exec::shell("for i in $(seq 100); do head -c 10000000 /dev/zero > $i; sleep 0.2; done");
    exec.timeout = Some(Duration::from_secs(60));
    assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Disk), "many files over the limit");
}

pub async fn files_that_were_removed_but_are_open_count(bench: Workbench) {
    if is_said(&bench, Control::Disk, "removed files that are open").await {
        return;
    }
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.disk = Bytes::mib(100)).await;
    let script = "import os, time\nkept = []\nfor i in range(40):\n f = open('f', 'wb'); f.write(bytes(10 << 20)); f.flush(); os.unlink('f'); kept.append(f); time.sleep(0.1)\ntime.sleep(20)";
    let mut exec = Exec::argv(["python3", "-c", script]);
    exec.timeout = Some(Duration::from_secs(60));
    assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Disk));
}

pub async fn files_that_only_a_map_or_a_thread_keeps_count(bench: Workbench) {
    // Each puts 200 MiB out of sight: as maps of one page, in a process whose first thread has ended, in a table of
    // descriptors that one thread has for itself.
    if is_said(&bench, Control::Disk, "removed files that are open").await {
        return;
    }
    let write = "import ctypes, mmap, os, threading, time\nlibc = ctypes.CDLL(None)\n\
        def file():\n f = os.open('f', os.O_RDWR | os.O_CREAT)\n [os.write(f, bytes(1 << 20)) for _ in range(10)]\n os.unlink('f')\n time.sleep(0.1)\n return f\n";
    for keep in [
        "kept = []\nfor _ in range(40):\n f = file(); kept.append(mmap.mmap(f, 4096)); os.close(f)\ntime.sleep(20)",
        "def keep():\n kept = [file() for _ in range(40)]\n time.sleep(20)\n os._exit(0)\nthreading.Thread(target=keep).start()\nlibc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)",
    ] {
        let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.disk = Bytes::mib(100)).await;
        let mut exec = Exec::argv(["python3", "-c", &format!("{write}{keep}")]);
        exec.timeout = Some(Duration::from_secs(60));
        assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Disk), "{keep}");
    }
}

pub async fn files_on_their_way_through_a_socket_count(bench: Workbench) {
    // Where nobody can see them, it is said.
    if is_said(&bench, Control::Disk, "through a socket are not seen").await {
        return;
    }
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.disk = Bytes::mib(100)).await;
    let script = "import os, socket, time\na, b = socket.socketpair()\nfor _ in range(60):\n f = os.open('f', os.O_RDWR | os.O_CREAT)\n \
        [os.write(f, bytes(1 << 20)) for _ in range(10)]\n os.unlink('f'); socket.send_fds(a, [b'x'], [f]); os.close(f); time.sleep(0.1)\ntime.sleep(20)";
    let mut exec = Exec::argv(["python3", "-c", script]);
    exec.timeout = Some(Duration::from_secs(60));
    let outcome = run(&client, &exec).await;
    assert_eq!(outcome.exit, Exit::Limit(Control::Disk), "{outcome:?}");
}

/// Keeps its files in the folder that is looked at last, and moves them to the first one when that was left.
const DODGER: &str = r#"
import ctypes, os, struct, threading, time
notify = ctypes.CDLL(None)
for n in range(2000): os.mkdir(str(n))
order = [entry.name for entry in os.scandir('.')]
early, late = order[0], order[-1]
os.mkdir(late + '/data')
folder = os.open(late + '/data', os.O_PATH)
LEFT = 0x10
watch = notify.inotify_init1(0)
first = notify.inotify_add_watch(watch, early.encode(), LEFT)
notify.inotify_add_watch(watch, late.encode(), LEFT)
def move():
    while True:
        events, at = os.read(watch, 65536), 0
        while at < len(events):
            which, _, _, name = struct.unpack_from('iIII', events, at)
            at += 16 + name
            here, there = (late, early) if which == first else (early, late)
            try: os.rename(here + '/data', there + '/data')
            except OSError: pass
threading.Thread(target=move, daemon=True).start()
for n in range(40):
    file = os.open(str(n), os.O_CREAT | os.O_WRONLY, dir_fd=folder)
    os.write(file, os.urandom(10 << 20)); os.close(file); time.sleep(0.1)
time.sleep(20)
"#;

pub async fn files_that_move_while_they_are_measured_count(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.disk = Bytes::mib(100)).await;
    let mut exec = Exec::argv(["python3", "-c", DODGER]);
    exec.timeout = Some(Duration::from_secs(60));
    let outcome = run(&client, &exec).await;
    assert_eq!(outcome.exit, Exit::Limit(Control::Disk), "{outcome:?}");
}

pub async fn many_empty_files_count(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.disk = Bytes::mib(64)).await;
    let script = "import os, time\nfor n in range(40000):\n if n % 1000 == 0: os.mkdir(str(n))\n open('%d/%d' % (n // 1000 * 1000, n), 'w').close()\ntime.sleep(20)";
    let mut exec = Exec::argv(["python3", "-c", script]);
    exec.timeout = Some(Duration::from_secs(60));
    assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Disk));
}

pub async fn memory_of_a_process_that_lost_its_first_thread_is_held(bench: Workbench) {
    if is_unheld(&bench, Control::Memory).await {
        return;
    }
    let small = |spec: &mut SandboxSpec| spec.policy.limits.memory = Bytes::mib(200);
    // Three that are below what one process may have, and together over the limit.
    let script = "import ctypes, os, threading, time\nlibc = ctypes.CDLL(None)\ndef keep():\n time.sleep(0.5)\n x = bytearray(b'x') * (120 << 20)\n time.sleep(60)\n os._exit(0)\n\
        for _ in range(3):\n if os.fork() == 0:\n  threading.Thread(target=keep).start()\n  libc.syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)\nif any(os.wait()[1] for _ in range(3)): os._exit(9)";
    let mut exec = Exec::argv(["python3", "-c", script]);
    exec.timeout = Some(Duration::from_secs(30));
    if ends_with_all(&bench, Control::Memory, small, &exec).await {
        return;
    }
    let (sandbox, client) = bench.sandbox_with(small).await;
    let outcome = run(&client, &exec).await;
    assert!(is_out_of_memory(sandbox.as_ref(), &outcome), "{outcome:?}");
}

pub async fn the_end_by_a_limit_is_told_with_numbers(bench: Workbench) {
    let hogs = "import os, time\nfor _ in range(8):\n if os.fork() == 0:\n  x = bytearray(60 << 20); time.sleep(20); os._exit(0)\nfor _ in range(8):\n if os.wait()[1]: os._exit(9)";
    let (sandbox, _client) = bench.sandbox().await;
    let by = |control| sandbox.facts().enforcement.0[&control].by.clone();
    let told_apart =
        !by(Control::Memory).contains("not told apart") && !by(Control::Memory).contains("the whole sandbox ends");
    if told_apart && !bench.subject.unheld.contains(&Control::Memory) {
        let told = told(&bench, &Exec::argv(["python3", "-c", hogs])).await;
        assert!(told.starts_with("killed: used ") && told.ends_with("MiB of 200 MiB of memory"), "{told}");
    }
    let files = "for i in $(seq 100); do head -c 10000000 /dev/zero > $i; sleep 0.2; done";
    let told = self::told(&bench, &Exec::shell(files)).await;
    assert!(told.starts_with("killed: used ") && told.ends_with("MiB of 50 MiB of disk"), "{told}");
    // Too deep is not too large.
    let deep = "import os, time\nfor n in range(300): os.mkdir('d'); os.chdir('d')\nopen('f', 'w').write('x' * (1 << 20))\ntime.sleep(20)";
    let told = self::told(&bench, &Exec::argv(["python3", "-c", deep])).await;
    assert!(told.contains("too deep") && !told.contains("MiB"), "{told}");
    let mut exec = Exec::shell("sleep 100");
    exec.timeout = Some(Duration::from_millis(500));
    assert_eq!(self::told(&bench, &exec).await, "killed: ran for 0.5 s of 0.5 s");
    let counted = sandbox.facts().enforcement.0[&Control::Pids].held == Held::Kernel;
    if told_apart && counted && by(Control::Pids).contains("cgroup") {
        let told = self::told(&bench, &Exec::shell("for i in $(seq 80); do sleep 3 & done; wait")).await;
        assert!(told.contains("not started: the sandbox had all of its 40 processes"), "{told}");
    }
}

/// What a person is told about the end of a command in a small sandbox.
async fn told(bench: &Workbench, exec: &Exec) -> String {
    let change = |spec: &mut SandboxSpec| {
        spec.policy.limits.memory = Bytes::mib(200);
        spec.policy.limits.disk = Bytes::mib(50);
        spec.policy.limits.pids = 40;
    };
    let (sandbox, client) = bench.sandbox_with(change).await;
    let outcome = run(&client, exec).await;
    let limits = &sandbox.facts().spec.policy.limits;
    let ended = match outcome.exit {
        Exit::Limit(control) => outcome.ending.by_limit(control, limits),
        _ => None,
    };
    ended.into_iter().chain(outcome.ending.refused(limits)).collect::<Vec<_>>().join("; ")
}

pub async fn cpu_is_held(bench: Workbench) {
    if is_unheld(&bench, Control::Cpu).await {
        return;
    }
    let (sandbox, client) = bench.sandbox_with(|spec| spec.policy.limits.cpu_millis = 500).await;
    let before = sandbox.usage().await.unwrap().cpu;
    let script = "import time\nbegan = time.process_time()\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time() - began)";
    let mut used: f64 = run(&client, &Exec::argv(["python3", "-c", script])).await.text().parse().unwrap();
    if has_own_kernel(sandbox.as_ref()) {
        // Its clocks go on while it stands still; what it used of this machine is what counts.
        used = (sandbox.usage().await.unwrap().cpu - before).as_secs_f64();
    }
    assert!(used < 1.4, "half a processor for 2 s is 1 s, used {used}");
}

pub async fn time_is_held(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let mut exec = Exec::shell("sleep 100");
    exec.timeout = Some(Duration::from_millis(200));
    assert_eq!(run(&client, &exec).await.exit, Exit::Limit(Control::Time));
}

pub async fn strict_refuses_what_is_only_watched(bench: Workbench) {
    let (sandbox, _client) = bench.sandbox().await;
    let watched = sandbox.facts().enforcement.0.iter().find(|(_, holding)| holding.held == Held::Supervised);
    let mut strict = bench.spec();
    strict.policy.strict = true;
    match (watched, bench.subject.backend.create(&strict).await) {
        (Some(_), Err(Error::Unenforceable { .. })) | (None, Ok(_)) => {}
        (watched, _) => panic!("{watched:?} is only watched, and strict did not refuse"),
    }
}
