//! What a model may ask for. A person at the terminal names any folder as an image; a model names only those that the
//! operator listed, because an image shows files of this machine.

use std::{
    collections::BTreeSet,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use sandbox_core::{Image, Policy, policy::PRESETS};

use super::{ConfigError, Settings};

/// A model asked for more than it may have.
#[derive(Debug, thiserror::Error)]
pub enum NotAllowed {
    /// The operator did not list this image.
    #[error(
        "the image `{asked}` is not allowed. Leave it out, or use one of: {allowed}. The operator of this server allows \
         it by adding its name, or a folder's absolute path, to allowed_images in the settings file, or to \
         SANDBOX_MCP_ALLOWED_IMAGES"
    )]
    Image {
        /// The image as asked for.
        asked: String,
        /// Those that may be asked for.
        allowed: String,
    },
    /// The operator did not list this policy.
    #[error(
        "the policy `{asked}` is not allowed. Leave it out, or use one of: {allowed}. The operator of this server allows \
         a policy by adding it to allowed_policies in the settings file, or to SANDBOX_MCP_ALLOWED_POLICIES"
    )]
    Policy {
        /// The name as asked for.
        asked: String,
        /// Those that may be asked for.
        allowed: String,
    },
    /// There is no such policy.
    #[error(transparent)]
    UnknownPolicy(#[from] ConfigError),
    /// This is no image.
    #[error("{0}")]
    NoImage(String),
}

/// Images that are named in a refusal.
const NAMED: usize = 20;

impl Settings {
    /// The image that a model asks for, if it may have it; the operator's default if it names none.
    pub fn image_for_model(&self, asked: Option<&str>) -> Result<Image, NotAllowed> {
        let Some(text) = asked else { return Ok(self.default_image.clone()) };
        let folder = match text.parse::<Image>().map_err(|error| NotAllowed::NoImage(error.to_string()))? {
            Image::Host => return Ok(Image::Host),
            Image::Folder(folder) => folder,
            named if named == self.default_image => return Ok(named),
            Image::Reference(name) if self.allowed_names.iter().any(|allowed| allowed.matches(&name)) => {
                return Ok(Image::Reference(name));
            }
            Image::Reference(_) => return Err(self.no_image(text)),
        };
        let Ok(meant) = folder.canonicalize() else { return Err(self.no_image(text)) };
        // The path that was checked at load is the one that is used: a link on the way may change in between.
        if let Some(allowed) = self.allowed_images.iter().find(|allowed| **allowed == meant) {
            return Ok(Image::Folder(allowed.clone()));
        }
        match &self.default_image {
            Image::Folder(default) if default.canonicalize().is_ok_and(|default| default == meant) => {
                Ok(self.default_image.clone())
            }
            _ => Err(self.no_image(text)),
        }
    }

    /// The policy that a model asks for, if it may have it; the operator's default if it names none.
    pub fn policy_for_model(&self, asked: Option<&str>) -> Result<Policy, NotAllowed> {
        let Some(name) = asked else { return Ok(self.default_policy.clone()) };
        let policy = self.policy(name)?;
        match &self.allowed_policies {
            Some(allowed) if !allowed.contains(name) => {
                Err(NotAllowed::Policy { asked: name.to_owned(), allowed: joined(allowed) })
            }
            _ => Ok(policy),
        }
    }

    /// The names that a model may ask for.
    pub fn names_for_models(&self) -> Vec<String> {
        match &self.allowed_policies {
            Some(allowed) => allowed.iter().cloned().collect(),
            None => PRESETS.into_iter().map(str::to_owned).chain(self.own_policies()).collect(),
        }
    }

    /// The policies that a model may ask for, each of which must exist.
    pub(super) fn policies_for_models(&self, names: Vec<String>) -> Result<BTreeSet<String>, ConfigError> {
        let own = self.own_policies();
        if let Some(name) = names.iter().find(|name| !PRESETS.contains(&name.as_str()) && !own.contains(*name)) {
            return Err(self.unknown_policy(name));
        }
        let (allowed, default): (BTreeSet<String>, _) = (names.into_iter().collect(), &self.default_policy.name);
        if !allowed.contains(default) {
            return Err(ConfigError::DefaultNotAllowed { name: default.clone(), allowed: joined(&allowed) });
        }
        Ok(allowed)
    }

    /// Says the same of a folder that exists and of one that does not: a model must not learn which do.
    fn no_image(&self, asked: &str) -> NotAllowed {
        let host = [Image::Host, self.default_image.clone()].map(|image| image.to_string());
        let folders = self.allowed_images.iter().take(NAMED).map(|folder| folder.display().to_string());
        let names = self.allowed_names.iter().take(NAMED).map(ToString::to_string);
        let allowed: BTreeSet<String> = host.into_iter().chain(folders).chain(names).collect();
        NotAllowed::Image { asked: asked.chars().take(200).collect(), allowed: joined(&allowed) }
    }
}

/// Where an image folder really is, if it may be shown to sandboxes at all.
pub(super) fn image_folder(folder: &Path, state: &Path) -> Result<PathBuf, ConfigError> {
    let refuse = |why: String| ConfigError::Image { folder: folder.to_owned(), why };
    let real = folder.canonicalize().map_err(|error| refuse(error.to_string()))?;
    let state = real_path(state);
    if !real.is_dir() {
        return Err(refuse("it is not a folder".to_owned()));
    }
    if real == Path::new("/") {
        return Err(refuse("it is this whole machine".to_owned()));
    }
    // Compared by inode as well: a bind mount shows the same folder under another name.
    if state.ancestors().any(|above| above == real || same_folder(above, &real)) {
        return Err(refuse(format!("it holds the state folder {}, and so every sandbox", state.display())));
    }
    if real.starts_with(&state) {
        return Err(refuse(format!("it lies in the state folder {}, where sandboxes write", state.display())));
    }
    Ok(real)
}

fn joined(names: &BTreeSet<String>) -> String {
    names.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn same_folder(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino()));
    matches!((identity(one), identity(other)), (Ok(one), Ok(other)) if one == other)
}

/// A path without links. What does not exist yet has none.
fn real_path(path: &Path) -> PathBuf {
    match (path.canonicalize(), path.parent(), path.file_name()) {
        (Ok(real), _, _) => real,
        (Err(_), Some(above), Some(name)) => real_path(above).join(name),
        _ => path.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Flags, Typed};

    fn settings(state: &Path, text: &str) -> Result<Settings, ConfigError> {
        let mut typed = Typed::default();
        typed.add_file(Path::new("/etc/x.toml"), text)?;
        typed.add_flags(&Flags { state: Some(state.to_owned()), ..Flags::default() })?;
        Settings::from_typed(typed)
    }

    #[test]
    fn a_model_gets_only_listed_images_whatever_it_calls_them() {
        let root = tempfile::tempdir().unwrap();
        let real = root.path().canonicalize().unwrap();
        let (state, image, other) = (real.join("state"), real.join("image"), real.join("other"));
        std::fs::create_dir_all(image.join("inner")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&image, real.join("link")).unwrap();
        std::os::unix::fs::symlink(&other, image.join("out")).unwrap();
        let settings = settings(&state, &format!("allowed_images = [\"{}\"]", real.join("link").display())).unwrap();
        let ask = |path: &Path| settings.image_for_model(Some(path.to_str().unwrap()));
        assert_eq!(settings.image_for_model(None).unwrap(), Image::Host);
        assert_eq!(settings.image_for_model(Some("host")).unwrap(), Image::Host);
        for name in ["image", "link", "image/", "image/../link/."] {
            assert_eq!(ask(&real.join(name)).unwrap(), Image::Folder(image.clone()), "{name}");
        }
        for name in ["other", "image/inner", "image/..", "image/out", "missing", "/", "/proc/self/root"] {
            let refused = ask(&real.join(name)).unwrap_err().to_string();
            assert!(refused.contains("allowed_images") && refused.contains(image.to_str().unwrap()), "{refused}");
        }
    }

    #[test]
    fn the_operators_default_image_may_be_named() {
        let root = tempfile::tempdir().unwrap();
        let image = root.path().join("image");
        std::fs::create_dir(&image).unwrap();
        let settings = settings(&root.path().join("state"), &format!("default_image = {image:?}")).unwrap();
        assert_eq!(settings.image_for_model(image.to_str()).unwrap(), Image::Folder(image));
    }

    #[test]
    fn folders_that_show_too_much_are_refused_at_load() {
        let root = tempfile::tempdir().unwrap();
        let state = root.path().join("deep/er/state");
        std::fs::create_dir_all(root.path().join("deep/er/state/sandboxes")).unwrap();
        std::os::unix::fs::symlink("/", root.path().join("everything")).unwrap();
        let within = |name: &str| root.path().join(name).display().to_string();
        for (folder, why) in [
            ("/".to_owned(), "whole machine"),
            (within("everything"), "whole machine"),
            (within("deep"), "holds the state folder"),
            (within("deep/er/state"), "holds the state folder"),
            (within("deep/er/state/sandboxes"), "lies in the state folder"),
            (within("missing"), "No such file"),
        ] {
            let refused = settings(&state, &format!("allowed_images = [\"{folder}\"]")).unwrap_err().to_string();
            assert!(refused.contains(why), "{folder}: {refused}");
        }
        assert!(settings(&state, "default_image = \"/\"").unwrap_err().to_string().contains("whole machine"));
        assert!(settings(&state, "allowed_images = [\"./usr\"]").unwrap_err().to_string().contains("absolute paths"));
    }

    #[test]
    fn a_model_gets_all_policies_or_only_listed_ones() {
        let state = Path::new("/nowhere/state");
        assert_eq!(settings(state, "").unwrap().policy_for_model(Some("yolo-4")).unwrap().name, "yolo-4");
        let some = settings(state, "allowed_policies = [\"yolo-1\", \"yolo-3\"]").unwrap();
        assert_eq!(some.policy_for_model(Some("yolo-1")).unwrap().name, "yolo-1");
        assert!(some.policy_for_model(Some("yolo-4")).unwrap_err().to_string().contains("yolo-1, yolo-3"));
        assert!(some.policy_for_model(Some("yolo-9")).unwrap_err().to_string().contains("there is no policy"));
        let refused = settings(state, "allowed_policies = [\"yolo-1\"]").unwrap_err().to_string();
        assert!(refused.contains("default_policy"), "{refused}");
        assert!(settings(state, "allowed_policies = [\"yolo-33\"]").unwrap_err().to_string().contains("`yolo-3`"));
    }
}
