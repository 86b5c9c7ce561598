//! Jobs and the executor outlive connections, within limits.

use std::time::{Duration, Instant};

use sandbox_core::exec::{Exec, Exit};
use sandbox_executor::{client::Until, protocol::Reason};

use crate::harness::{Carrier, Outcome, Program, reason};

#[tokio::test]
async fn a_job_outlives_the_connection_and_its_output_is_read_by_offset() {
    let mut program = Program::start(Carrier::Local, |_| {}).await;
    let mut follow = program.client.spawn(&Exec::shell("echo one; sleep 0.3; echo two; exit 5")).await.unwrap();
    let job = follow.job();
    follow.next().await.unwrap();
    drop(follow);
    program.client = program.reconnect().await;
    let outcome = Outcome::of(program.client.attach(job, 4, Until::Exit).await.unwrap()).await;
    assert_eq!((outcome.text(), outcome.exit), ("two\n", Some(Exit::Code(5))));
    let again = Outcome::of(program.client.attach(job, 2, Until::Now).await.unwrap()).await;
    assert_eq!((again.text(), again.exit), ("e\ntwo\n", Some(Exit::Code(5))));
    assert_eq!(reason(program.client.attach(job, 100, Until::Now).await), Reason::Invalid);
    let jobs = program.client.jobs().await.unwrap();
    assert_eq!((jobs.len(), jobs[0].exit, jobs[0].next_offset), (1, Some(Exit::Code(5)), 8));
    program.client.forget(job).await.unwrap();
    assert_eq!(reason(program.client.attach(job, 0, Until::Now).await), Reason::NotFound);
}

#[tokio::test]
async fn reading_what_is_there_now_does_not_wait() {
    let program = Program::start(Carrier::Stream, |_| {}).await;
    let mut follow = program.client.spawn(&Exec::shell("echo now; sleep 20")).await.unwrap();
    follow.next().await.unwrap();
    let outcome = Outcome::of(program.client.attach(follow.job(), 0, Until::Now).await.unwrap()).await;
    assert_eq!((outcome.text(), outcome.exit), ("now\n", None));
    assert_eq!(reason(program.client.forget(follow.job()).await), Reason::Invalid);
}

#[tokio::test]
async fn only_so_many_jobs_are_remembered() {
    let program = Program::start(Carrier::Local, |_| {}).await;
    for _ in 0..300 {
        program.exec(&Exec::argv(["true"])).await;
    }
    let jobs = program.client.jobs().await.unwrap();
    assert!((250..=257).contains(&jobs.len()), "{}", jobs.len());
    assert_eq!(jobs.last().unwrap().id.0, 300);
}

#[tokio::test]
async fn without_a_server_the_lease_ends_it() {
    let lease = Duration::from_millis(400);
    let mut program = Program::start(Carrier::Local, |boot| boot.lease = Some(lease)).await;
    drop(program.client.spawn(&Exec::shell("echo $$ > pid; sleep 60")).await.unwrap());
    tokio::time::sleep(2 * lease).await;
    assert!(program.child.try_wait().unwrap().is_none(), "a connection keeps it");
    assert!(!program.client.is_closed());
    let pid = std::fs::read_to_string(program.workspace().join("pid")).unwrap();
    program.client = program.reconnect().await;
    let other = program.client.clone();
    assert!(!other.is_closed());
    let spare = Program::start(Carrier::Local, |_| {}).await;
    program.client = spare.client.clone();
    drop(other);
    let started = Instant::now();
    while program.child.try_wait().unwrap().is_none() {
        assert!(started.elapsed() < Duration::from_secs(20), "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(started.elapsed() >= lease / 2);
    while std::path::Path::new(&format!("/proc/{}", pid.trim())).exists() {
        assert!(started.elapsed() < Duration::from_secs(20), "its processes are left");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn shutdown_ends_everything() {
    for carrier in [Carrier::Local, Carrier::Stream] {
        let mut program = Program::start(carrier, |_| {}).await;
        let mut follow = program.client.spawn(&Exec::shell("echo $$; sleep 60")).await.unwrap();
        follow.next().await.unwrap();
        program.client.shutdown().await.unwrap();
        assert!(program.child.wait().unwrap().success());
        assert!(follow.next().await.is_err());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(program.client.is_closed());
        assert!(program.client.jobs().await.is_err());
    }
}
