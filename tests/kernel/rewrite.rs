//! Files rewritten with their births kept, here and by the 2.4 module, with snapshots and clones of both.

use crate::cloning::{file, free_everything, is_as_it_says, node, remove};
use crate::{Rig, run_script};
use millpond_engine::{Caller, Pool, SendFlags, SendRequest, WriteAt};
use millpond_sim::noise;
use millpond_tests::oracle::kernel::{self, Release};
use millpond_tests::recount;
use millpond_tests::workload::text;

const NAME: &str = "rewritten";

/// Bytes of which every compression saves about half.
fn content(seed: u64) -> Vec<u8> {
    let bytes = noise(seed, 400_000);
    bytes.iter().flat_map(|byte| [byte & 0xf, 0x40]).collect()
}

fn set(pool: &Pool, compression: &str) {
    let properties = [text("compression", compression)];
    pool.datasets().set_properties(NAME, &properties).unwrap();
}

fn rewrite(pool: &Pool, dataset: &str, name: &str, keeps_births: bool) {
    let files = pool.file_system(&format!("{NAME}/{dataset}")).unwrap();
    let file = node(&files, name);
    files.rewrite(&file, 0, 0, keeps_births).unwrap();
}

fn snapshot(pool: &Pool, name: &str) {
    let full = format!("{NAME}/a@{name}");
    pool.datasets().snapshot(&[&full], &[]).unwrap();
}

/// The length of the increment from `@1` to `@2`.
fn increment_bytes(pool: &Pool) -> usize {
    let request = SendRequest {
        name: format!("{NAME}/a@2"),
        from: Some(format!("{NAME}/a@1")),
        flags: SendFlags::default(),
        ..SendRequest::default()
    };
    let mut bytes = vec![];
    pool.send(&request, &mut bytes).unwrap();
    bytes.len()
}

/// What an older `zdb` cannot judge.
fn recounted(rig: &Rig) {
    let view = rig.read(NAME);
    let faults = recount::faults_after_a_cut(&view);
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
#[ignore = "minutes; make test-kernel"]
fn rewritten_files_are_rewritten_by_2_4_and_here() {
    let release = Release::V2_4;
    if let Some(why) = kernel::absent(release) {
        println!("not judged by {release:?}: {why}");
        return;
    }
    let rig = Rig::new(1, 512);
    let builder = rig.stripe(NAME).root_property("recordsize", "32768");
    let builder = builder.property("feature@physical_rewrite", "enabled");
    let pool = builder.create().unwrap();
    set(&pool, "off");
    let mount = |name: &str| text("mountpoint", &format!("/{NAME}/{name}"));
    let datasets = pool.datasets();
    let a = format!("{NAME}/a");
    datasets.create_filesystem(&a, &[mount("a")]).unwrap();
    let files = pool.file_system(&a).unwrap();
    for (seed, name) in (0..).zip(["often", "changed", "gone", "gone-there", "plain"]) {
        file(&files, name, &content(seed));
    }
    snapshot(&pool, "1");
    let (origin, clone) = (format!("{NAME}/a@1"), format!("{NAME}/b"));
    datasets
        .clone_snapshot(&origin, &clone, &[mount("b")])
        .unwrap();
    set(&pool, "zstd");
    for name in ["often", "changed", "gone", "gone-there"] {
        rewrite(&pool, "a", name, true);
    }
    rewrite(&pool, "b", "often", true);
    pool.sync().unwrap();
    let (from, to) = (node(&files, "often"), file(&files, "shared", &[]));
    let length = from.size_bytes();
    (files.copy_range(&Caller::root(), (&from, 0), (&to, 0), length)).unwrap();
    snapshot(&pool, "2");
    set(&pool, "gzip");
    for name in ["often", "shared"] {
        rewrite(&pool, "a", name, true);
    }
    rewrite(&pool, "a", "plain", false);
    let changed = node(&files, "changed");
    let at = WriteAt::Offset(33_000);
    (files.write(&Caller::root(), &changed, at, &noise(9, 70_000))).unwrap();
    drop((from, to, changed));
    remove(&files, "gone");
    drop(files);
    pool.sync().unwrap();
    // Only the new file's content is sent: what was rewritten is in `@1` too.
    let length = increment_bytes(&pool).to_string();
    println!("    the increment has {length} bytes");
    pool.export().unwrap();
    recounted(&rig);
    let share = tempfile::tempdir().unwrap();
    run_script(
        release,
        &rig,
        "rewrite",
        Some(share.path()),
        &[NAME, &length],
    );
    let pool = rig.open(NAME);
    let count = is_as_it_says(&pool, NAME, share.path());
    assert!(count >= 9, "{count} files");
    assert_eq!(increment_bytes(&pool).to_string(), length);
    // What the module rewrote is rewritten again, and the oldest snapshot goes with its clone.
    set(&pool, "zle");
    for (dataset, name) in [("a", "often"), ("a", "changed"), ("b", "plain")] {
        rewrite(&pool, dataset, name, true);
    }
    snapshot(&pool, "3");
    pool.export().unwrap();
    recounted(&rig);
    run_script(
        release,
        &rig,
        "rewrite",
        Some(share.path()),
        &[NAME, &length],
    );
    recounted(&rig);
    let pool = rig.open(NAME);
    is_as_it_says(&pool, NAME, share.path());
    free_everything(&pool, NAME);
    let view = pool.committed().unwrap();
    let snapshots = view.dataset(&a).unwrap().snapshots().unwrap();
    for snapshot in snapshots {
        let gone = pool.datasets().destroy(snapshot.name(), Default::default());
        gone.unwrap();
    }
    drop(view);
    for _ in 0..4 {
        pool.sync().unwrap();
    }
    pool.export().unwrap();
    // Nothing is left that an older zdb does not know.
    rig.judge(NAME);
}
