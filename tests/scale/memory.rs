use crate::rig::Rig;
use crate::{Steps, peak_bytes, resident_bytes, size};
use millpond_engine::{Caller, NewMode, SyncMode, WriteAt, WriteOptions};
use millpond_txg::DirtyLimits;
use std::time::Duration;

/// The budget in `docs/memory.md` in addition to cache and dirty data.
const OVERHEAD_BYTES: u64 = 192 << 20;

#[test]
fn writing_stays_within_the_memory_limits() {
    let (cache, dirty) = (32 << 20, size(64, 128) << 20);
    let total = size(192, 1536) << 20;
    let rig = Rig::new(1, (total >> 20) * 2);
    let limits = DirtyLimits {
        limit_bytes: dirty,
        ..DirtyLimits::default()
    };
    let plan = rig.stripe("tank").root_property("compression", "off");
    let pool = plan
        .cache_bytes(cache)
        .writing(WriteOptions {
            limits,
            ..WriteOptions::default()
        })
        .create()
        .unwrap();
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mut steps = Steps::new("memory while writing");
    let before = resident_bytes();
    let content: Vec<u8> = (0..1u32 << 20).map(|at| ((at * 31) >> 3) as u8).collect();
    let mode = NewMode::exactly(0o644);
    let (node, _) = files.create(&caller, &root, b"stream", mode, true).unwrap();
    for number in 0..total >> 20 {
        let at = WriteAt::Offset(number << 20);
        files.write(&caller, &node, at, &content).unwrap();
        // Other tests may run in the same process.
        assert!(pool.inner().groups().dirty_bytes() <= dirty + (8 << 20));
    }
    pool.sync().unwrap();
    let peak = peak_bytes().saturating_sub(before);
    println!(
        "scale: memory while writing: {} MiB more than before",
        peak >> 20
    );
    steps.done("write");
    let budget = cache + dirty + OVERHEAD_BYTES;
    if std::env::var_os("MILLPOND_SCALE").is_some() {
        assert!(peak <= budget, "{peak} bytes are more than {budget}");
    }
    drop((node, root, files));
    pool.export().unwrap();
}

#[test]
fn new_files_take_no_more_memory_than_they_are_charged() {
    let count = size(5000, 200_000);
    // Large enough that no worst-case estimate waits for a txg: nothing is written before the sync.
    let rig = Rig::new(1, size(4096, 65_536));
    let limits = DirtyLimits {
        limit_bytes: 8 << 30,
        period: Duration::from_secs(3600),
        ..DirtyLimits::default()
    };
    let cache = 32 << 20;
    let plan = rig.stripe("tank").cache_bytes(cache);
    let pool = plan
        .writing(WriteOptions {
            limits,
            sync_mode: SyncMode::Caller,
            ..WriteOptions::default()
        })
        .create()
        .unwrap();
    let files = pool.file_system("tank").unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let mut steps = Steps::new(&format!("{count} new files in memory"));
    let mode = NewMode::exactly(0o644);
    let synced = pool.inner().groups().synced_txg();
    let (before, charged_before) = (resident_bytes(), pool.inner().groups().dirty_bytes());
    for number in 0..count {
        let name = number.to_string();
        files
            .create(&caller, &root, name.as_bytes(), mode, true)
            .unwrap();
    }
    assert_eq!(
        pool.inner().groups().synced_txg(),
        synced,
        "a txg was written"
    );
    let taken = resident_bytes().saturating_sub(before);
    let charged = pool.inner().groups().dirty_bytes() - charged_before;
    println!(
        "scale: {count} new files in memory: {} bytes each, of which {} are charged as dirty",
        taken / count,
        charged / count
    );
    // At the small size, the memory use of other tests would hide the difference.
    let is_full = std::env::var_os("MILLPOND_SCALE").is_some();
    assert!(!is_full || taken <= charged);
    steps.done("create");
    pool.sync().unwrap();
    let peak = peak_bytes().saturating_sub(before);
    let budget = cache + charged + OVERHEAD_BYTES;
    assert!(
        !is_full || peak <= budget,
        "{peak} bytes are more than {budget}"
    );
    steps.done("sync");
    drop((root, files));
    pool.export().unwrap();
}
