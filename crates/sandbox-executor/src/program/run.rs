//! Requests about jobs: starting them, and what happens on the flow that did.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    rc::Rc,
    time::Duration,
};

use rustix::{
    fs::{Mode, fchmod},
    io::Errno,
    pipe::{PipeFlags, fcntl_setpipe_size, pipe_with},
};
use sandbox_core::{
    Control, JobId,
    exec::{Exec, Stdin, Stream},
};
use sandbox_executor::{
    carrier::Flow,
    frame::FrameError,
    protocol::{Failure, Output, Reason, Reply},
};

use super::{
    Executor,
    failure::failed,
    input::{Input, Kind, feed},
    jobs::{Job, Start},
    launch::Launch,
    output::{self, Source, Until},
    spawn::all_from,
    sys::Session,
    terminal,
    wall::{self, Wall},
};

/// Between asking to end and ending.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes that a pipe of a job's output holds, where the system lets us.
const PIPE_SIZE: usize = 256 << 10;

/// A started job with our ends of its streams.
struct Started {
    job: Rc<Job>,
    sources: Vec<Source>,
    launch: Launch,
}

/// Starts a job and serves the flow that asked for it, to its end.
pub async fn spawn(
    executor: &Rc<Executor>,
    exec: Exec,
    output: Output,
    mut flow: Flow,
    descriptors: Vec<OwnedFd>,
) -> Result<(), FrameError> {
    let started = {
        let _starting = executor.starts.read().await;
        match (output, <[OwnedFd; 3]>::try_from(descriptors)) {
            (Output::Handed, Ok(stdio)) => start_handed(executor, &exec, &stdio),
            (output, _) => start_with_streams(executor, &exec, output),
        }
    };
    let Started { job, sources, launch } = match started {
        Ok(started) => started,
        Err(failure) => return flow.writer.message(&Reply::Failed(failure)).await,
    };
    if let Err(failure) = launch.outcome().await {
        executor.jobs.abandon(&job);
        return flow.writer.message(&Reply::Failed(failure)).await;
    }
    if let Some(timeout) = exec.timeout {
        tokio::task::spawn_local(watch_time(Rc::clone(executor), Rc::clone(&job), timeout));
    }
    if output == Output::Kept {
        let sources: Vec<_> = sources.into_iter().map(Rc::new).collect();
        for source in &sources {
            tokio::task::spawn_local(output::keep(Rc::clone(executor), Rc::clone(&job), Rc::clone(source)));
        }
        tokio::task::spawn_local(output::complete(Rc::clone(executor), Rc::clone(&job), sources));
        flow.writer.message(&Reply::Started { job: job.id }).await?;
        return serve_kept(&job, 0, Until::Exit, flow).await;
    }
    let served = serve_attached(&job, &sources, flow).await;
    drop(sources);
    tokio::task::spawn_local(hang_up(Rc::clone(executor), job));
    served
}

/// Sends a job's kept output on a flow, and takes input from it, until either ends.
async fn serve_kept(job: &Job, offset: u64, until: Until, mut flow: Flow) -> Result<(), FrameError> {
    let told = tokio::select! {
        told = output::follow(job, offset, until, &mut flow.writer) => told,
        fed = feed(job.input.as_ref(), &mut flow.reader) => match fed {
            Ok(()) => return Ok(()),
            Err(failure) => flow.writer.message(&Reply::Failed(failure)).await,
        },
    };
    told?;
    Ok(flow.writer.finish().await?)
}

async fn serve_attached(job: &Job, sources: &[Source], mut flow: Flow) -> Result<(), FrameError> {
    flow.writer.message(&Reply::Started { job: job.id }).await?;
    let told = tokio::select! {
        told = output::forward(job, sources, &mut flow.writer) => told,
        fed = feed(job.input.as_ref(), &mut flow.reader) => match fed {
            Ok(()) => return Ok(()),
            Err(failure) => flow.writer.message(&Reply::Failed(failure)).await,
        },
    };
    told?;
    Ok(flow.writer.finish().await?)
}

/// Sends what is kept of a job.
pub async fn attach(
    executor: &Executor,
    id: JobId,
    offset: u64,
    until: Until,
    mut flow: Flow,
) -> Result<(), FrameError> {
    let found = executor.jobs.find(id).and_then(|job| match job.with_history(|kept| kept.next()) {
        Some(next) => Ok((job, next)),
        None => Err(failed(Reason::WrongKind, format!("the output of {id} went straight to who started it"))),
    });
    let (job, next) = match found {
        Ok(found) => found,
        Err(failure) => return flow.writer.message(&Reply::Failed(failure)).await,
    };
    if offset > next {
        let what = format!("{id} has {next} bytes of output so far; offset {offset} is beyond that");
        return flow.writer.message(&Reply::Failed(failed(Reason::Invalid, what))).await;
    }
    flow.writer.message(&Reply::Attached { offset }).await?;
    serve_kept(&job, offset, until, flow).await
}

/// Gives a job input from another flow.
pub async fn input(executor: &Executor, id: JobId, mut flow: Flow) -> Result<(), FrameError> {
    let taken = match executor.jobs.find(id) {
        Ok(job) if job.input.is_none() => {
            Err(failed(Reason::WrongKind, format!("{id} was started without input: start it with input piped")))
        }
        Ok(job) => feed(job.input.as_ref(), &mut flow.reader).await,
        Err(failure) => Err(failure),
    };
    let reply = taken.map_or_else(Reply::Failed, |()| Reply::Done);
    flow.writer.message(&reply).await?;
    Ok(flow.writer.finish().await?)
}

fn start_handed(executor: &Executor, exec: &Exec, stdio: &[OwnedFd; 3]) -> Result<Started, Failure> {
    let stdio = [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()];
    let (job, launch) = start(executor, exec, stdio, Session::New, (None, None), None)?;
    Ok(Started { job, sources: Vec::new(), launch })
}

fn start_with_streams(executor: &Executor, exec: &Exec, output: Output) -> Result<Started, Failure> {
    let history = (output == Output::Kept).then_some(executor.boot.history.0);
    match exec.terminal {
        Some(size) => {
            let terminal = terminal::make(size).map_err(no_streams)?;
            let (reads, writes) = (copy(&terminal.master)?, copy(&terminal.master)?);
            let input = Input::new(writes, Kind::Terminal).map_err(no_streams)?;
            let ends = (Some(input), Some(terminal.master));
            let sources = vec![Source::new(Stream::Stdout, reads).map_err(no_streams)?];
            let (job, launch) = start(executor, exec, all_from(&terminal.slave), Session::Terminal, ends, history)?;
            Ok(Started { job, sources, launch })
        }
        None => {
            let (stdin, input) = match exec.stdin {
                Stdin::Empty => (executor.starter.nothing().map_err(no_streams)?, None),
                Stdin::Piped => {
                    let (reads, writes) = pipe()?;
                    (reads, Some(Input::new(writes, Kind::Pipe).map_err(no_streams)?))
                }
            };
            let ((stdout, out), (stderr, err)) = output_pipes(executor)?;
            let stdio = [stdin.as_fd(), out.as_fd(), err.as_fd()];
            let sources = [(Stream::Stdout, stdout), (Stream::Stderr, stderr)];
            let sources: io::Result<_> = sources.into_iter().map(|(stream, end)| Source::new(stream, end)).collect();
            let sources = sources.map_err(no_streams)?;
            let (job, launch) = start(executor, exec, stdio, Session::New, (input, None), history)?;
            Ok(Started { job, sources, launch })
        }
    }
}

/// The job is known from the moment when its process is there: it may end before its launch is heard of.
fn start(
    executor: &Executor,
    exec: &Exec,
    stdio: [BorrowedFd<'_>; 3],
    session: Session,
    (input, terminal): (Option<Input>, Option<OwnedFd>),
    history: Option<u64>,
) -> Result<(Rc<Job>, Launch), Failure> {
    let id = executor.jobs.next()?;
    let (mark, before) = (executor.tree.mark(id.0), executor.counters.read());
    let (pid, launch) = executor.starter.launch(&executor.boot, exec, mark, stdio, session)?;
    Ok((executor.jobs.add(Start { exec, id, mark, pid, before, input, terminal, history }), launch))
}

async fn watch_time(executor: Rc<Executor>, job: Rc<Job>, timeout: Duration) {
    if tokio::time::timeout(timeout, job.ended()).await.is_err() {
        job.stop_for(Control::Time);
        stop(&executor, &job, libc::SIGTERM).await;
    }
}

/// Ends what an attached job left, and the job itself where its flow ended first.
async fn hang_up(executor: Rc<Executor>, job: Rc<Job>) {
    let gone = job.exit().is_some();
    if !gone {
        stop(&executor, &job, libc::SIGHUP).await;
    }
    job.ended().await;
    job.complete();
}

/// Asks a whole tree to end, and ends it.
async fn stop(executor: &Rc<Executor>, job: &Job, signal: i32) {
    let members = job.members();
    executor.signal(members, signal);
    // What is stopped would not see the first.
    executor.signal(members, libc::SIGCONT);
    tokio::time::sleep(PATIENCE).await;
    executor.kill(members).await;
}

/// Where to read, where to write.
type Pipe = (OwnedFd, OwnedFd);

fn pipe() -> Result<Pipe, Failure> {
    pipe_with(PipeFlags::CLOEXEC).map_err(|error| no_streams(error.into()))
}

/// Pipes for both outputs. They are ours, and others may only write: with `/proc/self/fd/1` a command can open its output
/// again, as `/dev/stdout`, but it cannot take from it what somebody else wrote. Where commands have our own uid they can.
fn output_pipes(executor: &Executor) -> Result<(Pipe, Pipe), Failure> {
    if !wall::stands(Wall::OutputPipes) {
        return Ok((output_pipe()?, output_pipe()?));
    }
    let ours = executor.as_ourselves(|| {
        let ends = (output_pipe()?, output_pipe()?);
        for (_, writer) in [&ends.0, &ends.1] {
            match fchmod(writer, Mode::WUSR | Mode::WGRP | Mode::WOTH) {
                // In gVisor the mode of a pipe stays as it is.
                Err(Errno::PERM) => return Ok(None),
                other => other.map_err(|error| no_streams(error.into()))?,
            }
        }
        Ok(Some(ends))
    })?;
    match ours {
        Some(ends) => Ok(ends),
        None => Ok((output_pipe()?, output_pipe()?)),
    }
}

fn output_pipe() -> Result<Pipe, Failure> {
    let ends = pipe()?;
    // Fewer wakeups for much output. A user's share of such memory may be used up: then it stays as it is.
    let _ = fcntl_setpipe_size(&ends.0, PIPE_SIZE);
    Ok(ends)
}

fn copy(descriptor: &OwnedFd) -> Result<OwnedFd, Failure> {
    descriptor.try_clone().map_err(no_streams)
}

fn no_streams(error: io::Error) -> Failure {
    failed(Reason::System, format!("no pipe or terminal for the command's streams could be made: {error}"))
}
