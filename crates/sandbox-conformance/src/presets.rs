//! Presets: every field of each is met from inside, by going over it or by trying what it forbids.

use std::time::Duration;

use sandbox_core::{
    Control, Door, Error, Facts, Policy, Sandbox,
    exec::{Exec, Exit},
    policy::{Capabilities, DEFAULT_PRESET, Root, SystemCalls, User},
};
use sandbox_executor::client::Client;

use crate::workbench::{Workbench, has_own_kernel, run, sh};

/// What commands see of their policy, as one line per field.
const LOOK: &str = r#"
import ctypes, os, resource, socket
status = dict(line.split(':', 1) for line in open('/proc/self/status'))
print('uid', os.getuid(), os.getgid())
print('effective', int(status['CapEff'], 16))
print('bounding', int(status['CapBnd'], 16))
# gVisor does not say it.
print('no_new_privs', status.get('NoNewPrivs', '1').strip())
print('tmp', os.statvfs('/tmp').f_blocks * os.statvfs('/tmp').f_frsize)
print('file', resource.getrlimit(resource.RLIMIT_FSIZE)[1])
print('interfaces', *[name for _, name in socket.if_nameindex()])
def writable(folder):
    try: open(folder + '/x', 'w').close(); os.unlink(folder + '/x'); return True
    except OSError: return False
print('writable', *[place for place in ['/usr', '/etc', '/opt', '/workspace', '/home/sandbox', '/tmp'] if writable(place)])
libc = ctypes.CDLL(None, use_errno=True)
def allowed(call, *arguments):
    return libc.syscall(call, *arguments) >= 0 or ctypes.get_errno() not in (1, 38)
print('personality', allowed(135, 0x0008))
print('trace', allowed(101, 99, 1, 0, 0))
"#;

/// Starts processes until no more can be had, and says how many there were.
/// What one of those takes.
const PYTHON: u64 = 6 << 20;
const FORK: &str = r#"
import os, signal, time
made = []
try:
    while len(made) < 5000:
        child = os.fork()
        if child == 0:
            signal.pause()
        made.append(child)
except OSError: pass
print(len(made))
for child in made: os.kill(child, 9)
"#;

async fn meet(bench: Workbench, name: &str) {
    let mut policy = Policy::preset(name).unwrap();
    policy.allow_unenforced.extend(&bench.subject.unheld);
    if bench.subject.image.is_none() && policy.filesystem.root == Root::Writable {
        // A backend without layers says so.
        let mut refused = bench.spec();
        refused.policy = policy;
        assert!(matches!(bench.subject.backend.create(&refused).await, Err(Error::Unavailable { .. })));
        return;
    }
    let (sandbox, client) = bench.sandbox_with(|spec| spec.policy = policy.clone()).await;
    assert_eq!(sandbox.facts().spec.policy, policy);
    see_labels(sandbox.facts());
    let seen = python(&client, LOOK).await;
    let field = |name: &str| {
        let found = seen.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.unwrap_or_else(|| panic!("{name} in {seen}")).to_owned()
    };
    let (limits, privileges) = (&policy.limits, &policy.privileges);
    assert_eq!(field("uid"), if privileges.user == User::Root { "0 0" } else { "1000 1000" });
    let mut effective = field("effective").parse().unwrap();
    if has_own_kernel(sandbox.as_ref()) && privileges.user == User::Sandbox {
        // gVisor has no way to give them to who is not root; having less is not a way out.
        assert_eq!(effective, 0);
        effective = privileges.capabilities.bits();
    }
    see_capabilities(&policy, effective, field("bounding").parse().unwrap());
    assert_eq!(field("no_new_privs"), "1");
    assert_eq!(field("tmp"), limits.tmp.0.to_string());
    assert_eq!(field("file"), limits.disk.0.to_string(), "one file may be as large as all");
    let doors = sandbox.doors().await.unwrap();
    let tunnel = doors.iter().any(|(door, _)| *door == Door::Packets);
    assert_eq!(field("interfaces"), if tunnel { "lo sandbox" } else { "lo" }, "whatever the policy's network");
    let places = "/workspace /home/sandbox /tmp";
    let all = format!("/usr /etc /opt {places}");
    // Where commands are not root, a writable root is theirs as far as its owners let them.
    match (policy.filesystem.root, privileges.user) {
        (Root::Writable, User::Root) => assert_eq!(field("writable"), all),
        (Root::Writable, User::Sandbox) => assert!(field("writable").ends_with(places)),
        (Root::ReadOnly, _) => assert_eq!(field("writable"), places),
    }
    assert_eq!(field("trace"), if privileges.system_calls == SystemCalls::Build { "True" } else { "False" });
    assert_eq!(field("personality"), if privileges.system_calls == SystemCalls::Minimal { "False" } else { "True" });
    let own_kernel = has_own_kernel(sandbox.as_ref());
    let with_all = sandbox.facts().enforcement.0[&Control::Memory].by.contains("the whole sandbox ends");
    // In gVisor so many of them may be more than its memory.
    if !own_kernel || limits.memory.0 / u64::from(limits.pids) > PYTHON {
        let forked: u32 = python(&client, FORK).await.parse().unwrap();
        // gVisor counts those that start at the same moment late.
        let most = if own_kernel { limits.pids * 4 } else { limits.pids };
        assert!(forked < most && forked >= limits.pids / 2, "{forked} of {}", limits.pids);
    }
    if !with_all && !bench.subject.unheld.contains(&Control::Memory) {
        go_over_memory(&client, &policy).await;
        if own_kernel {
            is_given_back(sandbox.as_ref()).await;
        }
    }
    go_over_tmp(&client, &policy).await;
    if own_kernel {
        is_given_back(sandbox.as_ref()).await;
    }
    // Clocks of a kernel of its own go on while it stands still.
    if !bench.subject.unheld.contains(&Control::Cpu) && !own_kernel {
        go_over_cpu(&client, &policy).await;
    }
    assert_eq!(sh(&client, "echo alive").await.text(), "alive");
}

/// Waits until memory of commands that have ended is free again, which takes gVisor a moment.
async fn is_given_back(sandbox: &dyn Sandbox) {
    let limit = sandbox.facts().spec.policy.limits.memory.0;
    for _ in 0..300 {
        if sandbox.usage().await.is_ok_and(|usage| usage.memory.0 < limit / 2) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("memory is not given back");
}

/// What a sandbox says of itself has the policy's numbers in it.
fn see_labels(facts: &Facts) {
    let limits = &facts.spec.policy.limits;
    let by = |control| facts.enforcement.0.get(&control).map(|holding| holding.by.clone()).unwrap_or_default();
    for (control, number) in [
        (Control::Memory, limits.memory.to_string()),
        (Control::Cpu, (f64::from(limits.cpu_millis) / 1000.0).to_string()),
        (Control::Pids, limits.pids.to_string()),
        (Control::Disk, limits.disk.to_string()),
        (Control::Tmp, limits.tmp.to_string()),
        (Control::Time, limits.run.as_secs().to_string()),
        (Control::SystemCalls, facts.spec.policy.privileges.system_calls.to_string()),
    ] {
        assert!(by(control).contains(&number), "{control}: {} without {number}", by(control));
    }
}

fn see_capabilities(policy: &Policy, effective: u64, bounding: u64) {
    let granted = policy.privileges.capabilities;
    assert_eq!(effective, granted.bits(), "{granted}");
    // The executor keeps what it needs to become the commands' user and to end them; one that bwrap started may lower
    // its own counts first. Nothing that is executed gains any of it.
    let executors = Capabilities::from_names(["kill", "setuid", "setgid", "sys_resource"]).unwrap();
    assert_eq!(bounding & !(granted.bits() | executors.bits()), 0, "{bounding:x}");
}

async fn go_over_memory(client: &Client, policy: &Policy) {
    let limit = policy.limits.memory.0;
    // Gigabytes that a virtual machine never used before take it long to get: the default preset stands for those that
    // have as many.
    if available_memory() < limit + (2 << 30) || (limit > 1 << 30 && policy.name != DEFAULT_PRESET) {
        return;
    }
    // In many small pieces of several processes, so that no limit of one process is what holds.
    let script = format!(
        "import os, time\nfor _ in range(4):\n if os.fork() == 0:\n  x = bytearray({})\n  time.sleep(20)\n  os._exit(0)\nfor _ in range(4):\n if os.wait()[1]: os._exit(9)",
        limit / 3
    );
    let outcome = run(client, &Exec::argv(["python3", "-c", &script])).await;
    assert_ne!(outcome.exit, Exit::Code(0), "{outcome:?}");
}

async fn go_over_tmp(client: &Client, policy: &Policy) {
    let outcome = sh(
        client,
        &format!("head -c {} /dev/zero > /tmp/full; e=$?; rm -f /tmp/full; exit $e", policy.limits.tmp.0 + 1),
    )
    .await;
    assert_ne!(outcome.exit, Exit::Code(0), "{outcome:?}");
}

async fn go_over_cpu(client: &Client, policy: &Policy) {
    let machine = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let share = f64::from(policy.limits.cpu_millis) / 1000.0;
    if share >= machine {
        return;
    }
    let script = "import os, time\nend = time.monotonic() + 2\nfor _ in range(3):\n if os.fork() == 0:\n  while time.monotonic() < end: pass\n  os._exit(0)\nfor _ in range(3): os.wait()\nt = os.times()\nprint(t.children_user + t.children_system)";
    let used: f64 = python(client, script).await.parse().unwrap();
    assert!(used < share * 2.0 * 1.4, "{share} processors for 2 s, used {used}");
}

fn available_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

async fn python(client: &Client, script: &str) -> String {
    let outcome = run(client, &Exec::argv(["python3", "-c", script])).await;
    assert!(outcome.stderr.is_empty(), "{outcome:?}");
    outcome.text()
}

macro_rules! presets {
    ($($case:ident: $name:literal),* $(,)?) => {$(
        pub async fn $case(bench: Workbench) {
            meet(bench, $name).await;
        }
    )*};
}
presets! {
    full_isolation: "full_isolation", development: "development", build: "build", production: "production",
    yolo_1: "yolo-1", yolo_2: "yolo-2", yolo_3: "yolo-3", yolo_4: "yolo-4", user_added: "user_added", verified: "verified",
}
