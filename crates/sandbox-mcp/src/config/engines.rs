//! What sandboxes in containers start from: one image for all, and others for programs that are run by name.

use std::collections::BTreeMap;

use sandbox_core::{Image, Reference};

/// Images of an engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineImages {
    /// For sandboxes that name none.
    pub default: Option<Reference>,
    /// For commands that are run without a name of an image, by program.
    pub of_commands: BTreeMap<String, Reference>,
}

pub(super) const IMAGE: &str = "the name of an image, such as python:3.12-slim";
pub(super) const COMMANDS: &str = "a table of programs with the names of images, such as { node = \"node:22-slim\" }";

/// Programs, and the images that have them when nothing else is said.
const USUAL: [(&[&str], &str); 3] = [
    (&["node", "npm", "npx", "yarn", "pnpm"], "node:22-slim"),
    (&["python", "python3", "pip", "pip3", "uv", "uvx"], "python:3.12-slim"),
    (&["deno"], "denoland/deno:latest"),
];
/// For everything else.
const GENERAL: &str = "debian:stable-slim";

impl EngineImages {
    /// What a command starts from that names no image: what was set for that program, else what was set for all, else what
    /// usually has it.
    pub fn of_command(&self, argv: &[String]) -> Option<Image> {
        let program = argv.first()?.rsplit('/').next()?;
        let set = self.of_commands.get(program).or(self.default.as_ref()).cloned();
        let usual = || {
            let known = USUAL.iter().find(|(programs, _)| programs.contains(&program));
            known.map_or(GENERAL, |(_, image)| image).parse().ok()
        };
        set.or_else(usual).map(Image::Reference)
    }
}

pub(super) fn image(said: &toml::Value) -> Option<Reference> {
    said.as_str()?.parse().ok()
}

/// A table in the file; in the environment `node=node:22-slim,python=python:3.12-slim`.
pub(super) fn commands(said: &toml::Value) -> Option<BTreeMap<String, Reference>> {
    let pair = |(name, image): (&str, &str)| Some((name.trim().to_owned(), image.trim().parse().ok()?));
    match said {
        toml::Value::Table(table) => table.iter().map(|(name, image)| pair((name, image.as_str()?))).collect(),
        toml::Value::String(text) => {
            let pairs = text.split(',').filter(|part| !part.trim().is_empty());
            pairs.map(|part| pair(part.split_once('=')?)).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(images: &EngineImages, program: &str) -> String {
        images.of_command(&[program.to_owned()]).unwrap().to_string()
    }

    #[test]
    fn a_command_gets_an_image_that_has_it() {
        let none = EngineImages::default();
        assert_eq!(of(&none, "npx"), "node:22-slim");
        assert_eq!(of(&none, "/usr/bin/python3"), "python:3.12-slim");
        assert_eq!(of(&none, "uvx"), "python:3.12-slim");
        assert_eq!(of(&none, "deno"), "denoland/deno:latest");
        assert_eq!(of(&none, "ls"), "debian:stable-slim");
    }

    #[test]
    fn what_was_set_comes_first() {
        let said = toml::Value::String("node=mine/node:1, ls=busybox".into());
        let images = EngineImages { default: "base:2".parse().ok(), of_commands: commands(&said).unwrap() };
        assert_eq!(of(&images, "node"), "mine/node:1");
        assert_eq!(of(&images, "ls"), "busybox");
        assert_eq!(of(&images, "python"), "base:2");
        assert_eq!(commands(&toml::Value::String("node".into())), None);
        assert_eq!(commands(&toml::Value::Integer(1)), None);
    }
}
