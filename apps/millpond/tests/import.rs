//! Reads recorded listings of `zpool import` into the model and prints them again.

mod support;

use millpond_control::{
    FeatureInfo, FeatureState, ImportablePool, PoolInfo, RequestedFeatures, UnsupportedFeature,
    VdevAux, VdevClass, VdevInfo, VdevKind, VdevState,
};
use support::{FakeService, model, recording, run};

#[test]
fn recorded_listings_are_printed_again_word_for_word() {
    let mut equal = 0;
    let mut different = Vec::new();
    for file in [
        "import.json",
        "progress.json",
        "status2.json",
        "devices.json",
        "health.json",
    ] {
        let Some(session) = recording::session(file) else {
            return;
        };
        for entry in session {
            let Some(words) = recording::words(&entry.command) else {
                continue;
            };
            let theirs = &entry.printed.stdout;
            let is_listing = theirs.contains("pool: ") && theirs.contains("config:");
            if words[..2] != ["zpool", "import"] || !is_listing {
                continue;
            }
            let control = FakeService {
                importable: listed(theirs),
                ..Default::default()
            };
            let ours = run(&control, &words);
            if ours.stdout == *theirs {
                equal += 1;
            } else {
                let command = format!("{file}: {}", entry.command);
                different.push((command, theirs.clone(), ours.stdout + &ours.stderr));
            }
        }
    }
    println!("zpool import: {equal} of {} equal", equal + different.len());
    for (command, theirs, ours) in different.iter().take(8) {
        println!("--- {command}\n<<< theirs\n{theirs}\n>>> ours\n{ours}");
    }
    assert!(different.is_empty());
    assert!(equal > 20);
}

fn listed(text: &str) -> Vec<ImportablePool> {
    let mut found: Vec<ImportablePool> = Vec::new();
    let mut class = VdevClass::Normal;
    let mut in_config = false;
    for line in text.lines() {
        let bare = line.trim_start();
        if let Some(name) = bare
            .strip_prefix("pool: ")
            .filter(|_| !line.starts_with('\t'))
        {
            let info = PoolInfo {
                name: name.into(),
                is_loaded: true,
                version: 5000,
                ..Default::default()
            };
            found.push(ImportablePool {
                info,
                is_exported: true,
                ..Default::default()
            });
            (class, in_config) = (VdevClass::Normal, false);
            continue;
        }
        let pool = found.last_mut().expect("a pool");
        if let Some(guid) = bare.strip_prefix("id: ") {
            pool.info.guid = guid.parse().expect("a guid");
        } else if bare.starts_with("state: ") {
            pool.is_destroyed = bare.ends_with("(DESTROYED)");
        } else if let Some(status) = bare.strip_prefix("status: ") {
            hint(&mut pool.info, status);
        } else if let Some(comment) = bare.strip_prefix("comment: ") {
            pool.info.comment = Some(comment.into());
        } else if bare == "config:" {
            in_config = true;
        } else if !in_config && line.starts_with('\t') {
            feature(&mut pool.info, bare);
            if bare == "The pool may be active on another system, but can be imported using" {
                pool.is_exported = false;
            }
        } else if in_config && line.starts_with('\t') {
            match line.trim() {
                "cache" => class = VdevClass::Cache,
                "spares" => class = VdevClass::Spare,
                "dedup" => class = VdevClass::Dedup,
                "special" => class = VdevClass::Special,
                "logs" => class = VdevClass::Log,
                _ => row(&mut pool.info, &line[1..], class),
            }
        }
    }
    for pool in &mut found {
        // A missing top-level vdev is not shown, but its name counts for the column width.
        if pool
            .info
            .root
            .children
            .iter()
            .all(|vdev| vdev.class == VdevClass::Log)
        {
            let missing = VdevInfo {
                kind: VdevKind::Missing,
                ..Default::default()
            };
            pool.info.root.children.push(missing);
        }
    }
    found
}

fn hint(pool: &mut PoolInfo, status: &str) {
    match status {
        "The pool was last accessed by another system." => {
            (pool.config_hostid, pool.system_hostid, pool.is_state_active) = (1, 2, true);
        }
        "The pool is formatted using a legacy on-disk version." => pool.version = 28,
        "Some supported features are not enabled on the pool." => {
            pool.features = vec![FeatureInfo {
                is_left_alone: false,
                name: "x".into(),
                state: FeatureState::Disabled,
            }];
        }
        status if status.starts_with("Error reading or parsing") => {
            pool.requested = RequestedFeatures::Unreadable;
        }
        status if status.starts_with("The pool can only be accessed in read-only mode") => {
            pool.unsupported.push(unsupported("", true));
        }
        status if status.starts_with("The pool uses the following feature(s)") => {
            pool.unsupported.push(unsupported("", false));
        }
        _ => {}
    }
}

fn unsupported(guid: &str, is_needed_for_write_only: bool) -> UnsupportedFeature {
    UnsupportedFeature {
        guid: guid.into(),
        description: None,
        is_active: true,
        is_needed_for_write_only,
    }
}

/// Parses a line like `com.example:x (what it is)`.
fn feature(pool: &mut PoolInfo, line: &str) {
    let Some(known) = pool.unsupported.first_mut() else {
        return;
    };
    let guid = line.split(' ').next().unwrap_or_default();
    if known.guid.is_empty() && guid.contains(':') && guid.contains('.') {
        known.guid = guid.into();
        known.description = line
            .split_once('(')
            .map(|(_, rest)| rest.trim_end_matches(')').to_string());
    }
}

fn row(pool: &mut PoolInfo, line: &str, class: VdevClass) {
    let depth = line.len() - line.trim_start().len();
    let mut parts = line.trim_start().splitn(2, "  ");
    let name = parts.next().expect("a name").trim_end();
    let rest = parts.next().unwrap_or("ONLINE").trim_start();
    let (word, note) = rest.split_once("  ").unwrap_or((rest, ""));
    let mut vdev = VdevInfo {
        class,
        ..model::vdev_named(name)
    };
    vdev.aux = match note {
        "" => VdevAux::None,
        "cannot open" => VdevAux::OpenFailed,
        "invalid label" => VdevAux::BadLabel,
        "insufficient replicas" => VdevAux::NoReplicas,
        "unsupported feature(s)" => VdevAux::UnsupportedFeature,
        "too many errors" => VdevAux::ErrorsExceeded,
        "missing device" => VdevAux::BadGuidSum,
        "corrupted data" if word == "UNAVAIL" => VdevAux::TooSmall,
        "corrupted data" if depth > 0 => VdevAux::External,
        "corrupted data" => VdevAux::CorruptData,
        "newer version" => VdevAux::VersionNewer,
        other => panic!("{other:?}"),
    };
    vdev.state = match (word, vdev.aux) {
        ("DEGRADED", _) => VdevState::Degraded,
        ("OFFLINE", _) => VdevState::Offline,
        ("FAULTED", VdevAux::CorruptData) | ("UNAVAIL", _) => VdevState::CannotOpen,
        ("FAULTED", _) => VdevState::Faulted,
        ("ONLINE", _) => VdevState::Healthy,
        (other, _) => panic!("{other:?}"),
    };
    match class {
        _ if depth == 0 => {
            vdev.kind = VdevKind::Root;
            pool.root = vdev;
        }
        VdevClass::Cache => pool.caches.push(vdev),
        VdevClass::Spare => pool.spares.push(vdev),
        _ => {
            let mut parent = &mut pool.root;
            for _ in 1..depth / 2 {
                parent = parent.children.last_mut().expect("a parent above");
            }
            parent.children.push(vdev);
        }
    }
}
