//! Folders that an image wants a volume for. Each becomes one in memory that has a size; what an engine would make of it else
//! is a volume on its disk that nobody bounds, and that can be written beneath a root that cannot. Pure.

use bollard::models::{HostConfig, Mount, MountPoint, MountType};
use sandbox_core::{Error, Result};

use crate::plan::Image;

/// Images want one or two.
const MOST: usize = 32;

/// An image is taken only if what it wants is said in the one way that everybody understands alike: engines tidy other ways
/// up, or read options in them, and then look for another name than we gave them.
pub fn check(image: &Image) -> Result<()> {
    if image.volumes.len() > MOST {
        return Err(refused(format!("it wants {} volumes, and gets at most {MOST}", image.volumes.len())));
    }
    match image.volumes.iter().find(|wanted| !is_plain(wanted)) {
        None => Ok(()),
        Some(wanted) => Err(refused(format!("it wants a volume at {wanted:?}, which is no plain absolute path"))),
    }
}

fn is_plain(path: &str) -> bool {
    let Some(below) = path.strip_prefix('/') else { return false };
    let strange = |c: char| matches!(c, ':' | ',' | '\\') || c.is_control();
    !path.contains(strange) && below.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// What an engine has made is looked at before it starts: nothing is mounted that was not planned.
pub fn check_made(found: &[MountPoint], planned: &HostConfig) -> Result<()> {
    match found.iter().find(|found| !is_planned(found, planned)) {
        None => Ok(()),
        Some(found) => {
            let what = found.typ.as_deref().unwrap_or("something");
            let at = found.destination.as_deref().unwrap_or("nowhere");
            Err(refused(format!("the engine mounts something for it that was not asked for ({what} at {at:?})")))
        }
    }
}

fn is_planned(found: &MountPoint, planned: &HostConfig) -> bool {
    let target = found.destination.as_deref();
    if found.typ.as_deref() == Some("tmpfs") {
        return planned.tmpfs.iter().flatten().any(|(planned, _)| Some(planned.as_str()) == target);
    }
    let same = |mount: &&Mount| {
        let kind = match mount.typ {
            Some(MountType::VOLUME) => {
                found.typ.as_deref() == Some("volume") && found.name.is_some() && found.name == mount.source
            }
            _ => found.typ.as_deref() == Some("bind"),
        };
        kind && mount.target.as_deref() == target && (found.rw != Some(true) || mount.read_only != Some(true))
    };
    planned.mounts.iter().flatten().any(|mount| same(&mount))
}

fn refused(why: String) -> Error {
    Error::Invalid {
        what: format!("the image is refused: {why}"),
        fix: "Use another image, or make one of it without its volumes: `docker create`, `docker export`, `docker import`"
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanting(volume: &str) -> Image {
        Image { volumes: vec![volume.to_owned()], ..Image::default() }
    }

    #[test]
    fn an_image_got_a_volume_on_disk_by_the_way_it_was_said() {
        for strange in
            ["rel", "", "/", "//x", "/x/", "/x//y", "/x/./y", "/x/..", "./x", "/x:exec", "/x,y", "/x\n", "/\\x"]
        {
            assert!(check(&wanting(strange)).is_err(), "{strange:?}");
        }
        for plain in ["/data", "/var/lib/postgresql/data", "/with space", "/..x"] {
            assert!(check(&wanting(plain)).is_ok(), "{plain:?}");
        }
        let many = (0..=MOST).map(|number| format!("/data/{number}")).collect();
        assert!(check(&Image { volumes: many, ..Image::default() }).is_err());
    }

    #[test]
    fn nothing_is_mounted_that_was_not_planned() {
        let volume = Mount {
            typ: Some(MountType::VOLUME),
            source: Some("mine".into()),
            target: Some("/workspace".into()),
            read_only: Some(false),
            ..Mount::default()
        };
        let bind = Mount {
            typ: Some(MountType::BIND),
            source: Some("/state".into()),
            target: Some("/ours".into()),
            read_only: Some(true),
            ..Mount::default()
        };
        let tmpfs = [("/tmp".to_owned(), "size=1".to_owned())].into();
        let planned = HostConfig { mounts: Some(vec![volume, bind]), tmpfs: Some(tmpfs), ..HostConfig::default() };
        let made = |typ: &str, name: Option<&str>, at: &str, rw| MountPoint {
            typ: Some(typ.to_owned()),
            name: name.map(str::to_owned),
            destination: Some(at.to_owned()),
            rw: Some(rw),
            ..MountPoint::default()
        };
        let ours = [
            made("volume", Some("mine"), "/workspace", true),
            made("bind", None, "/ours", false),
            made("tmpfs", None, "/tmp", true),
        ];
        assert!(check_made(&ours, &planned).is_ok());
        for stranger in [
            made("volume", Some("0123abcd"), "rel", true),
            made("volume", Some("0123abcd"), "/workspace", true),
            made("volume", Some("mine"), "/elsewhere", true),
            made("bind", None, "/ours", true),
            made("tmpfs", None, "/ours", true),
            made("npipe", None, "/ours", false),
        ] {
            assert!(check_made(std::slice::from_ref(&stranger), &planned).is_err(), "{stranger:?}");
        }
    }
}
