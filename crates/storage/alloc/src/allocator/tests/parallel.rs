//! Many concurrent threads.

use super::image::{Image, Memory};
use super::*;
use crate::RangeSet;
use millpond_env::sync::atomic::{AtomicBool, Ordering};
use millpond_env::thread;

#[test]
fn concurrent_allocations_during_a_sync_never_overlap() {
    let vdevs: Vec<VdevSpace> = (0..3).map(|id| plain(id, 6, 18, 9)).collect();
    let memory = Memory::new(&vdevs, 4096, Image::default());
    let allocator = PoolAllocator::new(vdevs.clone(), memory.clone(), LOGS).unwrap();
    let mut owned: Vec<Dva> = vec![];
    for txg in 4..10u64 {
        let is_done = AtomicBool::new(false);
        // Workers allocate blocks of this txg; others allocate blocks of the next while this one is being
        // written.
        let round = |of: Txg, worker: usize| {
            let mut mine: Vec<Dva> = vec![];
            for step in 0..80usize {
                let psize = 512 * (1 + ((step * 7 + worker) as u64) % 6);
                let request = AllocRequest {
                    lane: worker,
                    ..normal(psize, 1 + (step % 2) as u8)
                };
                if let Ok(found) = allocator.allocate(of, &request) {
                    mine.extend(found);
                }
                if step % 3 == 2 && mine.len() > 4 {
                    let dva = mine.swap_remove(step % mine.len());
                    allocator.free(of, &dva, of, true).unwrap();
                }
            }
            mine
        };
        let mut found: Vec<Dva> = thread::scope(|scope| {
            let workers: Vec<_> = (0..3)
                .map(|worker| scope.spawn(move || round(Txg(txg), worker)))
                .collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap())
                .collect()
        });
        let early: Vec<Dva> = thread::scope(|scope| {
            let workers: Vec<_> = (3..5)
                .map(|worker| scope.spawn(move || round(Txg(txg + 1), worker)))
                .collect();
            let mut pass = 1;
            while allocator.sync_pass(Txg(txg), pass, &*memory).unwrap() {
                pass += 1;
            }
            is_done.store(true, Ordering::Release);
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap())
                .collect()
        });
        assert!(is_done.load(Ordering::Acquire));
        owned.append(&mut found);
        let on_disk = memory.snapshot().check(&vdevs, 4096, &BTreeSet::new());
        for (vdev, on_disk) in vdevs.iter().zip(on_disk) {
            let mut expected = RangeSet::new();
            for dva in owned.iter().filter(|dva| dva.vdev == vdev.vdev()) {
                // Fails if two blocks own it.
                expected
                    .add(dva.offset_bytes..dva.offset_bytes + dva.asize_bytes)
                    .unwrap();
            }
            let mut merged = RangeSet::new();
            for range in on_disk {
                merged.add(range).unwrap();
            }
            assert_eq!(merged, expected);
        }
        let until = PoolAllocator::reusable_until(Txg(txg), allocator.is_short());
        allocator.synced(Txg(txg), until, &[]).unwrap();
        owned.extend(early);
        let bytes: u64 = owned.iter().map(|dva| dva.asize_bytes).sum();
        assert_eq!(allocator.usage().pool().allocated_bytes, bytes);
    }
    assert!(owned.len() > 500);
}
