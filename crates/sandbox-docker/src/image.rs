//! Images of an engine: which one is meant, what is known of it, and fetching it.

use std::{collections::BTreeMap, time::Duration};

use bollard::{Docker, query_parameters::CreateImageOptionsBuilder};
use futures::StreamExt;
use sandbox_core::{Error, Fetching, Image as Wanted, Progress, Reference, Result};

use crate::{credentials, failure, fault, plan::Image};

/// A fetch during which nothing happens for so long has failed.
const SILENCE: Duration = Duration::from_secs(120);

/// The image by name.
pub fn wanted(image: &Wanted, default: Option<&Reference>) -> Result<Reference> {
    match (image, default) {
        (Wanted::Reference(name), _) | (Wanted::Host, Some(name)) => Ok(name.clone()),
        (Wanted::Host, None) => Err(Error::Invalid {
            what: "an engine cannot start a sandbox from this machine's own programs (the image `host`)".into(),
            fix: "Name an image (`--image python:3.12-slim`), or set one for all: `docker_image` in the settings, or the \
                  variable DOCKER_IMAGE. The embedded backend (`--backend linux`) has the image `host`"
                .into(),
        }),
        (Wanted::Folder(folder), _) => Err(Error::Invalid {
            what: format!("an engine cannot start a sandbox from the folder {}", folder.display()),
            fix: format!(
                "Make an image of it: `tar -C {} -c . | docker import - NAME`, then use NAME. The embedded backend \
                 (`--backend linux`) starts from folders",
                folder.display()
            ),
        }),
    }
}

/// What the engine knows of an image; fetched first where it does not know it.
pub async fn find(docker: &Docker, name: &Reference) -> Result<Image> {
    if let Some(image) = inspect(docker, name).await? {
        return Ok(image);
    }
    fetch(docker, name, &|_| {}).await?;
    let missing =
        || Error::Step { step: format!("looking for the image {name}"), why: "it was fetched and is not there".into() };
    inspect(docker, name).await?.ok_or_else(missing)
}

/// What the engine knows of an image, if it knows it.
pub async fn inspect(docker: &Docker, name: &Reference) -> Result<Option<Image>> {
    let found = match docker.inspect_image(name.as_str()).await {
        Err(error) if failure::is_missing(&error) => return Ok(None),
        other => other.map_err(failure::step(format!("looking for the image {name}")))?,
    };
    let config = found.config.unwrap_or_default();
    let id = found.id.unwrap_or_else(|| name.as_str().to_owned());
    Ok(Some(Image { id, env: config.env.unwrap_or_default(), volumes: config.volumes.unwrap_or_default() }))
}

/// Fetches it through the engine, and tells how far it is.
pub async fn fetch(docker: &Docker, name: &Reference, progress: Progress<'_>) -> Result<()> {
    check_origin(name)?;
    let options = CreateImageOptionsBuilder::default().from_image(&name.in_full()).build();
    let registry = name.registry().to_owned();
    let known = tokio::task::spawn_blocking(move || credentials::of(&registry)).await.ok().flatten();
    fault::point("before_fetch");
    let mut steps = docker.create_image(Some(options), None, known);
    let mut layers: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    loop {
        let step = match tokio::time::timeout(SILENCE, steps.next()).await {
            Err(_) => return Err(not_fetched(name, "nothing came for two minutes")),
            Ok(None) => {
                fault::point("fetched");
                return Ok(());
            }
            Ok(Some(Err(error))) if failure::is_silence(&error) => {
                return Err(failure::step(format!("fetching the image {name} through the engine, which is gone,"))(
                    error,
                ));
            }
            Ok(Some(Err(error))) => return Err(not_fetched(name, &failure::words(&error))),
            Ok(Some(Ok(step))) => step,
        };
        if let Some(why) = step.error_detail.and_then(|error| error.message) {
            return Err(not_fetched(name, &why));
        }
        if let (Some(layer), Some(detail)) = (step.id.clone(), step.progress_detail) {
            let number = |value: Option<i64>| value.and_then(|value| u64::try_from(value).ok()).unwrap_or_default();
            if number(detail.total) > 0 {
                layers.insert(layer, (number(detail.current), number(detail.total)));
            }
        }
        let (done, total) = layers.values().fold((0, 0), |(done, total), layer| (done + layer.0, total + layer.1));
        if done > 0 {
            fault::point("fetching");
        }
        let step = step.status.unwrap_or_default();
        progress(Fetching { step, done, total: (total > 0).then_some(total) });
    }
}

/// Engines would ask whoever listens on this machine's port 80 or 443 for it.
fn check_origin(name: &Reference) -> Result<()> {
    if name.registry() != "localhost" {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: format!("the engine has no image {name}"),
        why: "names that begin with `localhost/` are of images that were made there, and no registry is asked for them"
            .into(),
        fix: format!(
            "Build it: `docker build -t {name} FOLDER` (for built-in templates docs/templates.md has the whole command); or bring it: `docker save {name} > image.tar` where it is, `docker load < image.tar` here"
        ),
    })
}

fn not_fetched(name: &Reference, why: &str) -> Error {
    let lower = why.to_ascii_lowercase();
    let denied = ["unauthorized", "denied", "authentication", "no basic auth", "incorrect username"]
        .iter()
        .any(|word| lower.contains(word));
    let absent = ["not found", "manifest unknown", "does not exist"].iter().any(|word| lower.contains(word));
    let fix = if denied {
        format!("Log in first (`docker login {}`), and check the name", name.registry())
    } else if absent {
        "Check its name and tag".to_owned()
    } else {
        format!(
            "Check that the engine's machine reaches {}; or bring the image yourself: `docker save {name} > image.tar` where \
             it is, `docker load < image.tar` here",
            name.registry()
        )
    };
    Error::Unavailable { what: format!("the image {name} could not be fetched"), why: why.trim().to_owned(), fix }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_engine_asked_this_machines_port_80_for_the_image_of_a_template() {
        let told = check_origin(&"localhost/sandbox-mcp/base".parse().unwrap()).unwrap_err().to_string();
        assert!(told.contains("docker build -t localhost/sandbox-mcp/base"), "{told}");
        for image in ["localhost:5000/base", "127.0.0.1:5000/base", "debian", "localhost.example.com/base"] {
            assert!(check_origin(&image.parse().unwrap()).is_ok(), "{image}");
        }
    }
}
