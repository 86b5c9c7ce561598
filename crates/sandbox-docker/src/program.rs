//! The executor's program at an engine that cannot mount files of ours: in a volume, filled once and shared by all sandboxes.
//! It is root's first process in each of them, so it is compared byte by byte before a container starts.

use std::io;

use bollard::{
    Docker,
    models::{ContainerCreateBody, HostConfig, Mount, MountType},
    query_parameters::{
        CreateContainerOptionsBuilder, DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder,
    },
};
use bytes::Bytes;
use futures::TryStreamExt;
use sandbox_core::{Error, Result};
use sandbox_linux::executor_image;
use tokio_util::io::StreamReader;

use crate::{
    failure, fault, labels, listing,
    plan::{self, PROGRAM},
    removal, secrets,
};

/// The volume with this version of it.
pub fn volume() -> String {
    format!("sandbox-mcp-program-{}", executor_image::HASH)
}

/// Sees to it that a container that was made, and not started, has the whole program.
pub async fn provide(docker: &Docker, container: &str, image: &str, state: &str) -> Result<()> {
    if is_there(docker, container).await {
        return Ok(());
    }
    fill(docker, image, state).await?;
    if is_there(docker, container).await {
        return Ok(());
    }
    let volume = volume();
    Err(Error::Unavailable {
        what: "the executor could not be brought to the engine".into(),
        why: format!("what is in the volume {volume} is something else"),
        fix: format!("Remove that volume: `docker volume rm {volume}`"),
    })
}

async fn is_there(docker: &Docker, container: &str) -> bool {
    let program = executor_image::program();
    let options = DownloadFromContainerOptionsBuilder::default().path(&plan::program(container)).build();
    let archive = docker.download_from_container(container, Some(options)).map_err(io::Error::other);
    let found = listing::file(StreamReader::new(archive), program.len()).await;
    found.is_ok_and(|found| found.is_some_and(|content| content == program))
}

/// Through a container that is never started: its volume can be written from outside.
async fn fill(docker: &Docker, image: &str, state: &str) -> Result<()> {
    let filling = || failure::step("bringing the executor to the engine");
    let name = format!("sandbox-mcp-fill-{}", secrets::random_text(8).map_err(Error::io("choosing a name"))?);
    let folder = plan::our_folder(&name);
    let mount = Mount {
        target: Some(folder.clone()),
        source: Some(volume()),
        typ: Some(MountType::VOLUME),
        volume_options: Some(plan::never_filled()),
        ..Mount::default()
    };
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![plan::program(&name)]),
        labels: Some(labels::of_nobody(state)),
        host_config: Some(HostConfig {
            mounts: Some(vec![mount]),
            network_mode: Some("none".into()),
            ..HostConfig::default()
        }),
        ..ContainerCreateBody::default()
    };
    let options = CreateContainerOptionsBuilder::default().name(&name).build();
    docker.create_container(Some(options), body).await.map_err(filling())?;
    fault::point("filling");
    let options = UploadToContainerOptionsBuilder::default().path(&folder).build();
    let archive = bollard::body_full(Bytes::from(archive(PROGRAM, executor_image::program())));
    let filled = docker.upload_to_container(&name, Some(options), archive).await.map_err(filling());
    removal::container(docker, &name).await?;
    filled
}

/// One file that may be executed, as an archive; see tar(5).
fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000555");
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let padding = content.len().next_multiple_of(512) - content.len();
    [&header[..], content, &vec![0; padding + 1024]].concat()
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn an_archive_is_one_that_others_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut tar = Command::new("tar").arg("-x").current_dir(&folder).stdin(Stdio::piped()).spawn().expect("tar");
        tar.stdin.take().expect("its input").write_all(&archive("executor", b"content")).expect("written");
        assert!(tar.wait().expect("ended").success());
        assert_eq!(std::fs::read(folder.path().join("executor")).expect("the file"), b"content");
    }
}
