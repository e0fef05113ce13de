//! `millpond mkimage`: creates a pool and fills it from trees or archives in one step.

mod archive;
mod layout;
mod world;

use super::Global;
use super::cp::into::host::HostFile;
use super::cp::into::source::Source;
use super::cp::into::target::{Preserved, Target};
use super::cp::into::tree::{Fill, Order, Pump};
use super::cp::report::Report;
use super::global::refused;
use super::pools::explained;
use crate::session::{Ending, Failure, Session};
use crate::text::number;
use crate::verbs::parse;
use clap::{ArgMatches, Args, Command};
use layout::{Layout, Need};
use millpond_control::properties::Form;
use millpond_control::properties::{PropertyName, PropertyValue, by_name};
use millpond_engine::{FileKind, Pool, PoolBuilder, SyncMode, WriteOptions};
use millpond_env::Env;
use millpond_env::host;
use millpond_env::host::hostid;
use millpond_env::sync::Arc;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
struct Options {
    /// Redundancy (default: single for one image, mirror for two, raidz1 for more)
    #[arg(long, value_enum)]
    layout: Option<Layout>,
    /// Size of each image, such as 512M or 8G (default: as needed, with a margin)
    #[arg(long, value_parser = size)]
    size: Option<u64>,
    /// Name of the pool (default: name of the first image, without extension)
    #[arg(short = 'n', long)]
    name: Option<String>,
    /// A property of the pool, as with zpool create (repeatable)
    #[arg(short = 'o', value_name = "PROPERTY=VALUE", value_parser = pair)]
    pool_property: Vec<(String, String)>,
    /// A property of its root file system, as with zpool create (repeatable)
    #[arg(short = 'O', value_name = "PROPERTY=VALUE", value_parser = pair)]
    root_property: Vec<(String, String)>,
    /// The same as -O compression=
    #[arg(long, value_name = "ALGORITHM")]
    compression: Option<String>,
    /// The same as -O recordsize=
    #[arg(long, value_parser = size)]
    recordsize: Option<u64>,
    /// log2 of the sector size
    #[arg(long, value_parser = clap::value_parser!(u8).range(9..=16), default_value = "12")]
    ashift: u8,
    /// Create another file system, named relative to the pool, and fill it from a tree or archive if given (repeatable)
    #[arg(long, value_name = "NAME[=DIR|TAR]")]
    dataset: Vec<OsString>,
    /// The dataset to fill, named relative to the pool (default: the pool's root file system)
    #[arg(long, value_name = "NAME")]
    into: Option<String>,
    /// Take a snapshot of everything at the end
    #[arg(long, value_name = "NAME")]
    snapshot: Option<String>,
    /// With the same input and seed the images are identical; the time is SOURCE_DATE_EPOCH, or in 2020
    #[arg(long)]
    seed: Option<u64>,
    /// Owner of all files
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,
    /// Overwrite existing images that are not empty
    #[arg(short = 'f', long)]
    force: bool,
    /// Show no progress
    #[arg(short = 'q', long)]
    quiet: bool,
    /// A directory, a tar archive, or - for an archive on standard input
    #[arg(value_name = "DIR|TAR")]
    source: PathBuf,
    /// Images to create; block devices keep their size
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("mkimage")
        .about("Create a pool on images and fill it from a directory or a tar archive")
        .override_usage("millpond mkimage [OPTIONS] DIR|TAR IMAGE...")
        .after_help(NOTES);
    Options::augment_args(command)
}

fn pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or("PROPERTY=VALUE is wanted")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn owner(text: &str) -> Result<(u32, u32), String> {
    let to_error = || "UID:GID is wanted, as numbers".to_owned();
    let (uid, gid) = text.split_once(':').ok_or_else(to_error)?;
    Ok((
        uid.parse().map_err(|_| to_error())?,
        gid.parse().map_err(|_| to_error())?,
    ))
}

/// Parses a number of bytes: digits, an optional fraction and an optional letter for a power of 1024.
fn size(text: &str) -> Result<u64, String> {
    let to_error = || format!("'{text}' is no size, like 512M");
    let upper = text.to_ascii_uppercase();
    let digits = upper.trim_end_matches("IB").trim_end_matches('B');
    let (digits, shift) = match digits.char_indices().next_back() {
        Some((at, letter)) if letter.is_ascii_alphabetic() => {
            let power = "KMGTPE".find(letter).ok_or_else(to_error)?;
            (&digits[..at], 10 * (power as u32 + 1))
        }
        _ => (digits, 0),
    };
    if let Ok(whole) = digits.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(to_error);
    }
    let number: f64 = digits.parse().map_err(|_| to_error())?;
    let bytes = number * (1u64 << shift) as f64;
    (number.is_finite() && (0.0..1e18).contains(&bytes))
        .then_some(bytes as u64)
        .ok_or_else(to_error)
}

/// The content of a file system.
enum Content {
    Tree(PathBuf),
    Archive(PathBuf),
    Stdin,
}

impl Content {
    fn of(path: &Path) -> Result<Self, Failure> {
        if path == Path::new("-") {
            return Ok(Self::Stdin);
        }
        let found = std::fs::metadata(path);
        let found = found.map_err(|error| refused(format!("{}: {error}", path.display())))?;
        Ok(match found.is_dir() {
            true => Self::Tree(path.to_owned()),
            false => Self::Archive(path.to_owned()),
        })
    }

    fn measure(&self, need: &mut Need) -> Result<(), Failure> {
        match self {
            Self::Stdin => Err(Failure::Usage(
                "the size of an archive on standard input is unknown: give --size".into(),
            )),
            Self::Archive(path) => {
                let to_error = |error: String| refused(format!("{}: {error}", path.display()));
                archive::measure(opened(path)?, |bytes| need.add(bytes)).map_err(to_error)
            }
            Self::Tree(path) => {
                let top = HostFile::at(path, true);
                let top = top.map_err(|error| refused(format!("{}: {error}", path.display())))?;
                measure_tree(Arc::new(top), need);
                Ok(())
            }
        }
    }
}

fn opened(path: &Path) -> Result<BufReader<File>, Failure> {
    let file = File::open(path);
    let file = file.map_err(|error| refused(format!("{}: {error}", path.display())))?;
    Ok(BufReader::with_capacity(1 << 20, file))
}

/// Adds up a tree. Files that cannot be examined are reported when they are copied.
fn measure_tree(top: Arc<dyn Source>, need: &mut Need) {
    let mut seen = HashSet::new();
    let mut stack = vec![top];
    while let Some(directory) = stack.pop() {
        need.add(0);
        for entry in directory.entries().unwrap_or_default() {
            let Ok(file) = directory.child(&entry) else {
                continue;
            };
            let facts = file.facts();
            match facts.kind {
                FileKind::Directory => stack.push(file),
                FileKind::Regular if facts.links > 1 && !seen.insert(facts.id) => need.add(0),
                FileKind::Regular => {
                    let mut data = 0;
                    let mut at = 0;
                    // Only files above a minimum size are searched for holes.
                    if facts.size_bytes < HOLES_FROM_BYTES {
                        data = facts.size_bytes;
                    } else {
                        while let Ok(Some((start, end))) = file.next_data(at) {
                            data += end - start;
                            at = end;
                        }
                    }
                    need.add(data);
                }
                _ => need.add(0),
            }
        }
    }
}

/// A dataset to create, and its content.
struct Part {
    dataset: String,
    content: Option<Content>,
}

/// Creates the pool.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Options = parse(matches)?;
    let layout = options
        .layout
        .unwrap_or(Layout::usual(options.images.len()));
    if let Some(complaint) = layout.complaint(options.images.len()) {
        return Err(Failure::Usage(complaint));
    }
    let name = match &options.name {
        Some(name) => name.clone(),
        None => {
            let stem = options.images.first().and_then(|image| image.file_stem());
            stem.unwrap_or_default().to_string_lossy().into_owned()
        }
    };
    let parts = parts(&options, &name)?;
    let root_properties = root_properties(&options)?;
    let image_bytes = match options.size {
        Some(bytes) => bytes,
        None => {
            let record = root_properties
                .iter()
                .find(|(name, _)| name == "recordsize");
            let record = record.and_then(|(_, value)| value.parse().ok());
            let record = record.unwrap_or(128 << 10);
            let mut need = Need::new(layout, options.images.len(), options.ashift, record);
            for part in &parts {
                need.add(1 << 20);
                if let Some(content) = &part.content {
                    content.measure(&mut need)?;
                }
            }
            need.image_bytes()
        }
    };
    let mut images = Images::default();
    for image in &options.images {
        images.make(image, image_bytes, options.force)?;
    }
    super::cp::raise_limit();
    let report = Arc::new(Report::new(global.progress(options.quiet), None));
    let plan = plan(&options, layout, &name, root_properties)?;
    let made = fill(plan, &options, &parts, &report);
    let is_whole = report.finish(session.out, session.err, global.is_json)?;
    match made {
        Ok(()) => images.keep(),
        Err(failure) => return Err(failure),
    }
    if !options.quiet && !global.is_json {
        let size = number::bytes(image_bytes);
        writeln!(
            session.out,
            "{name}: {} of {size}",
            shown_images(&options.images, layout)
        )?;
    }
    Ok(u8::from(!is_whole))
}

fn shown_images(images: &[PathBuf], layout: Layout) -> String {
    let names: Vec<String> = images
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    format!(
        "{} ({})",
        names.join(", "),
        format!("{layout:?}").to_lowercase()
    )
}

fn parts(options: &Options, pool: &str) -> Result<Vec<Part>, Failure> {
    let full = |name: &str| match name {
        "" => pool.to_owned(),
        name => format!("{pool}/{name}"),
    };
    let mut parts = vec![Part {
        dataset: full(options.into.as_deref().unwrap_or_default()),
        content: Some(Content::of(&options.source)?),
    }];
    for word in &options.dataset {
        use std::os::unix::ffi::OsStrExt;
        let bytes = word.as_bytes();
        let at = bytes.iter().position(|byte| *byte == b'=');
        let (name, content) = match at {
            None => (bytes, None),
            Some(at) => {
                let path = Path::new(std::ffi::OsStr::from_bytes(&bytes[at + 1..]));
                (&bytes[..at], Some(Content::of(path)?))
            }
        };
        let name = std::str::from_utf8(name);
        let name = name.map_err(|_| Failure::Usage("names of datasets are plain text".into()))?;
        parts.push(Part {
            dataset: full(name),
            content,
        });
    }
    Ok(parts)
}

/// The properties of the root file system, with sizes in digits.
fn root_properties(options: &Options) -> Result<Vec<(String, String)>, Failure> {
    let mut all = options.root_property.clone();
    if let Some(value) = &options.compression {
        all.push(("compression".into(), value.clone()));
    }
    if let Some(value) = options.recordsize {
        all.push(("recordsize".into(), value.to_string()));
    }
    for (name, value) in &mut all {
        let property = by_name(name);
        if let Some(PropertyName::Native(property)) = property
            && matches!(property.shape.form, Form::Number(_))
            && value != "none"
        {
            *value = size(value).map_err(Failure::Usage)?.to_string();
        }
    }
    Ok(all)
}

fn plan(
    options: &Options,
    layout: Layout,
    name: &str,
    root_properties: Vec<(String, String)>,
) -> Result<PoolBuilder, Failure> {
    let mut plan = layout.plan(PoolBuilder::new(name), &options.images);
    plan = plan.ashift(options.ashift);
    if options.force {
        plan = plan.force();
    }
    for (name, value) in &options.pool_property {
        plan = plan.property(name, value);
    }
    for (name, value) in &root_properties {
        plan = plan.root_property(name, value);
    }
    let mut writing = WriteOptions::default();
    match options.seed {
        Some(seed) => {
            let epoch = std::env::var("SOURCE_DATE_EPOCH").ok();
            let world = world::of_seed(seed, epoch.as_deref()).map_err(refused)?;
            writing.sync_mode = SyncMode::Caller;
            plan = plan.env(world).plain_paths();
        }
        None => {
            writing.hostid = hostid();
            writing.hostname = host::hostname();
            plan = plan.env(Env::real());
        }
    }
    Ok(plan.writing(writing))
}

fn fill(
    plan: PoolBuilder,
    options: &Options,
    parts: &[Part],
    report: &Arc<Report>,
) -> Result<(), Failure> {
    let to_error = |error: millpond_engine::Error| refused(explained(&error));
    let pool = plan.create().map_err(to_error)?;
    for part in parts {
        make_dataset(&pool, &part.dataset).map_err(to_error)?;
    }
    for part in parts {
        let Some(content) = &part.content else {
            continue;
        };
        fill_one(&pool, &part.dataset, content, options, report)?;
    }
    if let Some(snapshot) = &options.snapshot {
        let taken = pool
            .datasets()
            .snapshot_recursively(&format!("{}@{snapshot}", pool.name()));
        taken.map_err(|error| to_error(error.into()))?;
    }
    pool.export().map_err(to_error)
}

/// Creates a file system and its missing ancestors.
fn make_dataset(pool: &Pool, name: &str) -> Result<(), millpond_engine::Error> {
    let there = pool.datasets().names_below(&pool.name())?;
    for (at, _) in name.match_indices('/').chain([(name.len(), "")]) {
        let name = &name[..at];
        if !there.iter().any(|known| known == name) {
            let none: [(String, PropertyValue); 0] = [];
            pool.datasets().create_filesystem(name, &none)?;
        }
    }
    Ok(())
}

fn fill_one(
    pool: &Pool,
    dataset: &str,
    content: &Content,
    options: &Options,
    report: &Arc<Report>,
) -> Result<(), Failure> {
    let to_error = |error: millpond_engine::Error| refused(explained(&error));
    let files = pool.file_system(dataset).map_err(to_error)?;
    let root = files.root().map_err(|error| to_error(error.into()))?;
    let target = Target {
        files,
        preserved: Preserved {
            owner: options.owner,
            has_xattrs: true,
            is_atime_mtime: options.seed.is_some(),
            is_kept: false,
        },
        own: None,
    };
    // The command writes the txgs itself. It must do so before too much is dirty, and at the same points in
    // every run.
    let groups = pool.inner().groups();
    let write = || match groups.dirty_bytes() > DIRTY_BYTES_MAX {
        true => pool.sync().map_err(|error| error.to_string()),
        false => Ok(()),
    };
    let nothing = || Ok(());
    let pump: &Pump<'_> = match options.seed {
        Some(_) => &write,
        None => &nothing,
    };
    match content {
        Content::Tree(path) => {
            let shown = path.display();
            let source = HostFile::at(path, true);
            let source = source.map_err(|error| refused(format!("{shown}: {error}")))?;
            let order = Order {
                source: Arc::new(source),
                path: path.as_os_str().as_encoded_bytes().to_vec(),
                name: None,
            };
            let pump = options.seed.is_some().then_some(pump);
            let fill = Fill::new(Arc::new(target), Arc::clone(report), true, pump);
            fill.run(&root, vec![order]);
        }
        Content::Archive(path) => {
            let shown = path.display();
            let extracted = archive::extract(opened(path)?, &target, &root, report, pump);
            extracted.map_err(|error| refused(format!("{shown}: {error}")))?;
        }
        Content::Stdin => {
            let from: Box<dyn Read> = Box::new(std::io::stdin().lock());
            let from = BufReader::with_capacity(1 << 20, from);
            archive::extract(from, &target, &root, report, pump).map_err(refused)?;
        }
    }
    match report.is_stopped() {
        true => Err(refused(
            "the pool is full, or failed: see above; --size makes it larger",
        )),
        false => Ok(()),
    }
}

/// Image files created by this command. They are removed if the pool is not created.
#[derive(Default)]
struct Images {
    made: Vec<PathBuf>,
    is_kept: bool,
}

impl Images {
    fn make(&mut self, path: &Path, bytes: u64, force: bool) -> Result<(), Failure> {
        let to_error = |error: std::io::Error| refused(format!("{}: {error}", path.display()));
        match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => return Ok(()),
            Ok(found) if !found.is_file() => {
                return Err(refused(format!(
                    "{}: no file and no block device",
                    path.display()
                )));
            }
            Ok(found) if found.len() > 0 && !force => {
                return Err(refused(format!(
                    "{}: exists and holds something; -f replaces it",
                    path.display()
                )));
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                self.made.push(path.to_owned());
            }
            Err(error) => return Err(to_error(error)),
        }
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(path)
            .map_err(to_error)?;
        file.set_len(bytes).map_err(to_error)
    }

    fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Images {
    fn drop(&mut self) {
        if !self.is_kept {
            for path in &self.made {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Maximum dirty bytes while the command writes txgs itself.
const DIRTY_BYTES_MAX: u64 = 48 << 20;
/// Files below this size are counted in full, without a search for holes.
const HOLES_FROM_BYTES: u64 = 1 << 20;

const NOTES: &str = "\
The tree's contents are placed in the root of the file system, which also gets the tree's mode, owner
and times. Modes, owners, times, extended attributes, POSIX ACLs (with -O acltype=posix), hard links,
symbolic links, pipes, sockets, device nodes and holes are kept. The pool is left exported.
With --seed the images depend only on the tree, the options and the seed: access times are those of
the last change, and labels contain no paths.";

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_letters_and_fractions() {
        assert_eq!(size("512"), Ok(512));
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("1.5G"), Ok(3 << 29));
        assert_eq!(size("64MiB"), Ok(64 << 20));
        assert_eq!(size("2TB"), Ok(2 << 40));
        for text in ["", "M", "-1", "1X", "nan", "99999999999E"] {
            assert!(size(text).is_err(), "{text}");
        }
    }
}
