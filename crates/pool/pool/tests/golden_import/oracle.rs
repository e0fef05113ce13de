//! Compares the devices with the output of OpenZFS's own programs and test suite, if `tools/oracle/fetch`
//! was run.

use crate::{CASES, SparseImage};
use millpond_ondisk::{Endian, Txg};
use millpond_pool::import::{ScanOptions, VdevState, find_pools, scan, scan_devices};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The oracle's folder. If it is absent, prints that nothing is compared.
fn oracle() -> Option<PathBuf> {
    let output = Command::new(workspace().join("tools/oracle/where"))
        .output()
        .ok();
    let folder = output.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let ready = folder.filter(|folder| folder.join("ready").exists());
    if ready.is_none() {
        println!("the oracle was not fetched: nothing compared");
    }
    ready
}

/// The dumper's fields of one uberblock by key, including "slot" and "labels".
type Fields = BTreeMap<String, String>;

fn theirs(image: &Path) -> Vec<Fields> {
    let output = Command::new(workspace().join("tools/oracle/zdb"))
        .arg("-lu")
        .arg(image)
        .output()
        .unwrap();
    let mut blocks: Vec<Fields> = Vec::new();
    for line in String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::trim)
    {
        if let Some(slot) = line.strip_prefix("Uberblock[") {
            blocks.push(Fields::from([(
                "slot".to_owned(),
                slot.trim_end_matches(']').to_owned(),
            )]));
        } else if let (Some((key, value)), Some(block)) =
            (line.split_once(" = "), blocks.last_mut())
        {
            let value = value.split(" UTC").next().unwrap();
            block.insert(key.to_owned(), value.to_owned());
        } else if let (Some(reflow), Some(block)) =
            (line.strip_prefix("raidz_reflow "), blocks.last_mut())
        {
            block.insert("raidz_reflow".to_owned(), reflow.to_owned());
        }
    }
    blocks
}

#[test]
fn uberblocks_are_those_that_the_reference_dumper_lists() {
    if oracle().is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut compared = 0;
    // Sectors of 512 bytes, 4 KiB and 8 KiB, an expansion in progress, version 28.
    for name in [
        "single",
        "ashift9",
        "ashift13",
        "expanding",
        "draid1",
        "legacy-v28",
        "v24-default",
    ] {
        let Some(unpacked) = CASES.iter().find(|unpacked| unpacked.name() == name) else {
            continue;
        };
        let image = folder.path().join(name);
        SparseImage::unpack(&unpacked.case.folder.join("d0.img.zst")).save(&image);
        let pool = find_pools(&scan_devices(unpacked.candidates[..1].to_vec()), 0).remove(0);
        let mut ours = Vec::new();
        for found in &pool.uberblocks {
            let uberblock = &found.uberblock;
            let labels: Vec<String> = found
                .places
                .iter()
                .map(|place| place.label.to_string())
                .collect();
            let reflow = uberblock.raidz_reflow;
            ours.push(Fields::from(
                [
                    ("slot", found.places[0].slot.to_string()),
                    ("magic", "0000000000bab10c".to_owned()),
                    ("version", uberblock.version.to_string()),
                    ("txg", uberblock.txg.to_string()),
                    ("guid_sum", uberblock.guid_sum.to_string()),
                    ("timestamp", uberblock.timestamp_s.to_string()),
                    ("mmp_magic", format!("{:016x}", uberblock.mmp_magic)),
                    ("mmp_delay", uberblock.mmp_delay_ns.to_string()),
                    ("mmp_valid", (uberblock.mmp_config & 0xff).to_string()),
                    ("checkpoint_txg", uberblock.checkpoint_txg.to_string()),
                    (
                        "raidz_reflow",
                        format!(
                            "state={} off={}",
                            reflow.scratch_state(),
                            reflow.offset_bytes()
                        ),
                    ),
                    ("labels", labels.join(" ")),
                ]
                .map(|(key, value)| (key.to_owned(), value)),
            ));
        }
        let mut theirs = theirs(&image);
        // Root pointers are not compared here.
        theirs.iter_mut().for_each(|block| drop(block.remove("bp")));
        let by_slot = |block: &Fields| block["slot"].parse::<u64>().unwrap();
        ours.sort_by_key(by_slot);
        theirs.sort_by_key(by_slot);
        assert_eq!(ours, theirs, "{name}");
        compared += ours.len();
    }
    println!("{compared} uberblocks compared");
}

/// Files, name, version, byte order, newest txg, health.
type OldPool = (
    &'static [&'static str],
    &'static str,
    u64,
    Endian,
    u64,
    VdevState,
);

#[test]
fn pools_of_old_versions_and_both_byte_orders_import() {
    let Some(pools) = oracle()
        .map(|folder| folder.join("pools"))
        .filter(|pools| pools.is_dir())
    else {
        return;
    };
    let (big, little) = (Endian::Big, Endian::Little);
    let expected: [OldPool; 7] = [
        (&["v1"], "v1-pool", 1, big, 14, VdevState::Healthy),
        (
            &["v1stripe1", "v1stripe2", "v1stripe3"],
            "pool-v1stripe",
            1,
            big,
            46,
            VdevState::Healthy,
        ),
        (
            &["v2raidz1", "v2raidz3"],
            "pool-v2raidz",
            2,
            big,
            22,
            VdevState::Degraded,
        ),
        (
            &["v3hotspare1", "v3hotspare2", "v3hotspare3"],
            "pool-v3hotspare",
            3,
            little,
            42,
            VdevState::Healthy,
        ),
        (&["v9"], "v9-pool", 9, big, 8, VdevState::Healthy),
        (&["v15"], "v15-pool", 15, big, 21, VdevState::Healthy),
        (&["v999"], "v999-pool", 999, little, 11, VdevState::Healthy),
    ];
    for (files, name, version, endian, txg, state) in expected {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let packed =
                std::fs::File::open(pools.join(format!("zfs-pool-{file}.dat.bz2"))).unwrap();
            let mut image = std::fs::File::create(folder.path().join(file)).unwrap();
            std::io::copy(&mut bzip2_rs::DecoderReader::new(packed), &mut image).unwrap();
        }
        let found = scan(&[folder.path().to_owned()], ScanOptions::default());
        assert_eq!(found.leaves().len(), files.len());
        for leaf in found.leaves() {
            assert!(
                leaf.labels
                    .iter()
                    .all(|label| label.as_ref().unwrap().is_verified),
                "{name}"
            );
        }
        let pool = find_pools(&found, 0).remove(0);
        let newest = pool.newest().unwrap().uberblock;
        assert_eq!(
            (pool.name.as_str(), pool.version, newest.version),
            (name, version, version)
        );
        assert_eq!((newest.endian, newest.txg), (endian, Txg(txg)), "{name}");
        let assembly = pool.assembly.as_ref().unwrap();
        assert_eq!(
            (assembly.state(), assembly.guid_sum()),
            (state, newest.guid_sum),
            "{name}"
        );
        assert_eq!(
            pool.conditions
                .iter()
                .any(millpond_pool::import::ImportCondition::is_fatal),
            version == 999
        );
    }
}
