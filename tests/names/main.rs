//! Pools with forged names under valid checksums.
//!
//! Names are checked before they are used in paths or printed to a terminal.

use millpond_control::{ImportError, ImportRequest, SearchPaths};
use millpond_engine::{FeatureChoice, PoolBuilder};
use millpond_env::Env;
use millpond_ondisk::FEATURES;
use millpond_service::ImportedPools;
use millpond_tests::hostile::image::PoolImage;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Creates a pool with datasets and a snapshot whose names are stored in blocks.
fn make(path: &Path) {
    let image = std::fs::File::create(path).unwrap();
    image.set_len(80 << 20).unwrap();
    // Disables embedded blocks, so that small tables are stored in blocks.
    let names = FEATURES.iter().map(|feature| feature.name());
    let kept = names.filter(|name| *name != "embedded_data");
    let features = FeatureChoice::Compatible(kept.map(str::to_owned).collect());
    let pool = PoolBuilder::new("tank").single(path).features(features);
    let pool = pool.create().unwrap();
    let datasets = pool.datasets();
    datasets.create_filesystem("tank/forge_me", &[]).unwrap();
    datasets.create_filesystem("tank/other", &[]).unwrap();
    datasets.snapshot(&["tank/other@snap_one"], &[]).unwrap();
    pool.export().unwrap();
}

/// Replaces a name by another of the same length, in every table that contains it.
fn forge(path: &Path, old: &[u8], new: &[u8]) {
    assert_eq!(old.len(), new.len());
    let image = PoolImage::load(path).unwrap();
    let mut change = image.change();
    let mut wanted = old.to_vec();
    wanted.push(0);
    let mut count = 0;
    for number in 0..image.blocks.len() {
        let entries = image.blocks[number].content.chunks_exact(64).enumerate();
        let found: Vec<usize> = entries
            .filter(|(at, entry)| *at > 0 && entry[14..].starts_with(&wanted))
            .map(|(at, _)| at * 64 + 14)
            .collect();
        for at in found {
            change.content_mut(number)[at..at + new.len()].copy_from_slice(new);
            count += 1;
        }
    }
    assert_eq!(count, 1, "tables with this name");
    let overlay = change.seal_in_place().unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    for (at, bytes) in overlay.pieces() {
        file.write_all_at(bytes, at).unwrap();
    }
}

fn import(path: &Path, read_only: bool) -> Result<Vec<String>, ImportError> {
    let pools = ImportedPools::new(&Env::real(), 7, None);
    let mut request = ImportRequest {
        pool: "tank".into(),
        search: SearchPaths {
            paths: vec![path.to_string_lossy().into_owned()],
            cache_file: None,
        },
        force: true,
        ..ImportRequest::default()
    };
    if read_only {
        request.properties.push(("readonly".into(), "on".into()));
    }
    pools.import(&request, None)?;
    let names = pools.names();
    pools.leave("tank", false, None).unwrap();
    Ok(names)
}

#[test]
fn forged_names_of_datasets_and_snapshots_are_not_imported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    make(&path);
    assert_eq!(import(&path, false).unwrap(), ["tank"]);
    for (old, new, whole) in [
        (&b"forge_me"[..], &b"../../ab"[..], "tank/../../ab"),
        (b"forge_me", b"\x1b[2Jabcd", "tank/\u{1b}[2Jabcd"),
        (b"forge_me", b"a\nb@c/de", "tank/a\nb@c/de"),
        (b"snap_one", b"snap\xffone", "tank/other@snap\u{fffd}one"),
    ] {
        make(&path);
        forge(&path, old, new);
        let before = std::fs::read(&path).unwrap();
        match import(&path, false) {
            Err(ImportError::BadName { name, .. }) => assert_eq!(name, whole),
            other => panic!("{whole:?}: {other:?}"),
        }
        assert!(before == std::fs::read(&path).unwrap(), "it was written to");
        // The pool's content is not lost.
        assert_eq!(import(&path, true).unwrap(), ["tank"]);
    }
}
