//! Asks the npm registry of this user for a package. What it says is checked: the content must have the hash that was told,
//! and nothing may be endless.

use std::{io::Write, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use http_body_util::BodyExt;
use hyper::{Response, body::Incoming, header};
use sandbox_core::{Fetching, Progress};
use sandbox_egress::{Credential, Outward, Trust};
use serde::Deserialize;
use sha2::{Digest, Sha512};
use url::Url;

use super::{InstallError, store::is_version};
use crate::config::NpmRegistry;

/// What is said about a package.
const LARGEST_MANIFEST: usize = 4 << 20;
/// The package itself.
const LARGEST: u64 = 1 << 30;
/// A registry that says nothing for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);
const REDIRECTS: usize = 5;

/// A version of a package, as the registry describes it.
#[derive(Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Which version.
    pub version: String,
    tarball: Url,
    /// SHA-512 of its content.
    hash: Vec<u8>,
}

#[derive(Deserialize)]
struct Manifest {
    name: String,
    version: String,
    dist: Dist,
}

#[derive(Deserialize)]
struct Dist {
    tarball: String,
    integrity: Option<String>,
}

/// The registry, ready to be asked.
pub struct Registry {
    said: NpmRegistry,
    trust: Trust,
}

impl Registry {
    /// With those authorities that this machine trusts, and npm's own.
    pub fn new(said: NpmRegistry, trust: Trust) -> Result<Self, InstallError> {
        let trust = match &said.authorities {
            Some(pem) => trust.and(pem).map_err(|error| InstallError::Settings(format!("npm's `cafile`: {error}")))?,
            None => trust,
        };
        Ok(Self { said, trust })
    }

    /// What there is of a package: a version, or what a tag such as `latest` stands for.
    pub async fn look_up(&self, name: &str, version: &str) -> Result<Package, InstallError> {
        let base = self.said.address.as_str().trim_end_matches('/');
        let wrong = || InstallError::Settings(format!("there can be no package {name} {version}"));
        let address = Url::parse(&format!("{base}/{}/{version}", name.replace('/', "%2f"))).map_err(|_| wrong())?;
        let answer = self.get(&address).await?;
        let body = read_all(answer).await.map_err(|why| self.broken(&address, why))?;
        let manifest: Manifest =
            serde_json::from_slice(&body).map_err(|error| self.broken(&address, format!("no description: {error}")))?;
        manifest.check(name, version).map_err(|why| self.broken(&address, why))
    }

    /// Writes a package to a file. Fails if it is not what was described.
    pub async fn download(
        &self,
        package: &Package,
        mut file: std::fs::File,
        progress: Progress<'_>,
    ) -> Result<(), InstallError> {
        let answer = self.get(&package.tarball).await?;
        let total = answer.headers().get(header::CONTENT_LENGTH);
        let total = total.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        let broken = |why: String| self.broken(&package.tarball, why);
        if total.is_some_and(|total| total > LARGEST) {
            return Err(broken(format!("it is larger than {LARGEST} bytes")));
        }
        let (mut body, mut hash, mut done) = (answer.into_body(), Sha512::new(), 0);
        let step = format!("Fetching {} {}", package.name, package.version);
        while let Some(data) = next(&mut body).await.map_err(broken)? {
            done += data.len() as u64;
            if done > LARGEST {
                return Err(broken(format!("it is larger than {LARGEST} bytes")));
            }
            hash.update(&data);
            file.write_all(&data).map_err(InstallError::writing)?;
            progress(Fetching { step: step.clone(), done, total });
        }
        file.sync_all().map_err(InstallError::writing)?;
        match hash.finalize().as_slice() == package.hash.as_slice() {
            true => Ok(()),
            false => Err(InstallError::Hash { name: package.name.clone(), version: package.version.clone() }),
        }
    }

    /// Follows where an answer leads; the token goes to the registry alone.
    async fn get(&self, address: &Url) -> Result<Response<Incoming>, InstallError> {
        let mut address = address.clone();
        for _ in 0..REDIRECTS {
            let origin = Url::parse(&address[..url::Position::BeforePath]);
            let upstream = origin.ok().and_then(|origin| origin.as_str().parse().ok());
            let upstream = upstream.ok_or_else(|| self.broken(&address, "this is no address".to_owned()))?;
            let own = address.origin() == self.said.address.origin();
            let token = self.said.token.clone().filter(|_| own);
            let credential = token.map(|value| Credential { value, header: "authorization", before: "Bearer " });
            let outward = Outward::new(upstream, credential, || self.trust.clone())?;
            let path = &address[url::Position::BeforePath..url::Position::AfterQuery];
            let answer = tokio::time::timeout(PATIENCE, outward.get(path, &[])).await;
            let answer = answer.map_err(|_| self.broken(&address, "it did not answer in time".to_owned()))??;
            match answer.status().as_u16() {
                200 => return Ok(answer),
                404 => return Err(InstallError::NotThere(address.path().to_owned())),
                401 | 403 => return Err(InstallError::Refused(answer.status().as_u16())),
                301 | 302 | 303 | 307 | 308 => {
                    let to = answer.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
                    let to = to.and_then(|to| address.join(to).ok());
                    // What began with TLS does not go on without.
                    let to = to.filter(|to| to.scheme() == "https" || to.scheme() == address.scheme());
                    address = to.ok_or_else(|| self.broken(&address, "it leads nowhere".to_owned()))?;
                }
                other => return Err(self.broken(&address, format!("it answered {other}"))),
            }
        }
        Err(self.broken(&address, "it leads from one address to the next".to_owned()))
    }

    fn broken(&self, address: &Url, why: String) -> InstallError {
        let host = address.host_str().unwrap_or_default().to_owned();
        InstallError::Registry { host, why: why.chars().filter(|letter| !letter.is_control()).take(300).collect() }
    }
}

impl Manifest {
    fn check(self, name: &str, version: &str) -> Result<Package, String> {
        if self.name != name || !is_version(&self.version) || is_version(version) && self.version != version {
            return Err("it describes another package than was asked for".to_owned());
        }
        let hash = self.dist.integrity.as_deref().unwrap_or_default().split_whitespace();
        let hash = hash.filter_map(|hash| STANDARD.decode(hash.strip_prefix("sha512-")?).ok());
        let hash = hash.into_iter().find(|hash| hash.len() == 64).ok_or("it tells no SHA-512 of the package")?;
        let tarball = Url::parse(&self.dist.tarball).ok().filter(|url| matches!(url.scheme(), "https" | "http"));
        let tarball = tarball.ok_or("it does not tell where the package is")?;
        Ok(Package { name: self.name, version: self.version, tarball, hash })
    }
}

async fn next(body: &mut Incoming) -> Result<Option<hyper::body::Bytes>, String> {
    loop {
        let frame = tokio::time::timeout(PATIENCE, body.frame()).await.map_err(|_| "it fell silent".to_owned())?;
        match frame.transpose().map_err(|error| format!("it broke off: {error}"))? {
            None => return Ok(None),
            Some(frame) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn read_all(answer: Response<Incoming>) -> Result<Vec<u8>, String> {
    let (mut body, mut whole) = (answer.into_body(), Vec::new());
    while let Some(data) = next(&mut body).await? {
        whole.extend_from_slice(&data);
        if whole.len() > LARGEST_MANIFEST {
            return Err("its description is too long".to_owned());
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_description_that_does_not_fit_is_refused() {
        let hash = STANDARD.encode([7; 64]);
        let check = |name: &str, version: &str, dist: &str| {
            let text = format!(r#"{{"name":"{name}","version":"{version}","dist":{dist},"more":1}}"#);
            serde_json::from_str::<Manifest>(&text).unwrap().check("opencode-linux-x64", "latest")
        };
        let dist = format!(r#"{{"tarball":"https://r.example/x.tgz","integrity":"sha1-eA== sha512-{hash}"}}"#);
        assert_eq!(check("opencode-linux-x64", "1.2.3", &dist).unwrap().version, "1.2.3");
        assert!(check("another", "1.2.3", &dist).unwrap_err().contains("another package"));
        assert!(check("opencode-linux-x64", "../../x", &dist).unwrap_err().contains("another package"));
        for (dist, says) in [
            (r#"{"tarball":"https://r.example/x.tgz"}"#, "SHA-512"),
            (r#"{"tarball":"https://r.example/x.tgz","integrity":"sha512-eA=="}"#, "SHA-512"),
            (&format!(r#"{{"tarball":"file:///etc/passwd","integrity":"sha512-{hash}"}}"#), "where"),
        ] {
            assert!(check("opencode-linux-x64", "1.2.3", dist).unwrap_err().contains(says), "{dist}");
        }
    }
}
