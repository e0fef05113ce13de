//! `millpond stat`: shows all attributes of a file.

use super::Global;
use super::acl_text;
use super::entry_text::{Names, kind_word, mode_text, to_json};
use super::global::refused;
use super::json::{base64, put_name};
use super::name_text::escaped;
use super::pools::{FileTarget, Pools, Target, explained};
use super::{parse, unless_refused};
use crate::session::{Ending, Failure, Session};
use clap::{ArgMatches, Args, Command};
use millpond_engine::{Dataset, FileFlags, FileKind, Symlinks};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

#[derive(Debug, Args)]
struct Options {
    /// Follow symbolic links
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Show numeric user and group ids
    #[arg(short = 'n', long)]
    numeric: bool,
    /// Files, POOL/DATASET[@SNAP]:/PATH, and volumes, POOL/VOLUME[@SNAP]
    #[arg(required = true, value_name = "ADDRESS")]
    addresses: Vec<OsString>,
}

/// Defines the command.
pub fn command() -> Command {
    let command = Command::new("stat")
        .about("Show everything about a file: times, flags, ACLs, extended attributes, blocks");
    Options::augment_args(command)
}

/// Shows the named files and volumes.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let options: Options = parse(matches)?;
    let names = Names::new(session.environment, options.numeric);
    let symlinks = if options.dereference {
        Symlinks::Follow
    } else {
        Symlinks::Keep
    };
    let mut pools = Pools::new(global);
    let mut status = 0;
    for word in &options.addresses {
        let description = pools
            .target(word, symlinks)
            .and_then(|target| match target {
                Target::File(file) => Description::of_file(&file, word.as_encoded_bytes(), &names),
                Target::Volume(volume) => Description::of_volume(&volume),
            });
        let description = description;
        let Some(description) = unless_refused(session, description, &mut status)? else {
            continue;
        };
        if !description.problems.is_empty() {
            status = 1;
        }
        if global.is_json {
            writeln!(session.out, "{}", Value::Object(description.json))?;
            continue;
        }
        session.out.write_all(description.text.as_bytes())?;
        for problem in &description.problems {
            writeln!(
                session.err,
                "millpond: {}: {problem}",
                word.to_string_lossy()
            )?;
        }
    }
    Ok(status)
}

/// The description of a file as text and as JSON.
struct Description {
    text: String,
    json: Map<String, Value>,
    problems: Vec<String>,
}

impl Description {
    fn line(&mut self, label: &str, value: impl std::fmt::Display) {
        self.text.push_str(&format!("{label:>12}: {value}\n"));
    }
    fn problem(&mut self, what: &str, error: impl std::fmt::Display) {
        self.problems.push(format!("{what}: {error}"));
    }

    fn of_volume(dataset: &Dataset) -> Result<Self, Failure> {
        let volume = dataset
            .volume()
            .map_err(|error| refused(explained(&error)))?;
        let mut description = Self {
            text: String::new(),
            json: Map::new(),
            problems: vec![],
        };
        let used = volume.data().used_bytes();
        description.line("volume", dataset.name());
        description.line("size", volume.size_bytes());
        description.line("block size", volume.block_bytes());
        description.line("space", used);
        description.json = match json!({
            "path": dataset.name(), "type": "volume", "size": volume.size_bytes(),
            "block_bytes": volume.block_bytes(), "used_bytes": used,
        }) {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        Ok(description)
    }

    fn of_file(file: &FileTarget, path: &[u8], names: &Names) -> Result<Self, Failure> {
        let node = &file.node;
        let stat = node
            .stat()
            .map_err(|error| refused(format!("{}: {error}", escaped(path))))?;
        let mut description = Self {
            text: String::new(),
            json: to_json(path, node, &stat),
            problems: vec![],
        };
        description.line("file", escaped(path));
        if stat.kind == FileKind::Symlink {
            match node.link_target() {
                Ok(target) => description.line("target", escaped(&target.unwrap_or_default())),
                Err(error) => description.problem("target", error),
            }
        }
        description.line("kind", kind_word(stat.kind));
        if let Some((major, minor)) = stat.device {
            description.line("device", format!("{major}, {minor}"));
        }
        description.line("size", stat.size_bytes);
        description.line("space", format!("{} sectors of 512 bytes", stat.sectors));
        description.line("block size", stat.block_bytes);
        description
            .json
            .insert("block_bytes".into(), stat.block_bytes.into());
        description.extents(file);
        description.line("object", stat.id);
        description.line("generation", stat.generation);
        description
            .json
            .insert("generation".into(), stat.generation.into());
        description.line("links", stat.links);
        let mode = mode_text(stat.kind, stat.permissions);
        description.line("mode", format!("{:04o} {mode}", stat.permissions));
        description.line("owner", format!("{} {}", stat.uid, names.user(stat.uid)));
        description.line("group", format!("{} {}", stat.gid, names.group(stat.gid)));
        for (label, fuid) in [("owner_fuid", stat.owner), ("group_fuid", stat.group)] {
            if fuid.domain() != 0 {
                let text = format!("domain {} id {}", fuid.domain(), fuid.id());
                description.json.insert(label.into(), text.as_str().into());
                description.line(label, text);
            }
        }
        for (label, time) in [
            ("accessed", stat.atime),
            ("modified", stat.mtime),
            ("changed", stat.ctime),
            ("born", stat.crtime),
        ] {
            description.line(label, names.full_time(time));
        }
        let flags = flags(stat.flags);
        description.line(
            "flags",
            if flags.is_empty() {
                "none".into()
            } else {
                flags.join(" ")
            },
        );
        description.json.insert("flags".into(), json!(flags));
        if let Some(project) = stat.project {
            description.line("project", project);
            description.json.insert("project".into(), project.into());
        }
        description.parent(file);
        description.xattrs(file, names);
        match node.nfs4_acl() {
            Ok(acl) => {
                let acl: Vec<String> = acl
                    .unwrap_or_default()
                    .iter()
                    .map(|ace| acl_text::nfs4(ace, names))
                    .collect();
                for entry in &acl {
                    description.line("acl", entry);
                }
                description.json.insert("nfs4_acl".into(), json!(acl));
            }
            Err(error) => description.problem("acl", error),
        }
        let problems = json!(description.problems);
        if !description.problems.is_empty() {
            description.json.insert("problems".into(), problems);
        }
        Ok(description)
    }

    fn extents(&mut self, file: &FileTarget) {
        if file.node.kind() != FileKind::Regular {
            return;
        }
        let (mut count, mut bytes) = (0u64, 0u64);
        for extent in file.node.extents() {
            match extent {
                Ok(extent) => {
                    count += 1;
                    bytes = bytes.saturating_add(extent.length_bytes);
                }
                Err(error) => self.problem("extents", error),
            }
        }
        let plural = if count == 1 { "extent" } else { "extents" };
        self.line("data", format!("{bytes} bytes in {count} {plural}"));
        self.json.insert("extents".into(), count.into());
        self.json.insert("data_bytes".into(), bytes.into());
    }

    fn parent(&mut self, file: &FileTarget) {
        match file.node.parent_id() {
            Ok(id) => {
                let path = file.files.path_of(id).ok().flatten();
                let shown = match &path {
                    Some(path) => format!("{id} /{}", escaped(path)),
                    None => format!("{id}"),
                };
                self.line("parent", shown);
                self.json.insert("parent_ino".into(), id.0.into());
                if let Some(path) = path {
                    let path = [b"/", path.as_slice()].concat();
                    put_name(&mut self.json, "parent_path", &path);
                }
            }
            Err(error) => self.problem("parent", error),
        }
    }

    fn xattrs(&mut self, file: &FileTarget, names: &Names) {
        let found = match file.node.xattr_names() {
            Ok(found) => found,
            Err(error) => return self.problem("extended attributes", error),
        };
        let mut list = vec![];
        for name in found {
            let value = match file.node.xattr(&name) {
                Ok(value) => value.unwrap_or_default(),
                Err(error) => {
                    self.problem(&format!("extended attribute {}", escaped(&name)), error);
                    continue;
                }
            };
            self.line(
                "xattr",
                format!("{} ({} bytes)", escaped(&name), value.len()),
            );
            let mut map = Map::new();
            put_name(&mut map, "name", &name);
            map.insert("size".into(), value.len().into());
            if value.len() <= VALUE_BYTES_MAX {
                map.insert("value_b64".into(), base64(&value).into());
            }
            let is_acl = name.starts_with(b"system.posix_acl_");
            if let Some(lines) = acl_text::posix(&value, names).filter(|_| is_acl) {
                let label = if name.ends_with(b"default") {
                    "default acl"
                } else {
                    "posix acl"
                };
                for line in &lines {
                    self.line(label, line);
                }
                map.insert("acl".into(), json!(lines));
            }
            list.push(Value::Object(map));
        }
        self.json.insert("xattrs".into(), list.into());
    }
}

fn flags(flags: FileFlags) -> Vec<String> {
    flags
        .iter_names()
        .map(|(name, _)| name.to_ascii_lowercase())
        .collect()
}

const VALUE_BYTES_MAX: usize = 64 << 10;
