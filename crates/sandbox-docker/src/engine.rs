//! Finding an engine and learning what it is.

use std::{
    collections::BTreeMap,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use bollard::{
    API_DEFAULT_VERSION, Docker,
    models::{SystemInfo, SystemInfoCgroupVersionEnum, SystemVersion},
};
use rustix::{
    net::sockopt,
    process::{Resource, getrlimit},
};
use sandbox_core::{Error, Result};

use crate::{
    failure,
    nature::{Holds, Kind, Modules, Nature, Runtime, Storage},
};

/// Requests that take longer have failed; fetching images is not one request.
const PATIENCE: u64 = 120;
/// A first answer comes soon, or never.
const FIRST_ANSWER: Duration = Duration::from_secs(10);
/// The oldest version of the interface that has all we use.
const OLDEST_API: (usize, usize) = (1, 41);
/// With this variable set to `streams`, an engine is treated as if it were on another machine.
pub const FORCE_REACH: &str = "SANDBOX_MCP_DOCKER_REACH";

/// An engine that answers.
#[derive(Clone)]
pub struct Engine {
    /// Who is asked.
    pub docker: Docker,
    /// What it is.
    pub nature: Nature,
}

impl Engine {
    /// The engine at this address, or the first that answers where one usually is.
    pub async fn find(address: Option<&str>) -> Result<Self> {
        let named =
            address.map(str::to_owned).or_else(|| std::env::var("DOCKER_HOST").ok()).filter(|at| !at.is_empty());
        if let Some(address) = named {
            return Self::at(&address).await;
        }
        let mut failed = None;
        for address in usual_places() {
            match Self::at(&address).await {
                Ok(engine) => return Ok(engine),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| failure::no_engine("any of the usual places", "there is no socket")))
    }

    async fn at(address: &str) -> Result<Self> {
        let none = |why: &str| failure::no_engine(address, why);
        let docker = connect(address).map_err(|error| match error {
            Refused::Engine(error) => none(&failure::words(&error)),
            Refused::Kind(error) => error,
        })?;
        let asked = async {
            let docker = docker.negotiate_version().await?;
            let (info, version) = tokio::try_join!(docker.info(), docker.version())?;
            Ok((docker, info, version))
        };
        let answered = tokio::time::timeout(FIRST_ANSWER, asked).await;
        let answered = answered.map_err(|_| none("it did not answer within 10 seconds"))?;
        let (docker, info, version) =
            answered.map_err(|error: bollard::errors::Error| none(&failure::words(&error)))?;
        check_version(&version, address)?;
        let nature = nature(address, &info, &version);
        Ok(Self { docker, nature })
    }
}

/// Why there is not even somebody to ask.
enum Refused {
    Engine(bollard::errors::Error),
    Kind(Error),
}

impl From<bollard::errors::Error> for Refused {
    fn from(error: bollard::errors::Error) -> Self {
        Self::Engine(error)
    }
}

fn connect(address: &str) -> std::result::Result<Docker, Refused> {
    if let Some(path) = address.strip_prefix("unix://") {
        if !Path::new(path).exists() {
            let why = format!("there is no socket {path}");
            return Err(Refused::Kind(failure::no_engine(address, &why)));
        }
        return Ok(Docker::connect_with_unix(path, PATIENCE, API_DEFAULT_VERSION)?);
    }
    if address.starts_with("tcp://") || address.starts_with("http://") || address.starts_with("https://") {
        let verified = std::env::var_os("DOCKER_TLS_VERIFY").is_some_and(|value| !value.is_empty());
        if verified || address.starts_with("https://") {
            let keys = certificates();
            let [key, own, authority] = ["key.pem", "cert.pem", "ca.pem"].map(|name| keys.join(name));
            return Ok(Docker::connect_with_ssl(address, &key, &own, &authority, PATIENCE, API_DEFAULT_VERSION)?);
        }
        return Ok(Docker::connect_with_http(address, PATIENCE, API_DEFAULT_VERSION)?);
    }
    Err(Refused::Kind(Error::Invalid {
        what: format!("`{address}` is not the address of an engine"),
        fix: "Use unix:///path/of/a.sock or tcp://HOST:PORT; for ssh, forward the socket: `ssh -nNT -L \
              /tmp/engine.sock:/var/run/docker.sock HOST` and DOCKER_HOST=unix:///tmp/engine.sock"
            .into(),
    }))
}

/// Where Docker's own client looks for what an engine is asked with over TLS.
fn certificates() -> PathBuf {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let usual = || named("HOME").unwrap_or_default().join(".docker");
    named("DOCKER_CERT_PATH").or_else(|| named("DOCKER_CONFIG")).unwrap_or_else(usual)
}

/// Docker's, Docker's of this user, Podman's of this user, Podman's.
fn usual_places() -> Vec<String> {
    let runtime = std::env::var("XDG_RUNTIME_DIR")
        .unwrap_or_else(|_| format!("/run/user/{}", rustix::process::getuid().as_raw()));
    let paths = [
        "/var/run/docker.sock".to_owned(),
        format!("{runtime}/docker.sock"),
        format!("{runtime}/podman/podman.sock"),
        "/run/podman/podman.sock".to_owned(),
    ];
    paths.into_iter().filter(|path| Path::new(path).exists()).map(|path| format!("unix://{path}")).collect()
}

fn check_version(version: &SystemVersion, address: &str) -> Result<()> {
    let said = version.api_version.as_deref().unwrap_or_default();
    let mut parts = said.split('.').map(|part| part.parse::<usize>().unwrap_or_default());
    let speaks = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if speaks >= OLDEST_API {
        return Ok(());
    }
    Err(Error::Unavailable {
        what: format!("the engine at {address} is too old"),
        why: format!("it speaks version {said} of the interface, and {}.{} is needed", OLDEST_API.0, OLDEST_API.1),
        fix: "Use Docker 20.10 or newer, or Podman 4 or newer".into(),
    })
}

/// What an engine says of itself, read once.
fn nature(address: &str, info: &SystemInfo, version: &SystemVersion) -> Nature {
    let components = version.components.iter().flatten();
    let podman = components.clone().any(|component| component.name.contains("Podman"));
    let options = info.security_options.clone().unwrap_or_default();
    let has = |name: &str| options.iter().any(|option| option.split(',').any(|part| part == format!("name={name}")));
    let cgroup = if info.cgroup_version == Some(SystemInfoCgroupVersionEnum::_2) { 2 } else { 1 };
    // Podman does not say it there.
    let rootless = has("rootless") || (podman && is_another_users(address));
    // Without root, cgroups of version 1 cannot be had at all, whatever the kernel would hold.
    let can = |holds: Option<bool>| holds.unwrap_or(podman) && !(rootless && cgroup == 1);
    let here = is_here(address, info) && std::env::var_os(FORCE_REACH).is_none_or(|reach| reach != "streams");
    let status = info.driver_status.clone().unwrap_or_default();
    let backing = status.iter().find(|pair| pair.first().is_some_and(|name| name == "Backing Filesystem"));
    let runtimes: BTreeMap<_, _> = info
        .runtimes
        .iter()
        .flatten()
        .map(|(name, runtime)| {
            let (path, arguments) = (runtime.path.clone(), runtime.runtime_args.clone());
            (name.clone(), Runtime { path: path.unwrap_or_default(), arguments: arguments.unwrap_or_default() })
        })
        .collect();
    Nature {
        kind: if podman { Kind::Podman } else { Kind::Docker },
        version: info.server_version.clone().or(version.version.clone()).unwrap_or_default(),
        api: version.api_version.clone().unwrap_or_default(),
        address: address.to_owned(),
        here,
        rootless,
        user_namespaces: rootless || has("userns"),
        holds: Holds { memory: can(info.memory_limit), cpu: can(info.cpu_cfs_quota), pids: can(info.pids_limit) },
        cgroup,
        runtimes,
        default_runtime: info.default_runtime.clone().filter(|name| !name.is_empty()).unwrap_or_else(|| "runc".into()),
        storage: Storage {
            driver: info.driver.clone().unwrap_or_default(),
            backing: backing.and_then(|pair| pair.get(1)).cloned().unwrap_or_default(),
        },
        modules: Modules { apparmor: has("apparmor"), selinux: has("selinux") },
        rlimits: if podman { own_rlimits() } else { Vec::new() },
        enters_networks: here && !rootless && rustix::process::geteuid().is_root(),
    }
}

/// Whether the process that listens there is an ordinary user's.
fn is_another_users(address: &str) -> bool {
    let Some(path) = address.strip_prefix("unix://") else { return false };
    let peer = UnixStream::connect(path).ok().and_then(|socket| sockopt::socket_peercred(&socket).ok());
    peer.is_some_and(|peer| !peer.uid.is_root())
}

/// Podman would set a million of each where nothing is said, which not everybody may.
fn own_rlimits() -> Vec<(&'static str, i64)> {
    let wanted = [("nofile", Resource::Nofile, 16_384), ("nproc", Resource::Nproc, 32_768)];
    let allowed = |(name, resource, wanted): (&'static str, Resource, u64)| {
        let most = getrlimit(resource).maximum.unwrap_or(u64::MAX).min(wanted);
        (name, i64::try_from(most).unwrap_or(i64::MAX))
    };
    wanted.map(allowed).into()
}

/// A socket may be forwarded from anywhere, so its machine must look like this one in every way.
fn is_here(address: &str, info: &SystemInfo) -> bool {
    let system = rustix::system::sysinfo();
    let memory = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    address.starts_with("unix://")
        && info.kernel_version.as_deref() == Some(&kernel)
        && info.mem_total.and_then(|total| u64::try_from(total).ok()) == Some(memory)
}
