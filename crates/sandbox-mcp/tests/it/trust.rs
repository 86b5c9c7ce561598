//! TLS is opened for the host that a secret is for, and every tool trusts the authority of its sandbox for that, as it is.

use crate::network::{over_tls, ways};

/// A tool, the program that has to be there, and what it is told; it asks for `URL/by-NAME…`.
const TOOLS: [(&str, &str, &str); 9] = [
    (
        "requests",
        "/usr/bin/python3 -c 'import requests'",
        "/usr/bin/python3 -c \"import requests; requests.get('URL/by-requests')\"",
    ),
    ("git", "command -v git", "git ls-remote URL/by-git"),
    ("pip", "command -v pip3", "pip3 download --retries 0 --no-deps --index-url URL/by-pip nothing-of-that-name"),
    ("npm", "command -v npm", "npm view nothing-of-that-name --fetch-retries 0 --registry URL/by-npm/"),
    ("node", "node -e 'fetch'", "node -e \"fetch('URL/by-node')\""),
    (
        "cargo",
        "command -v cargo && cargo --version",
        "CARGO_HOME=/workspace/cargo CARGO_REGISTRIES_TESTS_INDEX=sparse+URL/by-cargo/ cargo search --registry tests nothing",
    ),
    (
        "apt",
        "command -v apt-get",
        "mkdir -p lists/partial && echo 'deb [trusted=yes] URL/by-apt x main' >sources.list && apt-get -o Dir::Etc::SourceList=/workspace/sources.list \
         -o Dir::Etc::SourceParts=- -o Dir::State::Lists=/workspace/lists -o Dir::Cache=/workspace -o APT::Sandbox::User= \
         -o Acquire::Retries=0 update",
    ),
    (
        "go",
        "command -v go",
        "mkdir -p m && cd m && go mod init m && GOPROXY=URL/by-go GONOSUMDB=* GOFLAGS=-mod=mod GOCACHE=/workspace/c GOPATH=/workspace/p \
         go list -m -versions example.com/x",
    ),
    (
        "openssl",
        "command -v openssl",
        "printf 'GET /by-openssl HTTP/1.0\\r\\nHost: HOST\\r\\n\\r\\n' | openssl s_client -quiet -verify_return_error -connect HOST",
    ),
];

#[tokio::test]
async fn tools_that_keep_certificates_of_their_own_trust_the_authority_of_their_sandbox() {
    let folder = tempfile::tempdir().unwrap();
    let (echo, client, session) = over_tls(folder.path()).await;
    let host = format!("host.internal:{}", echo.port);
    let mut tried = 0;
    for (tool, is_there, words) in TOOLS {
        let knows_no_proxy = tool == "node" || tool == "openssl";
        if (knows_no_proxy && ways().len() < 2) || client.run(&session, is_there).await["exit_code"] != 0 {
            continue;
        }
        tried += 1;
        let words = words.replace("URL", &format!("https://{host}")).replace("HOST", &host);
        let ran = client.run(&session, &words).await;
        assert!(echo.seen().contains(&format!("/by-{tool}")), "{tool} asked for nothing: {ran}");
    }
    assert!(tried >= 4, "only {tried} tools are here");
}
