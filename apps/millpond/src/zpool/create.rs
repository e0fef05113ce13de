//! `zpool create` and `zpool add`.

use super::change_text::{Verb, failure};
use super::groups;
use super::layout::{self, Layout, Leaf};
use super::vdev_name::Naming;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use crate::zfs::Assignment;
use millpond_control::properties::DatasetKind;
use millpond_control::{
    ChangeError, DeviceProblem, NewDevices, NewPoolRequest, PoolChange, PoolInfo, PoolVersion,
    RequestedFeatures, Service, VdevClass, VdevInfo,
};
use millpond_engine::FeatureChoice;

/// Creates a pool.
pub fn create(session: &mut Session, parsed: &Parsed) -> Ending {
    let (name, words) = operands(parsed)?;
    let action = format!("cannot create '{name}'");
    let mut ask = Args::read(parsed, &action)?;
    let layout = understood(session.service()?, words)?;
    if let Err(reason) = crate::zfs::check_together(&ask.root_properties) {
        return Err(Failure::Refused(format!("{action}: {reason}")));
    }
    // With `-d` nothing is mounted.
    if session.pools.daemon().is_ok() {
        check_mountpoint(&ask, name)?;
    }
    if let Err(reason) = check_name(name) {
        let hint = if name.contains('/') {
            "use 'zfs create' to create a dataset"
        } else {
            "pool name may have been omitted"
        };
        return Err(Failure::Refused(format!("{action}: {reason}\n{hint}")));
    }
    let key = crate::zfs::of_new_dataset(session, None, &ask.root_properties, parsed.has("n"));
    let root_key = key.map_err(|reason| Failure::Refused(format!("{action}: {reason}")))?;
    let quotas = crate::zfs::quotas_among(session, &ask.root_quotas);
    let root_quotas = quotas.map_err(|reason| Failure::Refused(format!("{action}: {reason}")))?;
    let force = parsed.has("f");
    let request = NewPoolRequest {
        name: name.clone(),
        temporary_name: ask.temporary_name.take(),
        devices: NewDevices {
            ashift: ask.ashift,
            may_take_used: force,
            may_mix_redundancy: force,
            may_mix_sectors: force,
            ..layout.devices()
        },
        features: std::mem::take(&mut ask.features),
        properties: ask.properties,
        root_properties: ask.root_properties,
        root_quotas,
        root_key,
        only_check: parsed.has("n"),
    };
    let made = session.service()?.create_pool(&request, &parsed.line);
    let made = made.map_err(|error| failure(Verb::Create, &action, &error))?;
    if parsed.has("n") {
        let title = format!("would create '{name}' with the following layout:");
        print_layout(session, &title, name, &layout, None)?;
    }
    warn_of_features(session, &request)?;
    // The pool exists; the notes only say that its file systems are not mounted.
    crate::zfs::tell_notes(session, &made.notes)?;
    Ok(u8::from(!made.notes.is_empty()))
}

/// Names the features that were asked for, and that property `compatibility` leaves out.
fn warn_of_features(session: &mut Session, request: &NewPoolRequest) -> Result<(), Failure> {
    let has_list = |(name, _): &(String, String)| name == "compatibility";
    if request.only_check || !request.properties.iter().any(has_list) {
        return Ok(());
    }
    let name = request.temporary_name.as_ref().unwrap_or(&request.name);
    let info = session.service()?.pool(name);
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    let RequestedFeatures::Listed(listed) = &info.requested else {
        return Ok(());
    };
    for (property, value) in &request.properties {
        if let Some(feature) = property.strip_prefix("feature@")
            && value == "enabled"
            && !listed.iter().any(|known| known == feature)
        {
            writeln!(
                session.err,
                "Warning: feature \"{feature}\" enabled but is not in specified 'compatibility' feature set."
            )?;
        }
    }
    Ok(())
}

/// Checks that nothing exists at the mountpoint of the root file system.
fn check_mountpoint(ask: &Args, name: &str) -> Result<(), Failure> {
    let of = |list: &[(String, String)], wanted: &str| {
        let mut pairs = list.iter();
        pairs
            .find(|(name, _)| name == wanted)
            .map(|(_, value)| value.clone())
    };
    // The daemon of an ordinary user mounts below the home directory.
    let home =
        millpond_daemon::home_for_mounts().filter(|_| of(&ask.properties, "altroot").is_none());
    let mountpoint = of(&ask.root_properties, "mountpoint")
        .unwrap_or_else(|| format!("{}/{name}", home.unwrap_or_default()));
    if !mountpoint.starts_with('/') {
        return Ok(());
    }
    let path = match of(&ask.properties, "altroot") {
        Some(root) => format!("{}{mountpoint}", root.trim_end_matches('/')),
        None => mountpoint,
    };
    let is_free = match std::fs::read_dir(&path) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    };
    match is_free {
        true => Ok(()),
        false => Err(Failure::Refused(format!(
            "mountpoint '{path}' exists and is not empty\n\
             use '-m' option to provide a different default"
        ))),
    }
}

/// Adds vdevs to a pool.
pub fn add(session: &mut Session, parsed: &Parsed) -> Ending {
    let mut ashift = None;
    for (_, value) in parsed.options.iter().filter(|(option, _)| option == "o") {
        let (name, value) = split(value.as_deref().unwrap_or_default())?;
        if name != "ashift" {
            return Err(Failure::Usage(String::new()));
        }
        ashift = ashift_of(value)?;
    }
    let (name, words) = operands(parsed)?;
    let known = session.service()?.pools();
    if !known.is_ok_and(|pools| pools.contains(name)) {
        return Err(Failure::Refused(super::no_such_pool(name)));
    }
    let layout = understood(session.service()?, words)?;
    let force = parsed.has("f");
    let devices = NewDevices {
        ashift,
        may_take_used: force || parsed.has("allow-in-use"),
        may_mix_redundancy: force || parsed.has("allow-replication-mismatch"),
        may_mix_sectors: force || parsed.has("allow-ashift-mismatch"),
        ..layout.devices()
    };
    let action = format!("cannot add to '{name}'");
    let to_error = |error: ChangeError| failure(Verb::Add, &action, &error);
    if parsed.has("n") {
        session
            .service()?
            .check_add(name, &devices)
            .map_err(to_error)?;
        let title = format!("would update '{name}' to the following configuration:");
        let info = session.service()?.pool(name);
        let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
        let naming = Naming::read(parsed, session.environment);
        print_layout(session, &title, name, &layout, Some((&info, naming)))?;
        return Ok(0);
    }
    let change = PoolChange::Add(devices);
    let done = session.service()?.change(name, &[change], &parsed.line);
    done.map_err(|failure| to_error(failure.error))?;
    Ok(0)
}

fn operands(parsed: &Parsed) -> Result<(&String, &[String]), Failure> {
    match parsed.operands.split_first() {
        Some((name, words)) if !words.is_empty() => Ok((name, words)),
        _ => Err(Failure::Usage("missing vdev specification".into())),
    }
}

/// The parsed options of `create`.
#[derive(Default)]
struct Args {
    temporary_name: Option<String>,
    ashift: Option<u8>,
    features: FeatureChoice,
    properties: Vec<(String, String)>,
    root_properties: Vec<(String, String)>,
    root_quotas: Vec<Assignment>,
}

impl Args {
    fn read(parsed: &Parsed, action: &str) -> Result<Args, Failure> {
        let mut ask = Args::default();
        for (option, value) in &parsed.options {
            let value = value.as_deref().unwrap_or_default();
            match option.as_str() {
                "d" => ask.features = FeatureChoice::OnlyNamed,
                "m" => {
                    let is_fit = value.starts_with('/') || matches!(value, "none" | "legacy");
                    if !is_fit {
                        return Err(Failure::Refused(format!(
                            "invalid mountpoint '{value}': must be an absolute path, 'legacy', or 'none'"
                        )));
                    }
                    ask.root_property("mountpoint", value, action)?;
                }
                "R" => ask.property("altroot", value, action)?,
                "t" => {
                    if let Some(bad) = value.chars().find(|letter| *letter == '/') {
                        return Err(Failure::Refused(format!(
                            "cannot create '{value}': invalid character '{bad}' in temporary name\n\
                             use 'zfs create' to create a dataset"
                        )));
                    }
                    ask.temporary_name = Some(value.to_owned());
                }
                "o" => {
                    let (name, value) = split(value)?;
                    ask.property(name, value, action)?;
                }
                "O" => {
                    let (name, value) = split(value)?;
                    ask.root_property(name, value, action)?;
                }
                _ => {}
            }
        }
        Ok(ask)
    }

    fn property(&mut self, name: &str, value: &str, action: &str) -> Result<(), Failure> {
        let full = match super::property::PoolProperty::by_name(name) {
            Some(known) if !known.text().contains(':') => known.text().to_owned(),
            _ => {
                return Err(Failure::Refused(format!(
                    "property '{name}' is not a valid pool or vdev property"
                )));
            }
        };
        if self.properties.iter().any(|(known, _)| *known == full) {
            let text = format!("property '{full}' specified multiple times");
            return Err(Failure::Refused(text));
        }
        self.check_version(&full, value)?;
        if full == "ashift" {
            self.ashift = ashift_of(value)?;
        }
        if full == "altroot" {
            check_altroot(value).map_err(Failure::Refused)?;
        }
        if full == "cachefile"
            && let Err(reason) = super::manage::check_cache_file(value)
        {
            return Err(Failure::Refused(format!("{action}: {reason}")));
        }
        let value = plain_number(&full, value);
        self.properties.push((full, value));
        Ok(())
    }

    /// Refuses a version together with a feature. A version that is newer than that of features asks for all of them.
    fn check_version(&self, property: &str, value: &str) -> Result<(), Failure> {
        let is_version = property == "version";
        let is_other = |name: &str| match is_version {
            true => name.starts_with("feature@"),
            false => name == "version",
        };
        let is_either = is_version || property.starts_with("feature@");
        let text = "'feature@' and 'version' properties cannot be specified together";
        if is_either && self.properties.iter().any(|(name, _)| is_other(name)) {
            return Err(Failure::Refused(text.into()));
        }
        let is_newer = |number: u64| number > PoolVersion::FEATURES.0;
        match is_version && value.parse().is_ok_and(is_newer) {
            true => Err(Failure::Complaint(format!("{text}\n"))),
            false => Ok(()),
        }
    }

    fn root_property(&mut self, name: &str, value: &str, action: &str) -> Result<(), Failure> {
        let refuse = |text: String| Err(Failure::Refused(text));
        if !crate::zfs::is_of_file_systems(name) {
            return refuse(format!(
                "property '{name}' is not a valid filesystem property"
            ));
        }
        if name == "mountpoint" && !(value.starts_with('/') || ["none", "legacy"].contains(&value))
        {
            return refuse(format!(
                "invalid mountpoint '{value}': must be an absolute path, 'legacy', or 'none'"
            ));
        }
        let known = Assignment::understand(name, value)
            .and_then(|one| one.check_for_new(DatasetKind::Filesystem).map(|()| one));
        let known = match known {
            Ok(known) => known,
            Err(reason) => return refuse(format!("{action}: {reason}")),
        };
        let quotas = self.root_quotas.iter().map(|one| &one.name);
        let mut names = self.root_properties.iter().map(|(n, _)| n).chain(quotas);
        if names.any(|n| *n == known.name) {
            return refuse(format!(
                "property '{}' specified multiple times",
                known.name
            ));
        }
        match known.value() {
            Some(_) => {
                let value = known.stored_text();
                self.root_properties.push((known.name, value));
            }
            None => self.root_quotas.push(known),
        }
        Ok(())
    }
}

fn split(assignment: &str) -> Result<(&str, &str), Failure> {
    assignment
        .split_once('=')
        .ok_or_else(|| Failure::Refused("missing '=' for -o option".into()))
}

/// Converts the sizes of pool properties to digits.
pub fn plain_number(name: &str, value: &str) -> String {
    if name != "dedup_table_quota" || matches!(value, "none" | "auto") {
        return value.to_owned();
    }
    crate::text::size::parse(value).map_or_else(|_| value.to_owned(), |bytes| bytes.to_string())
}

/// Parses a value of `ashift`. `None` is 0: what the devices report.
pub fn ashift_of(value: &str) -> Result<Option<u8>, Failure> {
    let number: u64 = value
        .parse()
        .map_err(|_| Failure::Refused("ashift must be a number.".into()))?;
    if number != 0 && !(9..=16).contains(&number) {
        return Err(Failure::Refused(format!(
            "invalid 'ashift={number}' property: only values between 9 and 16 are allowed."
        )));
    }
    Ok(u8::try_from(number).ok().filter(|ashift| *ashift != 0))
}

/// Refuses an alternate root that is not an absolute path.
pub(super) fn check_altroot(value: &str) -> Result<(), String> {
    match value.starts_with('/') {
        true => Ok(()),
        false => Err(format!(
            "invalid alternate root '{value}': must be an absolute path"
        )),
    }
}

pub fn check_name(name: &str) -> Result<(), String> {
    let is_fit = |letter: &char| letter.is_ascii_alphanumeric() || "-_.: ".contains(*letter);
    if let Some(bad) = name.chars().find(|letter| !is_fit(letter)) {
        return Err(format!("invalid character '{bad}' in pool name"));
    }
    millpond_control::check_pool_name(name).map_err(str::to_owned)
}

/// Parses a vdev layout. Devices are examined but not changed.
fn understood(change: &dyn Service, words: &[String]) -> Result<Layout, Failure> {
    layout::parse(words, &|word| resolve(change, word)).map_err(Failure::Refused)
}

pub(super) fn resolve(change: &dyn Service, word: &str) -> Result<Leaf, String> {
    let path = if word.starts_with('/') {
        word.to_owned()
    } else {
        format!("/dev/{word}")
    };
    match change.device(&path) {
        Ok(_) => Ok(Leaf { path }),
        Err(DeviceProblem::Missing) if word.starts_with('/') => {
            Err(format!("cannot resolve path '{word}'"))
        }
        Err(DeviceProblem::Missing) => Err(format!(
            "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand device name"
        )),
        Err(DeviceProblem::WrongKind) => Err(format!(
            "cannot use '{word}': must be a block device or regular file"
        )),
        Err(DeviceProblem::Unusable(why)) => Err(format!("cannot open '{word}': {why}")),
    }
}

/// Prints the output of `-n`: the pool's own vdevs, if any, then the new ones, by groups.
fn print_layout(
    session: &mut Session,
    title: &str,
    name: &str,
    layout: &Layout,
    pool: Option<(&PoolInfo, Naming)>,
) -> std::io::Result<()> {
    let out = &mut *session.out;
    writeln!(out, "{title}\n\n\t{name}")?;
    let new = layout::lines(layout);
    let classes = [
        (None, VdevClass::Normal),
        (Some("dedup"), VdevClass::Dedup),
        (Some("special"), VdevClass::Special),
        (Some("logs"), VdevClass::Log),
        (Some("cache"), VdevClass::Cache),
        (Some("spares"), VdevClass::Spare),
    ];
    for (title, class) in classes {
        let mut lines = vec![];
        if let Some((info, naming)) = pool {
            let has_id = class == VdevClass::Normal;
            match class {
                VdevClass::Cache => existing(&info.caches, naming, has_id, 1, &mut lines),
                VdevClass::Spare => existing(&info.spares, naming, has_id, 1, &mut lines),
                class => {
                    for top in groups::of_class(info, class) {
                        existing(std::slice::from_ref(top), naming, has_id, 1, &mut lines);
                    }
                }
            }
        }
        let of_title = new.iter().filter(|(known, _)| *known == title);
        lines.extend(of_title.flat_map(|(_, lines)| lines.iter().cloned()));
        if let (Some(title), false) = (title, lines.is_empty()) {
            writeln!(out, "\t{title}")?;
        }
        for (depth, line) in lines {
            writeln!(out, "\t{:indent$}{line}", "", indent = 2 * depth)?;
        }
    }
    Ok(())
}

fn existing(
    vdevs: &[VdevInfo],
    naming: Naming,
    has_id: bool,
    depth: usize,
    lines: &mut Vec<(usize, String)>,
) {
    for vdev in vdevs {
        let name = naming.of(vdev);
        let name = match name.rsplit_once('-') {
            Some((word, _)) if !has_id && !vdev.children.is_empty() => word.to_owned(),
            _ => name,
        };
        lines.push((depth, name));
        existing(&vdev.children, naming, has_id, depth + 1, lines);
    }
}
