//! Kinds of sandboxes by name: an image, and what else belongs to it. Some are built in; the operator adds others, or puts
//! other images in their place, in the table `[templates.NAME]` of the settings file.
//!
//! Images of built-in templates are made on this machine from `docker/`. Their names begin with `localhost/`, so that no
//! registry of anybody else can ever be asked for them.

use std::collections::BTreeMap;

use sandbox_core::{Error, Image, Reference};
use serde::Deserialize;

use super::{ConfigError, Settings, nearest, words::in_table};
use crate::sandboxes::check_env;

/// One kind of sandbox.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// What it is called.
    pub name: String,
    /// What its sandboxes start from.
    pub image: Image,
    /// What they may do when nothing else is asked for.
    pub policy: Option<String>,
    /// Where they run, if not where the others do.
    pub backend: Option<String>,
    /// What it is good for.
    pub description: String,
    /// Variables of their commands.
    pub env: BTreeMap<String, String>,
    /// The recipe of its image, in this program's repository.
    recipe: Option<&'static str>,
}

/// Those that there always are: name, recipe, what for.
const BUILT_IN: [(&str, &str, &str); 6] = [
    ("base", "sandbox", "Python with pandas, openpyxl, requests, matplotlib, Pillow; curl, jq, git"),
    ("python", "python", "Python with pip, venv, pytest, numpy, a C compiler"),
    ("node", "node", "Node.js, npm"),
    ("rust", "rust", "Rust, Cargo"),
    ("go", "go", "Go"),
    ("cpp", "cpp", "C and C++: gcc, cmake, ninja, gdb"),
];

/// One as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    image: Image,
    policy: Option<String>,
    backend: Option<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// Those that are built in.
pub(super) fn built_in() -> BTreeMap<String, Template> {
    let template = |(name, recipe, description): (&str, &'static str, &str)| {
        // What cannot be parsed here is found by a test.
        let image: Reference = format!("localhost/sandbox-mcp/{name}").parse().ok()?;
        let (image, description) = (Image::Reference(image), description.to_owned());
        let (name, env) = (name.to_owned(), BTreeMap::new());
        let template = Template { name, image, policy: None, backend: None, description, env, recipe: Some(recipe) };
        Some((template.name.clone(), template))
    };
    BUILT_IN.into_iter().filter_map(template).collect()
}

/// The table of the file, over those that are built in.
pub(super) fn read(said: &toml::Value) -> Result<BTreeMap<String, Template>, String> {
    let written: BTreeMap<String, Written> = said.clone().try_into().map_err(|error| in_table(&error, "templates"))?;
    let mut all = built_in();
    for (name, Written { image, policy, backend, description, env }) in written {
        let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if name.is_empty() || name.len() > 40 || !name.chars().all(good) {
            return Err(format!("`{name}` is no name for a template: use small letters, digits, - and _"));
        }
        check_env(&env).map_err(|error| format!("templates.{name}: {error}"))?;
        all.insert(name.clone(), Template { name, image, policy, backend, description, env, recipe: None });
    }
    Ok(all)
}

/// Policies and backends that templates name must be there.
pub(super) fn check(settings: &Settings, backends: &[&str]) -> Result<(), String> {
    for Template { name, policy, backend, .. } in settings.templates.values() {
        if let Some(Err(error)) = policy.as_ref().map(|policy| settings.policy(policy)) {
            return Err(format!("templates.{name}: {error}"));
        }
        if let Some(backend) = backend.as_ref().filter(|backend| !backends.contains(&backend.as_str())) {
            let known = backends.join(", ");
            return Err(format!("templates.{name}: there is no backend `{backend}`; use one of: {known}"));
        }
    }
    Ok(())
}

impl Settings {
    /// The template of this name.
    pub fn template(&self, name: &str) -> Result<&Template, ConfigError> {
        self.templates.get(name).ok_or_else(|| ConfigError::UnknownTemplate {
            name: name.chars().take(60).collect(),
            nearest: nearest(name, self.templates.keys().map(String::as_str)).map(str::to_owned),
            known: self.template_names(),
        })
    }

    /// All names, for people and models.
    pub fn template_names(&self) -> String {
        self.templates.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Says how to get the image of a template that is not there.
    pub fn explain_missing(&self, image: &Reference, error: Error) -> Error {
        let named = |template: &&Template| matches!(&template.image, Image::Reference(known) if known == image);
        let Some(template) = self.templates.values().find(named) else { return error };
        let Some(recipe) = template.recipe else { return error };
        let name = &template.name;
        // What its backend would do about it is another thing than what is to be done about a template.
        let why = match error {
            Error::Unavailable { what, why, .. } => format!("{what}: {why}"),
            other => other.to_string(),
        };
        Error::Unavailable {
            what: format!("the image of the template `{name}` is not there"),
            why: why.trim_end_matches('.').to_owned(),
            fix: format!(
                "Build it once, in a copy of this program's repository: `docker build -t {image} -f docker/Dockerfile.{recipe} \
                 docker`; for the embedded backend then `docker save -o {name}.tar {image}` and `sandbox-mcp pull {name}.tar \
                 --name {image}`. Or let the operator write another image: `[templates.{name}]`, `image = …` (docs/templates.md)"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Typed};
    use std::path::Path;

    fn settings(text: &str) -> Result<Settings, ConfigError> {
        let mut typed = Typed::default();
        typed.add_file(Path::new("/etc/x.toml"), text)?;
        typed.add_flags(&Flags { state: Some("/nowhere/state".into()), ..Flags::default() })?;
        Settings::from_typed(typed)
    }

    #[test]
    fn built_in_images_can_only_come_from_this_machine() {
        let templates = settings("").unwrap().templates;
        assert_eq!(templates.keys().collect::<Vec<_>>(), ["base", "cpp", "go", "node", "python", "rust"]);
        for template in templates.values() {
            let Image::Reference(image) = &template.image else { panic!("{template:?}") };
            assert_eq!(image.registry(), "localhost");
            let recipe = format!("../../docker/Dockerfile.{}", template.recipe.unwrap());
            let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe)).unwrap();
            assert!(text.contains(&format!("docker build -t {image} ")), "{text}");
        }
    }

    #[test]
    fn the_operator_adds_templates_and_replaces_built_in_ones() {
        let text = "[templates.data]\nimage = \"host\"\npolicy = \"yolo-1\"\nenv = { A = \"b\" }\n\
                    [templates.python]\nimage = \"python:3.12-slim\"\n";
        let settings = settings(text).unwrap();
        let data = settings.template("data").unwrap();
        assert_eq!((&data.image, data.policy.as_deref(), data.env["A"].as_str()), (&Image::Host, Some("yolo-1"), "b"));
        assert_eq!(settings.template("python").unwrap().image.to_string(), "python:3.12-slim");
        assert!(settings.template("rust").is_ok());
    }

    #[test]
    fn what_is_wrong_with_a_template_is_said() {
        for (text, says) in [
            ("[templates.a]\npolicy = \"yolo-1\"", "image"),
            ("[templates.a]\nimage = \"host\"\npolicy = \"yolo-33\"", "did you mean `yolo-3`"),
            ("[templates.a]\nimage = \"host\"\nbackend = \"dokcer\"", "no backend `dokcer`"),
            ("[templates.a]\nimage = \"host\"\nimgae = 1", "imgae"),
            ("[templates.A]\nimage = \"host\"", "small letters"),
            ("[templates.a]\nimage = \"host\"\nenv = { \"A=\" = \"x\" }", "no name for a variable"),
        ] {
            let refused = settings(text).unwrap_err().to_string();
            assert!(refused.contains(says) && refused.contains("/etc/x.toml"), "{text}: {refused}");
        }
        let refused = settings("").unwrap().template("pyhton").unwrap_err().to_string();
        assert!(refused.contains("did you mean `python`") && refused.contains("base, cpp, go"), "{refused}");
    }

    #[test]
    fn a_missing_image_is_told_with_how_to_make_it() {
        let settings = settings("").unwrap();
        let missing = || Error::Invalid { what: "it is not there".to_owned(), fix: String::new() };
        let told = settings.explain_missing(&"localhost/sandbox-mcp/base".parse().unwrap(), missing()).to_string();
        for part in ["template `base`", "-f docker/Dockerfile.sandbox docker`", "sandbox-mcp pull base.tar"] {
            assert!(told.contains(part), "{told}");
        }
        let other = settings.explain_missing(&"alpine".parse().unwrap(), missing()).to_string();
        assert_eq!(other, missing().to_string());
    }
}
