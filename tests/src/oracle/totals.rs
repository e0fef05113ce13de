//! Compares the numbers of `zdb -P -bccddmmi` with our own.
//!
//! These are the object set id, txg, bytes and object count of every dataset including the MOS; the
//! position and free bytes of every metaslab according to our replay of its space map; and the sum of all
//! blocks' bytes. [`objects`] compares every object and intent log.

use super::objects;
use anyhow::{Context, Result};
use millpond_alloc::{UnflushedLogs, load_metaslab};
use millpond_dataset::Directory;
use millpond_engine::{OpenOptions, Search, View};
use millpond_pool::PoolSpaceMaps;
use std::collections::BTreeMap;
use std::path::Path;

/// The numbers that `zdb` prints for one dataset: object set id, creation txg, referenced bytes, objects.
type DatasetTotals = (u64, u64, u64, u64);
/// The numbers that it prints for one metaslab.
///
/// These are the offset, the free bytes, and the allocated bytes of its space map.
type MetaslabTotals = (u64, u64, Option<i64>);

/// Returns the differences from `zdb`, one per line, and the number of comparisons.
///
/// # Errors
/// If the pool cannot be read here.
pub fn disagreements(lines: &[String], folder: &Path, pool: &str) -> Result<(Vec<String>, usize)> {
    let pool = View::open(&Search::new([folder]), pool, &OpenOptions::default())
        .context("the pool whose statistics zdb printed")?;
    let mut found = vec![];
    let mut count = 0;
    let theirs = datasets(lines);
    let ours = our_datasets(&pool)?;
    count += differing("dataset", &ours, &theirs, &mut found);
    let (differences, compared) = objects::disagreements(lines, &pool)?;
    found.extend(differences);
    count += compared;
    let theirs = metaslabs(lines);
    let ours = our_metaslabs(&pool)?;
    count += differing("metaslab", &ours, &theirs, &mut found);
    let usage = &pool.inner().space()?.usage;
    let vdevs = &usage.vdevs;
    let ours: u64 = vdevs.iter().map(|vdev| vdev.allocated_bytes).sum();
    // No pointer leads to what only a checkpoint holds.
    let ours = ours - usage.checkpoint_bytes;
    // Copies of a removal under way, and free space that OpenZFS copied with blocks, are allocated and in no pointer.
    let is_mapped = pool
        .inner()
        .features()
        .is_active("com.delphix:device_removal");
    match blocks_bytes(lines) {
        Some(_) if is_mapped => {}
        Some(theirs) if theirs == ours => count += 1,
        theirs => found.push(format!("allocated: we {ours}, zdb's blocks {theirs:?}")),
    }
    Ok((found, count))
}

/// Compares two tables and returns the number of rows.
pub(super) fn differing<K: Ord + std::fmt::Debug, V: PartialEq + std::fmt::Debug>(
    what: &str,
    ours: &BTreeMap<K, V>,
    theirs: &BTreeMap<K, V>,
    found: &mut Vec<String>,
) -> usize {
    for (key, value) in ours {
        match theirs.get(key) {
            Some(their) if their == value => {}
            other => found.push(format!("{what} {key:?}: we {value:?}, zdb {other:?}")),
        }
    }
    for (key, value) in theirs.iter().filter(|(key, _)| !ours.contains_key(key)) {
        found.push(format!("{what} {key:?}: only zdb has it: {value:?}"));
    }
    theirs.len()
}

/// Parses `Dataset NAME [KIND], ID 54, cr_txg 1, 1024, 0 objects`.
///
/// More words follow for partially received datasets.
fn datasets(lines: &[String]) -> BTreeMap<String, DatasetTotals> {
    let one = |line: &String| {
        let rest = line.strip_prefix("Dataset ")?;
        let (name, rest) = rest.rsplit_once(" [")?;
        let mut parts = rest.split(", ").skip(1);
        let number = |part: &str, prefix: &str| part.strip_prefix(prefix)?.parse().ok();
        let id = number(parts.next()?, "ID ")?;
        let txg = number(parts.next()?, "cr_txg ")?;
        let bytes = parts.next()?.parse().ok()?;
        let objects = parts.next()?.split(' ').next()?.parse().ok()?;
        Some((name.to_owned(), (id, txg, bytes, objects)))
    };
    lines.iter().filter_map(one).collect()
}

/// The txg that `zdb` prints for the MOS: the first one that any pool has.
const FIRST_TXG: u64 = 4;

fn our_datasets(pool: &View) -> Result<BTreeMap<String, DatasetTotals>> {
    let mut all = BTreeMap::new();
    for dataset in objects::datasets(pool)? {
        let phys = dataset.phys();
        let totals = (
            dataset.id().0,
            phys.creation_txg.0,
            phys.referenced_bytes,
            phys.block_pointer.fill(),
        );
        all.insert(dataset.name().to_owned(), totals);
    }
    // The space of the MOS is charged to a directory of its own.
    let charged = Directory::root(pool.inner())?.child("$MOS")?;
    let totals = (
        0,
        FIRST_TXG,
        charged.phys().used_bytes,
        pool.inner().mos().root().fill(),
    );
    all.insert(objects::MOS.to_owned(), totals);
    Ok(all)
}

/// Parses the lines about metaslabs.
///
/// They are `vdev 0 …`, then `metaslab 1 offset 1000000 spacemap 75 free 16750080`, then `smp_alloc =
/// 0x6a00`.
fn metaslabs(lines: &[String]) -> BTreeMap<(u32, u64), MetaslabTotals> {
    let mut all: BTreeMap<(u32, u64), MetaslabTotals> = BTreeMap::new();
    let (mut vdev, mut last, mut is_its_map) = (0, None, false);
    for line in lines {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["vdev", number, ..] => {
                vdev = number.parse().unwrap_or(u32::MAX);
                last = None;
            }
            [
                "metaslab",
                index,
                "offset",
                offset,
                "spacemap",
                object,
                "free",
                free,
            ] => {
                let (Ok(index), Ok(offset), Ok(free)) =
                    (index.parse(), u64::from_str_radix(offset, 16), free.parse())
                else {
                    continue;
                };
                all.insert((vdev, index), (offset, free, None));
                last = Some((vdev, index, format!("{object}:")));
                is_its_map = false;
            }
            // Other space maps are printed too.
            ["space", "map", "object", object] => {
                is_its_map = last.as_ref().is_some_and(|(.., map)| map == object);
            }
            ["smp_alloc", "=", number] if is_its_map => {
                let number = number.trim_start_matches("0x");
                let allocated = u64::from_str_radix(number, 16).ok();
                let of = last.take();
                let of = of.and_then(|(vdev, index, _)| all.get_mut(&(vdev, index)));
                if let (Some(totals), Some(allocated)) = (of, allocated) {
                    totals.2 = Some(allocated as i64);
                }
            }
            _ => {}
        }
    }
    all
}

/// Replays the space map alone. `zdb` also leaves out changes that are only in logs.
fn our_metaslabs(pool: &View) -> Result<BTreeMap<(u32, u64), MetaslabTotals>> {
    let maps = PoolSpaceMaps::load(pool.inner())?;
    let without_logs = UnflushedLogs::default();
    let mut all = BTreeMap::new();
    for vdev in maps.geometries().into_keys() {
        for (metaslab, header) in maps.headers(vdev)? {
            let key = (vdev.0, metaslab.id.index);
            let offset = metaslab.range.start;
            let space = load_metaslab(&maps, metaslab, &without_logs)?;
            let allocated = header.map(|header| header.allocated_bytes);
            all.insert(key, (offset, space.free.bytes(), allocated));
        }
    }
    Ok(all)
}

/// Parses `bp allocated: 314880 avg: 1896`: the bytes of all blocks that it traversed. It counts a block once for each
/// pointer to it, and prints separately what the further pointers to deduplicated and cloned blocks add.
fn blocks_bytes(lines: &[String]) -> Option<u64> {
    let bytes = |what: &str| -> Option<u64> {
        let line = lines.iter().find(|line| line.contains(what))?;
        line.split_whitespace().nth(2)?.parse().ok()
    };
    let repeated = ["bp deduped:", "bp cloned:"].map(|what| bytes(what).unwrap_or(0));
    bytes(super::zdb::BLOCKS)?.checked_sub(repeated.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_zdb_are_understood() {
        let text = "Dataset mos [META], ID 0, cr_txg 4, 136704, 74 objects\n\
            Dataset tank/a b, c@s [ZPL], ID 22, cr_txg 54, 12288, 9 objects\n\
            \tvdev          0      ms_unflushed_phys object 74\n\
            \tmetaslab      1   offset      1000000   spacemap     75   free    16750080\n\
            space map object 75:\n  smp_length = 0x78\n  smp_alloc = 0x6a00\n\
            \tmetaslab      2   offset      2000000   spacemap      0   free    16777216\n\
            space map object 74:\n  smp_length = 0x78\n  smp_alloc = 0x1\n\
            \tbp allocated:            314880      avg:   1896\n\
            \tbp deduped:                   0    ref>1:      0   deduplication:   1.00\n\
            \tbp cloned:                 4096    count:      1";
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let expected = [
            ("mos".to_owned(), (0, 4, 136_704, 74)),
            ("tank/a b, c@s".to_owned(), (22, 54, 12288, 9)),
        ];
        assert_eq!(datasets(&lines), expected.into_iter().collect());
        let expected = [
            ((0, 1), (0x100_0000, 16_750_080, Some(0x6a00))),
            ((0, 2), (0x200_0000, 16_777_216, None)),
        ];
        assert_eq!(metaslabs(&lines), expected.into_iter().collect());
        assert_eq!(blocks_bytes(&lines), Some(310_784));
    }

    #[test]
    fn every_difference_of_two_tables_is_reported() {
        let ours = BTreeMap::from([(1, 10), (2, 20), (3, 30)]);
        let theirs = BTreeMap::from([(1, 10), (2, 21), (4, 40)]);
        let mut found = vec![];
        assert_eq!(differing("thing", &ours, &theirs, &mut found), 3);
        assert_eq!(found.len(), 3, "{found:?}");
    }
}
