//! Walks a synced set from its root and checks everything that a reader or `zdb` would check.

use millpond_object::{Accounting, ObjectSetView, ObjectView, is_clonable};
use millpond_ondisk::{BlockId, BlockPointer, Dnode, Level, ObjectId};
use std::collections::BTreeMap;

/// The blocks that the set refers to.
///
/// By offset: their size and the number of pointers to them.
pub type Alive = BTreeMap<u64, (u64, u64)>;

/// Checks every dnode, pointer, fill count and size. Returns the referenced blocks.
pub fn judge(set: &std::sync::Arc<ObjectSetView>) -> Alive {
    let mut alive = Alive::new();
    note(&mut alive, set.root());
    let array = set.meta_object();
    let fill = judge_tree(&array, &mut alive);
    let mut count = 0;
    let mut object = set.next_object(ObjectId(0)).unwrap();
    while let Some(one) = object {
        judge_tree(&one, &mut alive);
        count += 1;
        object = set.next_object(one.id()).unwrap();
    }
    assert_eq!(fill, count, "objects in the array's fill");
    assert_eq!(set.root().fill(), count, "objects in the root's fill");
    for which in [Accounting::User, Accounting::Group, Accounting::Project] {
        if let Some(object) = set.accounting(which) {
            judge_tree(&object, &mut alive);
        }
    }
    alive
}

fn note(alive: &mut Alive, pointer: &BlockPointer) -> u64 {
    pointer.validate().unwrap();
    for dva in pointer.dvas() {
        let block = (alive.entry(dva.offset_bytes)).or_insert((dva.asize_bytes, 0));
        assert_eq!(block.0, dva.asize_bytes);
        block.1 += 1;
        let may_be_clone = pointer.level() == Level(0) && is_clonable(pointer);
        assert!(
            block.1 == 1 || may_be_clone,
            "two pointers lead to one block: {pointer:?}"
        );
    }
    pointer.asize_bytes()
}

/// Checks one object's tree. Returns its fill count.
fn judge_tree(object: &ObjectView, alive: &mut Alive) -> u64 {
    let dnode = object.dnode();
    let top = dnode.levels - 1;
    let mut used = 0;
    let mut fill = 0;
    for (pointer, id) in dnode.block_pointers.iter().zip(0u64..) {
        fill += judge_pointer(object, dnode, pointer, top, id, alive, &mut used);
    }
    if let Some(spill) = &dnode.spill {
        assert_eq!(spill.object_type(), dnode.bonus_type);
        used += note(alive, spill);
    }
    assert_eq!(dnode.used_bytes(), used, "used of object {}", object.id());
    fill
}

fn judge_pointer(
    object: &ObjectView,
    dnode: &Dnode,
    pointer: &BlockPointer,
    level: u8,
    id: u64,
    alive: &mut Alive,
    used: &mut u64,
) -> u64 {
    let place = format!("object {} level {level} block {id}", object.id());
    if pointer.is_hole() {
        if pointer.birth().0 == 0 {
            assert_eq!(pointer.words, [0; 16], "{place}");
        } else {
            assert_eq!(pointer.level(), Level(level), "{place}");
            assert_eq!(pointer.fill(), 0, "{place}");
        }
        return 0;
    }
    *used += note(alive, pointer);
    assert_eq!(pointer.level(), Level(level), "{place}");
    assert_eq!(pointer.object_type(), dnode.object_type, "{place}");
    if level == 0 {
        assert_eq!(pointer.lsize_bytes(), dnode.data_block_bytes(), "{place}");
        assert!(id <= dnode.block_id_max.0, "{place} is behind the end");
        return pointer.fill();
    }
    assert_eq!(pointer.lsize_bytes(), dnode.indirect_block_bytes());
    let address = object.address(Level(level), BlockId(id));
    let store = object.object_set().store();
    let block = store.read(pointer, address, None).unwrap();
    let mut fill = 0;
    for (chunk, index) in block.bytes.chunks_exact(128).zip(0u64..) {
        let child = BlockPointer::decode(chunk, block.endian).unwrap();
        assert!(
            child.birth() <= pointer.birth(),
            "{place}: a child is younger than its parent"
        );
        let child_id = (id << dnode.pointers_shift()) + index;
        fill += judge_pointer(object, dnode, &child, level - 1, child_id, alive, used);
    }
    assert_ne!(fill, 0, "{place} holds nothing but holes");
    assert_eq!(pointer.fill(), fill, "{place}");
    fill
}

/// The birth txg from which an incremental reader learns since when a block is unchanged.
pub fn birth_of(object: &ObjectView, id: u64) -> u64 {
    for level in (0..object.dnode().levels).rev() {
        let at = id >> (object.dnode().pointers_shift() * u32::from(level));
        let pointer = object.pointer(Level(level), BlockId(at)).unwrap();
        if pointer.is_hole() || level == 0 {
            return pointer.birth().0;
        }
    }
    0
}
