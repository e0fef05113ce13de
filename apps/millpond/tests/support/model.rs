//! Builds the model from the output of OpenZFS.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use millpond_control::{
    CheckpointInfo, DataError, ExpansionInfo, FeatureInfo, FeatureState, PoolInfo, ProgressState,
    Property, RebuildInfo, RemovalInfo, RequestedFeatures, ScanFunction, ScanInfo, Source,
    SpareUse, SuspendReason, Value, VdevAux, VdevClass, VdevInfo, VdevKind, VdevState,
};
use millpond_dataset::properties::{PropertyName, by_name};
use millpond_pool::properties::{Form, NumberForm, Shape};

/// Parses a number in human-readable or exact form: `512`, `0B`, `18.5M`.
pub fn number(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse() {
        return Some(number);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_uppercase());
    let power = "BKMGTPE".find(&text[digits.len()..])?;
    let value: f64 = digits.parse().ok()?;
    Some((value * 1024f64.powi(power as i32)).round() as u64)
}

/// Parses `Sat Nov 21 10:08:34 2026`, with or without seconds, in UTC.
pub fn time(text: &str) -> Option<u64> {
    [
        "%a %b %d %H:%M:%S %Y",
        "%a %b %d %H:%M %Y",
        "%Y-%m-%d.%H:%M:%S",
    ]
    .into_iter()
    .find_map(|form| {
        let parsed = DateTime::strptime(form, text).ok()?;
        u64::try_from(parsed.to_zoned(TimeZone::UTC).ok()?.timestamp().as_second()).ok()
    })
}

/// Parses the value of a native property, exact or not.
pub fn value(shape: &Shape, text: &str) -> Option<Value> {
    if text == "-" {
        return None;
    }
    let Form::Number(form) = shape.form else {
        return Some(Value::Text(text.into()));
    };
    let number = match form {
        NumberForm::State => return Some(Value::Text(text.into())),
        NumberForm::Ratio => number(&text.trim_end_matches('x').replace('.', "")),
        NumberForm::Percent | NumberForm::PercentOrUnknown => number(text.trim_end_matches('%')),
        NumberForm::Date | NumberForm::DateSeconds => number(text).or_else(|| time(text)),
        NumberForm::TableQuota if text == "auto" => Some(u64::MAX),
        NumberForm::CountOrNone if text == "none" => Some(u64::MAX),
        _ if text == "none" => Some(0),
        _ => number(text),
    };
    Some(Value::Number(
        number.unwrap_or_else(|| panic!("{}={text}", shape.name)),
    ))
}

/// Parses a dataset's property from two columns of `zfs get`.
pub fn dataset_property(name: &str, text: &str, source_text: &str) -> Property {
    let parsed = match by_name(name) {
        Some(PropertyName::Native(native)) => value(&native.shape, text),
        Some(PropertyName::User(_)) | None => Some(Value::Text(text.into())),
        Some(_) if text == "none" => Some(Value::Number(0)),
        Some(_) => number(text).map(Value::Number),
    };
    Property::new(name, parsed, source(source_text))
}

pub fn source(text: &str) -> Source {
    match text {
        "-" => Source::None,
        "default" => Source::Default,
        "local" => Source::Local,
        "received" => Source::Received,
        "temporary" => Source::Temporary,
        other => Source::Inherited(other.strip_prefix("inherited from ").expect(other).into()),
    }
}

/// Adds one line of `zpool get` to a pool.
pub fn pool_property(pool: &mut PoolInfo, name: &str, text: &str, source_text: &str) {
    if let Some(short) = name.strip_prefix("feature@") {
        let state = match text {
            "disabled" => FeatureState::Disabled,
            "enabled" => FeatureState::Enabled,
            _ => FeatureState::Active,
        };
        pool.features.push(FeatureInfo {
            is_left_alone: false,
            name: short.into(),
            state,
        });
        return;
    }
    let parsed = match millpond_pool::properties::table::find(name) {
        Some(shape) => value(shape, text),
        None => Some(Value::Text(text.into())),
    };
    match name {
        "guid" => pool.guid = text.parse().expect("a guid"),
        "version" => pool.version = text.parse().unwrap_or(5000),
        "comment" if text != "-" => pool.comment = Some(text.into()),
        _ => {}
    }
    let parsed = if name == "version" {
        Some(Value::Number(pool.version))
    } else {
        parsed
    };
    pool.properties
        .push(Property::new(name, parsed, source(source_text)));
}

/// Parses the pools of a complete `zpool status`. Fields that it does not show stay unset.
pub fn pools_from_status(text: &str) -> Vec<PoolInfo> {
    let mut pools: Vec<PoolInfo> = Vec::new();
    let mut state = String::new();
    let mut lines = text.lines().peekable();
    let mut in_config = false;
    let mut class = VdevClass::Normal;
    while let Some(line) = lines.next() {
        if let Some(name) = line.strip_prefix("  pool: ") {
            pools.push(PoolInfo {
                name: name.into(),
                is_loaded: true,
                version: 5000,
                ..Default::default()
            });
            in_config = false;
            class = VdevClass::Normal;
            continue;
        }
        let Some(pool) = pools.last_mut() else {
            continue;
        };
        if let Some(word) = line.strip_prefix(" state: ") {
            state = word.to_string();
            if word == "SUSPENDED" {
                pool.suspended = Some(SuspendReason::IoContinue);
            }
        } else if let Some(status) = line.strip_prefix("status: ") {
            condition_hint(pool, status);
        } else if let Some(scan) = line.strip_prefix("  scan: ") {
            let mut ahead = lines.clone();
            let next = [
                ahead.next().unwrap_or_default(),
                ahead.next().unwrap_or_default(),
            ];
            self::scan(pool, scan, next);
        } else if let Some(removal) = line.strip_prefix("remove: ") {
            let mapping = lines.peek().and_then(|l| {
                l.trim()
                    .strip_suffix(" memory used for removed device mappings")
            });
            removed(pool, removal, mapping.and_then(number).unwrap_or(0));
        } else if let Some(created) = line.strip_prefix("checkpoint: created ") {
            let (at, space) = created.split_once(", consumes ").expect("a checkpoint");
            pool.checkpoint = Some(CheckpointInfo {
                is_discarding: false,
                start_s: time(at).expect(at),
                space_bytes: number(space).expect(space),
            });
        } else if let Some(expanded) = line.strip_prefix("expand: expanded ") {
            let words: Vec<&str> = expanded.split(' ').collect();
            let end_s = time(&words[6..].join(" ")).expect("a date");
            pool.expansion = Some(ExpansionInfo {
                state: ProgressState::Finished,
                top_id: words[0].rsplit('-').next().and_then(number).expect("an id"),
                start_s: end_s - seconds(words[4].trim_end_matches(',')),
                end_s,
                reflowed_bytes: number(words[2]).expect("a size"),
                ..Default::default()
            });
        } else if line.starts_with("\tNAME ") {
            in_config = true;
        } else if let Some(count) = line.strip_prefix("errors: ") {
            in_config = false;
            errors(pool, count, &mut lines);
        } else if in_config && line.starts_with('\t') {
            match line.trim() {
                "dedup" => class = VdevClass::Dedup,
                "special" => class = VdevClass::Special,
                "logs" => class = VdevClass::Log,
                "cache" => class = VdevClass::Cache,
                "spares" => class = VdevClass::Spare,
                _ => row(pool, &line[1..], class, &state),
            }
        }
    }
    if text.contains("the label is missing") {
        for pool in &mut pools {
            mislabelled(&mut pool.root);
        }
    }
    for pool in &mut pools {
        if let Some(removal) = pool.removal
            && removal.state == ProgressState::Finished
        {
            // A removed vdev is not shown, but its name counts for the column width.
            pool.root.children.push(VdevInfo {
                kind: VdevKind::Indirect,
                id: removal.top_id,
                state: VdevState::Healthy,
                ..Default::default()
            });
        }
        number_children(&mut pool.root);
    }
    pools
}

/// Takes the reason from the condition, if `was ‹path›` hides it.
fn mislabelled(vdev: &mut VdevInfo) {
    if vdev.is_absent {
        vdev.aux = VdevAux::BadLabel;
    }
    vdev.children.iter_mut().for_each(mislabelled);
}

/// Sets fields for conditions that no vdev shows.
fn condition_hint(pool: &mut PoolInfo, status: &str) {
    let feature = |name: &str, state| FeatureInfo {
        is_left_alone: false,
        name: name.into(),
        state,
    };
    if status.starts_with("Some supported and requested features") {
        pool.features = vec![feature("x", FeatureState::Disabled)];
    } else if status.starts_with("This pool has a compatibility list") {
        pool.requested = RequestedFeatures::Unreadable;
    } else if status.starts_with("One or more features are enabled") {
        pool.features = vec![feature("x", FeatureState::Enabled)];
        pool.requested = RequestedFeatures::Legacy;
    } else if status.starts_with("The pool is formatted using a legacy") {
        pool.version = 28;
    }
}

fn errors<'a>(pool: &mut PoolInfo, text: &str, lines: &mut impl Iterator<Item = &'a str>) {
    if let Some(count) = text.strip_suffix(" data errors, use '-v' for a list") {
        pool.error_count = number(count).expect(count);
    } else if text.starts_with("Permanent errors") {
        for line in lines.skip(1) {
            let Some(name) = line.strip_prefix("        ") else {
                break;
            };
            pool.errors.push(DataError {
                name: name.into(),
                dataset: None,
            });
        }
        // The file names may be unavailable, but the existence of errors is known.
        pool.error_count = (pool.errors.len() as u64).max(1);
    }
}

/// Parses `HH:MM:SS` or `N days HH:MM:SS`.
fn seconds(text: &str) -> u64 {
    let part = |at: usize| -> u64 {
        text.split(':')
            .nth(at)
            .and_then(|p| p.parse().ok())
            .expect(text)
    };
    part(0) * 3600 + part(1) * 60 + part(2)
}

fn scan(pool: &mut PoolInfo, text: &str, [next, after]: [&str; 2]) {
    let function = if text.starts_with("scrub") {
        ScanFunction::Scrub
    } else {
        ScanFunction::Resilver
    };
    let mut scan = ScanInfo {
        function,
        ..Default::default()
    };
    let last = |at: &str| text.rsplit(at).next().and_then(time).expect(text);
    if text.contains(" in progress since ") || text.contains(" paused since ") {
        scan.state = ProgressState::Active;
        scan.start_s = last(" since ");
        let started = next.strip_prefix("\tscrub started on ");
        if let Some(started) = started {
            scan.paused_at_s = scan.start_s;
            scan.start_s = time(started).expect(next);
        }
        let next = if started.is_some() { after } else { next };
        let words: Vec<&str> = next.split_whitespace().collect();
        if words.get(1) == Some(&"/") {
            scan.examined_bytes = number(words[0]).expect(next);
            scan.to_examine_bytes = number(words[2]).expect(next);
            scan.issued_bytes = words
                .iter()
                .position(|w| *w == "issued")
                .map_or(0, |at| number(words[at - 3]).expect(next));
        }
        pool.scan = Some(scan);
        return;
    }
    if text.contains(" canceled on ") {
        scan.state = ProgressState::Canceled;
        scan.end_s = last(" on ");
        pool.scan = Some(scan);
        return;
    }
    let words: Vec<&str> = text.split(' ').collect();
    let at = words.iter().position(|word| *word == "in").expect(text);
    let end_s = last(" on ");
    let errors = number(words[at + 3]).expect(text);
    let bytes = number(words[at - 1]).expect(text);
    let start_s = end_s - seconds(words[at + 1]);
    if let Some(vdev) = words[1].strip_prefix('(') {
        pool.rebuilds.push(RebuildInfo {
            top_id: vdev
                .trim_end_matches(')')
                .rsplit('-')
                .next()
                .and_then(number)
                .expect(text),
            state: ProgressState::Finished,
            start_s,
            end_s,
            rebuilt_bytes: bytes,
            errors,
            ..Default::default()
        });
        return;
    }
    scan.state = ProgressState::Finished;
    (scan.start_s, scan.end_s, scan.errors, scan.processed_bytes) = (start_s, end_s, errors, bytes);
    pool.scan = Some(scan);
}

fn removed(pool: &mut PoolInfo, text: &str, mapping_bytes: u64) {
    let mut removal = RemovalInfo {
        mapping_bytes,
        ..Default::default()
    };
    if let Some(done) = text.strip_prefix("Removal of vdev ") {
        let words: Vec<&str> = done.split(' ').collect();
        let (hours, minutes) = words[4].trim_end_matches("m,").split_once('h').expect(text);
        removal.state = ProgressState::Finished;
        removal.top_id = number(words[0]).expect(text);
        removal.copied_bytes = number(words[2]).expect(text);
        removal.end_s = text.rsplit(" on ").next().and_then(time).expect(text);
        let elapsed = number(hours).expect(text) * 60 + number(minutes).expect(text);
        removal.start_s = removal.end_s - elapsed * 60;
    } else if text.contains(" canceled on ") {
        removal.state = ProgressState::Canceled;
        removal.end_s = text.rsplit(" on ").next().and_then(time).expect(text);
        removal.top_id = 1;
    } else {
        removal.state = ProgressState::Active;
    }
    pool.removal = Some(removal);
}

fn row(pool: &mut PoolInfo, line: &str, class: VdevClass, health: &str) {
    let depth = line.len() - line.trim_start().len();
    let text = line.trim_start();
    // Names may contain blanks. The state is the last word in capitals before the counters.
    let at = text.find("  ").expect(line);
    let name = &text[..at];
    let rest: Vec<&str> = text[at..].split_whitespace().collect();
    let mut vdev = VdevInfo {
        class,
        ..vdev_named(name)
    };
    let is_spare = class == VdevClass::Spare;
    (vdev.state, vdev.aux) = match rest[0] {
        "ONLINE" | "AVAIL" | "INUSE" => (VdevState::Healthy, VdevAux::None),
        "DEGRADED" => (VdevState::Degraded, VdevAux::None),
        "OFFLINE" => (VdevState::Offline, VdevAux::None),
        "REMOVED" => (VdevState::Removed, VdevAux::None),
        "UNAVAIL" => (VdevState::CannotOpen, VdevAux::OpenFailed),
        "FAULTED" => (VdevState::Faulted, VdevAux::None),
        "SUSPENDED" => (VdevState::Healthy, VdevAux::None),
        other => panic!("state {other} in {line:?} of a pool that is {health}"),
    };
    let mut notes = 1;
    if !is_spare {
        let counter = |at: usize| rest.get(at).and_then(|word| number(word)).expect(line);
        (vdev.read_errors, vdev.write_errors, vdev.checksum_errors) =
            (counter(1), counter(2), counter(3));
        notes = 4;
    }
    let note = rest[notes..].join(" ");
    if is_spare {
        vdev.spare_use = Some(match (rest[0], note.as_str()) {
            ("INUSE", other) if other.starts_with("in use by pool") => {
                SpareUse::InOtherPool(other.split('\'').nth(1).map(str::to_string))
            }
            ("INUSE", _) => SpareUse::InThisPool,
            _ => SpareUse::Available,
        });
    }
    apply_note(&mut vdev, &note, is_spare);
    if class == VdevClass::Cache && depth == 2 {
        pool.caches.push(vdev);
    } else if is_spare && depth == 2 {
        pool.spares.push(vdev);
    } else if depth == 0 {
        vdev.kind = VdevKind::Root;
        vdev.class = VdevClass::Normal;
        pool.root = vdev;
    } else {
        let mut parent = &mut pool.root;
        for _ in 1..depth / 2 {
            parent = parent.children.last_mut().expect("a parent above");
        }
        parent.children.push(vdev);
    }
}

fn apply_note(vdev: &mut VdevInfo, note: &str, is_spare: bool) {
    let aux = match note {
        "too many errors" => VdevAux::ErrorsExceeded,
        "external device fault" => VdevAux::External,
        "invalid label" => VdevAux::BadLabel,
        // A device with this note that is UNAVAIL has another reason, which has no text of its own.
        "corrupted data" if vdev.state == VdevState::CannotOpen => VdevAux::TooSmall,
        "corrupted data" => VdevAux::CorruptData,
        "cannot open" => VdevAux::OpenFailed,
        "insufficient replicas" => VdevAux::NoReplicas,
        "experienced I/O failures" => VdevAux::IoFailure,
        "currently in use" if !is_spare => VdevAux::Spared,
        "split into new pool" => VdevAux::SplitPool,
        _ => VdevAux::None,
    };
    if let Some(path) = note.strip_prefix("was ") {
        vdev.path = Some(path.trim_end_matches(" (uninitialized)").into());
        vdev.is_absent = true;
    }
    if aux != VdevAux::None || (note.is_empty() && vdev.state == VdevState::CannotOpen) {
        vdev.aux = aux;
    }
    vdev.is_removing |= note.contains("(removing)");
    vdev.is_non_allocating |= note.contains("(non-allocating)");
    if note.contains("(resilvering)") || note.contains("(repairing)") {
        vdev.scan_processed_bytes = 1;
    }
    vdev.is_resilver_deferred |= note.contains("(awaiting resilver)");
}

/// A vdev of the kind that its name indicates.
pub fn vdev_named(name: &str) -> VdevInfo {
    let mut vdev = VdevInfo::default();
    if name.starts_with('/') {
        vdev.kind = VdevKind::File;
        vdev.path = Some(name.into());
        return vdev;
    }
    if let Ok(guid) = name.parse() {
        vdev.guid = guid;
        vdev.kind = VdevKind::File;
        return vdev;
    }
    let (word, id) = name.rsplit_once('-').unwrap_or((name, ""));
    vdev.id = id.parse().unwrap_or(0);
    let draid = |word: &str| -> Option<VdevKind> {
        let parts: Vec<&str> = word.strip_prefix("draid")?.split(':').collect();
        let [parity, data, children, spares] = parts.as_slice() else {
            return None;
        };
        let digits = |text: &str| -> Option<u64> {
            text.trim_end_matches(|c: char| c.is_alphabetic())
                .parse()
                .ok()
        };
        Some(VdevKind::Draid {
            parity: parity.parse().ok()?,
            data: u8::try_from(digits(data)?).ok()?,
            children: digits(children)? as u16,
            spares: u8::try_from(digits(spares)?).ok()?,
        })
    };
    vdev.kind = match word {
        "mirror" => VdevKind::Mirror,
        "replacing" => VdevKind::Replacing,
        "spare" => VdevKind::Spare,
        "indirect" => VdevKind::Indirect,
        word if word.starts_with("raidz") => VdevKind::RaidZ {
            parity: word[5..].parse().expect("parity"),
        },
        word => match draid(word) {
            Some(kind) => kind,
            None if word.starts_with("draid") => {
                let (parity, top_id) = word[5..].split_once('-').expect("a distributed spare");
                VdevKind::DistributedSpare {
                    parity: parity.parse().expect("parity"),
                    top_id: top_id.parse().expect("a vdev"),
                    spare_id: vdev.id,
                }
            }
            None => VdevKind::Root,
        },
    };
    vdev
}

/// Numbers the leaves by position. The names of inner vdevs contain their id.
fn number_children(vdev: &mut VdevInfo) {
    for (at, child) in vdev.children.iter_mut().enumerate() {
        if child.children.is_empty() && child.kind.is_leaf() {
            child.id = at as u64;
        }
        number_children(child);
    }
}
