//! Lives: how sandboxes begin, end, and are found again.

use std::time::{Duration, Instant};

use sandbox_core::exec::{Exec, Exit};
use sandbox_executor::client::Client;

use crate::workbench::{Workbench, connect, has_own_kernel, put, run, sh};

pub async fn destroy_leaves_nothing_and_may_be_repeated(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    put(&client, "file", b"x", 0o644).await;
    sh(&client, "mkdir locked && chmod 0 locked; sleep 1000 & :").await;
    sandbox.destroy().await.unwrap();
    assert!(sandbox.connect().await.is_err(), "it still answers");
    sandbox.destroy().await.unwrap();
    let again = bench.subject.backend.recover().await.unwrap();
    let id = &sandbox.facts().spec.id;
    assert!(!again.ended.contains(id) && again.alive.iter().all(|found| &found.facts().spec.id != id));
}

pub async fn nothing_of_an_ended_sandbox_reaches_the_next(bench: Workbench) {
    let leave = "mkdir -p deep/er; echo secret | tee deep/er/f .hidden ~/.netrc /tmp/x; chmod 0700 . ~; chmod 0 deep";
    for _ in 0..3 {
        let (ended, client) = bench.sandbox().await;
        sh(&client, leave).await;
        ended.destroy().await.unwrap();
        // Long enough for whatever tidies up behind it.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let (_next, client) = bench.sandbox().await;
        let found = sh(&client, "find . /tmp -mindepth 1; find ~ -type f; stat -c %a . ~").await.text();
        assert_eq!(found, "755\n755");
        assert!(ended.connect().await.is_err(), "the old handle leads to the new sandbox");
    }
}

pub async fn no_network_tells_of_the_sandbox_before(bench: Workbench) {
    // Packets, an address without a way, a name without a file, and a label that outlives its socket.
    let uses = [
        "print('nothing')",
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.sendto(b'x', ('127.0.0.1', 9))",
        "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError: pass",
        "import socket, struct\ntry:\n s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)\n \
         s.setsockopt(41, 32, struct.pack('16sIBBHHHI', socket.inet_pton(socket.AF_INET6, '::1'), socket.htonl(77), 0, 255, 1, 60, 60, 0))\n\
         except OSError: pass",
        "import socket, subprocess\ns = socket.socket(socket.AF_UNIX)\ns.bind(b'\\0left')\ns.listen()\n\
         subprocess.Popen(['sleep', '100'], pass_fds=[s.fileno()], start_new_session=True)",
    ];
    let (sandbox, client) = bench.sandbox().await;
    // Networks of engines and runtimes are always new; sockets in them are numbered by the whole machine.
    let sockets = if sandbox.facts().backend == "linux" { "unix" } else { "" };
    let look = format!(
        "for f in dev snmp snmp6 netstat ip6_flowlabel {sockets}; do cat /proc/self/net/$f 2>/dev/null; done; true"
    );
    let look = look.as_str();
    if has_own_kernel(sandbox.as_ref()) {
        // So has its network: there is nothing to use again.
        return;
    }
    let untouched = sh(&client, look).await.text();
    for script in uses {
        let (ended, client) = bench.sandbox().await;
        assert_eq!(run(&client, &Exec::argv(["python3", "-c", script])).await.exit, Exit::Code(0), "{script}");
        ended.destroy().await.unwrap();
        // The stock is used from its end, so this one has the network of the one before if it is used again.
        let (_next, client) = bench.sandbox().await;
        assert_eq!(sh(&client, look).await.text(), untouched, "after {script}");
    }
}

pub async fn the_end_is_noticed(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.ended().await }
    });
    client.shutdown().await.unwrap();
    let why = tokio::time::timeout(Duration::from_secs(5), waiting).await.expect("noticed").unwrap();
    assert!(!why.is_empty());
}

pub async fn what_lives_is_found_again(bench: Workbench) {
    let mut persistent = bench.spec();
    persistent.persistent = true;
    let sandbox = bench.subject.backend.create(&persistent).await.unwrap();
    put(&connect(sandbox.as_ref()).await, "kept", b"still here", 0o644).await;
    drop(sandbox);
    let recovered = bench.subject.backend.recover().await.unwrap();
    let found = recovered.alive.iter().find(|found| found.facts().spec.id == persistent.id).expect("found again");
    let client = Client::connect(found.connect().await.unwrap()).await.unwrap();
    assert_eq!(sh(&client, "cat kept").await.text(), "still here");
    found.destroy().await.unwrap();
}

pub async fn use_is_measured(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    put(&client, "big", &vec![1; 5 << 20], 0o644).await;
    let job = client
        .spawn(&Exec::argv(["python3", "-c", "x = b'x' * (50 << 20)\nimport time\ntime.sleep(30)"]))
        .await
        .unwrap();
    let mut usage = sandbox.usage().await.unwrap();
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        usage = sandbox.usage().await.unwrap();
        if usage.memory.0 > 45 << 20 {
            break;
        }
    }
    assert!(usage.memory.0 > 45 << 20, "{usage:?}");
    assert!(usage.disk.0 >= 5 << 20, "{usage:?}");
    assert!(usage.pids >= 1, "{usage:?}");
    drop(job);
}

pub async fn fifty_at_once(bench: Workbench) {
    let start = Instant::now();
    let made = (0..50).map(|number| {
        let bench = bench.clone();
        tokio::spawn(async move {
            let (_sandbox, client) = bench.sandbox().await;
            assert_eq!(sh(&client, &format!("echo {number}")).await.text(), number.to_string());
        })
    });
    let made: Vec<_> = made.collect();
    for one in made {
        one.await.unwrap();
    }
    // A machine that is emulated on a busy one takes its time; what must not happen is that somebody waits for ever.
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
}
