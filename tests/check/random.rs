//! Random damage: if `zdb` finds an error in a pool, the checker must find one too.

use crate::planted::scene::Scene;
use millpond_check::{CheckOptions, check_pool};
use millpond_device::Device;
use millpond_engine::{OpenOptions, Search, View};
use millpond_ondisk::Level;
use millpond_tests::hostile::image::Changed;
use millpond_tests::hostile::overlay::Overlay;
use millpond_tests::hostile::rng::SeededRng;
use millpond_tests::oracle::zdb;
use millpond_verify::Progress;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Changes one non-zero word in one metadata block, and describes the change.
fn damage(scene: &Scene, change: &mut Changed<'_>, rng: &mut SeededRng) -> String {
    let blocks = &scene.image.blocks;
    loop {
        let number = rng.below(blocks.len());
        let block = &blocks[number];
        let (kind, level) = (block.pointer.object_type(), block.pointer.level());
        if level == Level(0) && !kind.is_metadata() {
            continue;
        }
        let used: Vec<usize> = (0..block.content.len() / 8)
            .filter(|word| block.content[word * 8..word * 8 + 8] != [0; 8])
            .collect();
        if used.is_empty() {
            continue;
        }
        let at = used[rng.below(used.len())] * 8;
        let bytes = block.content[at..at + 8].try_into().expect("eight bytes");
        let old = u64::from_le_bytes(bytes);
        let new = match rng.below(5) {
            0 => 0,
            1 => old ^ (1 << rng.below(64)),
            2 => old.wrapping_add(1),
            3 => old.wrapping_sub(512),
            _ => old ^ (1 << rng.below(12)),
        };
        if new == old {
            continue;
        }
        change.put_u64(number, at, new);
        return format!(
            "{} L{level}, byte {at}: {old:#x} became {new:#x}",
            kind.name()
        );
    }
}

fn write_image(overlay: &Overlay, path: &Path) {
    let file = std::fs::File::create(path).expect("an image");
    file.set_len(overlay.size_bytes()).expect("a length");
    let mut piece = vec![0; 1 << 18];
    for at in (0..overlay.size_bytes()).step_by(piece.len()) {
        overlay.read(at, &mut piece).expect("a piece");
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(&piece, at).expect("space");
        }
    }
}

/// Whether our commands find an error.
///
/// The pool does not open, `check` reports metadata, or `verify` reports content, which `check` does not
/// read.
fn finds_something(folder: &Path) -> bool {
    let Ok(pool) = View::open(&Search::new([folder]), "tank", &OpenOptions::default()) else {
        return true;
    };
    let found = check_pool(pool.inner(), &CheckOptions::default())
        .map_or(true, |report| !report.findings.is_empty());
    let progress = Progress::default();
    found
        || pool
            .verify(&progress, &|_| {})
            .map_or(true, |report| !report.is_clean())
}

/// The pool differs in each run, and so does the damage.
///
/// `MILLPOND_DAMAGES` sets the number of attempts, 400 by default.
#[test]
#[ignore = "other damage each time: make test-check"]
fn damage_found_by_zdb_is_found() {
    if let Some(why) = zdb::absent() {
        println!("not tried: {why}");
        return;
    }
    let count =
        std::env::var("MILLPOND_DAMAGES").map_or(400, |count| count.parse().expect("a number"));
    let scene = Scene::get();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("d0.img");
    let (mut both, mut only_ours, mut neither) = (0, 0, 0);
    let mut missed = vec![];
    for seed in 0..count {
        let mut rng = SeededRng::new(seed);
        let mut change = scene.image.change();
        let what = damage(scene, &mut change, &mut rng);
        let Ok(overlay) = change.seal_in_place() else {
            continue;
        };
        write_image(&overlay, &path);
        let ours = finds_something(folder.path());
        let theirs = zdb::complaints(folder.path(), "tank").expect("zdb");
        match (ours, theirs.is_empty()) {
            (true, false) => both += 1,
            (true, true) => only_ours += 1,
            (false, true) => neither += 1,
            (false, false) => missed.push(format!("seed {seed}: {what}: {theirs:?}")),
        }
    }
    println!("found by both {both}, by ours alone {only_ours}, by neither {neither}");
    assert!(missed.is_empty(), "zdb alone found:\n{}", missed.join("\n"));
    assert!(both > 0);
}
