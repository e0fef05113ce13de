//! Options shared by all commands: search paths, pool state, keys and output format.

use super::flag;
use super::imported::{self, Imported, Kept};
use super::keys::KeyOption;
use super::pools;
use crate::progress::Style;
use crate::search_paths;
use crate::session::Failure;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use millpond_engine::{Error, OpenOptions, PoolCandidate, Rewind, Search, Txg, View, is_in_use};
use millpond_env::sync::{Arc, Mutex};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Cache size of a command that reads most content once.
const CACHE_BYTES_READING_ONCE: u64 = 64 << 20;
/// The cache of other commands that open a pool themselves. They run too shortly to fill more.
const CACHE_BYTES: u64 = 256 << 20;

/// The parsed shared options.
#[derive(Debug, Clone)]
pub struct Global {
    /// Where to search for pools.
    pub search: Search,
    /// How to open pools.
    pub open: OpenOptions,
    /// Whether output is JSON.
    pub is_json: bool,
    /// Whether progress is shown without a terminal.
    has_progress: bool,
    /// Datasets with the sources of their keys.
    keys: Vec<KeyOption>,
    /// Whether files named by `keylocation` may be read.
    pub is_keylocation_used: bool,
    /// The cache file that says which pools there are.
    cache_file: Option<PathBuf>,
    /// States of imported pools that the daemon keeps while the command reads them.
    kept: Arc<Mutex<Vec<Kept>>>,
}

/// Defines the shared options.
pub(super) fn arguments() -> Vec<Arg> {
    let local = [
        Arg::new("dir")
            .short('d')
            .value_name("DIR|IMAGE")
            .help("Look for pools in this directory, device or image (repeatable; default: MILLPOND_SEARCH, or the system's devices)")
            .action(ArgAction::Append)
            .value_parser(value_parser!(PathBuf)),
        Arg::new("cachefile")
            .short('c')
            .long("cachefile")
            .value_name("FILE")
            .help("Read pools and device paths from this cache file (zpool.cache)")
            .value_parser(value_parser!(PathBuf)),
    ];
    let everywhere = [
        flag("json", "Print JSON. Long work shows its progress as lines of JSON on standard error"),
        flag("progress", "Print lines of progress on standard error where it is no terminal"),
        flag("rewind", "If the newest state cannot be read, try states up to two txgs older").short('F'),
        Arg::new("extreme")
            .short('X')
            .long("extreme-rewind")
            .help("If the newest state cannot be read, try all older states")
            .action(ArgAction::SetTrue),
        Arg::new("txg")
            .short('T')
            .long("txg")
            .value_name("TXG")
            .help("Open the state of this txg, or the newest one before it")
            .value_parser(value_parser!(u64)),
        flag("checkpoint", "Open the state of the checkpoint"),
        flag("allow-missing", "Open the pool without missing top-level vdevs; their data cannot be read"),
        Arg::new("key")
            .short('k')
            .long("key")
            .value_name("DATASET=SOURCE")
            .help("Unlock a dataset and all that use its key: SOURCE is a file (also as file:///PATH) or the word prompt (repeatable)")
            .action(ArgAction::Append)
            .value_parser(value_parser!(OsString)),
        flag("use-keylocation", "Read keys from the files named by the keylocation properties"),
    ];
    let everywhere = everywhere.map(|arg| arg.global(true));
    let all = local.into_iter().chain(everywhere);
    all.map(|arg| arg.help_heading(HEADING)).collect()
}

impl Global {
    /// Parses the shared options.
    ///
    /// # Errors
    /// If an option is invalid.
    pub(super) fn from_matches(matches: &ArgMatches) -> Result<Self, Failure> {
        let cache_file = matches.get_one::<PathBuf>("cachefile").cloned();
        let mut search = match &cache_file {
            Some(file) => Search::in_cache_file(file).map_err(refused)?,
            None => Search::default(),
        };
        match matches.get_many::<PathBuf>("dir") {
            Some(folders) => search.paths.extend(folders.cloned()),
            None => search
                .paths
                .extend(std::env::var_os("MILLPOND_SEARCH").map(PathBuf::from)),
        }
        let rewind = match matches.get_one::<u64>("txg") {
            Some(txg) => Rewind::ToTxg(Txg(*txg)),
            None if matches.get_flag("extreme") => Rewind::Extreme,
            None if matches.get_flag("rewind") => Rewind::Recent,
            None => Rewind::Never,
        };
        let mut keys = vec![];
        for word in matches.get_many::<OsString>("key").into_iter().flatten() {
            keys.push(KeyOption::parse(word)?);
        }
        Ok(Self {
            search,
            open: OpenOptions {
                rewind,
                at_checkpoint: matches.get_flag("checkpoint"),
                allow_missing_tops: matches.get_flag("allow-missing"),
                cache_bytes: Some(CACHE_BYTES),
                ..OpenOptions::default()
            },
            is_json: matches.get_flag("json"),
            has_progress: matches.get_flag("progress"),
            keys,
            is_keylocation_used: matches.get_flag("use-keylocation"),
            cache_file,
            kept: Arc::default(),
        })
    }

    /// How a command shows its progress; `is_quiet` if it was told not to.
    pub fn progress(&self, is_quiet: bool) -> Style {
        match () {
            () if is_quiet => Style::Hidden,
            () if self.is_json => Style::Json,
            () if std::io::stderr().is_terminal() => Style::Bar,
            () if self.has_progress => Style::Lines,
            () => Style::Hidden,
        }
    }

    /// Returns the same options for a command that reads most content once.
    ///
    /// Its cache is smaller and keeps metadata.
    pub fn reading_once(&self) -> Self {
        let mut global = self.clone();
        global.open.cache_bytes = Some(CACHE_BYTES_READING_ONCE);
        global
    }

    /// Returns the same options for the state of this txg.
    pub fn at(&self, txg: Txg) -> Self {
        let mut global = self.clone();
        global.open.rewind = Rewind::Exactly(txg);
        global
    }

    /// Whether an older state was requested than the newest one.
    pub fn is_past(&self) -> bool {
        self.open.at_checkpoint || matches!(self.open.rewind, Rewind::ToTxg(_) | Rewind::Exactly(_))
    }

    /// The pool with this name or guid, if the daemon has imported it. With `-d` or a cache file the daemon is not asked.
    pub fn imported(&self, name: &str) -> Option<Imported> {
        let is_placed = self.cache_file.is_some() || !self.search.paths.is_empty();
        match is_placed {
            true => None,
            false => imported::find(name),
        }
    }

    /// Where to search for the pool with this name or guid: in the devices of an imported pool, otherwise where the options say.
    pub fn search_of(&self, name: &str) -> Search {
        let imported = self.imported(name);
        imported.map_or_else(|| self.search.clone(), |imported| imported.search())
    }

    /// Finds a pool by name or guid, for reading.
    ///
    /// # Errors
    /// If no pool or more than one matches.
    pub fn find(&self, name: &str) -> Result<PoolCandidate, Failure> {
        self.find_among(self.imported(name).as_ref(), name)
    }

    fn find_among(
        &self,
        imported: Option<&Imported>,
        name: &str,
    ) -> Result<PoolCandidate, Failure> {
        let Some(imported) = imported else {
            let found = View::find(&self.search, name);
            return found.map_err(|error| refused(self.explained(&error)));
        };
        // By its guid: it may have been imported under another name.
        let guid = imported.info.guid.to_string();
        View::find(&imported.search(), &guid).map_err(|_| {
            let files = match imported.mountpoint() {
                Some(path) => format!(": its files are below {path}"),
                None => String::new(),
            };
            refused(format!(
                "'{name}' is imported by the daemon, and its devices cannot be read by this user{files}"
            ))
        })
    }

    /// Opens a pool according to the options and loads the given keys. Of a pool that the daemon has imported it is the last
    /// committed state, which the daemon keeps until this is dropped.
    ///
    /// # Errors
    /// If the pool cannot be opened, or a key is wrong.
    pub fn open_pool(&self, name: &str) -> Result<View, Failure> {
        let (candidate, kept_txg) = self.found_for_reading(name)?;
        let mut open = self.open.clone();
        if let Some(txg) = kept_txg {
            open.rewind = Rewind::Exactly(txg);
        }
        let pool = View::open_candidate(&candidate, &open)
            .map_err(|error| refused(self.explained(&error)))?;
        let warning = match kept_txg {
            Some(txg) => format!("by the daemon: this is its state of txg {}", txg.0),
            None => "and may be written to: data may change while it is read".to_owned(),
        };
        if pool.is_live() || kept_txg.is_some() {
            let _ = writeln!(
                std::io::stderr(),
                "millpond: warning: '{name}' is in use {warning}"
            );
        }
        self.load_keys(&pool, name)?;
        Ok(pool)
    }

    /// A pool to read, and the txg to open it at if the daemon keeps that state.
    fn found_for_reading(&self, name: &str) -> Result<(PoolCandidate, Option<Txg>), Failure> {
        let imported = self.imported(name);
        let is_newest = self.open.rewind == Rewind::Never && !self.open.at_checkpoint;
        let keep = |imported: Imported| {
            let kept = imported.keep().ok()?;
            let txg = kept.txg;
            self.kept.lock().push(kept);
            Some(txg)
        };
        if let Some(imported) = imported {
            let search = imported.search();
            let candidate = self.find_among(Some(&imported), name)?;
            let guid = candidate.guid.0.to_string();
            let Some(txg) = is_newest.then(|| keep(imported)).flatten() else {
                return Ok((candidate, None));
            };
            // The uberblock of this state may be newer than what was found.
            let candidate = View::find(&search, &guid);
            let candidate = candidate.map_err(|error| refused(self.explained(&error)))?;
            return Ok((candidate, Some(txg)));
        }
        let candidate = self.find_among(None, name)?;
        if !is_newest || !is_in_use(&candidate) {
            return Ok((candidate, None));
        }
        let imported = imported::find(&candidate.guid.0.to_string());
        match imported.and_then(keep) {
            Some(txg) => Ok((self.find_among(None, name)?, Some(txg))),
            None => Ok((candidate, None)),
        }
    }

    /// Checks that the daemon kept what was read. What was found to be wrong may otherwise be blocks that were overwritten.
    ///
    /// # Errors
    /// If it did not. That is said once.
    pub fn check_kept(&self) -> Result<(), Failure> {
        let mut all = self.kept.lock();
        let lost = all.iter().position(|kept| !kept.is_kept());
        match lost.map(|lost| all.swap_remove(lost)) {
            None => Ok(()),
            Some(kept) => Err(refused(format!(
                "the state of txg {} is gone: the pool was exported meanwhile, needed the space, or was read for more than an \
                 hour; nothing can be said about it. zpool scrub verifies a pool while it is in use",
                kept.txg.0
            ))),
        }
    }

    /// Formats an error with a hint on how to resolve it.
    pub fn explained(&self, error: &Error) -> String {
        let Error::NoSuchPool { .. } = error else {
            return pools::explained(error);
        };
        let mut lines = search_paths::problems(&self.search.paths);
        if let Some(file) = &self.cache_file {
            lines.extend(search_paths::cache_file_problem(file));
        }
        if self.search.paths.is_empty() && self.cache_file.is_none() {
            return pools::explained(error);
        }
        let names: Vec<String> = (self.search.pools().into_iter())
            .map(|pool| pool.name)
            .collect();
        match names.as_slice() {
            [] if lines.is_empty() => lines.push("there is no pool where it was looked for".into()),
            [] => {}
            names => lines.push(format!("the pools there: {}", names.join(", "))),
        }
        format!("{error}\n{}\n-d DIR says where to look", lines.join("\n"))
    }

    /// Loads the keys given by options into a pool.
    ///
    /// # Errors
    /// If a key is wrong.
    pub fn load_keys(&self, pool: &View, called: &str) -> Result<(), Failure> {
        self.keys.iter().try_for_each(|key| key.load(pool, called))
    }

    /// Returns the name that an argument gives, or that of the only pool found.
    ///
    /// # Errors
    /// Without the argument, if the search finds no pool, or several.
    pub fn named(&self, matches: &ArgMatches, argument: &str) -> Result<String, Failure> {
        match matches.get_one::<String>(argument) {
            Some(name) => Ok(name.clone()),
            None => self.only_pool(),
        }
    }

    fn only_pool(&self) -> Result<String, Failure> {
        let found = self.search.pools().into_iter();
        let mut pools: BTreeMap<u64, String> = found.map(|pool| (pool.guid.0, pool.name)).collect();
        if self.search.paths.is_empty() && self.cache_file.is_none() {
            let imported = imported::all().into_iter();
            pools.extend(imported.map(|info| (info.guid, info.name)));
        }
        let names: Vec<String> = pools.into_values().collect();
        match names.as_slice() {
            [] => Err(Failure::Refused("millpond: no pools found".into())),
            [name] => Ok(name.clone()),
            several => Err(Failure::Refused(format!(
                "millpond: several pools found, name one: {}",
                several.join(", ")
            ))),
        }
    }
}

/// Turns a library error into a failure with status 1.
pub(super) fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::Refused(format!("millpond: {error}"))
}

/// The heading of these options in the help.
const HEADING: &str = "Pools, keys and output";
