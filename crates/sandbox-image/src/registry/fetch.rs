//! Manifests and blobs of one repository, from whichever of its endpoints answers.

use std::{
    fs::File,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use hyper::{Method, Request, Response, StatusCode, body::Incoming, header};
use sandbox_core::Reference;
use url::Url;

use super::{
    Registries,
    auth::{self, Challenge},
    credentials,
    endpoint::Endpoint,
    http::{Body, Client},
    onward::{self, Peer, Reach},
};
use crate::{
    Digest, ImageError, limits,
    manifest::{ACCEPTED, Descriptor},
};

pub use super::http::next as next_of;

/// No more redirections are followed.
const REDIRECTIONS: usize = 5;

/// A repository, wherever it is.
pub struct Repository {
    remotes: Vec<Remote>,
    /// Which of them answered last.
    answering: AtomicUsize,
}

/// A repository at one endpoint.
pub struct Remote {
    client: Client,
    endpoint: Endpoint,
    repository: String,
    image: String,
    /// What the last challenge was answered with.
    authorization: Mutex<Option<String>>,
}

impl Repository {
    /// That of an image. A registry of this machine is asked over TLS where it does not answer otherwise.
    pub fn of(image: &Reference, registries: &Registries) -> Result<Self, ImageError> {
        let client = Client::new(registries)?;
        let endpoints = Endpoint::all(image, registries)?;
        let endpoints = endpoints.into_iter().flat_map(|endpoint| {
            let over_tls = endpoint.with_tls();
            std::iter::once(endpoint).chain(over_tls)
        });
        let remotes = endpoints.map(|endpoint| Remote {
            client: client.clone(),
            endpoint,
            repository: image.repository(),
            image: image.to_string(),
            authorization: Mutex::new(None),
        });
        Ok(Self { remotes: remotes.collect(), answering: AtomicUsize::new(0) })
    }

    /// The manifest that a tag or a digest stands for.
    pub async fn manifest(&self, which: &str, expected: Option<&Descriptor>) -> Result<Vec<u8>, ImageError> {
        let digest: Option<Digest> = which.parse().ok();
        let mut last = nobody();
        for (number, remote) in self.turns() {
            match remote.manifest(which, digest.as_ref(), expected).await {
                Ok(manifest) => return Ok(self.answered(number, manifest)),
                Err(error) => last = more_telling(last, error),
            }
        }
        Err(last)
    }

    /// The rest of a blob from an offset on, or all of it; with where it begins.
    pub async fn blob(&self, digest: &Digest, offset: u64) -> Result<(Response<Incoming>, u64), ImageError> {
        let mut last = nobody();
        for (number, remote) in self.turns() {
            match remote.blob(digest, offset).await {
                Ok(answer) => return Ok(self.answered(number, answer)),
                Err(error) => last = more_telling(last, error),
            }
        }
        Err(last)
    }

    /// One after another, beginning with the one that answered last.
    fn turns(&self) -> Vec<(usize, &Remote)> {
        let first = self.answering.load(Ordering::Relaxed);
        let mut turns: Vec<_> = self.remotes.iter().enumerate().collect();
        turns.sort_by_key(|(number, _)| *number != first);
        turns
    }

    fn answered<T>(&self, number: usize, answer: T) -> T {
        self.answering.store(number, Ordering::Relaxed);
        answer
    }
}

fn nobody() -> ImageError {
    ImageError::NoSource("there is nobody to ask".into())
}

fn more_telling(before: ImageError, now: ImageError) -> ImageError {
    if telling(&now) >= telling(&before) { now } else { before }
}

/// That somebody has not got an image says more than that another cannot be reached.
fn telling(error: &ImageError) -> u8 {
    match error {
        ImageError::Unauthorized { .. } | ImageError::Malformed(_) => 2,
        ImageError::Unknown { .. } => 1,
        _ => 0,
    }
}

impl Remote {
    async fn manifest(
        &self,
        which: &str,
        digest: Option<&Digest>,
        expected: Option<&Descriptor>,
    ) -> Result<Vec<u8>, ImageError> {
        let url = self.endpoint.url(&self.repository, "manifests", which)?;
        let response = self.get(&url, &[(header::ACCEPT, ACCEPTED.to_owned())]).await?;
        self.check(&response, StatusCode::OK)?;
        let manifest = self.client.read(&url, response, limits::MANIFEST).await?;
        let found = Digest::of(&manifest);
        if let Some(digest) = digest.or(expected.map(|expected| &expected.digest))
            && found != *digest
        {
            return Err(ImageError::malformed(format!("its manifest should be {digest}, but what came is {found}")));
        }
        if expected.is_some_and(|expected| expected.size != manifest.len() as u64) {
            return Err(ImageError::malformed("its manifest has another length than the list of images says"));
        }
        Ok(manifest)
    }

    /// From `offset` on where the registry can, else from the beginning; the answer comes with where it starts.
    async fn blob(&self, digest: &Digest, offset: u64) -> Result<(Response<Incoming>, u64), ImageError> {
        let url = self.endpoint.url(&self.repository, "blobs", &digest.to_string())?;
        let range = (offset > 0).then(|| (header::RANGE, format!("bytes={offset}-")));
        let response = self.get(&url, range.as_slice()).await?;
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let start = format!("bytes {offset}-");
                let said = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
                if offset == 0 || !said.is_some_and(|said| said.starts_with(&start)) {
                    return Err(self.strange("a part that was not asked for".into()));
                }
                Ok((response, offset))
            }
            // Nothing after what is there already: what is there must be wrong, so all of it again.
            StatusCode::RANGE_NOT_SATISFIABLE if offset > 0 => Box::pin(self.blob(digest, 0)).await,
            _ => {
                self.check(&response, StatusCode::OK)?;
                Ok((response, 0))
            }
        }
    }

    /// Asks, answers a challenge once, and follows redirections.
    async fn get(&self, url: &Url, headers: &[(header::HeaderName, String)]) -> Result<Response<Incoming>, ImageError> {
        let known = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let response = self.follow(url, headers, known.as_deref()).await?;
        if response.status() != StatusCode::UNAUTHORIZED {
            return Ok(response);
        }
        let asked: Vec<&str> = response
            .headers()
            .get_all(header::WWW_AUTHENTICATE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        let credentials = credentials::find(&self.endpoint.registry, &self.repository);
        let Some(challenge) = Challenge::parse(&asked) else { return Err(self.unauthorized(credentials.as_ref())) };
        let answer =
            auth::answer(&self.client, (url, Peer::of(&response)), &challenge, credentials.as_ref(), &self.repository)
                .await?;
        let Some(answer) = answer else { return Err(self.unauthorized(credentials.as_ref())) };
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer.clone());
        let response = self.follow(url, headers, Some(&answer)).await?;
        if matches!(response.status(), StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Err(self.unauthorized(credentials.as_ref()));
        }
        Ok(response)
    }

    /// Credentials are for the registry, not for whom it sends us to.
    async fn follow(
        &self,
        url: &Url,
        headers: &[(header::HeaderName, String)],
        authorization: Option<&str>,
    ) -> Result<Response<Incoming>, ImageError> {
        let (mut here, mut reach) = (url.clone(), Reach::Any);
        for _ in 0..=REDIRECTIONS {
            let mut request = Request::builder().method(Method::GET);
            for (name, value) in headers {
                request = request.header(name, value);
            }
            let same = (here.scheme(), here.host_str(), here.port()) == (url.scheme(), url.host_str(), url.port());
            if let Some(value) = authorization.filter(|_| same) {
                request = request.header(header::AUTHORIZATION, value);
            }
            let request = request.body(Body::default()).map_err(|error| self.strange(error.to_string()))?;
            let response = self.client.send(&here, reach, request).await?;
            if !response.status().is_redirection() {
                return Ok(response);
            }
            let to = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let to =
                to.and_then(|to| here.join(to).ok()).ok_or_else(|| self.strange("a redirection to nowhere".into()))?;
            let refused = |why| self.strange(format!("a redirection to {why}; it is not followed"));
            reach = onward::allowed(&here, Peer::of(&response), &to).map_err(refused)?;
            here = to;
        }
        Err(self.strange("one redirection after another".into()))
    }

    fn check(&self, response: &Response<Incoming>, wanted: StatusCode) -> Result<(), ImageError> {
        match response.status() {
            status if status == wanted => Ok(()),
            StatusCode::NOT_FOUND => {
                Err(ImageError::Unknown { image: self.image.clone(), registry: self.endpoint.registry.clone() })
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                Err(self.unauthorized(credentials::find(&self.endpoint.registry, &self.repository).as_ref()))
            }
            StatusCode::TOO_MANY_REQUESTS => Err(self.strange("that there were too many requests from here".into())),
            status => Err(self.strange(status.to_string())),
        }
    }

    fn unauthorized(&self, credentials: Option<&credentials::Credentials>) -> ImageError {
        let registry = self.endpoint.registry.clone();
        let why = match credentials {
            Some(_) => "it does not accept this name and password for it, or has no such image",
            None if credentials::has_helper(&registry) => {
                "the password is kept by a credential helper, which is not asked; `auths` in the file is read"
            }
            None => "it wants a name and a password, or has no such image",
        };
        let who = credentials.map_or_else(|| "everybody".to_owned(), credentials::Credentials::who);
        ImageError::Unauthorized { image: self.image.clone(), registry, who, why: why.into() }
    }

    fn strange(&self, why: String) -> ImageError {
        ImageError::Answer { registry: self.endpoint.registry.clone(), why }
    }
}

/// Writes an answer to a file from where it is, at most so many bytes. Says what it was cut by, if it was.
pub async fn save(
    response: Response<Incoming>,
    file: &mut File,
    most: u64,
    took: &mut (dyn FnMut(&[u8]) -> Result<(), ImageError> + Send),
) -> Result<Option<String>, ImageError> {
    use std::io::Write;
    let mut body = response.into_body();
    let mut saved = 0;
    while let Some(more) = next_of(&mut body).await {
        let more = match more {
            Ok(more) => more,
            Err(why) => return Ok(Some(why)),
        };
        saved += more.len() as u64;
        if saved > most {
            return Err(ImageError::malformed("a layer is longer than its manifest says"));
        }
        file.write_all(&more).map_err(ImageError::io("writing what comes from the registry"))?;
        took(&more)?;
        crate::faults::reach("downloading");
    }
    Ok(None)
}
