//! The judges of a state.
//!
//! These are the model, our verification, the recount of all space counters, and OpenZFS's `zdb`.

use super::life::Options;
use crate::oracle::{Verdict, zdb};
use crate::recount;
use crate::workload::{Content, Kind, Model};
use millpond_engine::{Error, Node, Pool, View};
use millpond_env::sync::Arc;
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_ondisk::Level;
use millpond_sim::World;
use millpond_verify::{Problem, ProblemKind, Progress};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;

/// The level under which verification reports intent log blocks.
const LOG_LEVEL: Level = Level(254);

/// At most as many problems are told.
const PROBLEMS_MAX: usize = 8;

/// Verifies the pool. Damage on disks that were made to fail is accepted.
///
/// After a power cut during label writes some labels are torn (`may_be_torn`) until all are written again.
/// The last blocks of intent logs may also be incomplete, because one disk may have blocks that another
/// lacks.
///
/// # Errors
/// The first other errors, as text.
pub fn verified(pool: &View, victims: &BTreeSet<String>, may_be_torn: bool) -> Result<(), String> {
    let first: millpond_env::sync::Mutex<_> = millpond_env::sync::Mutex::new(Vec::<String>::new());
    let in_logs: millpond_env::sync::Mutex<_> =
        millpond_env::sync::Mutex::new(Vec::<String>::new());
    let torn = AtomicU64::new(0);
    let progress = Progress::default();
    let note = |problem: &Problem| {
        if may_be_torn
            && problem.address.level == LOG_LEVEL
            && let ProblemKind::Repairable(leaves) = &problem.kind
        {
            torn.fetch_add(1, Ordering::Relaxed);
            in_logs.lock().extend(leaves.iter().cloned());
            return;
        }
        let mut first = first.lock();
        // Those on leaves that may not fail say the most.
        let is_of_victims = match &problem.kind {
            ProblemKind::Repairable(leaves) => (leaves.iter())
                .all(|text| victims.iter().any(|name| text.starts_with(name.as_str()))),
            _ => false,
        };
        match is_of_victims {
            false => first.insert(0, format!("{problem:?}")),
            true if first.len() < PROBLEMS_MAX => first.push(format!("{problem:?}")),
            true => {}
        }
        first.truncate(PROBLEMS_MAX);
    };
    let report = pool
        .verify(&progress, &note)
        .map_err(|error| format!("verification: {error}"))?;
    let named: BTreeSet<String> = report
        .leaves
        .values()
        .filter(|leaf| {
            let in_logs = in_logs.lock();
            let torn = in_logs.iter().filter(|text| text.starts_with(&leaf.name));
            let wrong = leaf.wrong.saturating_sub(torn.count() as u64);
            wrong > 0 || leaf.faults > 0 || !(may_be_torn || leaf.is_clean())
        })
        .map(|leaf| leaf.name.clone())
        .collect();
    let is_expected = |name: &String| victims.iter().any(|victim| name.ends_with(victim));
    let is_sound = report.lost == 0 && report.invalid == 0 && report.gave_up.is_none();
    let torn = torn.load(Ordering::Relaxed);
    let is_repairable = report.repairable > torn && victims.is_empty();
    if !is_sound || is_repairable || !named.iter().all(is_expected) {
        return Err(format!(
            "verification: {} lost, {} repairable, {} invalid, gave up: {:?}, blames {:?} (may fail: {victims:?}); first {:?}",
            report.lost,
            report.repairable,
            report.invalid,
            report.gave_up,
            report
                .leaves
                .values()
                .filter(|leaf| !leaf.is_clean())
                .collect::<Vec<_>>(),
            first.into_inner()
        ));
    }
    Ok(())
}

/// Compares the space counters with the sums over all blocks.
pub(super) fn recounted(pool: &View) -> Result<(), String> {
    let faults = recount::faults_after_a_cut(pool);
    if faults.is_empty() {
        return Ok(());
    }
    Err(format!("statistics:\n  {}", faults.join("\n  ")))
}

/// Judges the disks with `zdb`, after writing them to image files.
///
/// # Errors
/// The errors of `zdb`, or that no images could be written.
pub fn judged(world: &World, pool: &str, options: &Options) -> Result<bool, String> {
    let say = |error: &dyn std::fmt::Display| format!("images for zdb: {error}");
    let folder = tempfile::tempdir().map_err(|error| say(&error))?;
    for (number, disk) in world.disks().iter().enumerate() {
        use millpond_device::Device;
        let path = folder.path().join(format!("d{number}"));
        let file = std::fs::File::create(path).map_err(|error| say(&error))?;
        file.set_len(disk.size_bytes())
            .map_err(|error| say(&error))?;
        for (offset, bytes) in disk.content().pages() {
            file.write_all_at(bytes, offset)
                .map_err(|error| say(&error))?;
        }
    }
    match zdb::judge(folder.path(), pool) {
        Ok(Verdict::Clean) => Ok(true),
        Ok(Verdict::Absent(_)) => Ok(false),
        Ok(Verdict::Faults(lines)) => {
            if let Some(keep) = &options.keep {
                let _ = std::fs::create_dir_all(keep);
                for number in 0..world.disks().len() {
                    let name = format!("d{number}");
                    let _ =
                        crate::images::copy_sparse(&folder.path().join(&name), &keep.join(&name));
                }
            }
            Err(format!("zdb:\n  {}", lines.join("\n  ")))
        }
        Err(error) => Err(say(&error)),
    }
}

/// Compares a dataset's files, read through the writing code with its unwritten changes, with the model.
pub(super) fn read_back(pool: &Pool, model: &Model, dataset: &str) -> Result<(), String> {
    let Some(head) = model.heads.get(dataset) else {
        return Ok(());
    };
    match compare_live(pool, dataset, &head.content) {
        Ok(differences) if differences.is_empty() => Ok(()),
        Ok(differences) => Err(format!(
            "{dataset}, read while open:\n  {}",
            differences.join("\n  ")
        )),
        Err(error) => Err(format!("{dataset}, read while open: {error}")),
    }
}

fn compare_live(pool: &Pool, dataset: &str, content: &Content) -> Result<Vec<String>, Error> {
    let mut found = vec![];
    let tree = match content {
        Content::Volume(bytes) => {
            let volume = pool.volume(dataset)?;
            let mut there = vec![0; bytes.len()];
            volume.read(0, &mut there)?;
            if there != **bytes {
                found.push("the volume's bytes differ".to_owned());
            }
            return Ok(found);
        }
        Content::Files(tree) => Arc::clone(tree),
    };
    let files = pool.file_system(dataset)?;
    let mut open: Vec<(String, u64, Node)> = vec![(String::new(), 0, files.root()?)];
    while let Some((path, id, node)) = open.pop() {
        match &tree.nodes[&id].kind {
            Kind::Directory(entries) => {
                for (name, child) in entries {
                    let path = format!("{path}/{}", String::from_utf8_lossy(name));
                    match node.lookup(name) {
                        Ok(node) => open.push((path, *child, node)),
                        Err(error) => found.push(format!("{path}: {error}")),
                    }
                }
            }
            Kind::File(bytes) => {
                let mut there = vec![0; bytes.len() + 1];
                let count = node.read(0, &mut there)?;
                if count != bytes.len() || there[..count] != ***bytes {
                    found.push(format!("{path}: its {} bytes differ", bytes.len()));
                }
            }
            _ => {}
        }
    }
    Ok(found)
}
