//! What is written down about a container, in its sandbox's folder: how others of this user find it and reach its executor.

use std::{fs, io, os::unix::fs::OpenOptionsExt, path::Path};

use sandbox_core::{Error, Result};
use sandbox_linux::way_out;
use serde::{Deserialize, Serialize};

const FILE: &str = "container.json";

/// One container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Where its engine is.
    pub address: String,
    /// Its name there.
    pub container: String,
    /// Its volumes.
    pub volumes: Vec<String>,
    /// How its executor is reached.
    pub line: Line,
    /// What we made in its network, where we did.
    #[serde(default)]
    pub wired: Option<way_out::Reach>,
}

/// How an executor is reached.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Line {
    /// It dials us.
    Socket {
        /// Its number on this machine; 0 until it runs.
        pid: i32,
        /// Whether root inside is our user.
        our_user: bool,
    },
    /// Over bridges, for who knows this.
    Streams {
        /// What to say.
        token: Vec<u8>,
    },
}

impl Record {
    /// Writes it down, whole or not at all.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let writing = || Error::io(format!("writing {}", folder.join(FILE).display()));
        let text = serde_json::to_vec(self).map_err(io::Error::from).map_err(writing())?;
        let draft = folder.join("container.json.new");
        let mut options = fs::File::options();
        let file = options.create(true).truncate(true).write(true).mode(0o600).open(&draft);
        file.and_then(|mut file| io::Write::write_all(&mut file, &text))
            .and_then(|()| fs::rename(&draft, folder.join(FILE)))
            .map_err(writing())
    }

    /// Reads it.
    pub fn read(folder: &Path) -> Result<Self> {
        let reading = || Error::io(format!("reading {}", folder.join(FILE).display()));
        let text = fs::read(folder.join(FILE)).map_err(reading())?;
        serde_json::from_slice(&text).map_err(io::Error::from).map_err(reading())
    }
}
