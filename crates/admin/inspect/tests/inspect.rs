//! Compares the counts of `inspect` with the pools' own space maps, with the output of `zdb` recorded when
//! the pools were created, and with the current output of `zdb` if it is installed.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

#[path = "../../../file/volume/tests/support/mod.rs"]
mod support;

use millpond_inspect::{
    DatasetSummary, ObjectSummary, TreeStep, block_statistics, datasets, object_summaries,
    ondisk::{BlockId, Level, ObjectType},
    visit_blocks,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use support::Golden;

/// Pools in which each allocated block has one pointer: no dedup, clones, checkpoint or destroyed datasets.
const PLAIN: [&str; 8] = [
    "crypt",
    "embedded",
    "gang-raidz",
    "legacy-v28",
    "quotas",
    "single",
    "snapshots",
    "v24-rewrite",
];

static POOLS: LazyLock<Vec<(&str, Golden)>> = LazyLock::new(|| {
    PLAIN
        .into_iter()
        .filter_map(|case| Some((case, Golden::open(case)?)))
        .collect()
});

fn no_end() -> impl FnMut(&millpond_inspect::BlockStatistics) -> ControlFlow<()> {
    |_| ControlFlow::Continue(())
}

#[test]
fn every_allocated_byte_belongs_to_a_counted_block() {
    for (case, golden) in POOLS.iter() {
        let found = block_statistics(&golden.pool, &mut no_end());
        assert_eq!(found.unreadable_count, 0, "{case}: {:?}", found.unreadable);
        let space = golden.pool.space().unwrap();
        let (mut counted, mut allocated) = (
            found.total().allocated_bytes,
            space
                .usage
                .vdevs
                .iter()
                .map(|vdev| vdev.allocated_bytes)
                .sum::<u64>(),
        );
        if *case == "crypt" {
            // A deduplicated block counts once per pointer.
            counted -= found.dedup.allocated_bytes;
            allocated -= space.dedup.total().allocated_bytes;
        }
        assert_eq!(counted, allocated, "{case}");
    }
}

#[test]
fn a_count_keeps_no_blocks_in_the_cache() {
    let Some(golden) = Golden::open("snapshots") else {
        return;
    };
    block_statistics(&golden.pool, &mut no_end());
    golden.pool.store().wait_for_prefetch();
    let mut found = 0;
    for dataset in datasets(&golden.pool) {
        let set = dataset.unwrap().object_set(None).unwrap();
        let dnodes = set.meta_object();
        for id in 0..=dnodes.dnode().block_id_max.0 {
            let pointer = dnodes.pointer(Level(0), BlockId(id)).unwrap();
            assert!(set.store().cached(&pointer, None).is_none(), "{id}");
            found += 1;
        }
    }
    assert!(found > 0);
}

#[test]
fn a_cancelled_count_stops() {
    let Some((_, golden)) = POOLS.iter().find(|(case, _)| *case == "snapshots") else {
        return;
    };
    let whole = block_statistics(&golden.pool, &mut no_end()).total();
    let mut calls = 0;
    let part = block_statistics(&golden.pool, &mut |_| {
        calls += 1;
        ControlFlow::Break(())
    });
    assert_eq!(calls, 1);
    assert!(part.total().count < whole.count);
}

#[test]
fn dataset_and_object_counts_match_zdb() {
    for (case, golden) in POOLS.iter() {
        if !golden.folder.join("zdb.txt").exists() {
            println!("{case}: what zdb said is not in this set: nothing compared");
            continue;
        }
        let recorded = golden.file("zdb.txt");
        let recorded = String::from_utf8_lossy(&recorded);
        let mut expected = BTreeMap::new();
        for line in recorded.lines() {
            if let Some(parts) = dataset_line(line).filter(|(name, _)| name != "mos") {
                expected.insert(parts.0, parts.1);
            }
        }
        let mut found = BTreeMap::new();
        for dataset in datasets(&golden.pool) {
            let dataset = dataset.unwrap();
            let summary = DatasetSummary::of(&dataset);
            let numbers = [summary.id, summary.creation_txg, summary.object_count];
            let set = dataset.object_set(None).unwrap();
            let listed =
                object_summaries(&set).filter(|object| object.as_ref().unwrap().number > 0);
            assert_eq!(
                listed.count() as u64,
                summary.object_count,
                "{}",
                summary.name
            );
            found.insert(summary.name, numbers);
        }
        assert_eq!(found, expected, "{case}");
    }
}

/// Parses a line of `zdb -d`: name, and object id, creation txg and count of objects.
fn dataset_line(line: &str) -> Option<(String, [u64; 3])> {
    let (name, rest) = line.strip_prefix("Dataset ")?.split_once(" [")?;
    let words: Vec<&str> = rest
        .split([' ', ','])
        .filter(|word| !word.is_empty())
        .collect();
    let number = |index: usize| words.get(index)?.parse().ok();
    Some((name.to_owned(), [number(2)?, number(4)?, number(6)?]))
}

#[test]
fn a_traversal_visits_each_pointer_before_its_children() {
    let Some((_, golden)) = POOLS.iter().find(|(case, _)| *case == "embedded") else {
        return;
    };
    let mut deepest = 0;
    for dataset in datasets(&golden.pool) {
        let set = dataset.unwrap().object_set(None).unwrap();
        for object in std::iter::once(Ok(set.meta_object())).chain(set.objects()) {
            let object = object.unwrap();
            let mut parents: Vec<(u8, u64)> = vec![];
            let mut fill = 0;
            let _ = visit_blocks(&object, &mut |step| {
                let TreeStep::Pointer { address, pointer } = step else {
                    panic!("{step:?}");
                };
                if address.block == millpond_inspect::ondisk::SPILL_BLOCK_ID {
                    return ControlFlow::Continue(());
                }
                let (level, block) = (address.level.0, address.block.0);
                assert_eq!(pointer.level().0, level);
                parents.retain(|(above, _)| *above > level);
                if let Some((above, parent)) = parents.last() {
                    assert_eq!(*above, level + 1);
                    assert_eq!(block >> object.dnode().pointers_shift(), *parent);
                }
                parents.push((level, block));
                fill += u64::from(level == 0);
                ControlFlow::Continue(())
            });
            let summary = ObjectSummary::of(&object);
            // For the array of dnodes, the summary counts objects instead.
            if object.id().0 != 0 {
                assert_eq!(fill, summary.fill, "object {}", object.id());
            }
            deepest = deepest.max(summary.levels);
        }
    }
    assert!(deepest >= 3, "{deepest}");
}

/// The path of `zdb`, if it was fetched.
fn zdb() -> Option<PathBuf> {
    let oracle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/oracle");
    let out = Command::new(oracle.join("where")).output().ok()?;
    let kept = String::from_utf8(out.stdout).ok()?;
    let is_there = Path::new(kept.trim()).join("root").is_dir();
    is_there.then(|| oracle.join("zdb"))
}

#[test]
fn totals_and_blocks_by_type_are_those_that_zdb_counts() {
    let Some(zdb) = zdb() else {
        println!("zdb is not at hand (tools/oracle/fetch gets it): nothing compared");
        return;
    };
    // A subset, because each case takes a second. (A zdb older than v24-rewrite loses blocks there.)
    let cases = ["crypt", "gang-raidz", "legacy-v28", "single"];
    for (case, golden) in POOLS.iter().filter(|(case, _)| cases.contains(case)) {
        let folder = tempfile::tempdir().unwrap();
        golden.save(folder.path());
        let out = Command::new(&zdb)
            .args(["-P", "-e", "-p"])
            .arg(folder.path())
            .args(["-b", "-b", golden.pool.name()])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let value_of = |name: &str| -> u64 {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            let line = line.unwrap_or_else(|| panic!("{case}: no {name} in:\n{text}"));
            line.split_whitespace().next().unwrap().parse().unwrap()
        };
        let found = block_statistics(&golden.pool, &mut no_end());
        let total = found.total();
        assert_eq!(
            [
                total.count,
                total.ganged,
                total.logical_bytes,
                total.physical_bytes,
                total.allocated_bytes
            ],
            [
                "bp count:",
                "ganged count:",
                "bp logical:",
                "bp physical:",
                "bp allocated:"
            ]
            .map(value_of),
            "{case}"
        );
        // The types for which zdb prints a row: those with stored blocks.
        let mut rows = BTreeMap::new();
        for line in text.lines() {
            let cells: Vec<&str> = line.split('\t').collect();
            if let [count, .., name] = cells.as_slice()
                && let Ok(count) = count.trim().parse::<u64>()
                && cells.len() == 8
                && !name.starts_with(' ')
                && !name.contains("Total")
            {
                rows.insert((*name).to_owned(), count);
            }
        }
        let mut ours: BTreeMap<String, u64> = BTreeMap::new();
        for (number, totals) in found.types() {
            let kind = ObjectType(number);
            let name = if kind.is_self_describing() {
                "other"
            } else {
                kind.name()
            };
            if totals.allocated_bytes > 0 {
                *ours.entry(name.to_owned()).or_default() += totals.count;
            }
        }
        if found.deferred.count > 0 {
            ours.insert("deferred free".into(), found.deferred.count);
        }
        assert_eq!(ours, rows, "{case}");
    }
}
