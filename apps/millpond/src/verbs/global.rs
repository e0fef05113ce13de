//! Options shared by all commands: search paths, pool state, keys and output format.

use super::flag;
use super::keys::KeyOption;
use super::pools;
use crate::places;
use crate::session::Failure;
use clap::{Arg, ArgAction, ArgMatches, value_parser};
use millpond_engine::{Error, OpenOptions, Rewind, Search, Txg, View};
use std::ffi::OsString;
use std::io::Write;
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
    /// Datasets with the sources of their keys.
    keys: Vec<KeyOption>,
    /// Whether files named by `keylocation` may be read.
    pub is_keylocation_used: bool,
    /// The cache file that says which pools there are.
    cache_file: Option<PathBuf>,
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
        flag("json", "Print JSON"),
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
            keys,
            is_keylocation_used: matches.get_flag("use-keylocation"),
            cache_file,
        })
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

    /// Opens a pool according to the options and loads the given keys.
    ///
    /// # Errors
    /// If the pool cannot be opened, or a key is wrong.
    pub fn open_pool(&self, name: &str) -> Result<View, Failure> {
        let pool = View::open(&self.search, name, &self.open)
            .map_err(|error| refused(self.explained(&error)))?;
        if pool.is_live() {
            let _ = writeln!(
                std::io::stderr(),
                "millpond: warning: '{name}' is in use and may be written to: data may change \
                 while it is read"
            );
        }
        self.load_keys(&pool, name)?;
        Ok(pool)
    }

    /// Formats an error with a hint on how to resolve it.
    pub fn explained(&self, error: &Error) -> String {
        let Error::NoSuchPool { .. } = error else {
            return pools::explained(error);
        };
        let mut lines = places::problems(&self.search.paths);
        if let Some(file) = &self.cache_file {
            lines.extend(places::cache_file_problem(file));
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
        let names: Vec<String> = self
            .search
            .pools()
            .into_iter()
            .map(|pool| pool.name)
            .collect();
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
