//! How fast files move, against `cp`, and how fast commands start. Not a test of right and wrong: run it with `--ignored --nocapture`.

use std::{
    fs::File,
    io::{Read, Write},
    process::Command,
    sync::Arc,
    time::Instant,
};

use sandbox_core::exec::Exec;
use sandbox_executor::protocol::{DATA_FRAME, NewFile};

use crate::harness::{Carrier, Outcome, Program};

const SIZE: usize = 1 << 30;

#[tokio::test]
#[ignore = "a measurement"]
async fn a_gigabyte_in_and_out() {
    for carrier in [Carrier::Local, Carrier::Stream] {
        let program = Program::start(carrier, |_| {}).await;
        let source = program.folder.path().join("source");
        let mut file = File::create(&source).unwrap();
        let block: Vec<u8> = (0..DATA_FRAME as u32).map(|n| (n % 251) as u8).collect();
        (0..SIZE / DATA_FRAME).for_each(|_| file.write_all(&block).unwrap());
        for _ in 0..2 {
            let started = Instant::now();
            let copy = program.folder.path().join("copy");
            assert!(Command::new("cp").args([&source, &copy]).status().unwrap().success());
            let cp = started.elapsed();
            std::fs::remove_file(copy).unwrap();

            let started = Instant::now();
            let mut writer = program.client.write().await.unwrap();
            writer.begin(&NewFile { path: b"in".into(), mode: None }).await.unwrap();
            let (mut file, mut buffer) = (File::open(&source).unwrap(), vec![0; DATA_FRAME]);
            loop {
                match file.read(&mut buffer).unwrap() {
                    0 => break,
                    count => writer.data(&buffer[..count]).await.unwrap(),
                }
            }
            writer.finish().await.unwrap();
            let into = started.elapsed();

            let started = Instant::now();
            let out = program.folder.path().join("out");
            let file = Arc::new(File::create(&out).unwrap());
            let mut reader = program.client.read(&b"in".into(), 0, None).await.unwrap();
            while let Some(load) = reader.next_load().await.unwrap() {
                reader.reuse(load.write_to(&file).await.unwrap());
            }
            let out_of = started.elapsed();
            std::fs::remove_file(out).unwrap();
            program.client.remove(&b"in".into()).await.unwrap();
            println!("{carrier:?}: cp {cp:?}, in {into:?}, out {out_of:?}");
        }
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn two_hundred_commands_one_after_another() {
    for carrier in [Carrier::Local, Carrier::Stream] {
        let program = Program::start(carrier, |_| {}).await;
        for _ in 0..5 {
            let started = Instant::now();
            for _ in 0..200 {
                Outcome::of(program.client.spawn(&Exec::argv(["true"])).await.unwrap()).await;
            }
            let ours = started.elapsed() / 200;
            let started = Instant::now();
            for _ in 0..200 {
                Command::new("true").status().unwrap();
            }
            println!("{carrier:?}: exec {ours:?}, plain spawn {:?}", started.elapsed() / 200);
        }
    }
}
