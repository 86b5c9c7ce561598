//! A small server of tokens, as big registries have one: for a name and a password it gives a signed word that the
//! registry believes.

use std::{
    io::{Read, Write},
    net::TcpListener,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_STANDARD, prelude::BASE64_URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, KeyPair};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair},
};
use serde_json::{Value, json};

/// Who gives tokens.
pub struct Tokens {
    pub realm: String,
    /// With which a registry knows its words.
    pub certificate: PathBuf,
}

/// `me:secret` may read everything, `you:secret` nothing.
pub fn serve(folder: &Path) -> Tokens {
    let key = KeyPair::generate().unwrap();
    let signed = CertificateParams::new(vec!["tokens".to_owned()]).unwrap().self_signed(&key).unwrap();
    let certificate = folder.join("tokens.pem");
    std::fs::write(&certificate, signed.pem()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let realm = format!("http://{}/token", listener.local_addr().unwrap());
    let (der, chain) = (key.serialize_der(), BASE64_STANDARD.encode(signed.der()));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut request = vec![0; 64 << 10];
            let length = stream.read(&mut request).unwrap_or(0);
            let answer = answer(&String::from_utf8_lossy(&request[..length]), &der, &chain);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    Tokens { realm, certificate }
}

fn answer(request: &str, key: &[u8], chain: &str) -> String {
    let authorization = |user: &str| request.contains(&format!("Basic {}", BASE64_STANDARD.encode(user)));
    let (me, you) = (authorization("me:secret"), authorization("you:secret"));
    if !me && !you {
        return "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_owned();
    }
    let url = url::Url::parse(&format!("http://x{}", request.split(' ').nth(1).unwrap_or("/"))).unwrap();
    let get = |name: &str| url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
    let scope = get("scope").unwrap_or_default();
    let mut parts = scope.split(':');
    let (kind, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let access = if me { json!([{"type": kind, "name": name, "actions": ["pull"]}]) } else { json!([]) };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let claims = json!({
        "iss": "the test", "aud": get("service"), "sub": "me", "jti": "1",
        "nbf": now - 10, "iat": now - 10, "exp": now + 300, "access": access,
    });
    let token = json!({"token": sign(&claims, key, chain)}).to_string();
    let length = token.len();
    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{token}")
}

fn sign(claims: &Value, key: &[u8], chain: &str) -> String {
    let head = json!({"typ": "JWT", "alg": "ES256", "x5c": [chain]});
    let [head, claims] = [&head, claims].map(|value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string()));
    let message = format!("{head}.{claims}");
    let random = SystemRandom::new();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key, &random).unwrap();
    let signature = key.sign(&random, message.as_bytes()).unwrap();
    format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature.as_ref()))
}
