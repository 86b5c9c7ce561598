//! Walls: what is outside cannot be seen, reached or harmed from inside.

use std::os::fd::OwnedFd;

use sandbox_core::{
    Control, Door, Image,
    exec::Exit,
    policy::{Network, Policy, Root},
};
use sandbox_executor::{protocol::Path, socket::Socket};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::workbench::{Workbench, sh};

pub async fn nothing_of_this_machine_shows(bench: Workbench) {
    let secret = tempfile::NamedTempFile::new().unwrap();
    let (_sandbox, client) = bench.sandbox().await;
    if bench.is_of_this_machine() {
        assert_eq!(
            sh(&client, "ls -A /home /root /run /sys /opt | tr '\\n' ' '").await.text(),
            "/home: sandbox  /opt: sandbox  /root:  /run:  /sys:"
        );
    } else {
        let found = sh(&client, "ls -A /home /opt | tr '\\n' ' '").await.text();
        // Not every backend has something of its own in /opt.
        assert!(["/home: sandbox  /opt: sandbox", "/home: sandbox  /opt:"].contains(&found.as_str()), "{found}");
        // Folders to mount something at are all that may be there.
        assert_eq!(
            sh(&client, "find /sys /run -not -type d; touch /run/x /sys/x 2>/dev/null && echo made").await.text(),
            ""
        );
    }
    assert_ne!(sh(&client, &format!("cat {}", secret.path().display())).await.exit, Exit::Code(0));
    assert_eq!(sh(&client, "find / -xdev -type s 2>/dev/null | head").await.text(), "", "no sockets");
    assert_eq!(sh(&client, "hostname 2>/dev/null || cat /proc/sys/kernel/hostname").await.text(), "sandbox");
    let mounts = sh(&client, "cat /proc/self/mountinfo").await.text();
    for line in mounts.lines() {
        let point = line.split(' ').nth(4).unwrap_or_default();
        let ours = [
            "/workspace",
            "/home/sandbox",
            "/usr",
            "/etc",
            "/opt/sandbox",
            "/proc",
            "/.sandbox",
            "/sys",
            "/dev",
            "/tmp",
            "/bin",
            "/sbin",
            "/lib",
            "/var/tmp",
            "/run",
        ];
        assert!(point == "/" || ours.iter().any(|known| point.starts_with(known)), "{line}");
    }
}

pub async fn the_root_cannot_be_changed(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    for path in [
        "/x",
        "/usr/x",
        "/etc/x",
        "/bin/x",
        "/dev/x",
        "/opt/sandbox/x",
        "/run/x",
        "/proc/sys/kernel/hostname",
        "/home/x",
    ] {
        let outcome = sh(&client, &format!("echo x > {path}")).await;
        assert_ne!(outcome.exit, Exit::Code(0), "{path} could be written");
    }
    for path in ["/workspace/x", "/home/sandbox/x", "/tmp/x", "/dev/shm/x", "/var/tmp/x"] {
        assert_eq!(sh(&client, &format!("echo x > {path}")).await.exit, Exit::Code(0), "{path}");
    }
}

pub async fn there_is_no_network_but_loopback(bench: Workbench) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (_sandbox, client) = bench.sandbox_with(|spec| spec.policy.network = Network::None).await;
    let script = format!(
        "import socket\nprint([n for _, n in socket.if_nameindex()])\n\
         for host, port in [('127.0.0.1', {port}), ('10.0.0.1', 80), ('169.254.169.254', 80)]:\n\
         \ttry: socket.create_connection((host, port), 1); print('reached', host)\n\
         \texcept OSError: pass\n\
         s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()\n\
         socket.create_connection(s.getsockname(), 1); print('own loopback works')\n"
    );
    let outcome = python(&client, &script).await;
    assert_eq!(outcome, "['lo']\nown loopback works");
}

pub async fn a_way_out_leads_to_its_doors_and_nowhere_else(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    let doors = sandbox.doors().await.unwrap();
    let has = |wanted| doors.iter().any(|(door, _)| *door == wanted);
    let transparent = has(Door::Redirected);
    let interfaces = if has(Door::Packets) { "['lo', 'sandbox']" } else { "['lo']" };
    if !transparent {
        let direct = "python3 -c 'import socket; socket.create_connection((\"93.184.215.14\", 443), 5)'";
        assert_ne!(sh(&client, direct).await.exit, Exit::Code(0), "there is no door for it, and something was reached");
    }
    let (wanted, address) = match transparent {
        true => (Door::Redirected, "('93.184.215.14', 443)"),
        false => (Door::Proxy, "('127.0.0.1', 3128)"),
    };
    let wanted = if has(Door::Handed) { Door::Handed } else { wanted };
    let Some((_, door)) = doors.into_iter().find(|(door, _)| *door == wanted) else {
        // Only a backend whose sandboxes say that they have no way out may have none.
        let by = &sandbox.facts().enforcement.0[&Control::Network].by;
        assert!(!by.contains("way out") && !by.contains("ends with us"), "{by}");
        return;
    };
    let script = format!(
        "import socket\nprint([n for _, n in socket.if_nameindex()])\n\
         s = socket.create_connection({address}, 5); s.sendall(b'anybody?'); s.settimeout(20)\n\
         print(s.recv(9))\n"
    );
    // Nobody else serves it, so whatever comes out comes to us.
    let asked = tokio::spawn(async move {
        let mut guest = guest(wanted, door).await;
        let mut words = [0; 8];
        guest.read_exact(&mut words).await.unwrap();
        guest.write_all(b"only us").await.unwrap();
        words
    });
    assert_eq!(python(&client, &script).await, format!("{interfaces}\nb'only us'"));
    assert_eq!(&asked.await.unwrap(), b"anybody?");
}

/// The first who comes to a door.
async fn guest(door: Door, socket: OwnedFd) -> TcpStream {
    if door == Door::Handed {
        let (_, mut passed) = Socket::new(socket).unwrap().receive(&mut [0; 16]).await.unwrap();
        let guest = std::net::TcpStream::from(passed.remove(0));
        guest.set_nonblocking(true).unwrap();
        return TcpStream::from_std(guest).unwrap();
    }
    // Of either kind: where descriptors cannot pass, connections are carried to a local socket.
    let accept = move || {
        rustix::io::ioctl_fionbio(&socket, false).unwrap();
        rustix::net::accept(&socket).unwrap()
    };
    let guest = std::net::TcpStream::from(tokio::task::spawn_blocking(accept).await.unwrap());
    guest.set_nonblocking(true).unwrap();
    TcpStream::from_std(guest).unwrap()
}

pub async fn no_process_outside_is_seen(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    let pids = sh(&client, "ls /proc | grep -c '^[0-9]'").await.text();
    assert!(pids.parse::<u32>().unwrap() < 8, "{pids} processes");
    // gVisor's own kernel has one of that name, for all that is in the sandbox. Where a name is seen, it is said.
    let cgroups = sh(&client, "cat /proc/self/cgroup | cut -d: -f3 | sort -u").await.text();
    let by = &sandbox.facts().enforcement.0[&Control::Filesystem].by;
    let is_id = |id: &str| id.len() == 64 && id.chars().all(|letter| letter.is_ascii_hexdigit());
    // An engine of this user's is where this user's programs are.
    let here = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let known = |name: &str| {
        name == "/"
            || name == "/sandbox"
            || (by.contains("the name of its cgroup is seen") && name.rsplit(['/', '-']).next().is_some_and(is_id))
            || (by.contains("the engine's own cgroups") && here.lines().any(|line| line.ends_with(name)))
    };
    assert!(cgroups.lines().all(known), "{cgroups}");
}

pub async fn the_first_process_cannot_be_touched(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let script = r#"
import os, ctypes, resource
libc = ctypes.CDLL(None, use_errno=True)
for name in ['environ', 'mem', 'maps', 'auxv', 'syscall', 'stack']:
    try: open('/proc/1/' + name, 'rb').read(1); print('read', name)
    except OSError: pass
for name in ['fd', 'root', 'cwd', 'task/1/fd', 'map_files']:
    try: os.listdir('/proc/1/' + name); print('listed', name)
    except OSError: pass
try: os.readlink('/proc/1/exe'); print('exe')
except OSError: pass
try: open('/proc/1/oom_score_adj', 'w').write('1000'); print('oom')
except OSError: pass
try: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)); print('prlimit')
except OSError: pass
if libc.ptrace(16, 1, 0, 0) == 0: print('ptrace')
for signal in (9, 15, 19, 1):
    try: os.kill(1, signal)
    except OSError: pass
print('done')
"#;
    assert_eq!(python(&client, script).await, "done");
    assert_eq!(sh(&client, "echo alive").await.text(), "alive");
}

pub async fn kernel_doors_are_closed(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let script = r#"
import ctypes, os, socket, platform
libc = ctypes.CDLL(None, use_errno=True)
def refused(name, result):
    if result >= 0: print('open:', name)
for flag, name in [(0x10000000, 'user'), (0x20000, 'mount'), (0x40000000, 'net'), (0x20000000, 'pid')]:
    refused('unshare ' + name, libc.unshare(flag))
for family, name in [(38, 'alg'), (40, 'vsock'), (17, 'packet'), (44, 'xdp'), (31, 'bluetooth'), (29, 'can')]:
    try: socket.socket(family, socket.SOCK_RAW); print('open:', name)
    except OSError: pass
try: socket.socket(16, 3, 12); print('open: netfilter')
except OSError: pass
try: socket.socket(2, 3, 1); print('open: raw')
except OSError: pass
refused('mount', libc.mount(b'none', b'/tmp', b'tmpfs', 0, 0))
numbers = {'x86_64': {'bpf': 321, 'keyctl': 250, 'userfaultfd': 323, 'io_uring_setup': 425, 'perf_event_open': 298, 'clone3': 435, 'add_key': 248},
           'aarch64': {'bpf': 280, 'keyctl': 219, 'userfaultfd': 282, 'io_uring_setup': 425, 'perf_event_open': 241, 'clone3': 435, 'add_key': 217}}
for name, number in numbers.get(platform.machine(), {}).items():
    refused(name, libc.syscall(number, 0, 0, 0, 0, 0))
for line in open('/proc/self/status'):
    if line.startswith(('CapEff', 'CapPrm', 'CapAmb', 'CapInh')) and int(line.split()[1], 16): print('open:', line.strip())
    if line.startswith('NoNewPrivs') and line.split()[1] != '1': print('open: privileges')
    if line.startswith('Seccomp:') and line.split()[1] != '2': print('open: seccomp')
if os.path.exists('/proc/kcore') and os.stat('/proc/kcore').st_size: print('open: kcore')
print('done')
"#;
    assert_eq!(python(&client, script).await, "done");
    let setuid = sh(
        &client,
        "cp $(command -v id) ./id 2>/dev/null; chmod u+s ./id; ./id -u; su -c id </dev/null 2>&1 | grep -c uid=0",
    )
    .await
    .text();
    assert_eq!(setuid, "1000\n0");
}

pub async fn an_image_folder_can_be_changed_where_the_policy_says(bench: Workbench) {
    // Whoever runs the suite knows whether its backend has images.
    let Some(image) = bench.subject.image.clone() else { return };
    let count = || match &image {
        Image::Folder(folder) => {
            assert!(folder.join("bin/removable").exists(), "the image itself was changed");
            std::fs::read_dir(folder).unwrap().count()
        }
        _ => 0,
    };
    let before = count();
    let (sandbox, client) = bench
        .sandbox_with(|spec| {
            spec.image = image.clone();
            spec.policy = Policy::preset("yolo-4").unwrap();
        })
        .await;
    let outcome =
        sh(&client, "id -u; echo new > /etc/new && mkdir /opt/new && rm /bin/removable && cat /etc/new; ls /workspace")
            .await;
    assert_eq!(outcome.text(), "0\nnew", "{outcome:?}");
    // Root inside is not root over the executor, and files are not a way to look at it. Where it says so, some are.
    let hidden = !sandbox.facts().enforcement.0[&Control::ExecutorIdentity].by.contains("not hidden");
    let outcome = sh(
        &client,
        "for f in oom_score_adj coredump_filter projid_map comm; do echo 1000 > /proc/1/$f && echo wrote $f; done; ls /proc/1; echo kept",
    )
    .await;
    assert!(!hidden || outcome.text() == "kept", "{outcome:?}");
    for path in ["/proc/self/fd", "/proc/1/map_files", "/proc", "/proc/self/environ"] {
        assert!(client.read(&Path::from(path), 0, None).await.is_err(), "{path} was read");
        assert!(client.list(&Path::from(path), 1, 10).await.is_err(), "{path} was listed");
    }
    assert_eq!(count(), before, "the image itself was changed");
    let (_sandbox, client) = bench
        .sandbox_with(|spec| {
            spec.image = image.clone();
            spec.policy.filesystem.root = Root::ReadOnly;
        })
        .await;
    let outcome =
        sh(&client, "id -u; echo new > /etc/new || echo refused; echo kept > /workspace/x && cat /workspace/x").await;
    assert_eq!(outcome.text(), "1000\nrefused\nkept", "{outcome:?}");
}

pub async fn output_can_be_written_but_not_taken_back(bench: Workbench) {
    let (sandbox, client) = bench.sandbox().await;
    let outcome = sh(&client, "echo plain; echo again > /dev/stdout; echo error > /dev/stderr").await;
    assert_eq!((outcome.text().as_str(), &*outcome.stderr), ("plain\nagain", &b"error\n"[..]));
    let script = r#"
import os
for number in (1, 2):
    os.system('exec >/proc/self/fd/%d' % number)
    for how in (os.O_RDONLY, os.O_RDWR):
        try: os.open('/proc/self/fd/%d' % number, how | os.O_NONBLOCK); print('opened')
        except OSError: pass
    try: os.fchmod(number, 0o666); print('changed')
    except OSError: pass
"#;
    // With one id for all, whoever writes could read as well.
    if sandbox.facts().enforcement.0[&Control::ExecutorIdentity].by.contains("another user") {
        assert_eq!(python(&client, script).await, "");
    }
}

pub async fn user_namespaces_and_settings_of_the_kernel_are_out_of_reach(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let script = r#"
import glob, os
try: print(open('/proc/sys/user/max_user_namespaces').read().strip())
except FileNotFoundError: print(0)
for path in glob.glob('/proc/sys/**', recursive=True) + ['/proc/sysrq-trigger'] + glob.glob('/proc/irq/**', recursive=True):
    if os.path.isfile(path):
        try: open(path, 'w').close(); print('open for writing:', path)
        except OSError: pass
# Covered, where it could tell more than that.
for line in open('/proc/1/status') if os.path.exists('/proc/1/status') else []:
    if line.startswith('CapEff') and int(line.split()[1], 16) & (1 << 24 | 1 << 21): print('the executor kept', line)
"#;
    let seen = python(&client, script).await;
    // An engine has no way to set the count; the filter closes namespaces all the same.
    if bench.is_of_this_machine() {
        assert_eq!(seen, "0");
    } else {
        assert_eq!(seen.lines().count(), 1, "{seen}");
    }
}

pub async fn what_tells_machines_apart_is_covered(bench: Workbench) {
    let (_sandbox, client) = bench.sandbox().await;
    let script = r#"
import os
for name in ['acpi', 'bus', 'cmdline', 'config.gz', 'consoles', 'diskstats', 'driver', 'interrupts', 'iomem', 'ioports',
             'kallsyms', 'kcore', 'keys', 'partitions', 'pressure', 'scsi', 'timer_list', 'tty']:
    path = '/proc/' + name
    if os.path.isdir(path) and os.listdir(path): print(name, os.listdir(path))
    if os.path.isfile(path):
        try:
            # gVisor's says the same on every machine.
            if open(path, 'rb').read(100).replace(b'BOOT_IMAGE=/vmlinuz-4.4.0-gvisor quiet', b'').strip(): print(name)
        except OSError: pass
for name in ['cpuinfo', 'meminfo', 'loadavg', 'stat', 'uptime', 'version', 'filesystems', 'self/mountinfo']:
    open('/proc/' + name).read(1)
"#;
    assert_eq!(python(&client, script).await, "");
}

/// Runs a Python script; every image that is tried has a Python.
async fn python(client: &sandbox_executor::client::Client, script: &str) -> String {
    let outcome = crate::workbench::run(client, &sandbox_core::exec::Exec::argv(["python3", "-c", script])).await;
    assert!(outcome.stderr.is_empty(), "{outcome:?}");
    outcome.text()
}
