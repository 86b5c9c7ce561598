//! What has to be looked up or made on this machine for one sandbox, before it can be planned.

use std::{
    collections::BTreeMap,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use sandbox_core::{
    Error, Image, Result, SandboxSpec,
    policy::{DeniedPrograms, Root},
};
use sandbox_image::ImageError;

use crate::{
    allowed, bwrap,
    ground::{self, Folders},
    host::{Host, Top},
    ids::IdSource,
    images::Named,
    places,
    programs::Programs,
    unavailable::{self, Cover},
};

/// Lists of programs that are remembered.
const MOST_KNOWN: usize = 64;

/// What the plan of one sandbox needs to know beyond [`Host`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// What a root of this machine's programs that can be changed stands on.
    pub ground: Option<PathBuf>,
    /// What comes with an image that has a name.
    pub named: Option<Named>,
    /// Folders that may be written though the root may not.
    pub places: Vec<String>,
    /// Programs that a stub is mounted over.
    pub covered: Vec<Covered>,
    /// The only files and folders that may be executed.
    pub executable: Option<Vec<String>>,
    /// Programs that the policy lists and nobody finds.
    pub missing: Vec<String>,
}

/// What is made while preparing.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Making {
    Missing,
    Nothing,
}

/// A program that is taken away.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "see unavailable")]
pub struct Covered {
    pub path: String,
    pub cover: Cover,
}

impl Prepared {
    /// Whether nothing of this machine has to be touched for such a sandbox.
    pub fn is_trivial(spec: &SandboxSpec) -> bool {
        let commands = &spec.policy.commands;
        !needs_ground(spec)
            && spec.policy.filesystem.writable.is_empty()
            && commands.allow.is_none()
            && commands.denied_programs == DeniedPrograms::Explained
    }

    /// Looks, and makes what is missing. That may take a second or two, once for a state of this machine.
    pub fn for_spec(spec: &SandboxSpec, host: &Host) -> Result<Self> {
        Self::with(spec, host, Making::Missing)
    }

    /// Only looks, to say how such a sandbox would be held; nothing can be made with it.
    pub fn for_nobody(spec: &SandboxSpec, host: &Host) -> Result<Self> {
        Self::with(spec, host, Making::Nothing)
    }

    fn with(spec: &SandboxSpec, host: &Host, making: Making) -> Result<Self> {
        if let Image::Folder(folder) = &spec.image {
            check_image(folder)?;
        }
        if let Image::Reference(name) = &spec.image {
            // Whoever has it stands on a folder; see `images`.
            return Err(ImageError::Missing(name.to_string()).into());
        }
        if host.bwrap.is_some() {
            bwrap::check(spec)?;
        }
        if Self::is_trivial(spec) {
            return Ok(Self::default());
        }
        let (covered, executable, missing) = looked_up(spec, host)?;
        let places = places::check(spec, host)?;
        let ground = needs_ground(spec).then(|| ground(spec, host, making)).transpose()?;
        Ok(Self { ground, named: None, places, covered, executable, missing })
    }
}

/// Whether a sandbox can stand on this folder. The kernel's own answer to a wrong one explains nothing.
fn check_image(folder: &Path) -> Result<()> {
    let why = match folder.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => "there is no such folder".to_owned(),
        Err(error) => error.to_string(),
        Ok(real) if real == Path::new("/") => "it is this whole machine".to_owned(),
        Ok(real) if !real.is_dir() => "it is not a folder".to_owned(),
        Ok(_) => return Ok(()),
    };
    Err(Error::Invalid {
        what: format!("the image {} cannot be used: {why}", folder.display()),
        fix: "Name a folder that holds a root file system, or `host` for this machine's own programs, read-only".into(),
    })
}

/// Files of programs: those to be covered, the only ones that may be executed, and names of which there is none.
type Files = (Vec<Covered>, Option<Vec<String>>, Vec<String>);

/// Looks for programs once for each list and state of an image, not for each sandbox.
fn looked_up(spec: &SandboxSpec, host: &Host) -> Result<Files> {
    static KNOWN: Mutex<BTreeMap<u64, Files>> = Mutex::new(BTreeMap::new());
    let commands = &spec.policy.commands;
    if commands.allow.is_none() && commands.denied_programs == DeniedPrograms::Explained {
        return Ok(Files::default());
    }
    let programs = programs(spec, host)?;
    let mut hasher = DefaultHasher::new();
    let removed = commands.denied_programs == DeniedPrograms::Removed;
    (spec.image.to_string(), &commands.allow, removed.then_some(&commands.deny), programs.stamp()).hash(&mut hasher);
    let key = hasher.finish();
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(files) = known().get(&key) {
        return Ok(files.clone());
    }
    let covers = if removed { unavailable::covers(&commands.deny, &programs) } else { Default::default() };
    let covered = covers.into_iter().map(|(path, cover)| Covered { path, cover }).collect();
    let executable = commands.allow.as_ref().map(|allow| allowed::executables(allow, &programs));
    let missing = commands.allow.as_ref().map(|allow| allowed::missing(allow, &programs)).unwrap_or_default();
    let files = (covered, executable, missing);
    let mut known = known();
    if known.len() >= MOST_KNOWN {
        known.clear();
    }
    known.insert(key, files.clone());
    Ok(files)
}

/// Those of the image; of this machine only what is seen inside.
fn programs(spec: &SandboxSpec, host: &Host) -> Result<Programs> {
    let tops = host.tops.iter().map(|top| match top {
        Top::Link { name, .. } | Top::Folder { name } => name.clone(),
    });
    let (root, seen) = match &spec.image {
        Image::Host | Image::Reference(_) => (Path::new("/"), tops.collect()),
        Image::Folder(folder) => (folder.as_path(), Vec::new()),
    };
    Programs::of(root, seen).map_err(Error::io(format!("looking for programs in {}", root.display())))
}

fn needs_ground(spec: &SandboxSpec) -> bool {
    spec.image == Image::Host && spec.policy.filesystem.root == Root::Writable
}

fn ground(spec: &SandboxSpec, host: &Host, making: Making) -> Result<PathBuf> {
    let folders = if host.ids == IdSource::Ranges { Folders::Mapped } else { Folders::Own };
    if folders == Folders::Own
        && let Some(point) = mounted_beneath(host)
    {
        return Err(Error::Unavailable {
            what: format!("the policy `{}` with the image `host`", spec.policy.name),
            why: format!(
                "something is mounted on {point}, and an ordinary user cannot put a layer over a folder with mounts in it"
            ),
            fix: "Use an image of your own (the path of a folder with a root file system), a policy with a read-only root such as yolo-3, or start as root".into(),
        });
    }
    if making == Making::Nothing {
        return Ok(host.state.join("cache"));
    }
    ground::prepare(&host.state, &host.tops, folders)
        .map_err(Error::io(format!("preparing a root that can be changed in {}", host.state.display())))
}

/// A mount inside a folder with programs, if there is one.
fn mounted_beneath(host: &Host) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let inside = |point: &&str| {
        host.tops.iter().any(|top| match top {
            Top::Folder { name } => point.starts_with(&format!("/{name}/")),
            Top::Link { .. } => false,
        })
    };
    points.find(inside).map(str::to_owned)
}
