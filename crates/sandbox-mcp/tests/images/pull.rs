//! Images from a registry, in every way that registries are reached.

use std::{fs, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::{
    kit::{Here, Image, file, gzip, layer, programs, zstd},
    proxy::Proxy,
    registry::{Doors, Registry, free_port, is_there},
    token,
};

/// A registry with the small image.
fn with_image(folder: &Path) -> Registry {
    let registry = Registry::start(folder, Doors::Open);
    registry.push(&Image::small(), "team/small", "1");
    registry
}

/// Tells the program who somebody is, as `docker login` does.
fn log_in(here: &Here, registry: &str, who: &str) {
    let auth = BASE64_STANDARD.encode(who);
    fs::create_dir_all(here.path().join(".docker")).unwrap();
    fs::write(here.path().join(".docker/config.json"), format!(r#"{{"auths":{{"{registry}":{{"auth":"{auth}"}}}}}}"#))
        .unwrap();
}

#[test]
fn an_image_is_fetched_when_a_sandbox_wants_it() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = with_image(here.path());
    let name = format!("{}/team/small:1", registry.host());
    assert_eq!(here.sh(&name, "cat /etc/upper; ls /emptied"), "upper\nnew\nsame\n");
    assert_eq!(here.names(), std::slice::from_ref(&name));
    // From now on it is there, registry or not.
    drop(registry);
    assert_eq!(here.sh(&name, "cat /etc/upper"), "upper\n");
    assert!(here.refused(&["pull", &name]).contains("cannot be reached"));
    assert_eq!(here.rubbish(), Vec::<String>::new());
}

#[test]
fn of_a_list_the_image_for_this_machine_is_taken_and_a_digest_is_that_image() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = Registry::start(here.path(), Doors::Open);
    let image = Image::new(&[layer(&programs()), layer(&[file("one", b"1")])], zstd);
    registry.push_list(&image, "listed", "latest");
    let told = here.ok(&["pull", &format!("{}/listed", registry.host())]);
    let digest = crate::kit::digest(&image.manifest);
    assert!(told.contains(&digest), "{told}");
    let pinned = format!("{}/listed@{digest}", registry.host());
    assert_eq!(here.sh(&pinned, "cat /one"), "1");
}

#[test]
fn a_tag_that_means_another_image_by_now_is_fetched_by_pull_only() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = with_image(here.path());
    let name = format!("{}/team/small:1", registry.host());
    here.ok(&["pull", &name]);
    let other = Image::new(&[layer(&programs()), layer(&[file("newer", b"yes")])], gzip);
    registry.push(&other, "team/small", "1");
    assert_eq!(here.sh(&name, "test -e /newer || echo as before"), "as before\n");
    here.ok(&["pull", &name]);
    assert_eq!(here.sh(&name, "cat /newer"), "yes");
    // Nothing of the old one is left: two layers and what they are together.
    assert_eq!(here.kept(), 3);
}

#[test]
fn what_a_registry_does_not_have_or_who_does_not_answer_is_said() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = with_image(here.path());
    for name in ["team/small:2", "team/other:1"] {
        let said = here.refused(&["pull", &format!("{}/{name}", registry.host())]);
        assert!(said.contains("has no image") && said.contains("Check its name"), "{said}");
    }
    let said = here.refused(&["pull", &format!("localhost:{}/x", free_port())]);
    assert!(said.contains("cannot be reached") && said.contains("docker save"), "{said}");
    let ended = here.run(&["exec", "--image", &format!("localhost:{}/x", free_port()), "--", "true"]);
    assert!(ended.code == Some(125) && ended.err.contains("docker save"), "{ended:?}");
}

#[test]
fn a_registry_that_wants_a_password_gets_the_one_that_docker_login_left() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    drop(with_image(here.path()));
    let registry = Registry::start(here.path(), Doors::Password);
    let name = format!("{}/team/small:1", registry.host());
    let said = here.refused(&["pull", &name]);
    assert!(said.contains("docker login") && said.contains("everybody"), "{said}");
    log_in(&here, &registry.host(), "me:wrong");
    assert!(here.refused(&["pull", &name]).contains("`me`"));
    log_in(&here, &registry.host(), "me:secret");
    here.ok(&["pull", &name]);
}

#[test]
fn a_token_is_fetched_where_a_registry_wants_one() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    drop(with_image(here.path()));
    let tokens = token::serve(here.path());
    let registry = Registry::start(here.path(), Doors::Token(tokens.realm, tokens.certificate));
    let name = format!("{}/team/small:1", registry.host());
    assert!(here.refused(&["pull", &name]).contains("docker login"));
    log_in(&here, &registry.host(), "you:secret");
    assert!(here.refused(&["pull", &name]).contains("`you`"));
    log_in(&here, &registry.host(), "me:secret");
    assert_eq!(here.sh(&name, "cat /etc/upper"), "upper\n");
}

#[test]
fn tls_is_spoken_with_those_whom_this_machine_trusts() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    drop(with_image(here.path()));
    let [authority, certificate, key] = ["authority.pem", "cert.pem", "key.pem"].map(|name| here.path().join(name));
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(&authority, params.self_signed(&authority_key).unwrap().pem()).unwrap();
    let server_key = KeyPair::generate().unwrap();
    let params_of_server = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    let issuer = Issuer::new(params, authority_key);
    fs::write(&certificate, params_of_server.signed_by(&server_key, &issuer).unwrap().pem()).unwrap();
    fs::write(&key, server_key.serialize_pem()).unwrap();
    let registry = Registry::start(here.path(), Doors::Tls(certificate, key));
    let name = format!("{}/team/small:1", registry.host());
    let said = here.refused(&["pull", &name]);
    assert!(said.contains("certificate"), "{said}");
    let here = here.with("SSL_CERT_FILE", authority.to_str().unwrap());
    assert_eq!(here.sh(&name, "cat /etc/upper"), "upper\n");
}

#[test]
fn mirrors_are_asked_first_and_the_registry_after_them() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = Registry::start(here.path(), Doors::Open);
    registry.push(&Image::small(), "library/mirrored", "1");
    registry.push(&Image::small(), "only/here", "1");
    let dead = free_port();
    let mirrors = format!(
        "docker.io=http://127.0.0.1:{dead},docker.io=http://127.0.0.1:{0},localhost:{0}=http://localhost:{dead}",
        registry.port
    );
    let here = here.with("SANDBOX_MCP_REGISTRY_MIRRORS", &mirrors);
    assert_eq!(here.sh("mirrored:1", "cat /etc/upper"), "upper\n");
    here.ok(&["pull", &format!("{}/only/here:1", registry.host())]);
    let bad = Here::new().with("SANDBOX_MCP_REGISTRY_MIRRORS", "docker.io=http://mirror.example");
    let said = bad.refused(&["pull", "debian"]);
    assert!(said.contains("insecure_registries"), "{said}");
}

#[test]
fn a_connection_that_breaks_is_gone_on_with() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = with_image(here.path());
    let proxy = Proxy::start(registry.port, 4, 300_000);
    let name = format!("localhost:{}/team/small:1", proxy.port);
    here.ok(&["pull", &name]);
    assert!(proxy.count("range: bytes=") + proxy.count("Range: bytes=") >= 3, "{:?}", proxy.asked.lock().unwrap());
    assert_eq!(here.sh(&name, "cat /etc/upper"), "upper\n");
    // Whoever always breaks is given up in the end, and says so.
    let proxy = Proxy::start(registry.port, usize::MAX, 0);
    let said = Here::new().refused(&["pull", &format!("localhost:{}/team/small:1", proxy.port)]);
    assert!(said.contains("cannot be reached"), "{said}");
}

#[test]
fn content_that_is_not_what_it_is_called_is_refused() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = with_image(here.path());
    let image = Image::small();
    let blob = registry.blob(&image.layers[0]);
    let mut content = fs::read(&blob).unwrap();
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&blob, content).unwrap();
    let name = format!("{}/team/small:1", registry.host());
    let said = here.refused(&["pull", &name]);
    assert!(said.contains("should be sha256:") && said.contains("Nothing of it was kept"), "{said}");
    assert!(here.names().is_empty());
    // Once it is right again, so is the image.
    fs::write(&blob, &image.layers[0]).unwrap();
    here.ok(&["pull", &name]);
}

#[test]
fn several_who_want_the_same_image_at_once_all_get_it() {
    if !is_there() {
        return;
    }
    let here = Here::new();
    let registry = with_image(here.path());
    let proxy = Proxy::start(registry.port, 0, 0);
    let name = format!("localhost:{}/team/small:1", proxy.port);
    let pulls: Vec<_> =
        (0..5).map(|_| here.command(&["pull", &name]).stderr(std::process::Stdio::null()).spawn().unwrap()).collect();
    for mut pull in pulls {
        assert!(pull.wait().unwrap().success());
    }
    assert_eq!(here.sh(&name, "cat /etc/upper"), "upper\n");
    assert_eq!((here.kept(), here.rubbish()), (3, Vec::new()));
}
