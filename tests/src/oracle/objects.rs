//! Compares the objects and intent logs printed by `zdb -P -ddi` with our own.
//!
//! Compared are, for every object of the MOS and of each dataset, its levels, block sizes, used bytes,
//! dnode slots and length, and the header of each log.

use anyhow::{Context, Result};
use millpond_dataset::{Dataset, Directory};
use millpond_engine::View;
use millpond_env::sync::Arc;
use millpond_object::{Accounting, ObjectSetView, ObjectView};
use millpond_ondisk::IntentLogHeader;
use std::collections::BTreeMap;

/// The numbers of one object.
///
/// These are its levels, bytes of its indirect and data blocks, used bytes rounded to sectors, bytes of its
/// dnode, and length.
type ObjectTotals = [u64; 6];
/// The objects of a dataset by id. 0 is the dnode array; -1, -2 and -3 hold the usage by owner.
type Objects = BTreeMap<i64, ObjectTotals>;
/// The numbers of one log.
///
/// These are the txg, block and record at which it was claimed, the last replayed record, and the flags.
type LogTotals = [u64; 5];

/// The objects and logs by dataset name; `mos` for the MOS.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sets {
    /// All objects.
    pub objects: BTreeMap<String, Objects>,
    /// Headers of intent logs.
    pub logs: BTreeMap<String, LogTotals>,
}

/// The name that `zdb` gives to the MOS.
pub const MOS: &str = "mos";

/// Parses the output of `zdb`.
pub fn of_zdb(lines: &[String]) -> Sets {
    let mut sets = Sets::default();
    let (mut name, mut is_in_table) = (String::new(), false);
    for line in lines {
        if let Some((of, _)) = line
            .strip_prefix("Dataset ")
            .and_then(|rest| rest.rsplit_once(" ["))
        {
            of.clone_into(&mut name);
            sets.objects.entry(name.clone()).or_default();
            is_in_table = false;
        } else if is_head(line) {
            is_in_table = true;
        } else if let Some(log) = log_of(line) {
            sets.logs.insert(name.clone(), log);
        } else if is_in_table {
            match object_of(line) {
                Some((id, totals)) => {
                    sets.objects
                        .entry(name.clone())
                        .or_default()
                        .insert(id, totals);
                }
                None => is_in_table = false,
            }
        }
    }
    sets
}

fn is_head(line: &str) -> bool {
    line.trim_start().starts_with("Object  lvl ")
}

/// Parses `54    2  131072  16384  86016     512  98304   53.65  DMU dnode`.
fn object_of(line: &str) -> Option<(i64, ObjectTotals)> {
    let mut words = line.split_whitespace();
    let id = words.next()?.parse().ok()?;
    let mut totals = [0; 6];
    for total in &mut totals {
        *total = words.next()?.parse().ok()?;
    }
    // Fill percentage and type.
    let full: f64 = words.next()?.parse().ok()?;
    (full >= 0.0 && words.next().is_some()).then_some((id, totals))
}

/// Whether a line is a row of an object table. Names of object types are not errors.
pub fn is_row(line: &str) -> bool {
    object_of(line).is_some()
}

/// Parses `ZIL header: claim_txg 0, claim_blk_seq 0, claim_lr_seq 0 replay_seq 0, flags 0x0`.
fn log_of(line: &str) -> Option<LogTotals> {
    let rest = line.trim_start().strip_prefix("ZIL header: ")?;
    let words: Vec<&str> = rest
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    let mut totals = [0; 5];
    let names = [
        "claim_txg",
        "claim_blk_seq",
        "claim_lr_seq",
        "replay_seq",
        "flags",
    ];
    for (total, name) in totals.iter_mut().zip(names) {
        let at = words.iter().position(|word| *word == name)?;
        let number = words.get(at + 1)?;
        *total = match number.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()?,
            None => number.parse().ok()?,
        };
    }
    Some(totals)
}

/// Every dataset and snapshot that `zdb` prints: all except those whose names start with `$`.
///
/// # Errors
/// If one of them cannot be read.
pub fn datasets(pool: &View) -> Result<Vec<Dataset>> {
    let mut all = vec![];
    let mut open = vec![Directory::root(pool.inner())?];
    while let Some(directory) = open.pop() {
        for (name, id) in directory.child_entries()? {
            if !name.starts_with('$') {
                open.push(directory.open_child(&name, id)?);
            }
        }
        if let Some(head) = directory.head()? {
            for (name, id) in head.snapshot_entries()? {
                all.push(head.open_snapshot(&name, id)?);
            }
            all.push(head);
        }
    }
    Ok(all)
}

/// Our numbers, and the live datasets whose logs have blocks: `zdb` must print these.
///
/// Locked datasets are left out.
fn ours(pool: &View) -> Result<(Sets, Vec<String>)> {
    let mut sets = Sets::default();
    let mut with_log = vec![];
    let mos = pool.inner().mos();
    sets.objects.insert(MOS.into(), objects(mos).context(MOS)?);
    for dataset in datasets(pool)? {
        let name = dataset.name().to_owned();
        if dataset.phys().block_pointer.is_hole() {
            sets.objects.insert(name, Objects::new());
            continue;
        }
        if dataset.phys().block_pointer.has_crypt_bit() {
            continue;
        }
        let set = dataset.object_set(None)?;
        let all = objects(&set).with_context(|| name.clone())?;
        sets.objects.insert(name.clone(), all);
        let header = IntentLogHeader::from_words(&set.phys().intent_log_header);
        let totals = [
            header.claim_txg.0,
            header.claim_block_sequence,
            header.claim_record_sequence,
            header.replay_sequence,
            header.flags.bits(),
        ];
        if header.has_chain() && !name.contains('@') {
            with_log.push(name.clone());
        }
        sets.logs.insert(name, totals);
    }
    Ok((sets, with_log))
}

/// Used bytes as `zdb` prints them: rounded to sectors of 512 bytes. On RAID-Z they are not whole sectors.
fn shown(used_bytes: u64) -> u64 {
    (used_bytes + 256) / 512 * 512
}

fn objects(set: &Arc<ObjectSetView>) -> Result<Objects> {
    let totals = |object: &ObjectView| -> ObjectTotals {
        let dnode = object.dnode();
        [
            dnode.levels.into(),
            1 << dnode.indirect_block_shift,
            object.block_bytes(),
            shown(dnode.used_bytes()),
            dnode.slots() * 512,
            object.length_bytes(),
        ]
    };
    let mut all = Objects::from([(0, totals(&set.meta_object()))]);
    for (id, which) in [
        (-1, Accounting::User),
        (-2, Accounting::Group),
        (-3, Accounting::Project),
    ] {
        if let Some(object) = set.accounting(which) {
            all.insert(id, totals(&object));
        }
    }
    for object in set.objects() {
        let object = object?;
        all.insert(i64::try_from(object.id().0)?, totals(&object));
    }
    Ok(all)
}

/// Returns the differences, one per line, and the number of objects and logs compared.
///
/// # Errors
/// If the pool cannot be read here.
pub fn disagreements(lines: &[String], pool: &View) -> Result<(Vec<String>, usize)> {
    let theirs = of_zdb(lines);
    let (ours, with_log) = ours(pool)?;
    let mut found = vec![];
    let mut count = 0;
    for (name, our) in &ours.objects {
        match theirs.objects.get(name) {
            Some(their) => {
                let what = format!("{name}: object");
                count += super::totals::differing(&what, our, their, &mut found);
            }
            None => found.push(format!("{name}: zdb shows no objects")),
        }
    }
    for (name, their) in &theirs.logs {
        count += 1;
        match ours.logs.get(name) {
            Some(our) if our == their => {}
            // Locked.
            None if ours.objects.contains_key(name) => {
                found.push(format!("{name}: only zdb has a log: {their:?}"));
            }
            None => {}
            Some(our) => found.push(format!("{name}: intent log: we {our:?}, zdb {their:?}")),
        }
    }
    for name in with_log {
        if !theirs.logs.contains_key(&name) {
            found.push(format!("{name}: only we have an intent log"));
        }
    }
    Ok((found, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Dataset mos [META], ID 0, cr_txg 4, 491520, 103 objects\n\
        \x20   Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type\n\
        \x20        0    2  131072  16384  86016     512  98304   53.65  DMU dnode\n\
        \x20       41    1  131072  131072      0     512  131072    0.00  persistent error log\n\
        \x20   Dnode slots:\n\
        \tTotal used:           103\n\
        Dataset tank/a b, [x]@s [ZPL], ID 123, cr_txg 18, 1302528, 20 objects\n\
        \x20   ZIL header: claim_txg 7, claim_blk_seq 1, claim_lr_seq 2 replay_seq 3, flags 0x1f\n\
        \t\tTX_CREATE           len    120, txg 57, seq 1\n\
        \x20   Object  lvl   iblk   dblk  dsize  dnsize  lsize   %full  type\n\
        \x20       -3    1  131072    512   8192     512    512  100.00  ZFS user/group/project used";

    #[test]
    fn tables_of_objects_and_headers_of_logs_are_understood() {
        let lines: Vec<String> = TEXT.lines().map(str::to_owned).collect();
        let found = of_zdb(&lines);
        let mos = [
            (0, [2, 131_072, 16_384, 86_016, 512, 98_304]),
            (41, [1, 131_072, 131_072, 0, 512, 131_072]),
        ];
        assert_eq!(found.objects[MOS], mos.into_iter().collect());
        let name = "tank/a b, [x]@s".to_owned();
        assert_eq!(found.objects[&name].len(), 1);
        assert_eq!(found.objects[&name][&-3], [1, 131_072, 512, 8192, 512, 512]);
        assert_eq!(found.logs, [(name, [7, 1, 2, 3, 31])].into_iter().collect());
        assert!(is_row(&lines[3]) && !is_row(&lines[0]) && !is_row("7 leaked space"));
    }
}
