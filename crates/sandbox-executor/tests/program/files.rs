//! Files in and out.

use std::{
    fs::File,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    },
    sync::Arc,
};

use sandbox_core::exec::Exec;
use sandbox_executor::{
    client::{Client, ClientError},
    protocol::{DATA_FRAME, FileKind, NewFile, Path, Reason},
    transfer::Piece,
};

use crate::harness::{Carrier, Program, on_both, reason};

async fn write(client: &Client, path: &[u8], content: &[u8]) -> Result<(), ClientError> {
    let mut writer = client.write().await?;
    writer.begin(&NewFile { path: path.into(), mode: None }).await?;
    writer.data(content).await?;
    writer.finish().await
}

async fn read(client: &Client, path: &[u8]) -> Result<Vec<u8>, ClientError> {
    read_part(client, path, 0, None).await
}

async fn read_part(client: &Client, path: &[u8], offset: u64, length: Option<u64>) -> Result<Vec<u8>, ClientError> {
    let mut reader = client.read(&path.into(), offset, length).await?;
    let mut content = Vec::new();
    while let Some(piece) = reader.next().await? {
        match piece {
            Piece::Data(data) => content.extend(data),
            Piece::Hole(length) => content.resize(content.len() + length as usize, 0),
        }
    }
    Ok(content)
}

#[tokio::test]
async fn content_modes_and_names_survive() {
    on_both(async |program| {
        let client = &program.client;
        let binary: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
        let mut writer = client.write().await.unwrap();
        for (name, mode) in [(&b"deep/er/run.sh"[..], Some(0o6755)), (b"\xff\xfe", None), (b"deep/secret", Some(0o600))]
        {
            writer.begin(&NewFile { path: name.into(), mode }).await.unwrap();
            writer.data(&binary).await.unwrap();
            writer.finish().await.unwrap();
            assert!(read(client, name).await.unwrap() == binary);
        }
        let mode =
            |name: &str| std::fs::metadata(program.workspace().join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("deep/er/run.sh"), mode("deep/secret")), (0o755, 0o600), "never setuid");
        assert_eq!(read_part(client, b"deep/secret", 4, Some(4)).await.unwrap(), 1u32.to_le_bytes());
        assert_eq!(read_part(client, b"deep/secret", 12_000_000 - 2, None).await.unwrap().len(), 2);
        assert_eq!(read_part(client, b"deep/secret", 99_000_000, None).await.unwrap().len(), 0);
        let info = client.stat(&b"deep/er".into()).await.unwrap();
        assert_eq!((info.kind, info.path.0.ends_with(b"/workspace/deep/er")), (FileKind::Folder, true));
        let left: Vec<_> =
            std::fs::read_dir(program.workspace()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left.len(), 2, "no temporary file is left: {left:?}");
    })
    .await;
}

#[tokio::test]
async fn holes_stay_holes() {
    on_both(async |program| {
        let client = &program.client;
        let mut writer = client.write().await.unwrap();
        writer.begin(&NewFile { path: b"sparse".into(), mode: None }).await.unwrap();
        writer.data(b"begin").await.unwrap();
        writer.hole(5 << 30).await.unwrap();
        writer.data(b"middle").await.unwrap();
        writer.hole(1 << 20).await.unwrap();
        writer.finish().await.unwrap();
        let metadata = std::fs::metadata(program.workspace().join("sparse")).unwrap();
        assert_eq!(metadata.size(), (5 << 30) + (1 << 20) + 11);
        assert!(metadata.blocks() * 512 < 1 << 20);
        let mut reader = client.read(&b"sparse".into(), 0, None).await.unwrap();
        let (mut data, mut holes, mut all) = (0, 0u64, Vec::new());
        while let Some(piece) = reader.next().await.unwrap() {
            match piece {
                Piece::Data(content) => {
                    data += content.len() as u64;
                    all.extend(content.into_iter().filter(|&byte| byte != 0));
                }
                Piece::Hole(length) => holes += length,
            }
        }
        assert_eq!(data + holes, metadata.size());
        assert!(data < 1 << 20);
        assert_eq!(all, b"beginmiddle");
    })
    .await;
}

/// Takes a file out into another one.
async fn copy_out(client: &Client, path: &[u8], to: &std::path::Path) -> Result<(), ClientError> {
    let file = Arc::new(File::create(to).unwrap());
    let mut reader = client.read(&path.into(), 0, None).await?;
    while let Some(load) = reader.next_load().await? {
        reader.reuse(load.write_to(&file).await.unwrap());
    }
    assert!(reader.next_load().await?.is_none(), "the end stays the end");
    Ok(())
}

#[tokio::test]
async fn copies_outside_are_the_same_as_inside() {
    on_both(async |program| {
        let (client, workspace, outside) =
            (&program.client, program.workspace(), program.folder.path().join("outside"));
        let noise: Vec<u8> = (0..5_000_003u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let sizes = [0, 1, 4096, 65_535, 65_536, DATA_FRAME - 1, DATA_FRAME, DATA_FRAME + 1, 1 << 20, noise.len()];
        for size in sizes {
            std::fs::write(workspace.join("plain"), &noise[..size]).unwrap();
            copy_out(client, b"plain", &outside).await.unwrap();
            assert!(std::fs::read(&outside).unwrap() == noise[..size], "{size} bytes");
        }
        let sparse = File::create(workspace.join("sparse")).unwrap();
        for offset in [0, 1 << 20, (1 << 20) + 300_000, 64 << 20] {
            sparse.write_all_at(&noise[..200_001], offset).unwrap();
        }
        sparse.set_len(100 << 20).unwrap();
        copy_out(client, b"sparse", &outside).await.unwrap();
        assert!(std::fs::read(&outside).unwrap() == std::fs::read(workspace.join("sparse")).unwrap());
        assert!(outside.metadata().unwrap().blocks() * 512 < 2 << 20, "holes stay holes");
        File::create(workspace.join("hole")).unwrap().set_len(5 << 30).unwrap();
        copy_out(client, b"hole", &outside).await.unwrap();
        let metadata = outside.metadata().unwrap();
        assert_eq!((metadata.len(), metadata.blocks()), (5 << 30, 0));
    })
    .await;
}

#[tokio::test]
async fn a_file_that_shrinks_while_it_is_read_ends_early() {
    on_both(async |program| {
        let path = program.workspace().join("shrinks");
        std::fs::write(&path, vec![7; 32 << 20]).unwrap();
        let file = Arc::new(tempfile::tempfile().unwrap());
        let mut reader = program.client.read(&b"shrinks".into(), 0, None).await.unwrap();
        while let Some(load) = reader.next_load().await.unwrap() {
            File::options().write(true).open(&path).unwrap().set_len(100_000).unwrap();
            reader.reuse(load.write_to(&file).await.unwrap());
        }
        assert!(file.metadata().unwrap().len() < 32 << 20);
    })
    .await;
}

#[tokio::test]
async fn links_never_lead_out() {
    on_both(async |program| {
        let (client, workspace) = (&program.client, program.workspace());
        write(client, b"folder/inside", b"ours").await.unwrap();
        symlink("/etc/passwd", workspace.join("absolute")).unwrap();
        symlink("../../../../../etc/passwd", workspace.join("relative")).unwrap();
        symlink("/etc", workspace.join("ancestor")).unwrap();
        symlink("/no/where", workspace.join("dangling")).unwrap();
        symlink("folder/nothing", workspace.join("broken")).unwrap();
        symlink("folder/inside", workspace.join("good")).unwrap();
        symlink(workspace.join("folder"), workspace.join("whole")).unwrap();
        symlink("circle", workspace.join("circle")).unwrap();
        symlink("/proc/self/fd/0", workspace.join("magic")).unwrap();
        for path in [&b"absolute"[..], b"relative", b"ancestor/passwd", b"dangling", b"magic", b"circle"] {
            assert_eq!(reason(read(client, path).await), Reason::OutsidePlaces, "{}", path.escape_ascii());
        }
        for path in [&b"../x"[..], b"/etc/passwd", b"folder/../../x"] {
            assert_eq!(reason(read(client, path).await), Reason::OutsidePlaces);
            assert_eq!(reason(write(client, path, b"x").await), Reason::OutsidePlaces);
            assert_eq!(reason(client.remove(&path.into()).await), Reason::OutsidePlaces);
            assert_eq!(reason(client.list(&path.into(), 1, 10).await), Reason::OutsidePlaces);
            assert_eq!(reason(client.stat(&path.into()).await), Reason::OutsidePlaces);
            assert_eq!(reason(client.make_folder(&path.into()).await), Reason::OutsidePlaces);
            assert_eq!(reason(client.rename(&b"good".into(), &path.into()).await), Reason::OutsidePlaces);
        }
        assert_eq!(reason(write(client, b"ancestor/new", b"x").await), Reason::OutsidePlaces);
        assert_eq!(reason(read(client, b"broken").await), Reason::NotFound);
        assert_eq!(read(client, b"good").await.unwrap(), b"ours");
        assert_eq!(read(client, b"whole/inside").await.unwrap(), b"ours", "an absolute link that stays inside");
        assert_eq!(client.stat(&b"absolute".into()).await.unwrap().kind, FileKind::Link);
        write(client, b"absolute", b"replaced").await.unwrap();
        assert_eq!(std::fs::read(workspace.join("absolute")).unwrap(), b"replaced", "the link itself is replaced");
        client.remove(&b"ancestor".into()).await.unwrap();
        assert!(std::path::Path::new("/etc/passwd").exists());
    })
    .await;
}

#[tokio::test]
async fn only_regular_files_are_read_and_bad_names_refused() {
    on_both(async |program| {
        let client = &program.client;
        program.run("mkfifo fifo; mkdir folder; ln -s /dev/zero zero").await;
        assert_eq!(reason(read(client, b"fifo").await), Reason::WrongKind);
        assert_eq!(reason(read(client, b"folder").await), Reason::WrongKind);
        assert_eq!(reason(read(client, b"zero").await), Reason::OutsidePlaces);
        assert_eq!(reason(write(client, b"folder", b"x").await), Reason::WrongKind);
        assert_eq!(reason(write(client, b"fifo/x", b"x").await), Reason::WrongKind);
        assert_eq!(reason(write(client, &[b'n'; 300], b"x").await), Reason::Invalid);
        assert_eq!(reason(write(client, &[b'n'; 4096], b"x").await), Reason::Invalid);
        assert_eq!(reason(write(client, b"nul\0", b"x").await), Reason::Invalid);
        assert_eq!(reason(write(client, b"", b"x").await), Reason::Invalid);
        assert_eq!(reason(client.remove(&b".".into()).await), Reason::Invalid);
        assert_eq!(reason(read(client, b"missing").await), Reason::NotFound);
    })
    .await;
}

#[tokio::test]
async fn one_refused_file_does_not_stop_the_next() {
    on_both(async |program| {
        let mut writer = program.client.write().await.unwrap();
        for (path, fine) in [(&b"a"[..], true), (b"../b", false), (b"c", true)] {
            writer.begin(&NewFile { path: path.into(), mode: None }).await.unwrap();
            writer.data(&vec![1; 600_000]).await.unwrap();
            assert_eq!(writer.finish().await.is_ok(), fine);
        }
        // A file that is never finished leaves nothing.
        writer.begin(&NewFile { path: b"half".into(), mode: None }).await.unwrap();
        writer.data(b"half").await.unwrap();
        drop(writer);
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        let names = program.client.list(&b".".into(), 1, 10).await.unwrap().entries;
        assert_eq!(names.iter().map(|entry| entry.path.0.clone()).collect::<Vec<_>>(), [b"a", b"c"]);
    })
    .await;
}

#[tokio::test]
async fn a_file_may_not_be_larger_than_allowed() {
    let program = Program::start(Carrier::Local, |boot| boot.file_size = Some(sandbox_core::Bytes::mib(1))).await;
    assert_eq!(reason(write(&program.client, b"big", &vec![0; 2 << 20]).await), Reason::Full);
    write(&program.client, b"small", &vec![0; 1 << 20]).await.unwrap();
}

#[tokio::test]
async fn listings_are_ordered_limited_and_follow_no_link() {
    on_both(async |program| {
        let (client, workspace) = (&program.client, program.workspace());
        for folder in ["b", "a", "a/c"] {
            std::fs::create_dir(workspace.join(folder)).unwrap();
            for number in 0..400 {
                std::fs::write(workspace.join(folder).join(format!("{number:03}")), "x").unwrap();
            }
        }
        std::fs::write(workspace.join(std::ffi::OsStr::from_bytes(b"z\xff")), "").unwrap();
        symlink("/etc", workspace.join("link")).unwrap();
        let names = |listing: &sandbox_executor::client::Listing| -> Vec<Vec<u8>> {
            listing.entries.iter().map(|entry| entry.path.0.clone()).collect()
        };
        let here = Path::from(b".");
        let top = client.list(&here, 1, 100).await.unwrap();
        assert_eq!(
            (names(&top), top.truncated),
            (vec![b"a".to_vec(), b"b".into(), b"link".into(), b"z\xff".into()], false)
        );
        let all = client.list(&here, 9, 10_000).await.unwrap();
        assert_eq!((all.entries.len(), all.truncated), (4 + 3 * 400 + 1, false));
        assert_eq!(names(&all)[4], b"a/000");
        assert_eq!(names(&all).last().unwrap(), b"a/c/399");
        let some = client.list(&here, 9, 500).await.unwrap();
        assert_eq!((some.entries.len(), some.truncated), (500, true));
        assert_eq!(names(&some), names(&all)[..500]);
        assert_eq!(client.list(&b"a/c".into(), 1, 1).await.unwrap().entries.len(), 1);
        assert_eq!(client.list(&here, 1, 0).await.unwrap().entries.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn folders_are_made_moved_and_removed() {
    on_both(async |program| {
        let (client, workspace) = (&program.client, program.workspace());
        client.make_folder(&b"x/y/z".into()).await.unwrap();
        client.make_folder(&b"x/y/z".into()).await.unwrap();
        write(client, b"x/file", b"1").await.unwrap();
        client.rename(&b"x/file".into(), &b"x/y/moved".into()).await.unwrap();
        assert_eq!(read(client, b"x/y/moved").await.unwrap(), b"1");
        // Very deep, closed folders, and a link out.
        let script = "cd x; ln -s /etc out; mkdir closed; touch closed/in; chmod 0 closed; \
                      mkdir -p $(printf 'dd/%.0s' $(seq 500)); touch $(printf 'dd/%.0s' $(seq 400))f";
        let outcome = program.run(script).await;
        assert!(outcome.stderr.is_empty(), "{}", String::from_utf8_lossy(&outcome.stderr));
        client.remove(&b"x".into()).await.unwrap();
        assert_eq!(std::fs::read_dir(workspace).unwrap().count(), 0);
        assert!(std::path::Path::new("/etc/passwd").exists());
        assert_eq!(reason(client.remove(&b"x".into()).await), Reason::NotFound);
    })
    .await;
}

#[tokio::test]
async fn many_files_go_in_on_one_flow() {
    let program = Program::start(Carrier::Local, |_| {}).await;
    let mut writer = program.client.write().await.unwrap();
    for number in 0..2_000 {
        let path = format!("many/{number}");
        writer.begin(&NewFile { path: path.as_bytes().into(), mode: None }).await.unwrap();
        writer.data(b"content").await.unwrap();
        writer.finish().await.unwrap();
    }
    let listing = program.client.list(&b"many".into(), 1, 20_000).await.unwrap();
    assert_eq!((listing.entries.len(), listing.truncated), (2_000, false));
    assert_eq!(program.exec(&Exec::shell("cat many/1999")).await.text(), "content");
}
