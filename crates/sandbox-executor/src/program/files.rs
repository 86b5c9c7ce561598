//! File content in and out, piece by piece.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{AtFlags, Mode, OFlags, SeekFrom, fchmod, fstat, ftruncate, openat, renameat, seek, unlinkat},
    io::{Errno, pread, retry_on_intr},
};
use sandbox_executor::{
    carrier::{Flow, FlowWriter},
    frame::{Frame, FrameError},
    passage::{Passage, WORTH_A_PASSAGE},
    protocol::{DATA_FRAME, FRAME_HEADER, Failure, FileInfo, FileKind, FrameKind, NewFile, Path, Reason, Reply},
    transfer::hole_length,
};

use super::{
    Executor,
    failure::{about, failed, shown},
    places::{Entry, info},
    sys,
};

/// Permissions of a file whose sender names none.
const DEFAULT_MODE: u32 = 0o644;

/// Sends a file's content.
pub async fn read(
    executor: &Executor,
    path: &Path,
    offset: u64,
    length: Option<u64>,
    mut flow: Flow,
) -> Result<(), FrameError> {
    let (file, info) = match open_regular(executor, path) {
        Ok(opened) => opened,
        Err(failure) => return flow.writer.message(&Reply::Failed(failure)).await,
    };
    let end = length.map_or(info.size, |length| offset.saturating_add(length).min(info.size));
    flow.writer.message(&Reply::File(info)).await?;
    if let Err(failure) = send_content(&file, offset, end, path, &mut flow.writer).await? {
        return flow.writer.message(&Reply::Failed(failure)).await;
    }
    flow.writer.frame(FrameKind::End, &[]).await?;
    Ok(flow.writer.finish().await?)
}

fn open_regular(executor: &Executor, path: &Path) -> Result<(OwnedFd, FileInfo), Failure> {
    // Without waiting: a FIFO without a writer would hold us.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = executor.places.open_file(path, flags)?;
    let stat = fstat(&file).map_err(|error| about(&path.0, error))?;
    let info = info(executor.places.absolute_path(path)?, &stat);
    match info.kind {
        FileKind::File => Ok((file, info)),
        FileKind::Folder => Err(failed(Reason::WrongKind, format!("{} is a folder: list it instead", shown(&path.0)))),
        _ => Err(failed(Reason::WrongKind, format!("{} is not a regular file", shown(&path.0)))),
    }
}

/// Data as data, holes as holes. The inner error is the file's, the outer one the flow's.
async fn send_content(
    file: &OwnedFd,
    mut offset: u64,
    end: u64,
    path: &Path,
    writer: &mut FlowWriter,
) -> Result<Result<(), Failure>, FrameError> {
    let mut way = Way::choose(end.saturating_sub(offset), writer);
    while offset < end {
        let data = next_data(file, offset, end);
        if data > offset {
            writer.frame(FrameKind::Hole, &(data - offset).to_be_bytes()).await?;
            offset = data;
            continue;
        }
        let hole =
            seek(file, SeekFrom::Hole(offset)).ok().filter(|&hole| hole > offset).map_or(end, |hole| hole.min(end));
        while offset < hole {
            let length = DATA_FRAME.min((hole - offset) as usize);
            let read = match way.read(file, offset, length) {
                // It ends here now: somebody made it shorter.
                Ok(0) => return Ok(Ok(())),
                Ok(read) => read,
                Err(Errno::INVAL) if way.is_passage() => {
                    way = Way::Copy(Vec::new());
                    continue;
                }
                Err(error) => return Ok(Err(about(&path.0, error))),
            };
            way.send(read, writer).await?;
            offset += read as u64;
            tokio::task::yield_now().await;
        }
    }
    Ok(Ok(()))
}

/// How content gets from the file into the flow. How much it is, is known before a frame is begun: a file that is being
/// made shorter ends a frame early, never in its middle.
enum Way {
    /// The file's own pages.
    Pages(Passage),
    /// Through memory.
    Copy(Vec<u8>),
}

impl Way {
    fn choose(length: u64, writer: &FlowWriter) -> Self {
        let pages = length >= WORTH_A_PASSAGE && writer.takes_pages();
        let passage = if pages { Passage::open(DATA_FRAME).ok() } else { None };
        passage.map_or_else(|| Self::Copy(Vec::new()), Self::Pages)
    }

    fn is_passage(&self) -> bool {
        matches!(self, Self::Pages(_))
    }

    fn read(&mut self, file: &OwnedFd, offset: u64, length: usize) -> Result<usize, Errno> {
        match self {
            Self::Pages(passage) => passage.fill_from_file(file, offset, length),
            Self::Copy(buffer) => {
                buffer.resize(FRAME_HEADER + length, 0);
                retry_on_intr(|| pread(file, &mut buffer[FRAME_HEADER..], offset))
            }
        }
    }

    async fn send(&mut self, length: usize, writer: &mut FlowWriter) -> Result<(), FrameError> {
        match self {
            Self::Pages(passage) => writer.passed(FrameKind::Data, passage).await,
            Self::Copy(buffer) => writer.prepared(FrameKind::Data, &mut buffer[..FRAME_HEADER + length]).await,
        }
    }
}

/// Where data begins, at or after the offset. A file system that knows no holes says that all is data.
fn next_data(file: &OwnedFd, offset: u64, end: u64) -> u64 {
    match seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data.min(end),
        Err(Errno::NXIO) => end,
        Err(_) => offset,
    }
}

/// Writes the files that come on a flow, one after the other.
pub async fn write(executor: &Executor, mut flow: Flow) -> Result<(), FrameError> {
    while let Some(frame) = flow.reader.next().await? {
        let new: NewFile = frame.message()?;
        let written = write_one(executor, &new, &mut flow).await?;
        let reply = written.map_or_else(Reply::Failed, |()| Reply::Done);
        flow.writer.message(&reply).await?;
    }
    Ok(flow.writer.finish().await?)
}

/// Takes a file's frames to their end, even where it cannot be written: the next file comes after them.
async fn write_one(executor: &Executor, new: &NewFile, flow: &mut Flow) -> Result<Result<(), Failure>, FrameError> {
    let mut file = Growing::create(executor, new);
    loop {
        let frame = flow.reader.next().await?.ok_or(FrameError::CutOff)?;
        if frame.kind == FrameKind::End {
            return Ok(file.and_then(Growing::finish));
        }
        if let Ok(growing) = &mut file
            && let Err(failure) = growing.add(&frame)?
        {
            file = Err(failure);
        }
        flow.reader.recycle(frame.body);
        tokio::task::yield_now().await;
    }
}

/// A file that grows under a temporary name, which goes away with it unless it is finished.
struct Growing<'a> {
    path: &'a Path,
    entry: Entry,
    temporary: String,
    file: OwnedFd,
    mode: Mode,
    size: u64,
    largest: u64,
    renamed: bool,
}

impl<'a> Growing<'a> {
    fn create(executor: &Executor, new: &'a NewFile) -> Result<Self, Failure> {
        let entry = executor.places.new_entry(&new.path)?;
        let mut chance = [0; 12];
        sys::fill_with_chance(&mut chance).map_err(|error| failed(Reason::System, error.to_string()))?;
        let digits: String = chance.iter().map(|byte| format!("{byte:02x}")).collect();
        let temporary = format!(".incoming-{digits}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&entry.folder, temporary.as_str(), flags, Mode::from_raw_mode(0o600))
            .map_err(|error| about(&new.path.0, error))?;
        let mode = Mode::from_raw_mode(new.mode.unwrap_or(DEFAULT_MODE) & 0o777);
        let largest = executor.boot.file_size.map_or(i64::MAX as u64, |size| size.0.min(i64::MAX as u64));
        Ok(Self { path: &new.path, entry, temporary, file, mode, size: 0, largest, renamed: false })
    }

    fn add(&mut self, frame: &Frame) -> Result<Result<(), Failure>, FrameError> {
        let length = match frame.kind {
            FrameKind::Data => frame.body.len() as u64,
            FrameKind::Hole => hole_length(&frame.body).ok_or(FrameError::Unexpected(frame.kind))?,
            other => return Err(FrameError::Unexpected(other)),
        };
        let Some(size) = self.size.checked_add(length).filter(|&size| size <= self.largest) else {
            return Ok(Err(about(&self.path.0, Errno::FBIG)));
        };
        if frame.kind == FrameKind::Data
            && let Err(error) = self.write(&frame.body)
        {
            return Ok(Err(about(&self.path.0, error)));
        }
        self.size = size;
        Ok(Ok(()))
    }

    fn write(&self, mut data: &[u8]) -> Result<(), Errno> {
        let mut at = self.size;
        while !data.is_empty() {
            match rustix::io::pwrite(&self.file, data, at) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(count) => {
                    data = &data[count..];
                    at += count as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(), Failure> {
        let place = || {
            // A hole at the end is nothing but length.
            ftruncate(&self.file, self.size)?;
            fchmod(&self.file, self.mode)?;
            renameat(&self.entry.folder, self.temporary.as_str(), &self.entry.folder, &self.entry.name[..])
        };
        let placed = place();
        self.renamed = placed.is_ok();
        placed.map_err(|error| about(&self.path.0, error))
    }
}

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = unlinkat(&self.entry.folder, self.temporary.as_str(), AtFlags::empty());
        }
    }
}
