//! write_files and get_files: moving files in and out of a sandbox.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use rmcp::model::Resource;
use sandbox_core::Denial;
use sandbox_executor::{
    client::{Client, ClientError},
    protocol::{NewFile, Path, Reason},
    transfer::{FileReader, FileWriter, Piece},
};
use sha2::{Digest, Sha256};

use super::{
    answers::{self, Answer, File, FileProblem, Files, Outcome, Written, WrittenFile},
    arguments::{Encoding, FileToWrite, GetFiles, WriteFiles},
    error::ToolError,
    paths,
    schema::shortened,
};
use crate::sandboxes::{Session, patience};

/// Names in one answer of write_files.
const NAMED: usize = 100;
/// Content in one answer, unless the caller says otherwise.
const DEFAULT_INLINE: u64 = 32 << 10;
/// Content in one answer, whatever the caller says.
pub const MAX_INLINE: u64 = 10 << 20;
/// Larger files get no hash: it would take too long.
const MAX_HASHED: u64 = 256 << 20;
/// Files in one call of get_files.
const MAX_PATHS: usize = 200;

/// Writes all files that can be written and says which could not.
pub async fn write_files(session: Arc<Session>, asked: WriteFiles) -> Result<Answer, ToolError> {
    let client = session.client().await?;
    let mut answer = Written {
        session_id: session.id().to_string(),
        written_count: 0,
        failed_count: 0,
        written: Vec::new(),
        failed: Vec::new(),
        denials: Vec::new(),
    };
    let results = write_all(&session, &client, &asked.files).await?;
    for (file, result) in asked.files.iter().zip(results) {
        match result {
            Ok(size_bytes) => {
                answer.written_count += 1;
                if answer.written.len() < NAMED {
                    answer.written.push(WrittenFile { path: shortened(&file.path), size_bytes });
                }
            }
            Err(Problem { error, denial }) => {
                answer.failed_count += 1;
                if answer.failed.len() < NAMED {
                    answer.failed.push(FileProblem { path: shortened(&file.path), error });
                    answer.denials.extend(denial.map(|denial| told(&session, denial)));
                }
            }
        }
    }
    let outcome = if answer.failed_count == 0 { Outcome::Whole } else { Outcome::Partial };
    Ok(Answer::of(&answer).with_outcome(outcome))
}

/// Why a file was not written.
struct Problem {
    error: String,
    /// Where it is the policy's doing.
    denial: Option<Denial>,
}

/// Notes a refusal and puts it into the words of an answer.
fn told(session: &Session, denial: Denial) -> answers::Denial {
    let told = answers::Denial::from(&denial);
    session.refuse(vec![denial]);
    told
}

/// One result for each file, in their order: its size, or why it was not written.
async fn write_all(
    session: &Session,
    client: &Client,
    files: &[FileToWrite],
) -> Result<Vec<Result<u64, Problem>>, ToolError> {
    let mut writer = patience::soon(client.write()).await?;
    let mut results = Vec::with_capacity(files.len());
    for file in files {
        let (new, content) = match checked(session, file) {
            Ok(checked) => checked,
            Err(error) => {
                results.push(Err(Problem { error, denial: None }));
                continue;
            }
        };
        match write_one(&mut writer, &new, &content).await {
            Ok(()) => results.push(Ok(content.len() as u64)),
            Err(error @ ClientError::Refused(_)) => {
                let denial = paths::denial(&error, &file.path, &session.facts().spec.policy);
                results.push(Err(Problem { error: paths::explained(&error), denial }));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(results)
}

fn checked(session: &Session, file: &FileToWrite) -> Result<(NewFile, Vec<u8>), String> {
    let path = paths::parse(session.id(), &file.path).map_err(|error| error.to_string())?;
    Ok((NewFile { path, mode: mode(file)? }, content(file)?))
}

/// Permission bits, if they are given.
pub fn mode(file: &FileToWrite) -> Result<Option<u32>, String> {
    match file.mode.as_deref().map(|mode| u32::from_str_radix(mode.trim_start_matches("0o"), 8)) {
        None => Ok(None),
        Some(Ok(mode)) if mode <= 0o777 => Ok(Some(mode)),
        Some(_) => Err("mode must be octal from 0 to 777, such as 755".to_owned()),
    }
}

/// The bytes of a file.
pub fn content(file: &FileToWrite) -> Result<Vec<u8>, String> {
    if file.encoding != Some(Encoding::Base64) {
        return Ok(file.content.clone().into_bytes());
    }
    let text: Vec<u8> = file.content.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    STANDARD
        .decode(text)
        .map_err(|error| format!("content is not valid base64 ({error}); encode it again, with padding"))
}

async fn write_one(writer: &mut FileWriter, new: &NewFile, content: &[u8]) -> Result<(), ClientError> {
    patience::soon(writer.begin(new)).await?;
    patience::in_time(writer.data(content)).await?;
    patience::in_time(writer.finish()).await
}

/// Reads files: content where it fits, a link where it does not.
pub async fn get_files(session: Arc<Session>, asked: GetFiles) -> Result<Answer, ToolError> {
    if asked.paths.len() > MAX_PATHS {
        let what = format!("{} paths are too many for one call; ask for at most {MAX_PATHS}", asked.paths.len());
        return Err(ToolError::Invalid(what));
    }
    let client = session.client().await?;
    let mut left = asked.max_bytes.unwrap_or(DEFAULT_INLINE).min(MAX_INLINE);
    let id = session.id();
    let mut answer = Files {
        session_id: id.to_string(),
        files: Vec::new(),
        missing: Vec::new(),
        errors: Vec::new(),
        denials: Vec::new(),
        notes: Vec::new(),
    };
    let mut links = Vec::new();
    for text in &asked.paths {
        let part = Part { offset: asked.offset, length: asked.length };
        let read = match paths::parse(id, text) {
            Ok(path) => get_one(&session, &client, &path, part, &mut left).await,
            Err(problem) => Err(problem),
        };
        match read {
            Ok((file, link)) => {
                links.extend(link);
                answer.files.push(file);
            }
            Err(ToolError::Executor(ClientError::Refused(failure))) if failure.reason == Reason::NotFound => {
                answer.missing.push(shortened(text));
            }
            Err(ToolError::Executor(error @ ClientError::Refused(_))) => {
                let denial = paths::denial(&error, text, &session.facts().spec.policy);
                answer.denials.extend(denial.map(|denial| told(&session, denial)));
                answer.errors.push(FileProblem { path: shortened(text), error: paths::explained(&error) });
            }
            Err(ToolError::Invalid(error)) => answer.errors.push(FileProblem { path: shortened(text), error }),
            Err(error) => return Err(error),
        }
    }
    if answer.files.iter().any(|file| file.content.is_none()) {
        let note = "content is null where a file is too large for this answer: ask again with offset and length, or a \
                    larger max_bytes, or read the resource link";
        answer.notes.push(note.to_owned());
    }
    let outcome = if answer.errors.is_empty() { Outcome::Whole } else { Outcome::Partial };
    Ok(Answer::of(&answer).with_links(links).with_outcome(outcome))
}

/// The part of a file that is asked for.
#[derive(Clone, Copy)]
struct Part {
    offset: Option<u64>,
    length: Option<u64>,
}

impl Part {
    fn is_whole(self) -> bool {
        self.offset.is_none() && self.length.is_none()
    }
}

async fn get_one(
    session: &Session,
    client: &Client,
    path: &Path,
    part: Part,
    left: &mut u64,
) -> Result<(File, Option<Resource>), ToolError> {
    let offset = part.offset.unwrap_or(0);
    let length = (!part.is_whole()).then(|| part.length.unwrap_or(u64::MAX).min(*left));
    let reader = patience::soon(client.read(path, offset, length)).await?;
    let info = reader.info().clone();
    let mut file = File {
        path: paths::shown(&info.path),
        content: None,
        size_bytes: info.size,
        mime_type: mime_type(&info.path, None),
        offset: part.offset,
        next_offset: None,
        sha256: None,
        uri: None,
    };
    if part.is_whole() && info.size > *left {
        let uri = paths::link(session.id(), &info.path);
        let name = file.path.rsplit('/').next().unwrap_or_default().to_owned();
        let link = Resource::new(&uri, name).with_mime_type(&file.mime_type).with_size(info.size);
        file.sha256 = if info.size <= MAX_HASHED { Some(hash(reader).await?) } else { None };
        file.uri = Some(uri);
        return Ok((file, Some(link)));
    }
    let content = collect(reader, *left).await?;
    *left -= content.len() as u64;
    let end = offset.saturating_add(content.len() as u64);
    if !part.is_whole() {
        file.next_offset = (end < info.size).then_some(end);
    }
    file.mime_type = mime_type(&info.path, Some(&content));
    file.content = Some(STANDARD.encode(content));
    Ok((file, None))
}

/// All that a reader gives, but no more than this.
pub async fn collect(mut reader: FileReader, limit: u64) -> Result<Vec<u8>, ClientError> {
    let mut content = Vec::new();
    while let Some(piece) = patience::soon(reader.next()).await? {
        let room = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(content.len());
        match piece {
            Piece::Data(data) => content.extend_from_slice(&data[..data.len().min(room)]),
            Piece::Hole(length) => {
                let zeros = usize::try_from(length).unwrap_or(usize::MAX).min(room);
                content.resize(content.len() + zeros, 0);
            }
        }
        if content.len() as u64 >= limit {
            break;
        }
    }
    Ok(content)
}

async fn hash(mut reader: FileReader) -> Result<String, ClientError> {
    const ZEROS: [u8; 4096] = [0; 4096];
    let mut hash = Sha256::new();
    while let Some(piece) = patience::soon(reader.next()).await? {
        match piece {
            Piece::Data(data) => {
                hash.update(&data);
                reader.recycle(Piece::Data(data));
            }
            Piece::Hole(mut length) => {
                while length > 0 {
                    let zeros = length.min(ZEROS.len() as u64);
                    hash.update(&ZEROS[..zeros as usize]);
                    length -= zeros;
                }
            }
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// By its name; by its content where the name says nothing.
pub fn mime_type(path: &Path, content: Option<&[u8]>) -> String {
    let shown = paths::shown(path);
    match (mime_guess::from_path(&shown).first(), content) {
        (Some(known), _) => known.essence_str().to_owned(),
        (None, Some(content)) if !content.contains(&0) && std::str::from_utf8(content).is_ok() => {
            "text/plain".to_owned()
        }
        _ => "application/octet-stream".to_owned(),
    }
}
