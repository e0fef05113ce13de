//! A gang block is written twice in one txg, and a leaf loses what the second pass wrote: its headers are outdated, and vouch for
//! themselves.

use crate::heal::{contents, raw, sets, wanted};
use crate::pool::{Pool, Vdev, address};
use millpond_block::{BlockWrite, WrittenBlock};
use millpond_device::Device;
use millpond_env::mark;
use millpond_env::sync::Arc;

/// The pool, the block, the leaves after the first pass and after the second.
struct Twice {
    pool: Pool,
    written: WrittenBlock,
    content: Arc<Vec<u8>>,
    before: Vec<Vec<u8>>,
    after: Vec<Vec<u8>>,
}

fn twice(vdev: Vdev, run: u64, length: usize, copies: u8) -> Twice {
    let pool = Pool::new(&[(vdev, 9)]);
    pool.arena.shatter(run, u64::MAX);
    let first = pool.write_one(raw(5, length, copies));
    assert!(first.pointer.is_gang());
    let before = contents(&pool);
    let again = BlockWrite {
        previous: first.pointer,
        may_rewrite: true,
        ..raw(6, length, copies)
    };
    let content = Arc::clone(&again.content);
    let written = pool.write_one(again);
    assert!(written.keeps_space());
    let after = contents(&pool);
    Twice {
        pool,
        written,
        content,
        before,
        after,
    }
}

impl Twice {
    /// A leaf has what it had after the first pass.
    fn lose(&self, leaf: usize) {
        let device = &self.pool.devices[leaf].inner;
        device.write(0, &self.before[leaf]).unwrap();
    }

    /// The other leaves have what they should.
    fn check_others(&self, leaf: usize) {
        for (number, now) in contents(&self.pool).iter().enumerate() {
            assert!(
                number == leaf || *now == self.after[number],
                "leaf {number}"
            );
        }
    }
}

/// The vdevs, their leaves, the longest free runs and the lengths of the block: one header, and several levels of them.
const SHAPES: [(Vdev, usize, u64, usize); 4] = [
    (Vdev::Mirror(2), 2, 2048, 4096),
    (Vdev::Mirror(2), 2, 1024, 64 << 10),
    (Vdev::Mirror(3), 3, 2048, 8192),
    (Vdev::Raidz(4, 1), 4, 16 << 10, 24 << 10),
];

#[test]
fn a_block_is_read_below_the_header_that_leads_to_it() {
    let _marks = [
        mark::expect("older-gang-header"),
        mark::expect("gang-block-read-without-leaves"),
    ];
    for (vdev, leaves, run, length) in SHAPES {
        for copies in 1..=2 {
            for leaf in 0..leaves {
                let twice = twice(vdev, run, length, copies);
                twice.lose(leaf);
                // Which leaf is read first changes.
                for _ in 0..4 {
                    let store = twice.pool.reopened();
                    let read = store.read(&twice.written.pointer, address(), None).unwrap();
                    assert!(
                        read.bytes.to_vec() == **twice.content,
                        "{vdev:?}, leaf {leaf}"
                    );
                    twice.check_others(leaf);
                    let extents = store.extents(&twice.written.pointer, address());
                    assert!(!extents.unwrap().is_empty());
                }
            }
        }
    }
}

#[test]
fn an_outdated_header_is_replaced_and_replaces_none() {
    let _mark = mark::expect("older-gang-header-replaced");
    for (vdev, leaves, run, length) in SHAPES {
        for leaf in 0..leaves {
            let twice = twice(vdev, run, length, 1);
            twice.lose(leaf);
            let audit = twice.pool.reopened();
            let audit = audit.audit(&twice.written.pointer, address()).unwrap();
            assert!(audit.is_readable, "{vdev:?}, leaf {leaf}: {audit:?}");
            let blocks = wanted(std::slice::from_ref(&twice.written));
            let view = twice.pool.reopened().view(Arc::default());
            view.resilver_batch(&blocks, |_, audit| {
                assert!(audit.unwrap().is_readable);
            });
            twice.check_others(leaf);
            twice.lose(leaf);
            let view = twice.pool.reopened().view(Arc::default());
            view.heal_batch(&blocks, |_, audit| {
                assert!(audit.unwrap().is_readable);
            });
            assert!(
                contents(&twice.pool) == twice.after,
                "{vdev:?}, leaf {leaf}"
            );
        }
    }
}

/// More leaves than one are outdated, as many as redundancy covers.
#[test]
fn several_outdated_leaves_hide_no_block() {
    for (vdev, leaves, may_lose, run, length) in [
        (Vdev::Mirror(4), 4, 3, 1024, 64 << 10),
        (Vdev::Raidz(5, 2), 5, 2, 8 << 10, 64 << 10),
        (Vdev::Raidz(6, 3), 6, 3, 8 << 10, 32 << 10),
    ] {
        for set in (2..=may_lose).flat_map(|lost| sets(leaves, lost)) {
            let twice = twice(vdev, run, length, 1);
            let lost = (0..leaves).filter(|leaf| set & 1 << leaf != 0);
            lost.for_each(|leaf| twice.lose(leaf));
            let store = twice.pool.reopened();
            let read = store.read(&twice.written.pointer, address(), None).unwrap();
            assert!(read.bytes.to_vec() == **twice.content, "{vdev:?}, {set:b}");
            let blocks = wanted(std::slice::from_ref(&twice.written));
            let view = twice.pool.reopened().view(Arc::default());
            view.heal_batch(&blocks, |_, audit| {
                assert!(audit.unwrap().is_readable, "{vdev:?}, {set:b}");
            });
            assert!(contents(&twice.pool) == twice.after, "{vdev:?}, {set:b}");
        }
    }
}
