//! Changes in several txgs at once, and the passes of one txg.

use super::*;
use millpond_env::mark;
use millpond_ondisk::{BlockId, ObjectId};

#[test]
fn partial_writes_are_charged_alone_and_merged_at_sync() {
    let mut bench = dataset();
    let size = 128 << 10;
    let tx = bench.begin();
    let id = (bench.set.allocate(&tx, file(size)).unwrap()).id();
    let object = bench.set.object(id).unwrap();
    let mut expected = noise(3, 5 * size as usize);
    object.write(&tx, 0, &expected).unwrap();
    drop((tx, object));
    bench.sync();
    bench.reopen();
    let object = bench.set.object(id).unwrap();
    let mut write = |tx: &Transaction, at: usize, bytes: &[u8]| {
        object.write(tx, at as u64, bytes).unwrap();
        expected[at..at + bytes.len()].copy_from_slice(bytes);
    };
    let before = bench.groups.dirty_bytes();
    let tx = bench.begin();
    for at in [0, 5000, 131_000, 300_000] {
        write(&tx, at, &noise(at as u64, 4096));
    }
    assert!(bench.groups.dirty_bytes() - before < 20_000);
    // Filled piece by piece.
    for at in 0..64 {
        write(&tx, 4 * size as usize + at * 2048, &noise(at as u64, 2048));
    }
    drop(tx);
    let syncing = bench.close();
    // Over the data being written, in the next txg.
    let tx = bench.begin();
    write(&tx, 4000, &noise(9, 3000));
    write(&tx, 300_100, &noise(10, 10));
    let mut read = vec![0; expected.len()];
    object.read(0, &mut read).unwrap();
    assert!(read == expected);
    drop(tx);
    bench.set.sync(syncing.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(syncing.txg());
    bench.judged();
    object.read(0, &mut read).unwrap();
    assert!(read == expected);
    let (_, set) = bench.sync();
    let mut read = vec![0; expected.len()];
    set.object(id).unwrap().read(0, &mut read).unwrap();
    assert!(read == expected);
}

#[test]
fn the_mos_converges_over_passes_by_rewriting_in_place() {
    let bench = Bench::new(ObjectSetKind::Meta, WritePolicy::mos());
    let tx = bench.begin();
    let first = bench.set.allocate(&tx, file(4096)).unwrap();
    first.write(&tx, 0, &noise(1, 4096 * 40)).unwrap();
    drop(tx);
    bench.sync();
    let syncing = bench.close();
    let tx = syncing.transaction();
    for pass in 1..12 {
        first
            .write(&tx, 4096 * 3, &noise(u64::from(pass), 4096))
            .unwrap();
        let more = bench.set.allocate(&tx, file(512)).unwrap();
        more.write(&tx, 0, &noise(77, 600)).unwrap();
        bench.set.sync(syncing.txg(), pass, &*bench.sink).unwrap();
        bench.judged();
    }
    assert!(bench.sink.rewrites() > 20);
    // Space freed in a txg is not reused in the same txg.
    bench.set.free(&tx, ObjectId(5)).unwrap();
    bench.set.sync(syncing.txg(), 12, &*bench.sink).unwrap();
    bench.judged();
    let again = bench.set.allocate_at(&tx, ObjectId(5), file(512));
    assert!(again.is_err());
    bench.groups.synced(syncing.txg());
    let tx = bench.begin();
    bench.set.allocate_at(&tx, ObjectId(5), file(512)).unwrap();
}

#[test]
fn the_head_keeps_flags_and_log_header_by_txg() {
    let mut bench = dataset();
    let tx = bench.begin();
    bench.set.set_flags(&tx, 3);
    let mut header = [0; 24];
    header[0] = 5;
    bench.set.set_log_header(&tx, header);
    let earlier = bench.close_after(tx);
    let tx = bench.begin();
    bench.set.set_flags(&tx, 7);
    assert_eq!(bench.set.flags(), 7);
    drop(tx);
    bench.set.sync(earlier.txg(), 1, &*bench.sink).unwrap();
    assert_eq!(bench.set.committed().unwrap().phys().flags, 3);
    assert_eq!(bench.set.flags(), 7);
    bench.groups.synced(earlier.txg());
    bench.sync();
    bench.reopen();
    assert_eq!((bench.set.flags(), bench.set.log_header()), (7, header));
}

#[test]
fn a_block_freed_and_rewritten_in_one_txg_drops_older_dirt() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &[7; 512]).unwrap();
    let first = bench.close_after(tx);
    let tx = bench.begin();
    object.free_range(&tx, 0, u64::MAX).unwrap();
    object.write(&tx, 10, &[9]).unwrap();
    let mut expected = vec![0; 512];
    expected[10] = 9;
    assert!(object.read_block(BlockId(0)).unwrap().bytes[..] == expected[..]);
    drop(tx);
    bench.set.sync(first.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(first.txg());
    assert!(object.read_block(BlockId(0)).unwrap().bytes[..] == expected[..]);
    bench.sync();
    assert!(object.read_block(BlockId(0)).unwrap().bytes[..] == expected[..]);
}

#[test]
fn an_object_freed_in_an_older_txg_has_no_changes_in_the_newer() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate_at(&tx, ObjectId(40), file(512)).unwrap();
    object.write(&tx, 0, &[7; 512]).unwrap();
    drop(tx);
    bench.sync();
    let older = bench.begin();
    bench.groups.ask(older.txg());
    let newer = bench.begin();
    assert!(newer.txg() > older.txg());
    object.write(&newer, 0, &noise(1, 4000)).unwrap();
    bench.set.free(&older, object.id()).unwrap();
    assert!(object.write(&newer, 0, &[1]).is_err());
    drop(older);
    let syncing = bench.groups.next_to_sync(Duration::ZERO).unwrap();
    bench.set.sync(syncing.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(syncing.txg());
    // The id is reused while the newer txg is open.
    let again = bench
        .set
        .allocate_at(&newer, ObjectId(40), file(512))
        .unwrap();
    again.write(&newer, 0, &[5; 600]).unwrap();
    drop(newer);
    let (_, set) = bench.sync();
    assert_eq!(set.object_count(), 1);
    let mut bytes = [0; 600];
    set.object(ObjectId(40))
        .unwrap()
        .read(0, &mut bytes)
        .unwrap();
    assert_eq!(bytes, [5; 600]);
    assert!(Arc::ptr_eq(
        &again,
        &bench.set.object(ObjectId(40)).unwrap()
    ));
}

#[test]
fn a_late_write_in_an_older_txg_is_seen_in_the_newer_one_too() {
    let bench = dataset();
    let tx = bench.begin();
    let object = bench.set.allocate(&tx, file(512)).unwrap();
    object.write(&tx, 0, &[7; 1024]).unwrap();
    drop(tx);
    bench.sync();
    let older = bench.begin();
    bench.groups.ask(older.txg());
    let newer = bench.begin();
    object.write(&newer, 0, &[1; 100]).unwrap();
    object.free_range(&newer, 512, u64::MAX).unwrap();
    object.write(&older, 50, &[2; 100]).unwrap();
    object.write(&older, 600, &[3; 10]).unwrap();
    let mut expected = [[1; 50].as_slice(), &[2; 100], &[7; 362]].concat();
    let mut live = vec![0; 512];
    object.read(0, &mut live).unwrap();
    assert!(live == expected);
    drop((older, newer));
    let first = bench.groups.next_to_sync(Duration::ZERO).unwrap();
    bench.set.sync(first.txg(), 1, &*bench.sink).unwrap();
    bench.groups.synced(first.txg());
    // The older txg has its own state, without the newer one's writes.
    let mut synced = vec![0; 512];
    let set = bench.judged();
    set.object(object.id())
        .unwrap()
        .read(0, &mut synced)
        .unwrap();
    expected[..50].fill(7);
    assert!(synced == expected);
    let (_, set) = bench.sync();
    let mut last = vec![0; 1024];
    let mut live = vec![0; 1024];
    set.object(object.id()).unwrap().read(0, &mut last).unwrap();
    object.read(0, &mut live).unwrap();
    assert!(last == live && last[88..98] == [2; 10] && last[600..610] == [3; 10]);
}

#[test]
fn a_block_of_very_many_pieces_is_kept_whole() {
    let _mark = mark::expect("record-shattered");
    let mut bench = dataset();
    let size = 128 << 10;
    let tx = bench.begin();
    let id = (bench.set.allocate(&tx, file(size)).unwrap()).id();
    let object = bench.set.object(id).unwrap();
    let mut expected = noise(3, 2 * size as usize);
    object.write(&tx, 0, &expected).unwrap();
    drop((tx, object));
    bench.sync();
    bench.reopen();
    let object = bench.set.object(id).unwrap();
    let before = bench.groups.dirty_bytes();
    let tx = bench.begin();
    for at in 0..300 {
        let at = at * 7 % 600 * 2;
        object.write(&tx, at as u64, &[at as u8]).unwrap();
        expected[at] = at as u8;
    }
    drop(tx);
    assert!(bench.groups.dirty_bytes() - before >= u64::from(size));
    let (_, set) = bench.sync();
    let mut read = vec![0; expected.len()];
    set.object(id).unwrap().read(0, &mut read).unwrap();
    assert!(read == expected);
}
