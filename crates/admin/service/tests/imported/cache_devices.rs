//! Cache devices of imported pools: used from import to export, and shown.

use super::*;
use millpond_control::{PoolChange, PoolInfo};
use std::time::{Duration, Instant};

/// Waits until what is shown of the pool is as expected.
fn await_info(pools: &ImportedPools, mut is_so: impl FnMut(&PoolInfo) -> bool) -> PoolInfo {
    let begun = Instant::now();
    loop {
        let info = pools.pool("tank").unwrap();
        if is_so(&info) {
            return info;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            info.caches
        );
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn an_imported_pool_fills_its_cache_devices_and_shows_it() {
    let stage = Stage::sized(&[("disk", 128), ("first", 64), ("second", 64)]);
    let pools = stage.create(NewDevices {
        tops: vec![stage.top(AllocationClass::Normal, NewLayout::Single, &["disk"])],
        caches: vec![stage.path("first")],
        ..NewDevices::default()
    });
    let pool = pools.writable("tank").unwrap();
    let files = pool.file_system("tank").unwrap();
    let write = |name: &str, seed: u8| {
        let (root, mode) = (files.root().unwrap(), NewMode::exactly(0o644));
        let made = files.create(&Caller::root(), &root, name.as_bytes(), mode, true);
        let content: Vec<u8> = (0..4u32 << 20)
            .map(|at| (at.wrapping_mul(at) >> 7) as u8 ^ seed)
            .collect();
        let (caller, node) = (Caller::root(), made.unwrap().0);
        files
            .write(&caller, &node, WriteAt::Offset(0), &content)
            .unwrap();
        pool.sync().unwrap();
    };
    write("one", 1);
    let info = await_info(&pools, |info| info.caches[0].allocated_bytes > 256 << 10);
    let cache = &info.caches[0];
    assert!(cache.total_bytes > 59 << 20 && cache.total_bytes < 60 << 20);
    assert!(cache.io.written_bytes >= cache.allocated_bytes);
    let devices = NewDevices {
        caches: vec![stage.path("second")],
        ..NewDevices::default()
    };
    let mut changed = Default::default();
    pools
        .apply("tank", &PoolChange::Add(devices), &mut changed)
        .unwrap();
    // The rounds take turns among the devices.
    let mut number = 1;
    await_info(&pools, |info| {
        number += 1;
        write(&format!("file-{number}"), number);
        info.caches.len() == 2 && info.caches.iter().all(|cache| cache.allocated_bytes > 0)
    });
    drop((files, pool));
    pools.leave("tank", false, None).unwrap();
    let open = millpond_device::OpenOptions {
        write: true,
        ..Default::default()
    };
    for name in ["first", "second"] {
        let device = millpond_device::FileDevice::open(stage.path(name).as_ref(), open);
        assert!(device.is_ok(), "{name} is closed");
    }
}
