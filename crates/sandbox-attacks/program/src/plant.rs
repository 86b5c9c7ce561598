//! Helpers of attacks that are driven from outside: what has to be done inside meanwhile, also in an image without a
//! shell.

use std::{
    ffi::CString,
    fs,
    io::Write,
    os::unix::{fs::symlink, net::UnixListener},
    time::{Duration, Instant},
};

use crate::{
    Attack,
    arguments::Arguments,
    exhaustion::hold,
    outcome::Outcome,
    sys::{Argument, call, n},
};

pub const ATTACKS: &[(&str, Attack)] = &[
    ("plant_outside", outside),
    ("plant_link", |arguments| with_two(arguments, |at, to| symlink(to, at))),
    ("plant_hard_link", |arguments| with_two(arguments, |at, to| fs::hard_link(to, at))),
    ("plant_fifo", |arguments| {
        planted(call(
            libc::SYS_mknodat,
            [n(libc::AT_FDCWD), Argument::Text(&path(arguments)), n(libc::S_IFIFO | 0o666), n(0)],
        ))
    }),
    ("plant_socket", |arguments| match UnixListener::bind(arguments.text("at").unwrap_or_default()) {
        Ok(listener) => hold("planted".to_owned(), listener),
        Err(error) => Outcome::NotApplicable(error.to_string()),
    }),
    ("plant_sparse", |arguments| {
        planted(fs::File::create(arguments.text("at").unwrap_or_default()).and_then(|file| file.set_len(1 << 42)))
    }),
    ("plant_many", many),
    ("show_folder", show_folder),
    ("swap", swap),
    ("grow", grow),
];

fn planted<T>(made: std::io::Result<T>) -> Outcome {
    match made {
        Ok(_) => Outcome::Held("planted".to_owned()),
        Err(error) => Outcome::NotApplicable(format!("not planted: {error}")),
    }
}

fn path(arguments: &Arguments) -> CString {
    CString::new(arguments.text("at").unwrap_or_default()).unwrap_or_default()
}

fn with_two(arguments: &Arguments, make: impl Fn(&str, &str) -> std::io::Result<()>) -> Outcome {
    planted(make(arguments.text("at").unwrap_or_default(), arguments.text("to").unwrap_or_default()))
}

/// A folder that is no place for files, with things in it that the file interface must not reach.
fn outside(arguments: &Arguments) -> Outcome {
    let folder = arguments.text("at").unwrap_or("/dev/shm/outside");
    let made = fs::create_dir_all(format!("{folder}/folder")).and_then(|()| {
        fs::write(format!("{folder}/secret"), arguments.mark())?;
        (0..200).try_for_each(|number| fs::write(format!("{folder}/victim-{number}"), "alive"))
    });
    planted(made)
}

fn many(arguments: &Arguments) -> Outcome {
    let folder = arguments.text("at").unwrap_or("/tmp/many");
    let made = fs::create_dir_all(folder)
        .and_then(|()| (0..20_000).try_for_each(|number| fs::File::create(format!("{folder}/{number}")).map(drop)));
    planted(made)
}

/// Names and sizes, sorted, so that two looks can be compared.
fn show_folder(arguments: &Arguments) -> Outcome {
    let entries = fs::read_dir(arguments.text("at").unwrap_or("/dev/shm/outside")).into_iter().flatten().flatten();
    let show = |entry: fs::DirEntry| {
        let size = fs::read(entry.path()).map(|content| content.len()).unwrap_or_default();
        format!("{} {size}", entry.file_name().to_string_lossy())
    };
    let mut lines: Vec<String> = entries.map(show).collect();
    lines.sort();
    Outcome::Seen(lines.join("\n"))
}

/// A folder and a link to another one change places, as fast as they can.
fn swap(arguments: &Arguments) -> Outcome {
    let exchange = 2;
    let made = fs::create_dir_all("/workspace/race/dir").and_then(|()| {
        fs::write("/workspace/race/dir/secret", "harmless")?;
        (0..200).try_for_each(|number| fs::write(format!("/workspace/race/dir/victim-{number}"), "alive"))?;
        symlink(arguments.text("to").unwrap_or("/dev/shm/outside"), "/workspace/race/link")
    });
    if let Err(error) = made {
        return Outcome::NotApplicable(format!("not planted: {error}"));
    }
    let _ = std::thread::spawn(move || {
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            let names = [c"/workspace/race/dir", c"/workspace/race/link"];
            let _ = call(
                libc::SYS_renameat2,
                [n(libc::AT_FDCWD), Argument::Text(names[0]), n(libc::AT_FDCWD), Argument::Text(names[1]), n(exchange)],
            );
        }
    });
    hold("the folder and the link change places".to_owned(), ())
}

/// A file that grows while it is read.
fn grow(arguments: &Arguments) -> Outcome {
    let at = arguments.text("at").unwrap_or("/workspace/growing").to_owned();
    let mut file = match fs::File::create(&at) {
        Ok(file) => file,
        Err(error) => return Outcome::NotApplicable(error.to_string()),
    };
    let _ = file.write_all(&[1; 1 << 20]);
    let _ = std::thread::spawn(move || {
        for _ in 0..2000 {
            let _ = file.write_all(&[1; 16 << 10]);
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    hold("the file grows".to_owned(), ())
}
