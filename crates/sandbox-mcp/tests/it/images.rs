//! What a model may name as an image or a policy: what the operator allowed, and nothing else.

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::harness::{Era, start, start_with};

/// A small root file system made of a static busybox, where an ordinary user's sandbox reaches it.
fn image(folder: &Path) -> PathBuf {
    let image = folder.canonicalize().unwrap().join("image");
    for name in ["bin", "etc", "opt"] {
        std::fs::create_dir_all(image.join(name)).unwrap();
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists());
    std::fs::copy(busybox.expect("install the package busybox-static"), image.join("bin/busybox")).unwrap();
    for name in ["sh", "cat", "echo"] {
        symlink("busybox", image.join("bin").join(name)).unwrap();
    }
    std::fs::write(image.join("etc/sign"), "of the image\n").unwrap();
    image
}

#[tokio::test]
async fn an_image_that_the_operator_did_not_allow_is_refused() {
    let client = start().await;
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("key"), "secret").unwrap();
    for image in [home.path().to_str().unwrap(), "/", "/etc", "/proc/self/root", "/missing"] {
        for tool in ["create_sandbox", "create_container_environment"] {
            let text = client.refused(tool, json!({"image": image, "policy": "yolo-4"})).await;
            assert!(text.contains("not allowed") && text.contains("SANDBOX_MCP_ALLOWED_IMAGES"), "{text}");
        }
    }
    let text = client.refused("execute_task", json!({"task": "look", "image": "/etc"})).await;
    assert!(text.contains("not allowed"), "{text}");
    assert_eq!(client.ok("get_sandbox_status", json!({})).await["sandboxes"], json!([]));
}

#[tokio::test]
async fn an_image_that_the_operator_allowed_works_and_its_neighbours_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let image = image(folder.path());
    let listed = format!("/usr/share:{}", image.display());
    let client = start_with(Era::Legacy, &[("SANDBOX_MCP_ALLOWED_IMAGES", &listed)]).await;
    let session = client.sandbox_with(json!({"image": image, "policy": "yolo-4"})).await;
    assert_eq!(client.output(&session, "cat /etc/sign").await, "of the image\n");
    for other in [folder.path(), &image.join("etc"), &image.join("..")] {
        let text = client.refused("create_sandbox", json!({"image": other, "policy": "yolo-4"})).await;
        assert!(text.contains("not allowed") && text.contains(image.to_str().unwrap()), "{text}");
    }
}

#[tokio::test]
async fn level_4_works_on_this_machines_own_programs() {
    let client = start_with(Era::Legacy, &[]).await;
    let session = client.sandbox_with(json!({"policy": "yolo-4"})).await;
    // What such sandboxes stand on takes seconds to make, once; a task would answer before.
    assert_eq!(client.ok("execute_task", json!({"task": "look", "yolo_level": 4})).await["status"], "completed");
    assert_eq!(
        client.output(&session, "echo mine > /usr/bin/mine && rm /usr/bin/tac && cat /usr/bin/mine").await,
        "mine\n"
    );
}

#[tokio::test]
async fn a_policy_that_the_operator_did_not_allow_is_refused() {
    let allowed = [("SANDBOX_MCP_ALLOWED_POLICIES", "yolo-1,yolo-2"), ("SANDBOX_MCP_DEFAULT_POLICY", "yolo-1")];
    let client = start_with(Era::Legacy, &allowed).await;
    let text = client.refused("create_sandbox", json!({"policy": "yolo-3"})).await;
    assert!(text.contains("not allowed") && text.contains("yolo-1, yolo-2"), "{text}");
    let text = client.refused("execute_task", json!({"task": "look", "yolo_level": 3})).await;
    assert!(text.contains("not allowed"), "{text}");
    let made = client.ok("create_sandbox", json!({})).await;
    assert_eq!(made["policy"], "yolo-1");
    assert_eq!(client.ok("execute_task", json!({"task": "look", "yolo_level": 2})).await["status"], "completed");
}
