//! Opens the pools, datasets and files that addresses name, and adds hints to errors.

use super::address::Address;
use super::global::refused;
use super::{Global, keys};
use crate::session::Failure;
use millpond_engine::{Dataset, Error, FileSystem, Node, OpenError, Symlinks, View};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::Write as _;
use std::sync::Arc;

/// The pools that a command has opened. Each is opened once.
#[derive(Debug)]
pub struct Pools<'a> {
    global: &'a Global,
    open: BTreeMap<String, View>,
    /// Datasets that a warning was printed for.
    redacted: BTreeSet<String>,
}

/// What an address names.
#[derive(Debug, Clone)]
pub enum Target {
    /// A file of any kind.
    File(FileTarget),
    /// A volume or a snapshot of one.
    Volume(Dataset),
}

/// A file in an open file system.
#[derive(Debug, Clone)]
pub struct FileTarget {
    /// The dataset.
    pub dataset: Dataset,
    /// Its files.
    pub files: Arc<FileSystem>,
    /// The file.
    pub node: Node,
    /// The path as given, `/` for the root.
    pub path: Vec<u8>,
}

impl<'a> Pools<'a> {
    /// Creates an empty set.
    pub fn new(global: &'a Global) -> Self {
        Self {
            global,
            open: BTreeMap::new(),
            redacted: BTreeSet::new(),
        }
    }

    /// Opens a pool by name or guid and loads the given keys.
    ///
    /// # Errors
    /// If the pool is not found or cannot be opened. The message says how to resolve this.
    pub fn pool(&mut self, name: &str) -> Result<View, Failure> {
        if let Some(pool) = self.open.get(name) {
            return Ok(pool.clone());
        }
        let pool = self.global.open_pool(name)?;
        self.open.insert(name.to_owned(), pool.clone());
        Ok(pool)
    }

    /// Adds a pool that is already open.
    pub fn add(&mut self, name: &str, pool: View) {
        self.open.insert(name.to_owned(), pool);
    }

    /// Opens the dataset that an address names and loads its key if possible.
    ///
    /// # Errors
    /// If the dataset is not found, cannot be read, or stays locked.
    pub fn dataset(&mut self, address: &Address) -> Result<Dataset, Failure> {
        let called = address.pool();
        let pool = self.pool(called)?;
        let name = format!("{}{}", pool.name(), &address.dataset[called.len()..]);
        let dataset = pool
            .dataset(&name)
            .map_err(|error| refused(explained(&error)))?;
        if dataset
            .is_locked()
            .map_err(|error| refused(explained(&error)))?
        {
            keys::unlock(&dataset, self.global)?;
        }
        self.warn_of_redaction(&dataset);
        Ok(dataset)
    }

    /// Says once that a dataset lacks what its redacted stream left out.
    fn warn_of_redaction(&mut self, dataset: &Dataset) {
        let redacted = dataset.inner().redacted_for();
        let is_redacted = matches!(redacted, Ok(Some(_)));
        if is_redacted && self.redacted.insert(dataset.name().to_owned()) {
            let _ = writeln!(
                std::io::stderr(),
                "millpond: warning: '{}' was received from a redacted stream: what that left out reads as zeros",
                dataset.name()
            );
        }
    }

    /// Opens what an address names.
    ///
    /// # Errors
    /// If the word is not an address, or its target is not found, cannot be read, or stays locked.
    pub fn target(&mut self, word: &OsStr, symlinks: Symlinks) -> Result<Target, Failure> {
        let address = Address::parse(word).map_err(Failure::Usage)?;
        let dataset = self.dataset(&address)?;
        if !dataset
            .has_files()
            .map_err(|error| refused(explained(&error)))?
        {
            return match address.path {
                None => Ok(Target::Volume(dataset)),
                Some(_) => Err(refused(format!(
                    "'{}' is a volume and has no files: name it without a path",
                    dataset.name()
                ))),
            };
        }
        let files = dataset
            .file_system()
            .map_err(|error| refused(explained(&error)))?;
        let path = address.path.unwrap_or_else(|| b"/".to_vec());
        let node = files.resolve(&path, symlinks).map_err(|error| {
            let text = explained(&error.into());
            refused(format!("{}:{text}", dataset.name()))
        })?;
        Ok(Target::File(FileTarget {
            dataset,
            files,
            node,
            path,
        }))
    }

    /// Like [`Pools::target`], for commands that accept only files.
    ///
    /// # Errors
    /// Those of [`Pools::target`]; also if the address names a volume.
    pub fn file(&mut self, word: &OsStr, symlinks: Symlinks) -> Result<FileTarget, Failure> {
        match self.target(word, symlinks)? {
            Target::File(file) => Ok(file),
            Target::Volume(dataset) => Err(refused(format!(
                "'{}' is a volume and has no files; millpond cat and cp read it",
                dataset.name()
            ))),
        }
    }
}

/// Formats an error with a hint on how to resolve it.
pub fn explained(error: &Error) -> String {
    let hint = match error {
        Error::NoSuchPool { .. } => {
            "millpond import lists the pools there are; -d DIR says where to look"
        }
        Error::Open { error, .. } => match &**error {
            OpenError::Devices { assembly } => {
                let missing: Vec<String> = assembly
                    .leaves
                    .iter()
                    .filter(|leaf| leaf.device.is_none())
                    .map(|leaf| match &leaf.config_path {
                        Some(path) => format!("{path} (guid {})", leaf.guid.0),
                        None => format!("guid {}", leaf.guid.0),
                    })
                    .collect();
                return format!(
                    "{error_text}\nmissing: {}\nadd them with -d; --allow-missing reads without them",
                    missing.join(", "),
                    error_text = Shown(error),
                );
            }
            OpenError::State { .. } => "-F tries older states, -F -X all of them",
            OpenError::GuidSum => "add the missing devices with -d",
            _ => return error.to_string(),
        },
        error if error.is_locked() => "give its key with --key DATASET=file:///PATH",
        _ => return error.to_string(),
    };
    format!("{error}\n{hint}")
}

struct Shown<'a>(&'a OpenError);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}
