//! Files that are open below `.zfs/snapshot` when their snapshot is destroyed.

use crate::scan::fill;
use crate::sim;
use millpond_engine::{DestroyOptions, FileError, NewLayout, Pool, PropertyValue, Vfs, ZfsCtlDir};
use millpond_env::mark;
use millpond_posix::CacheHint;
use millpond_posix::vfs::{VfsNode, VfsPlace};
use millpond_sim::World;

fn lookup(served: &ZfsCtlDir, directory: &VfsNode, name: &[u8]) -> VfsNode {
    served.lookup(VfsPlace { directory, name }).unwrap()
}

/// A file of a snapshot of `tank`.
fn file_of(served: &ZfsCtlDir, snapshot: &[u8], name: &[u8]) -> VfsNode {
    let path: [&[u8]; 4] = [b".zfs", b"snapshot", snapshot, name];
    let top = served.root().unwrap();
    path.iter().fold(top, |at, name| lookup(served, &at, name))
}

fn read(served: &ZfsCtlDir, node: &VfsNode) -> Result<usize, FileError> {
    served.read_with_hint(node, 0, &mut [0; 20 << 12], CacheHint::DropBehind)
}

fn destroy(pool: &Pool, name: &str) {
    let options = DestroyOptions::default();
    pool.datasets().destroy_snapshots(&[name], options).unwrap();
}

#[test]
fn files_of_a_destroyed_snapshot_are_not_read() {
    let _mark = mark::expect("destroyed-snapshot-closed");
    for checksum in ["on", "off"] {
        let world = World::without_journal(180);
        let pool = sim::create(&world, &[(NewLayout::Single, 1)], 64);
        let (on, off) = (1, 2);
        let number = if checksum == "on" { on } else { off };
        let value = ("checksum".to_owned(), PropertyValue::Number(number));
        pool.datasets().set_properties("tank", &[value]).unwrap();
        fill(&pool, "tank", "a", 20);
        let snapshot = |names: &[&str]| pool.datasets().snapshot(names, &[]).unwrap();
        snapshot(&["tank@gone"]);
        snapshot(&["tank@kept"]);
        let served = pool.served("tank").unwrap();
        let gone = file_of(&served, b"gone", b"a0");
        let kept = file_of(&served, b"kept", b"a0");
        assert_eq!(read(&served, &gone).unwrap(), 20 << 12);
        destroy(&pool, "tank@gone");
        assert!(matches!(read(&served, &gone), Err(FileError::Stale)));
        assert_eq!(read(&served, &kept).unwrap(), 20 << 12);
        // The blocks of the other one are used again.
        destroy(&pool, "tank@kept");
        let files = pool.file_system("tank").unwrap();
        let root = files.root().unwrap();
        for number in 0..20 {
            files
                .unlink(&root, format!("a{number}").as_bytes())
                .unwrap();
        }
        for round in 0..6 {
            fill(&pool, "tank", &format!("b{round}"), 20);
        }
        for node in [&gone, &kept] {
            assert!(
                matches!(read(&served, node), Err(FileError::Stale)),
                "{checksum}"
            );
            assert!(matches!(served.stat(node), Err(FileError::Stale)));
        }
        let stats = pool
            .inner()
            .store()
            .topology()
            .leaf_stats(millpond_vdev::LeafId(0));
        assert_eq!(stats.checksum_errors, 0);
        // One of the same name is another one.
        snapshot(&["tank@gone"]);
        let new = file_of(&served, b"gone", b"b00");
        assert_ne!(new.number().tag(), gone.number().tag());
        assert_eq!(read(&served, &new).unwrap(), 20 << 12);
        assert!(matches!(read(&served, &gone), Err(FileError::Stale)));
    }
}
