use crate::rig::Rig;
use crate::{Steps, peak_bytes, resident_bytes, size};
use millpond::live::{Caller, NewMode, WriteAt, WriteOptions};
use millpond_txg::DirtyLimits;

/// The budget of `docs/memory.md` beyond cache and dirty data.
const OVERHEAD_BYTES: u64 = 192 << 20;

#[test]
fn writing_stays_within_cache_and_dirty_limit_and_a_stated_overhead() {
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
        // Other tests of this process may run beside it when it is not alone.
        assert!(pool.engine().groups().dirty_bytes() <= dirty + (8 << 20));
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
