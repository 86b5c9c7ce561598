//! System calls: what each profile gives and refuses, and that looking into processes never reaches the executor.

use std::time::Duration;

use sandbox_core::{
    Control, Error,
    exec::{Exec, Exit},
    policy::{Capabilities, Policy, SystemCalls, User},
};
use sandbox_executor::client::Client;

use crate::workbench::{Workbench, has_own_kernel, run, sh};

const BUILT_IN: [SystemCalls; 3] = [SystemCalls::Minimal, SystemCalls::Standard, SystemCalls::Build];

/// Prints the names of calls that are refused, tried with arguments that harm nobody.
const TRY: &str = r#"
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
arm = platform.machine() == 'aarch64'
numbers = {'io_setup': (206, 0), 'ptrace': (101, 117), 'kcmp': (312, 272), 'mq_unlink': (241, 181), 'msgctl': (71, 187),
           'chroot': (161, 51), 'process_vm_readv': (310, 270), 'vhangup': (153, 58), 'sched_setscheduler': (144, 119)}
for name, both in sorted(numbers.items()):
    ctypes.set_errno(0)
    libc.syscall(both[arm], -1, 0, 0, 0, 0, 0)
    if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS): print(name, errno.errorcode[ctypes.get_errno()])
"#;

pub async fn each_profile_refuses_what_it_says(bench: Workbench) {
    let expected = [
        "chroot EPERM\nio_setup ENOSYS\nkcmp EPERM\nmq_unlink EPERM\nmsgctl EPERM\nprocess_vm_readv EPERM\nptrace EPERM\nsched_setscheduler EPERM\nvhangup EPERM",
        "io_setup ENOSYS\nkcmp EPERM\nmq_unlink EPERM\nprocess_vm_readv EPERM\nptrace EPERM\nvhangup EPERM",
        "io_setup ENOSYS\nmq_unlink EPERM\nvhangup EPERM",
    ];
    for (profile, expected) in BUILT_IN.into_iter().zip(expected) {
        let (sandbox, client) = with(&bench, profile.clone()).await;
        let mut refused = python(&client, TRY).await;
        if has_own_kernel(sandbox.as_ref()) {
            // gVisor asks for the right to do it before it looks at what was meant.
            for call in ["chroot EPERM\n", "kcmp EPERM\n"].into_iter().filter(|call| !expected.contains(call)) {
                refused = refused.replace(call, "");
            }
        }
        assert_eq!(refused, expected, "{profile}");
        let by = &sandbox.facts().enforcement.0[&Control::SystemCalls].by;
        assert!(by.contains(&format!("`{profile}`")), "{by}");
    }
}

pub async fn everyday_programs_run_with_every_profile(bench: Workbench) {
    let threads = "import threading, subprocess, multiprocessing, sqlite3, ssl, json, socket\n\
        t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n\
        print(subprocess.check_output(['echo', 'child'], text=True).strip())\n\
        p = multiprocessing.get_context('fork').Process(target=print, args=('process',)); p.start(); p.join()\n\
        print(sqlite3.connect('/workspace/db').execute('select 1').fetchone()[0])\n\
        print(socket.getaddrinfo('127.0.0.1', 80)[0][4][1])";
    for profile in BUILT_IN {
        let (_sandbox, client) = with(&bench, profile.clone()).await;
        assert_eq!(python(&client, threads).await, "thread\nchild\nprocess\n1\n80", "{profile}");
        let script = "mkfifo p && (echo through > p & cat p) && tar cf t.tar p db && tar tf t.tar | sort -S 1M | tail -1 \
            && find . -name t.tar | xargs gzip -k && awk 'BEGIN { print 6 * 7 }'";
        let outcome = sh(&client, script).await;
        assert_eq!(outcome.text(), "through\np\n42", "{profile}: {outcome:?}");
    }
}

pub async fn a_process_can_be_traced_only_where_the_policy_says(bench: Workbench) {
    let script = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
child = os.fork()
if child == 0:
    os._exit(0 if libc.ptrace(0, 0, 0, 0) == 0 and os.kill(os.getpid(), 19) is None else 9)
stopped = os.WIFSTOPPED(os.waitpid(child, 0)[1])
if stopped: libc.ptrace(7, child, 0, 0); os.waitpid(child, 0)
print('traced' if stopped else 'refused')
"#;
    for (profile, expected) in BUILT_IN.into_iter().zip(["refused", "refused", "traced"]) {
        let (_sandbox, client) = with(&bench, profile.clone()).await;
        assert_eq!(python(&client, script).await, expected, "{profile}");
    }
}

/// Every way into process 1 that a tracer has. Prints those that are open.
const REACH: &str = r#"
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
class Part(ctypes.Structure): _fields_ = [('at', ctypes.c_void_p), ('size', ctypes.c_size_t)]
for name, request in [('attach', 16), ('seize', 0x4206)]:
    if libc.ptrace(request, 1, 0, 0) == 0: print(name)
buffer = ctypes.create_string_buffer(16)
here = Part(ctypes.addressof(buffer), 16)
for address in (0x400000, 0x200000, 0x10000):
    there = Part(address, 16)
    if libc.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0: print('read')
    if libc.process_vm_writev(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) > 0: print('write')
    ctypes.set_errno(0)
    if libc.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) < 0 and ctypes.get_errno() != 1: print('reaches', ctypes.get_errno())
try: first = os.pidfd_open(1) if hasattr(os, 'pidfd_open') else libc.syscall(434, 1, 0)
except OSError: first = -1
for number in range(16):
    if libc.syscall(438, first, number, 0) >= 0: print('descriptor', number)
for name in ['mem', 'environ', 'maps']:
    try: open('/proc/1/' + name, 'rb').read(1); print('file', name)
    except OSError: pass
print('done')
"#;

/// As [`REACH`], for an image that has nothing but busybox.
const REACH_BY_FILES: &str = "for f in mem environ maps auxv; do busybox head -c1 /proc/1/$f >/dev/null 2>&1 && echo $f; done; \
    for f in /proc/1/fd/* /proc/1/exe /proc/1/root; do busybox readlink $f; done; busybox head -c1 /proc/self/maps";

pub async fn a_tracer_does_not_reach_the_executor(bench: Workbench) {
    let (_sandbox, client) = with(&bench, SystemCalls::Build).await;
    assert_eq!(python(&client, REACH).await, "done");
    // Root inside, with what the preset for builds grants.
    let (_sandbox, client) = bench
        .sandbox_with(|spec| {
            spec.policy.privileges = Policy::preset("build").unwrap().privileges;
            spec.policy.privileges.system_calls = SystemCalls::Build;
            // Where bwrap starts sandboxes, root inside has no capabilities.
            if bench.subject.image.is_none() {
                spec.policy.privileges.capabilities = Capabilities::NONE;
            }
        })
        .await;
    assert_eq!(sh(&client, "id -u").await.text(), "0");
    assert_eq!(python(&client, REACH).await, "done");
    let Some(image) = bench.subject.image.clone() else { return };
    let (_sandbox, client) = bench
        .sandbox_with(|spec| {
            spec.policy = Policy::preset("build").unwrap();
            spec.image = image;
        })
        .await;
    for user in [User::Sandbox, User::Root] {
        let mut spec = bench.spec();
        spec.policy.privileges.user = user;
        spec.policy.privileges.capabilities = Capabilities::from_names(["sys_ptrace"]).unwrap();
        let made = bench.subject.backend.create(&spec).await.map(drop);
        let control = Control::ExecutorIdentity;
        assert!(
            matches!(&made, Err(Error::Unenforceable { refused, .. }) if refused.0.contains_key(&control)),
            "{made:?}"
        );
    }
    let reached = sh(&client, REACH_BY_FILES).await.text();
    assert!(reached.len() == 1, "only one's own: {reached}");
}

pub async fn commands_on_their_way_are_not_the_executor_for_a_tracer(bench: Workbench) {
    let (sandbox, client) = with(&bench, SystemCalls::Build).await;
    if has_own_kernel(sandbox.as_ref()) {
        // There is no PTRACE_SEIZE by which it is tried.
        return;
    }
    // Between fork and exec a command's process has a copy of the executor's memory.
    let script = r#"
import ctypes, os, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
end, seized, executor = time.monotonic() + 5, set(), open('/proc/1/comm').read()
print('ready', flush=True)
while time.monotonic() < end:
    # Those that will come next, tried again and again so that they are met early.
    next = max(int(name) for name in os.listdir('/proc') if name.isdigit())
    for pid in [pid for _ in range(40) for pid in range(next, next + 6)]:
        if pid in seized or libc.ptrace(0x4206, pid, 0, 0): continue
        seized.add(pid)
        if open('/proc/%d/comm' % pid).read() == executor: print('executor seized', flush=True)
        libc.ptrace(0x4207, pid, 0, 0); os.waitpid(pid, 0x40000000); libc.ptrace(17, pid, 0, 0)
print('seized some' if seized else 'seized none')
"#;
    let (hunter, ()) = tokio::join!(python(&client, script), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        for _ in 0..60 {
            run(&client, &Exec::argv(["sleep", "0.03"])).await;
        }
    });
    assert_eq!(hunter, "ready\nseized some");
}

pub async fn who_makes_the_executor_its_tracer_gains_nothing(bench: Workbench) {
    let (sandbox, client) = with(&bench, SystemCalls::Build).await;
    // The executor is the parent of a command, and so its tracer when the command asks for one: the command stops at
    // its next signal, and nobody lets it go on.
    let script = "import ctypes, os\nctypes.CDLL(None).ptrace(0, 0, 0, 0)\nprint('stops', flush=True)\nos.kill(os.getpid(), 15)\nprint('goes on')";
    let mut exec = Exec::argv(["python3", "-c", script]);
    exec.timeout = Some(Duration::from_secs(1));
    let outcome = run(&client, &exec).await;
    // gVisor does not stop it for a tracer that never asked; it ends.
    let ended = if has_own_kernel(sandbox.as_ref()) { Exit::Signal(15) } else { Exit::Limit(Control::Time) };
    assert_eq!((outcome.text().as_str(), outcome.exit), ("stops", ended));
    assert_eq!(sh(&client, "echo alive").await.text(), "alive");
    sandbox.destroy().await.unwrap();
}

pub async fn a_profile_of_ones_own_is_held_with_the_floor_beneath(bench: Workbench) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("profile.json");
    let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [
        {"names": ["mq_unlink"], "action": "SCMP_ACT_KILL"},
        {"names": ["kcmp"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38,
         "args": [{"index": 0, "value": 4294967295, "valueTwo": 4294967295, "op": "SCMP_CMP_MASKED_EQ"}]}]}"#;
    std::fs::write(&path, profile).unwrap();
    let (sandbox, client) = with(&bench, SystemCalls::File(path.clone())).await;
    let tried = python(&client, TRY).await;
    // Allowed, and left to the kernel, which knows the machine's administrator when it sees none.
    let expected = "chroot EPERM\nkcmp ENOSYS\nmq_unlink EPERM\nvhangup EPERM";
    assert_eq!(tried.replace("chroot EPERM\n", ""), expected.replace("chroot EPERM\n", ""), "{tried}");
    let doors = "import ctypes\nlibc = ctypes.CDLL(None)\nprint(libc.unshare(0x10000000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0), libc.prlimit(1, 0, 0, 0))";
    assert_eq!(python(&client, doors).await, "-1 -1 -1");
    let by = &sandbox.facts().enforcement.0[&Control::SystemCalls].by;
    assert!(by.contains(&path.display().to_string()), "{by}");
    for (text, expected) in [
        (r#"{"defaultAction": "SCMP_ACT_ERRNO"}"#, "execve"),
        (r#"{"defaultAction": "SCMP_ACT_NOTIFY"}"#, "SCMP_ACT_NOTIFY"),
        (r#"{"defaultAction": "SCMP_ACT_ALLOW", "more": 1}"#, "more"),
    ] {
        std::fs::write(&path, text).unwrap();
        let mut spec = bench.spec();
        spec.policy.privileges.system_calls = SystemCalls::File(path.clone());
        match bench.subject.backend.create(&spec).await {
            Err(Error::Invalid { what, .. }) => assert!(what.contains(expected), "{what}"),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{text} was accepted"),
        }
    }
}

async fn with(bench: &Workbench, calls: SystemCalls) -> (std::sync::Arc<dyn sandbox_core::Sandbox>, Client) {
    bench.sandbox_with(|spec| spec.policy.privileges.system_calls = calls).await
}

async fn python(client: &Client, script: &str) -> String {
    let outcome = run(client, &Exec::argv(["python3", "-c", script])).await;
    assert!(outcome.stderr.is_empty(), "{outcome:?}");
    outcome.text()
}
