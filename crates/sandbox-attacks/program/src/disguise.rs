//! Blocked programs reached under a disguise. What counts is the effect: a program may well start, and must gain nothing.

use std::{
    fs, io,
    io::Write,
    os::{
        fd::AsRawFd,
        unix::fs::{PermissionsExt, symlink},
    },
    path::Path,
    process::{Command, Stdio},
};

use crate::{Attack, arguments::Arguments, escape, network, outcome::Outcome, sys::call, sys::n};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("effects", effects),
    ("copy_under_another_name", |_| by_copy("ls")),
    ("copy_in_home", |_| run(Command::new(copied("/home/sandbox/.local/bin/git")))),
    ("link_under_another_name", |_| by_link(Link::Soft)),
    ("hard_link_under_another_name", |_| by_link(Link::Hard)),
    ("program_without_a_file", without_a_file),
    ("script_with_interpreter", script),
    ("base64_into_shell", base64),
    ("variable_hides_the_name", |_| shell("a=sandbox; b=attack; /workspace/$a-$b effects")),
    ("quotes_hide_the_name", |_| shell("/work''space/sand\"box\"-at\\tack effects")),
    ("nested_shells", |_| shell("sh -c \"env sh -c 'exec /workspace/sandbox-attack effects'\"")),
    ("through_xargs_and_find", |_| {
        shell("echo effects | xargs /workspace/sandbox-attack || find /workspace/sandbox-attack -exec {} effects \\;")
    }),
    ("through_python", |_| {
        interpreter("python3", &["-c", "import os; os.system('/workspace/sandbox-attack effects')"])
    }),
    ("through_perl", |_| interpreter("perl", &["-e", "system('/workspace/sandbox-attack effects')"])),
    ("through_node", |_| {
        interpreter(
            "node",
            &["-e", "process.stdout.write(require('child_process').execSync('/workspace/sandbox-attack effects'))"],
        )
    }),
    ("through_awk", |_| interpreter("awk", &["BEGIN { system(\"/workspace/sandbox-attack effects\") }"])),
    ("through_background_daemon", |_| {
        shell("(setsid /workspace/sandbox-attack effects > /tmp/daemon-said 2>&1 &); sleep 0.5; cat /tmp/daemon-said")
    }),
    ("denied_program", |_| {
        let programs = ["mount", "umount", "su", "unshare", "nsenter", "chroot", "losetup"];
        Outcome::first_breach(programs.map(started))
    }),
    ("unlisted_program", |_| started("arch")),
    ("loader_mount", |_| through_loader("mount", &["-t", "tmpfs", "none", "/tmp"])),
    ("loader_unshare", |_| through_loader("unshare", &["-Ur", "true"])),
    ("loader_su", |_| through_loader("su", &["-c", "true"])),
    ("loader_sudo", |_| through_loader("sudo", &["-n", "true"])),
    ("loader_systemctl", |_| through_loader("systemctl", &["list-units", "--no-pager"])),
    ("loader_docker", |_| through_loader("docker", &["ps"])),
    ("loader_ip", |_| through_loader("ip", &["link", "add", "attack1", "type", "dummy"])),
    ("loader_nsenter", |_| through_loader("nsenter", &["-t", "1", "-m", "true"])),
    ("loader_chroot", |_| through_loader("chroot", &["/tmp/..", "/bin/true"])),
    ("loader_dd", |_| through_loader("dd", &["if=/dev/vda", "of=/dev/null", "count=1"])),
    ("loader_mkfs", |_| through_loader("mkfs.ext4", &["-n", "/dev/vda"])),
    ("loader_dmesg", |_| through_loader("dmesg", &[])),
    ("loader_insmod", |_| through_loader("insmod", &["/nonexistent.ko"])),
    ("loader_shutdown", |_| through_loader("shutdown", &["--show"])),
    ("loader_passwd", |_| through_loader("passwd", &["-S", "root"])),
];

/// What a blocked command would want: become root, change the mounts, reach a daemon, reach a device, open a route.
const EFFECTS: [&str; 10] = [
    "become_root",
    "mount_tmpfs",
    "unshare_user",
    "runtime_sockets",
    "open_host_devices",
    "make_block_device",
    "add_interface",
    "add_route",
    "load_module",
    "set_host_name",
];

fn effects(arguments: &Arguments) -> Outcome {
    let known = escape::attacks().into_iter().flatten().chain(network::ATTACKS);
    let broken =
        known.filter(|(name, _)| EFFECTS.contains(name)).filter_map(|(name, attack)| match attack(arguments) {
            Outcome::BrokeThrough(detail) => Some(format!("{name} ({detail})")),
            _ => None,
        });
    Outcome::of_list("effects of blocked commands", broken.collect())
}

/// Starts something that runs `effects`, and reads what it says.
fn run(mut command: Command) -> Outcome {
    if command.get_args().count() == 0 {
        command.arg("effects");
    }
    run_as_is(command)
}

fn run_as_is(mut command: Command) -> Outcome {
    match command.stdin(Stdio::null()).stderr(Stdio::piped()).output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            match (said.contains("\"broke_through\""), said.contains("\"held\"")) {
                (true, _) => Outcome::BrokeThrough(said.trim().to_owned()),
                (_, true) => Outcome::Held("it ran and had no effect".to_owned()),
                _ => Outcome::Held(format!("it did not run: {}", String::from_utf8_lossy(&output.stderr).trim())),
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Outcome::NotApplicable(format!("{:?} is not here", command.get_program()))
        }
        Err(error) => Outcome::Held(format!("it did not start: {error}")),
    }
}

fn copied(path: &str) -> String {
    if let Some(folder) = Path::new(path).parent() {
        let _ = fs::create_dir_all(folder);
    }
    let _ = fs::copy("/proc/self/exe", path);
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    path.to_owned()
}

fn by_copy(name: &str) -> Outcome {
    run(Command::new(copied(&format!("/tmp/{name}"))))
}

enum Link {
    Soft,
    Hard,
}

fn by_link(kind: Link) -> Outcome {
    let path = format!("/workspace/cat-{}", std::process::id());
    let made = match kind {
        Link::Soft => symlink("/workspace/sandbox-attack", &path),
        Link::Hard => fs::hard_link("/workspace/sandbox-attack", &path),
    };
    match made {
        Ok(()) => run(Command::new(path)),
        Err(error) => Outcome::Held(format!("no link: {error}")),
    }
}

/// From memory: no file that a rule could name.
fn without_a_file(_: &Arguments) -> Outcome {
    let load = || -> io::Result<fs::File> {
        let number = call(libc::SYS_memfd_create, [crate::sys::Argument::Text(c"cat"), n(0)])?;
        let mut file = fs::OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}"))?;
        file.write_all(&fs::read("/proc/self/exe")?)?;
        drop(file);
        let opened = fs::File::open(format!("/proc/self/fd/{number}"))?;
        call(libc::SYS_close, [n(number)])?;
        Ok(opened)
    };
    match load() {
        Ok(file) => run(Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()))),
        Err(error) => Outcome::Held(format!("no file in memory: {error}")),
    }
}

fn script(_: &Arguments) -> Outcome {
    let path = format!("/workspace/script-{}", std::process::id());
    let written = fs::write(&path, "#!/workspace/sandbox-attack effects\n")
        .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)));
    match written {
        // The kernel adds the script's name as an argument, which is no reason to add `effects`.
        Ok(()) => run_as_is(Command::new(path)),
        Err(error) => Outcome::Held(format!("no script: {error}")),
    }
}

fn base64(_: &Arguments) -> Outcome {
    // /workspace/sandbox-attack effects
    shell("echo L3dvcmtzcGFjZS9zYW5kYm94LWF0dGFjayBlZmZlY3RzCg== | base64 -d | sh")
}

fn shell(script: &str) -> Outcome {
    interpreter("sh", &["-c", script])
}

fn interpreter(program: &str, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(program);
    command.args(arguments);
    run_as_is(command)
}

/// A program of this name, under its own: it tells its version, and nothing else happens.
fn started(program: &str) -> Outcome {
    match Command::new(program).arg("--version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Outcome::BrokeThrough(format!("{program} was started")),
        Ok(output) => Outcome::Held(format!("{program}: {}", output.status)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Outcome::NotApplicable(format!("there is no {program}"))
        }
        Err(error) => Outcome::Held(format!("{program}: {error}")),
    }
}

/// A real blocked program by way of the dynamic loader, which opens the file as data. Done without an error, it had
/// its effect.
fn through_loader(program: &str, arguments: &[&str]) -> Outcome {
    let loaders = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1"];
    let folders = ["/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin"];
    let file = folders.iter().map(|folder| format!("{folder}/{program}")).find(|path| Path::new(path).exists());
    let (Some(loader), Some(file)) = (loaders.into_iter().find(|path| Path::new(path).exists()), file) else {
        return Outcome::NotApplicable(format!("there is no {program} or no loader"));
    };
    let mut command = Command::new(loader);
    let output = command.arg(&file).args(arguments).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            Outcome::BrokeThrough(format!("{program} {} worked", arguments.join(" ")))
        }
        Ok(output) => {
            Outcome::Held(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("it failed").to_owned())
        }
        Err(error) => Outcome::Held(format!("the loader did not start: {error}")),
    }
}
