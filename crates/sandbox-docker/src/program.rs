//! The executor's program at an engine that cannot mount files of ours: in a volume, filled once and shared by all sandboxes.

use bollard::{
    Docker,
    models::{ContainerCreateBody, HostConfig, Mount, MountType},
    query_parameters::{
        ContainerArchiveInfoOptionsBuilder, CreateContainerOptionsBuilder, UploadToContainerOptionsBuilder,
    },
};
use bytes::Bytes;
use sandbox_core::{Error, Result};
use sandbox_linux::executor_image;

use crate::{
    failure, fault, labels,
    plan::{PROGRAM, PROGRAM_FOLDER},
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
    Err(Error::Step { step: "bringing the executor to the engine".into(), why: "it is not in its volume".into() })
}

async fn is_there(docker: &Docker, container: &str) -> bool {
    let options = ContainerArchiveInfoOptionsBuilder::default().path(PROGRAM).build();
    let found = docker.get_container_archive_info(container, Some(options)).await;
    found.is_ok_and(|found| found.size == executor_image::program().len() as i64)
}

/// Through a container that is never started: its volume can be written from outside.
async fn fill(docker: &Docker, image: &str, state: &str) -> Result<()> {
    let filling = || failure::step("bringing the executor to the engine");
    let name = format!("sandbox-mcp-fill-{}", secrets::random_text(8).map_err(Error::io("choosing a name"))?);
    let mount = Mount {
        target: Some(PROGRAM_FOLDER.into()),
        source: Some(volume()),
        typ: Some(MountType::VOLUME),
        ..Mount::default()
    };
    let body = ContainerCreateBody {
        image: Some(image.to_owned()),
        entrypoint: Some(vec![PROGRAM.into()]),
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
    let options = UploadToContainerOptionsBuilder::default().path(PROGRAM_FOLDER).build();
    let archive = bollard::body_full(Bytes::from(archive("executor", executor_image::program())));
    let filled = docker.upload_to_container(&name, Some(options), archive).await.map_err(filling());
    removal::container_only(docker, &name).await?;
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
