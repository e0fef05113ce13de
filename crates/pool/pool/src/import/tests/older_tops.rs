//! Vdevs whose devices are older than the pool.

use super::disks::{Disk, POOL, label, leaf, with};
use super::the_pool;
use millpond_device::Candidate;
use millpond_ondisk::{Guid, Txg};

/// The device of a vdev of its own among `count`, with its label and the uberblocks that it has.
fn single(id: u64, count: u64, label_txg: u64, txgs: &[u64]) -> Candidate {
    let guid = 11 + id;
    let tree = with(with(leaf(guid), "id", id), "metaslab_array", 30 + id);
    let config = with(label(guid, &tree, label_txg), "vdev_children", count);
    let disk = Disk::new().config(&[0, 1, 2, 3], &config);
    disk.uberblocks(&[0, 1, 2, 3], txgs)
        .named(&format!("/dev/d{guid}"))
}

fn older(disks: Vec<Candidate>, until: Option<Txg>) -> Vec<(u64, u64)> {
    let pool = the_pool(disks);
    assert_eq!(pool.guid, Guid(POOL));
    let older = pool.older_tops(until);
    assert!(older.iter().all(|top| top.paths.len() == 1));
    older.iter().map(|top| (top.guid.0, top.last.0)).collect()
}

#[test]
fn of_few_vdevs_each_has_every_uberblock_but_the_last() {
    let two = |txgs: &[u64], label_txg| {
        let whole = single(0, 2, 5, &[5, 7, 9, 12]);
        older(vec![whole, single(1, 2, label_txg, txgs)], None)
    };
    assert_eq!(two(&[5, 7, 9, 12], 5), []);
    assert_eq!(two(&[5, 7, 9], 5), []);
    assert_eq!(two(&[5, 7], 5), [(12, 7)]);
    assert_eq!(two(&[], 5), [(12, 5)]);
    // It was there when its label was written.
    assert_eq!(two(&[5, 7], 9), []);
}

#[test]
fn of_many_vdevs_each_has_the_uberblocks_of_labels() {
    let four = |txgs: &[u64], label_txg, last: &[u64]| {
        let mut disks = vec![single(3, 4, label_txg, txgs)];
        disks.extend((0..3).map(|id| single(id, 4, 9, last)));
        older(disks, None)
    };
    assert_eq!(four(&[5, 9], 9, &[5, 7, 9, 10, 11, 12]), []);
    // Labels of other vdevs only.
    assert_eq!(four(&[5, 9], 5, &[5, 7, 9, 10, 11, 12]), []);
    assert_eq!(four(&[5, 7], 5, &[5, 7, 9, 10, 11, 12]), [(14, 7)]);
    // The uberblock of the labels may be incomplete.
    assert_eq!(four(&[5, 7], 5, &[5, 7, 9]), []);
}

#[test]
fn a_pool_can_be_opened_as_it_was_when_its_vdevs_ended() {
    let disks = || vec![single(0, 2, 5, &[5, 7, 9, 12]), single(1, 2, 5, &[5, 7])];
    assert_eq!(older(disks(), Some(Txg(7))), []);
    assert_eq!(older(disks(), Some(Txg(12))), [(12, 7)]);
}

#[test]
fn the_text_tells_which_device_is_how_old() {
    let pool = the_pool(vec![
        single(0, 2, 5, &[5, 7, 9, 12 + 86_400 * 3]),
        single(1, 2, 5, &[5, 7]),
    ]);
    let text = pool.why_older(None).unwrap();
    let told = "/dev/d12 ended at txg 7 and the pool at txg 259212, 3 days older; ";
    assert!(text.starts_with(told), "{text}");
}
