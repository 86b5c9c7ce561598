//! Programs as people have them inside: they trust the sandbox's authority and notice nothing else.

use std::process::{Command, Output};

use crate::far::{Scene, VALUE, secret};

/// Also what the strictest of today's libraries wants of a certificate.
const PYTHON: &str = "
import ssl, sys, urllib.request as r
proxy, ca, url, key = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)
context.verify_flags |= ssl.VERIFY_X509_STRICT
opener = r.build_opener(r.ProxyHandler({'https': proxy}), r.HTTPSHandler(context=context))
print(opener.open(r.Request(url, data=key.encode(), headers={'X-Key': key, 'Content-Type': 'text/plain'}), timeout=10).read().decode())
";

/// Runs a program beside the servers; nothing if there is no such program on this machine.
async fn run(mut command: Command) -> Option<Output> {
    let name = command.get_program().to_owned();
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap();
    output.inspect_err(|error| eprintln!("skipped: {} cannot be run: {error}", name.display())).ok()
}

#[tokio::test]
async fn curl_and_python_trust_the_authority_and_see_only_placeholders() {
    let scene = Scene::new(vec![secret("key", "a.example")]).await;
    let folder = tempfile::tempdir().unwrap();
    let authority = folder.path().join("authority.pem");
    std::fs::write(&authority, scene.world.engine.secrets().authority().unwrap()).unwrap();
    let (proxy, key) = (format!("http://{}", scene.world.proxy), scene.placeholder("key"));
    let address = format!("https://a.example:{}/x", scene.far.secure);
    let mut curl = Command::new("curl");
    curl.args([
        "-sS",
        "--max-time",
        "10",
        "-H",
        &format!("X-Key: {key}"),
        "-H",
        "Content-Type: text/plain",
        "-d",
        &key,
        "--proxy",
        &proxy,
        &address,
    ]);
    curl.arg("--cacert").arg(&authority).env_remove("no_proxy").env_remove("NO_PROXY");
    let mut python = Command::new("python3");
    python.args(["-c", PYTHON, &proxy]).arg(&authority).args([&address, &key]);
    python.env_remove("no_proxy").env_remove("NO_PROXY");
    for command in [curl, python] {
        let name = command.get_program().to_owned();
        let Some(output) = run(command).await else { continue };
        let (said, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name:?}: {complaint}");
        assert!(said.contains(&format!("x-key: {key}")) && !said.contains(VALUE), "{name:?}: {said}");
        assert_eq!(scene.far.seen().matches(VALUE).count(), 2, "{name:?}");
    }
}
