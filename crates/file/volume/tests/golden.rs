//! Reads whole volumes from pools made by OpenZFS.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod support;

use millpond_dataset::{Dataset, DatasetKey};
use millpond_volume::{Volume, VolumeError};
use sha2::{Digest, Sha256};
use std::sync::Arc;
use support::Golden;

/// Opens the volume that a dataset holds.
fn open(dataset: &Dataset, key: Option<Arc<DatasetKey>>) -> Result<Volume, VolumeError> {
    Volume::open(dataset.name(), &dataset.object_set(key).unwrap())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Compares every recorded volume and volume snapshot with what is read. Returns how many were compared.
fn compare(golden: &Golden, key_of: impl Fn(&str) -> Option<Arc<DatasetKey>>) -> usize {
    let mut compared = 0;
    for record in golden.datasets() {
        let name = record["name"].as_str().unwrap();
        let property = |key: &str| {
            record["properties"][key][0]
                .as_str()
                .unwrap_or("")
                .to_owned()
        };
        let is_volume = record["type"] == "volume" || record["volume_sha256"].is_string();
        if !is_volume {
            continue;
        }
        let volume = open(&golden.dataset(name), key_of(name)).unwrap();
        assert_eq!(
            volume.size_bytes().to_string(),
            property("volsize"),
            "{name}"
        );
        if record["type"] == "volume" {
            assert_eq!(volume.block_bytes().to_string(), property("volblocksize"));
        }
        if let Some(digest) = record["volume_sha256"].as_str() {
            let mut sum = Sha256::new();
            let mut piece = vec![0u8; 100_000];
            let mut at = 0;
            while at < volume.size_bytes() {
                let count = (volume.size_bytes() - at).min(piece.len() as u64) as usize;
                volume.read(at, &mut piece[..count]).unwrap();
                sum.update(&piece[..count]);
                at += count as u64;
            }
            assert_eq!(hex(&sum.finalize()), digest, "{name}");
        }
        for sample in record["volume_samples_64k"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let mut piece = vec![0xffu8; 64 << 10];
            volume
                .read(sample[0].as_u64().unwrap(), &mut piece)
                .unwrap();
            assert_eq!(
                hex(&Sha256::digest(&piece)),
                sample[1].as_str().unwrap(),
                "{name}"
            );
        }
        check_extents(&volume);
        compared += 1;
    }
    compared
}

/// Checks that extents cover the volume without gaps and alternate, and that holes are zeros.
fn check_extents(volume: &Volume) {
    let mut at = 0;
    let mut last = None;
    let (mut data_bytes, mut count) = (0, 0);
    for extent in volume.extents(0) {
        let extent = extent.unwrap();
        assert_eq!(extent.offset_bytes, at);
        assert!(extent.length_bytes > 0);
        assert_ne!(last, Some(extent.is_data), "{} at {at}", volume.name());
        if extent.is_data {
            data_bytes += extent.length_bytes;
        } else {
            let mut piece = vec![1u8; extent.length_bytes.min(1 << 20) as usize];
            volume.read(at, &mut piece).unwrap();
            assert!(piece.iter().all(|byte| *byte == 0));
        }
        last = Some(extent.is_data);
        at += extent.length_bytes;
        count += 1;
    }
    assert_eq!(at, volume.size_bytes());
    let stored = volume.data().used_bytes();
    assert!(data_bytes == 0 || stored > 0, "{count} extents");
}

#[test]
fn volumes_of_every_block_size_read_as_recorded() {
    let Some(golden) = Golden::open("zvols") else {
        return;
    };
    assert_eq!(compare(&golden, |_| None), 11);
    // Walking a sparse terabyte volume takes few extents.
    let sparse = open(&golden.dataset("zvols/sparse"), None).unwrap();
    let extents: Vec<_> = sparse.extents(0).map(Result::unwrap).collect();
    assert!(extents.iter().any(|extent| !extent.is_data));
    assert!(extents.len() < 100, "{}", extents.len());
}

#[test]
fn an_encrypted_volume_is_read_with_its_key_only() {
    let Some(golden) = Golden::open("crypt") else {
        return;
    };
    let user_key = golden.file("pass");
    let user_key = user_key.strip_suffix(b"\n").unwrap_or(&user_key);
    let key = golden.key("pcrypt/pass/vol", user_key);
    assert_eq!(compare(&golden, |_| Some(Arc::clone(&key))), 2);
    // Size and holes are not encrypted; only the data is.
    let locked = open(&golden.dataset("pcrypt/pass/vol"), None).unwrap();
    assert_eq!(locked.size_bytes(), 4 << 20);
    let mut data = locked.extents(0).map(Result::unwrap);
    let data = data.find(|extent| extent.is_data).unwrap();
    let error = locked.read(data.offset_bytes, &mut [0; 512]).unwrap_err();
    assert!(error.is_locked(), "{error}");
}

#[test]
fn file_systems_and_ranges_beyond_the_end_are_refused() {
    let Some(golden) = Golden::open("zvols") else {
        return;
    };
    let error = open(&golden.dataset("zvols"), None).unwrap_err();
    assert!(matches!(error, VolumeError::NotAVolume { .. }));
    let volume = open(&golden.dataset("zvols/v4k"), None).unwrap();
    let mut piece = [0u8; 2];
    let size = volume.size_bytes();
    volume.read(size - 2, &mut piece).unwrap();
    for at in [size - 1, size, u64::MAX] {
        let error = volume.read(at, &mut piece).unwrap_err();
        assert!(matches!(error, VolumeError::BeyondEnd { .. }), "{at}");
    }
    assert_eq!(volume.extents(size).count(), 0);
    assert_eq!(volume.extents(u64::MAX).count(), 0);
}
