//! The list that `zpool import` prints.

use super::condition_text;
use super::groups::{self, TITLED};
use super::status::SEE;
use super::vdev_name::Naming;
use super::vdev_note;
use crate::command::Parsed;
use crate::session::{Failure, Session};
use crate::text::columns::pad_right;
use crate::text::terminal::one_line;
use millpond_control::{
    Condition, ImportablePool, PoolInfo, Purpose, VdevAux, VdevClass, VdevInfo, VdevKind,
    VdevState, condition,
};

/// Prints the pools found.
pub fn print(session: &mut Session, listed: &[&ImportablePool]) -> Result<(), Failure> {
    let naming = Naming::read(&Parsed::default(), session.environment);
    let ignore_ashift = session
        .environment
        .variables
        .contains_key("ZPOOL_STATUS_NON_NATIVE_ASHIFT_IGNORE");
    for (at, pool) in listed.iter().enumerate() {
        let mut text = if at > 0 {
            "\n".to_string()
        } else {
            String::new()
        };
        show(&mut text, pool, naming, ignore_ashift);
        session.out.write_all(text.as_bytes())?;
    }
    Ok(())
}

fn show(text: &mut String, found: &ImportablePool, naming: Naming, ignore_ashift: bool) {
    let pool = &found.info;
    let trouble = condition(pool, Purpose::Import { ignore_ashift });
    // With a comment, every label moves to the right by one column.
    let comment = pool
        .comment
        .as_deref()
        .filter(|comment| !comment.is_empty());
    let label_width = if comment.is_some() { 7 } else { 6 };
    let mut label = |name: &str, value: &str| {
        let indent = if comment.is_some() { "\n\t " } else { "\n\t" };
        *text += &format!("{name:>label_width$}: {}\n", value.replace('\n', indent));
    };
    label("pool", &pool.name);
    label("id", &pool.guid.to_string());
    let destroyed = if found.is_destroyed {
        " (DESTROYED)"
    } else {
        ""
    };
    let state = pool.root.state.word(pool.root.aux);
    label("state", &format!("{state}{destroyed}"));
    let status = trouble.map(|found| condition_text::import_status(found, pool));
    if let Some(status) = status.filter(|status| !status.is_empty()) {
        label("status", &status);
    }
    if let Some(action) = action(found, trouble) {
        label("action", &action);
    }
    if let Some(comment) = comment {
        label("comment", &one_line(comment));
    }
    if let Some(advice) = advice(found) {
        let indent = if comment.is_some() { "\t " } else { "\t" };
        for line in advice.lines() {
            *text += &format!("{indent}{line}\n");
        }
    }
    let mut label = |name: &str, value: &str| *text += &format!("{name:>label_width$}:{value}\n");
    if let Some(id) = trouble.and_then(Condition::id) {
        label("see", &format!(" {SEE}{id}"));
    }
    label("config", "\n");
    config(text, pool, naming);
    if trouble == Some(Condition::BadGuidSum) {
        *text += "\n\tAdditional devices are known to be part of this pool, though their\n";
        *text += "\texact configuration cannot be determined.\n";
    }
}

fn action(found: &ImportablePool, trouble: Option<Condition>) -> Option<String> {
    let state = found.info.root.state;
    if let Some(copies) = &found.copies {
        return Some(format!(
            "The pool can only be imported with '-o readonly=on':\n{copies}."
        ));
    }
    if let Some(older) = &found.older {
        return Some(format!(
            "The pool can only be imported with '-o readonly=on', or with '-f':\n{older}."
        ));
    }
    let text = match (state, trouble) {
        (VdevState::Healthy, Some(Condition::VersionOlder | Condition::FeaturesDisabled)) => {
            "The pool can be imported using its name or numeric identifier, though\nsome features will not be available without an explicit 'zpool upgrade'."
        }
        (VdevState::Healthy, Some(Condition::CompatibilityError)) => {
            "The pool can be imported using its name or numeric\nidentifier, though the file(s) indicated by its 'compatibility'\nproperty cannot be parsed at this time."
        }
        (VdevState::Healthy, Some(Condition::HostidMismatch)) => {
            "The pool can be imported using its name or numeric identifier and\nthe '-f' flag."
        }
        (VdevState::Healthy, _) => "The pool can be imported using its name or numeric identifier.",
        (VdevState::Degraded, _) => {
            "The pool can be imported despite missing or damaged devices.  The\nfault tolerance of the pool may be compromised if imported."
        }
        (_, Some(Condition::VersionNewer)) => {
            "The pool cannot be imported.  Access the pool on a system running newer\nsoftware, or recreate the pool from backup."
        }
        (_, Some(Condition::UnsupportedFeatureRead)) => {
            "The pool cannot be imported. Access the pool on a system that supports\nthe required feature(s), or recreate the pool from backup."
        }
        (_, Some(Condition::UnsupportedFeatureWrite)) => {
            "The pool cannot be imported in read-write mode. Import the pool with\n'-o readonly=on', access the pool on a system that supports the\nrequired feature(s), or recreate the pool from backup."
        }
        (
            _,
            Some(Condition::MissingDevice | Condition::MissingDeviceNr | Condition::BadGuidSum),
        ) => "The pool cannot be imported. Attach the missing\ndevices and try again.",
        (_, Some(Condition::HostidActive)) => {
            let (name, hostid) = found
                .last_host
                .as_ref()
                .map_or(("unknown", 0), |host| (host.name.as_str(), host.hostid));
            return Some(format!(
                "The pool must be exported from {name} (hostid={hostid:x})\nbefore it can be safely imported."
            ));
        }
        (_, Some(Condition::HostidRequired)) => {
            "Set a unique system hostid with the zgenhostid(8) command."
        }
        _ => "The pool cannot be imported due to damaged devices or data.",
    };
    Some(text.into())
}

/// The extra advice for a pool whose root is faulted without a specific reason.
fn advice(found: &ImportablePool) -> Option<&'static str> {
    let root = &found.info.root;
    let is_unreadable = root.state == VdevState::Closed
        || (root.state == VdevState::CannotOpen && root.aux == VdevAux::CorruptData);
    if !is_unreadable {
        return None;
    }
    if found.is_destroyed {
        return Some("The pool was destroyed, but can be imported using the '-Df' flags.");
    }
    (!found.is_exported).then_some(
        "The pool may be active on another system, but can be imported using\nthe '-f' flag.",
    )
}

fn config(text: &mut String, pool: &PoolInfo, naming: Naming) {
    // Hidden vdevs count too.
    let width = groups::walk(pool)
        .into_iter()
        .map(|(vdev, depth)| naming.of(vdev).len() + depth)
        .fold(pool.name.len().max(10), usize::max);
    row(text, &pool.root, &pool.name, 0, width);
    for vdev in groups::of_class(pool, VdevClass::Normal) {
        tree(text, vdev, naming, 2, width);
    }
    for (title, members) in [("cache", &pool.caches), ("spares", &pool.spares)] {
        if !members.is_empty() {
            *text += &format!("\t{title}\n");
            for vdev in members {
                *text += &format!("\t  {}\n", naming.of(vdev));
            }
        }
    }
    for (class, title) in TITLED {
        let members: Vec<&VdevInfo> = groups::of_class(pool, class)
            .filter(|vdev| !is_skipped(vdev))
            .collect();
        if !members.is_empty() {
            *text += &format!("\t{title}\t\n");
        }
        for vdev in members {
            tree(text, vdev, naming, 2, width);
        }
    }
}

fn is_skipped(vdev: &VdevInfo) -> bool {
    matches!(
        vdev.kind,
        VdevKind::Missing | VdevKind::Hole | VdevKind::Indirect
    )
}

fn tree(text: &mut String, vdev: &VdevInfo, naming: Naming, depth: usize, width: usize) {
    if is_skipped(vdev) {
        return;
    }
    row(text, vdev, &naming.of(vdev), depth, width);
    for child in &vdev.children {
        tree(text, child, naming, depth + 2, width);
    }
}

fn row(text: &mut String, vdev: &VdevInfo, name: &str, depth: usize, width: usize) {
    let mut line = format!("\t{}", " ".repeat(depth));
    pad_right(&mut line, name, width - depth);
    line += "  ";
    line += vdev.state.word(vdev.aux);
    if let Some(note) = vdev_note::import(vdev) {
        line += "  ";
        line += note;
    }
    *text += &line;
    text.push('\n');
}
