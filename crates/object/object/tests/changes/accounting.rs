//! The accounting changes that a sync reports.

use super::*;
use millpond_object::{Accounting, AccountingChange, NewObject};
use millpond_ondisk::{DnodeFlags, ObjectId, ObjectType};
use std::collections::BTreeMap;

/// The file attributes at the start of every bonus.
fn attributes(user: u64, group: u64, project: Option<u64>) -> Vec<u8> {
    let mut bytes = 0x002f_505au32.to_le_bytes().to_vec();
    bytes.extend((2u16 | 1 << 10).to_le_bytes());
    bytes.extend([0, 0]);
    let mut words = [0u64; 17];
    (words[3], words[4]) = (user, group);
    if let Some(project) = project {
        words[6] = 1 << 47;
        words[16] = project;
    }
    for word in words {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

fn file(bonus: Vec<u8>) -> NewObject {
    NewObject::new(ObjectType::PLAIN_FILE).with_bonus(ObjectType::SA, bonus)
}

/// A set whose accounting is complete from the start.
fn bench() -> Bench {
    let shape = NewObjectSet {
        flags: 7,
        ..NewObjectSet::default()
    };
    Bench::with_shape(ObjectSetKind::FileSystem, WritePolicy::dataset(), shape)
}

/// Adds up changes as the accounting objects would.
#[derive(Default)]
struct Books(BTreeMap<(u8, u64), (i64, i64)>);

impl Books {
    fn apply(&mut self, changes: &[AccountingChange]) {
        for change in changes {
            let which = match change.which {
                Accounting::User => 0,
                Accounting::Group => 1,
                Accounting::Project => 2,
            };
            let sum = self.0.entry((which, change.owner)).or_default();
            sum.0 += change.bytes;
            sum.1 += change.objects;
        }
        self.0.retain(|_, sum| *sum != (0, 0));
    }
    fn of(&self, which: u8, owner: u64) -> (i64, i64) {
        self.0.get(&(which, owner)).copied().unwrap_or_default()
    }
}

#[test]
fn files_count_for_their_owners_with_512_bytes_and_their_blocks() {
    let bench = bench();
    let mut books = Books::default();
    let tx = bench.begin();
    let first = bench
        .set
        .allocate(&tx, file(attributes(10, 20, Some(5))))
        .unwrap();
    let second = bench
        .set
        .allocate(&tx, file(attributes(10, 21, None)))
        .unwrap();
    // Not a file. It has the flags but is not counted.
    let other = NewObject::new(ObjectType::MASTER_NODE);
    let other = bench.set.allocate(&tx, other).unwrap();
    let content: Vec<u8> = (0..512u32).map(|at| (at * at % 251) as u8).collect();
    first.write(&tx, 0, &content).unwrap();
    drop(tx);
    let (synced, set) = bench.sync();
    books.apply(&synced.accounting);
    assert_eq!(books.of(0, 10), (512 + 512 + 512, 2));
    assert_eq!((books.of(1, 20), books.of(1, 21)), ((1024, 1), (512, 1)));
    assert_eq!((books.of(2, 5), books.of(2, 0)), ((1024, 1), (512, 1)));
    let flags = set.object(other.id()).unwrap().dnode().flags;
    let counted = DnodeFlags::USER_USED_ACCOUNTED | DnodeFlags::USER_OBJECT_ACCOUNTED;
    assert!(flags.contains(counted));

    // Another owner, and another size.
    let tx = bench.begin();
    first.set_bonus(&tx, attributes(11, 20, Some(6))).unwrap();
    second.write(&tx, 0, &content).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert_eq!((books.of(0, 10), books.of(0, 11)), ((1024, 1), (1024, 1)));
    assert_eq!((books.of(2, 5), books.of(2, 6)), ((0, 0), (1024, 1)));

    let tx = bench.begin();
    for object in [&first, &second, &other] {
        bench.set.free(&tx, object.id()).unwrap();
    }
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert!(books.0.is_empty(), "{:?}", books.0);
}

#[test]
fn owners_are_found_in_the_spill_block_where_the_bonus_is_empty() {
    let bench = bench();
    let mut books = Books::default();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(vec![])).unwrap();
    let mut spill = attributes(30, 31, None);
    spill.resize(512, 0);
    object.set_spill(&tx, Some(spill)).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert_eq!(books.of(0, 30).1, 1);
    // The spill block stays, other data changes.
    let tx = bench.begin();
    object.write(&tx, 0, &[1; 512]).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert_eq!((books.of(0, 30).1, books.of(1, 31).1), (1, 1));
    let tx = bench.begin();
    bench.set.free(&tx, object.id()).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert!(books.0.is_empty());
}

#[test]
fn projects_have_objects_up_to_where_they_were_completed() {
    let mut bench = Bench::new(ObjectSetKind::FileSystem, WritePolicy::dataset());
    let mut books = Books::default();
    let tx = bench.begin();
    let new = || file(attributes(1, 2, Some(3)));
    let objects: Vec<_> = (0..4)
        .map(|_| bench.set.allocate(&tx, new()).unwrap())
        .collect();
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert_eq!((books.of(0, 1).1, books.of(2, 3)), (4, (0, 0)));
    // Two objects are completed; one after them changes.
    let tx = bench.begin();
    objects[0].touch(&tx);
    objects[1].touch(&tx);
    let content: Vec<u8> = (0..512u32).map(|at| (at * at % 251) as u8).collect();
    objects[3].write(&tx, 0, &content).unwrap();
    bench.set.set_accounting_cursor(&tx, objects[2].id().0);
    drop(tx);
    let (synced, _) = bench.sync();
    assert!(synced.restarts_projects);
    books.apply(&synced.accounting);
    assert_eq!((books.of(0, 1).1, books.of(2, 3)), (4, (2 * 512, 2)));
    // One object on each side is freed.
    let tx = bench.begin();
    bench.set.free(&tx, objects[0].id()).unwrap();
    bench.set.free(&tx, objects[2].id()).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    assert!(!synced.restarts_projects);
    books.apply(&synced.accounting);
    assert_eq!((books.of(0, 1).1, books.of(2, 3)), (2, (512, 1)));
    // The rest are touched in the txg that marks accounting complete, together with one more.
    let tx = bench.begin();
    objects[3].touch(&tx);
    bench.set.set_accounting_cursor(&tx, u64::MAX);
    bench.set.set_flags(&tx, 7);
    let late = bench.set.allocate(&tx, new()).unwrap().id();
    drop((tx, objects));
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert_eq!(books.of(2, 3), (3 * 512 + 512, 3));
    bench.reopen();
    let tx = bench.begin();
    bench.set.free(&tx, late).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert_eq!(books.of(2, 3), (2 * 512 + 512, 2));
}

/// If project accounting was begun but not finished, it restarts when the set is opened again.
#[test]
fn projects_begin_anew_after_the_set_was_closed() {
    let mut bench = Bench::new(ObjectSetKind::FileSystem, WritePolicy::dataset());
    let tx = bench.begin();
    let object = bench
        .set
        .allocate(&tx, file(attributes(1, 2, Some(3))))
        .unwrap();
    bench.set.set_accounting_cursor(&tx, u64::MAX);
    drop(tx);
    bench.sync();
    drop(object);
    bench.reopen();
    assert_eq!(bench.set.accounting_cursor(), None);
    let tx = bench.begin();
    bench.set.set_accounting_cursor(&tx, 1);
    drop(tx);
    let (synced, _) = bench.sync();
    assert!(synced.restarts_projects);
    assert_eq!(synced.accounting, []);
}

#[test]
fn an_old_file_is_added_when_it_is_next_written() {
    let mut bench = Bench::new(ObjectSetKind::FileSystem, {
        let mut policy = WritePolicy::dataset();
        (policy.accounts_users, policy.accounts_objects) = (false, false);
        policy
    });
    let tx = bench.begin();
    let object = bench
        .set
        .allocate(&tx, file(attributes(1, 2, None)))
        .unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    assert_eq!(synced.accounting, []);
    // Users first, object counts later: each object is added once.
    let mut books = Books::default();
    for with_objects in [false, true, true] {
        let mut policy = WritePolicy::dataset();
        policy.accounts_objects = with_objects;
        bench.set.set_policy(policy);
        let tx = bench.begin();
        object.touch(&tx);
        drop(tx);
        let (synced, _) = bench.sync();
        books.apply(&synced.accounting);
        assert_eq!(books.of(0, 1), (512, i64::from(with_objects)));
    }
    drop(object);
    bench.reopen();
    let tx = bench.begin();
    bench.set.free(&tx, ObjectId(1)).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    books.apply(&synced.accounting);
    assert!(books.0.is_empty());
}

#[test]
fn a_new_object_is_charged_to_owner_zero() {
    let bench = bench();
    let tx = bench.begin();
    bench.set.allocate(&tx, file(vec![0; 8])).unwrap();
    bench.set.allocate(&tx, file(vec![0xff; 60])).unwrap();
    let znode = {
        let mut words = [0u64; 33];
        (words[16], words[17]) = (40, 41);
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    };
    let old = NewObject::new(ObjectType::PLAIN_FILE).with_bonus(ObjectType::ZNODE, znode);
    bench.set.allocate(&tx, old).unwrap();
    drop(tx);
    let (synced, _) = bench.sync();
    let mut books = Books::default();
    books.apply(&synced.accounting);
    assert_eq!(books.of(0, 0), (512, 1));
    assert_eq!((books.of(0, 40), books.of(1, 41)), ((512, 1), (512, 1)));
    assert_eq!(books.of(2, 0), (1024, 2));
}

#[test]
fn the_second_sync_of_a_txg_changes_no_accounting() {
    let bench = bench();
    let tx = bench.begin();
    bench
        .set
        .allocate(&tx, file(attributes(1, 2, None)))
        .unwrap();
    drop(tx);
    let syncing = bench.close();
    let synced = bench.set.sync(syncing.txg(), 1, &*bench.sink).unwrap();
    assert_eq!(synced.accounting.len(), 3);
    let tx = syncing.transaction();
    for which in [Accounting::User, Accounting::Group, Accounting::Project] {
        let object = bench.set.special(which, &tx).unwrap();
        object.write(&tx, 0, &[3; 512]).unwrap();
    }
    let synced = bench.set.sync(syncing.txg(), 2, &*bench.sink).unwrap();
    assert_eq!(synced.accounting, []);
    let set = bench.judged();
    assert_eq!(set.object_count(), 1);
    let user = set.accounting(Accounting::User).unwrap();
    assert!(!user.dnode().flags.contains(DnodeFlags::USER_USED_ACCOUNTED));
}
