//! Damage of each kind is planted in a small pool and must be found: one test each.

mod destroyed;
pub mod scene;

use millpond_check::FindingKind as Kind;
use millpond_checksum::seal_label;
use millpond_device::Device;
use millpond_nvlist::NvList;
use millpond_ondisk::dsl::keys;
use millpond_ondisk::pool_directory::{key, vdev_key};
use millpond_ondisk::{
    BlockPointer, LABEL_CONFIG_BYTES, LABEL_CONFIG_OFFSET_BYTES, LeafLayout, ObjectId,
    unsealed_label_region,
};
use millpond_tests::hostile::image::Changed;
use millpond_tests::hostile::overlay::Overlay;
use scene::{Damage, Scene, expect};

// Word offsets in a dataset's bonus.
const PREVIOUS_TXG: usize = 2;
const NEXT: usize = 3;
const CHILDREN: usize = 5;
const REFERENCED: usize = 9;
const UNIQUE: usize = 12;
const FLAGS: usize = 15;
// Word offsets in a directory's bonus.
const PARENT: usize = 2;
const USED: usize = 5;
const HEAD_PART: usize = 13;
// Word offsets of table references in the bonus of a dataset and a directory.
const PERMISSIONS: usize = 11;
const CLONES: usize = 18;
// Byte offsets in a file's attributes, after their header.
const SIZE: usize = 8;
const OWNER: usize = 24;
const PARENT_FILE: usize = 40;
const LINKS: usize = 120;

/// One test per row: the kind, dataset and words of the finding, and the damage.
macro_rules! planted {
    ($($name:ident: $kind:ident, $dataset:literal, $words:literal, $damage:expr;)*) => {$(
        #[test]
        fn $name() {
            let report = Scene::get().check($damage);
            expect(&report, Kind::$kind, $dataset, $words);
        }
    )*};
}

#[test]
fn the_undamaged_pool_has_no_findings() {
    let report = Scene::get().check(|_, _| {});
    for finding in &report.findings {
        println!("{finding}");
    }
    assert!(report.is_clean());
    assert!(report.totals.pointers > 150 && report.totals.objects > 150);
    let bytes = report.totals.allocated_bytes;
    assert_eq!(bytes, report.totals.mapped_bytes);
}

planted! {
    a_wrong_number_of_referenced_bytes_is_found: DatasetSpace, "tank/plain", "referenced bytes", |s, c| {
        let object = s.mos(s.dataset("tank/plain").id().0);
        c.more(s.bonus(&object, REFERENCED * 8), 4096);
    };
    a_wrong_number_of_unique_bytes_is_found: DatasetSpace, "tank/chain@two", "unique bytes", |s, c| {
        let object = s.mos(s.dataset("tank/chain@two").id().0);
        c.more(s.bonus(&object, UNIQUE * 8), 512);
    };
    a_wrong_number_of_used_bytes_is_found: DirectorySpace, "tank/plain", "used bytes", |s, c| {
        let object = s.mos(s.dataset("tank/plain").directory().id().0);
        c.more(s.bonus(&object, USED * 8), 4096);
    };
    a_wrong_part_of_the_used_bytes_is_found: DirectorySpace, "tank/clone", "used by the head", |s, c| {
        let object = s.mos(s.dataset("tank/clone").directory().id().0);
        c.more(s.bonus(&object, HEAD_PART * 8), 4096);
        c.more(s.bonus(&object, (HEAD_PART + 1) * 8), 0u64.wrapping_sub(4096));
    };
    a_directory_with_another_parent_is_found: DirectoryTree, "tank", "another parent", |s, c| {
        let object = s.mos(s.dataset("tank/plain").directory().id().0);
        let other = s.dataset("tank/chain").directory().id().0;
        c.put(s.bonus(&object, PARENT * 8), other);
    };
    a_wrong_number_of_clones_is_found: SnapshotChain, "tank/chain@two", "successors", |s, c| {
        let object = s.mos(s.dataset("tank/chain@two").id().0);
        c.more(s.bonus(&object, CHILDREN * 8), 1);
    };
    a_wrong_txg_of_the_snapshot_before_is_found: SnapshotChain, "tank/chain", "said to be of txg", |s, c| {
        let object = s.mos(s.dataset("tank/chain").id().0);
        c.more(s.bonus(&object, PREVIOUS_TXG * 8), 1);
    };
    a_wrong_next_snapshot_is_found: SnapshotChain, "tank/chain@two", "another next one", |s, c| {
        let object = s.mos(s.dataset("tank/chain@one").id().0);
        let head = s.dataset("tank/chain").id().0;
        c.put(s.bonus(&object, NEXT * 8), head);
    };
    a_snapshot_without_a_name_is_found: SnapshotName, "tank/chain", "has no name", |s, c| {
        let names = s.dataset("tank/chain").phys().snapshot_names.unwrap();
        let (block, at) = s.entry(&s.mos(names.0), "one");
        c.put_bytes((block, at), &[0; 64]);
    };
    a_name_that_leads_to_no_snapshot_is_found: SnapshotName, "tank/chain", "'two' names object", |s, c| {
        let names = s.dataset("tank/chain").phys().snapshot_names.unwrap();
        let head = s.dataset("tank/plain").id().0;
        c.put(s.entry(&s.mos(names.0), "two"), head);
    };
    a_snapshot_that_waits_to_be_destroyed_for_nothing_is_found: Holds, "tank/plain", "waits to be destroyed", |s, c| {
        let object = s.mos(s.dataset("tank/plain").id().0);
        let place = s.bonus(&object, FLAGS * 8);
        let flags = c.get(place);
        c.put(place, flags | 8);
    };
    a_block_missing_from_a_deadlist_is_found: DeadlistMissing, "tank/chain", "died", |s, c| {
        let list = dead_list(s, "tank/chain");
        c.more(s.bonus(&list, 0), 0u64.wrapping_sub(1));
    };
    a_living_block_in_a_deadlist_is_found: DeadlistExtra, "tank/chain", "died", |s, c| {
        let list = dead_list(s, "tank/chain");
        let count = c.get(s.bonus(&list, 0));
        let (_, _, mut pointer) = s.pointer(&s.file("tank/plain", "small"));
        pointer.words[10] = 1;
        pointer.words[11..].fill(0);
        let block = s.data(&list, 0);
        for (at, word) in pointer.words.into_iter().enumerate() {
            c.put((block, count as usize * 128 + at * 8), word);
        }
        c.more(s.bonus(&list, 0), 1);
    };
    another_block_in_a_deadlist_is_found: DeadlistMissing, "tank/chain", "other blocks", |s, c| {
        let list = dead_list(s, "tank/chain");
        // Its position.
        c.more((s.data(&list, 0), 8), 8);
    };
    a_deadlist_under_the_wrong_key_is_found: DeadlistKey, "tank/chain", "under the key", |s, c| {
        let id = s.dataset("tank/chain").phys().deadlist.unwrap();
        let (block, at) = filled_entry(s, &s.mos(id.0));
        c.put_bytes((block, at + 14), b"7fff\0");
    };
    a_deadlist_without_a_key_is_found: DeadlistKey, "tank/chain", "has no key", |s, c| {
        let id = s.dataset("tank/chain").phys().deadlist.unwrap();
        let (block, at) = s.entry(&s.mos(id.0), "0");
        c.put_bytes((block, at + 14), b"1\0");
    };
    a_list_with_a_wrong_sum_is_found: BlockListSum, "tank/chain", "bytes", |s, c| {
        c.more(s.bonus(&dead_list(s, "tank/chain"), 8), 512);
    };
    a_livelist_that_lacks_a_block_is_found: Livelist, "tank/clone", "livelist", |s, c| {
        let clone = s.dataset("tank/clone");
        let words = clone.directory().extension(keys::LIVELIST).unwrap().unwrap();
        let (block, at) = filled_entry(s, &s.mos(words[0]));
        let list = s.mos(c.get((block, at)));
        c.more(s.bonus(&list, 0), 0u64.wrapping_sub(1));
    };
    a_bookmark_with_wrong_space_values_is_found: BookmarkSpace, "tank/chain#one", "freed since", |s, c| {
        let chain = s.dataset("tank/chain");
        let mark = &chain.bookmarks().unwrap()[0];
        let bytes = mark.phys.freed_before_next.referenced.to_be_bytes();
        let table = chain.extension(keys::BOOKMARKS).unwrap().unwrap()[0];
        let table = s.mos(table);
        // Values in leaves are cut into chunks, but almost all are contiguous.
        let (block, at) = (0..=table.block_id_max().0)
            .find_map(|id| {
                let block = s.data(&table, id);
                let content = &s.image.blocks[block].content;
                let at = content.windows(5).position(|window| window == &bytes[3..])?;
                Some((block, at))
            })
            .expect("the value is not found");
        c.content_mut(block)[at + 3] ^= 2;
    };
    a_wrong_count_of_a_feature_is_found: FeatureCount, "", "spacemap_histogram: ", |s, c| {
        let table = s.mos(s.directory_entry(key::FEATURES_FOR_WRITE));
        c.more(s.entry(&table, "com.delphix:spacemap_histogram"), 1);
    };
    a_feature_that_a_dataset_does_not_name_is_found: FeatureMissing, "tank/large", "large_blocks", |s, c| {
        let object = s.mos(s.dataset("tank/large").id().0);
        let (block, at) = s.entry(&object, "org.open-zfs:large_blocks");
        c.put_bytes((block, at + 14), b"org.open-zfs:large_blockx");
    };
    a_space_map_with_a_wrong_sum_is_found: SpaceMapSum, "", "bytes allocated", |s, c| {
        c.more(s.bonus(&space_map(s), 16), 4096);
    };
    a_wrong_histogram_is_found: SpaceHistogram, "", "histogram", |s, c| {
        c.more(s.bonus(&space_map(s), 64 + 8 * 15), 7);
    };
    a_space_map_that_frees_what_is_free_is_found: SpaceMap, "", "metaslab", |s, c| {
        let block = s.data(&space_map(s), 0);
        let bytes = &s.image.blocks[block].content;
        let word = |at: &usize| u64::from_le_bytes(bytes[*at..*at + 8].try_into().unwrap());
        let places: Vec<usize> = (0..bytes.len()).step_by(8).collect();
        // The first one-word entry that allocates.
        let at = places.iter().find(|at| word(at) >> 63 == 0 && word(at) & 0x8000 == 0);
        let at = *at.expect("no entry");
        c.put((block, at), word(&at) | 0x8000);
    };
    a_log_space_map_that_is_missing_is_found: LogSpaceMap, "", "needs the log", |s, c| {
        let topology = s.pool.store().topology();
        let (_, top) = topology.tree.tops().next().unwrap();
        let table = s.mos(top.config.zap_top.unwrap().0);
        let zap = millpond_zap::Zap::open(table).unwrap();
        let array = zap.lookup_u64(vdev_key::UNFLUSHED_TXGS.as_bytes()).unwrap();
        c.more((s.data(&s.mos(array.unwrap()), 0), 0), 1);
    };
    a_leaked_block_is_found: LeakedSpace, "", "nothing refers to it", |s, c| {
        let (block, at, _) = s.pointer(&s.file("tank/plain", "twin"));
        c.put_pointer(block, at, &BlockPointer::default());
    };
    a_block_with_two_owners_is_found: DoubleAllocation, "tank/plain", "only one of them can own", |s, c| {
        let (_, _, pointer) = s.pointer(&s.file("tank/plain", "small"));
        let (block, at, _) = s.pointer(&s.file("tank/plain", "twin"));
        c.put_pointer(block, at, &pointer);
    };
    a_block_in_free_space_is_found: AllocatedButFree, "tank/plain", "call free", |s, c| {
        let (block, at, mut pointer) = s.pointer(&s.file("tank/plain", "twin"));
        pointer.words[1] = (50 << 20) / 512;
        c.put_pointer(block, at, &pointer);
    };
    a_block_outside_of_its_vdev_is_found: OutsideVdev, "tank/plain", "no block can lie", |s, c| {
        let (block, at, mut pointer) = s.pointer(&s.file("tank/plain", "twin"));
        pointer.words[1] = (1 << 40) / 512;
        c.put_pointer(block, at, &pointer);
    };
    a_block_of_the_future_is_found: BadPointer, "tank/plain", "never written", |s, c| {
        let (block, at, mut pointer) = s.pointer(&s.file("tank/plain", "twin"));
        pointer.words[10] = 1 << 40;
        c.put_pointer(block, at, &pointer);
    };
    an_address_that_claims_too_much_is_found: AllocatedSize, "tank/plain", "claims", |s, c| {
        let (block, at, mut pointer) = s.pointer(&s.file("tank/plain", "twin"));
        pointer.words[0] += 8;
        c.put_pointer(block, at, &pointer);
    };
    a_wrong_count_of_blocks_below_is_found: FillCount, "tank/plain", "counts", |s, c| {
        let (block, at, mut pointer) = s.pointer(&s.file("tank/plain", "large"));
        pointer.words[11] += 1;
        c.put_pointer(block, at, &pointer);
    };
    a_dnode_with_a_wrong_number_of_used_bytes_is_found: DnodeUsed, "tank/plain", "bytes used", |s, c| {
        let (block, at) = s.dnode(&s.file("tank/plain", "large"));
        c.more((block, at + 24), 512);
    };
    a_dnode_in_the_slot_of_object_0_is_found: Unreadable, "tank/plain", "object 0 holds the dnodes", forge_object_0;
    a_wrong_number_of_links_is_found: LinkCount, "tank/plain", "folder/second: 5 links, 2 names", |s, c| {
        c.put(s.attribute(&s.file("tank/plain", "small"), LINKS), 5);
    };
    a_wrong_size_of_a_directory_is_found: DirectorySize, "tank/plain", "folder: size 99", |s, c| {
        c.put(s.attribute(&s.file("tank/plain", "folder"), SIZE), 99);
    };
    a_wrong_number_of_links_of_a_directory_is_found: DirectorySize, "tank/plain", "7 links", |s, c| {
        c.put(s.attribute(&s.file("tank/plain", "folder"), LINKS), 7);
    };
    a_directory_that_names_another_parent_is_found: ParentLink, "tank/plain", "does not have it", |s, c| {
        let many = s.file("tank/plain", "many").id().0;
        c.put(s.attribute(&s.file("tank/plain", "folder/below"), PARENT_FILE), many);
    };
    an_entry_that_leads_nowhere_is_found: DanglingEntry, "tank/plain", "'below' leads to object 60000", |s, c| {
        let place = s.entry(&s.file("tank/plain", "folder"), "below");
        c.put(place, 60_000 | 4 << 60);
    };
    an_entry_of_the_wrong_kind_is_found: EntryKind, "tank/plain", "'below' says kind 10", |s, c| {
        let place = s.entry(&s.file("tank/plain", "folder"), "below");
        let value = c.get(place);
        c.put(place, value & !(15 << 60) | 10 << 60);
    };
    a_file_without_a_name_is_found: Orphan, "tank/plain", "nothing names it", |s, c| {
        let place = s.entry(&s.file("tank/plain", ""), "twin");
        c.put_bytes(place, &[0; 64]);
    };
    a_named_file_that_waits_to_be_deleted_is_found: UnlinkedSet, "tank/plain", "folder/second: it waits to be deleted", |s, c| {
        let queue = s.master("tank/plain", "DELETE_QUEUE");
        let id = s.file("tank/plain", "small").id().0;
        let block = s.data(&queue, 0);
        c.put((block, 64), id);
        c.put_bytes((block, 64 + 14), format!("{id:x}\0").as_bytes());
    };
    blocks_past_the_end_of_a_file_are_found: FileSize, "tank/plain", "large: block", |s, c| {
        c.put(s.attribute(&s.file("tank/plain", "large"), SIZE), 1);
    };
    a_wrong_length_of_a_link_is_found: FileSize, "tank/plain", "link: a link of 3 bytes", |s, c| {
        c.put(s.attribute(&s.file("tank/plain", "link"), SIZE), 3);
    };
    attributes_that_belong_to_another_file_are_found: XattrDirectory, "tank/attributes", "belongs to object", |s, c| {
        let files = s.set("tank/attributes");
        let registry = millpond_sa::SaRegistry::open(&files).unwrap();
        let owner = registry.attributes(&s.file("tank/attributes", "owner")).unwrap();
        let directory = files.object(owner.xattr_directory().unwrap().unwrap()).unwrap();
        let root = s.file("tank/attributes", "").id().0;
        c.put(s.attribute(&directory, PARENT_FILE), root);
    };
    a_layout_of_attributes_that_does_not_exist_is_found: Attributes, "tank/plain", "layout", |s, c| {
        let (block, at) = s.bonus(&s.file("tank/plain", "twin"), 4);
        let header = c.content(block)[at + 1] & 0xfc;
        c.put_bytes((block, at), &[0xff, header | 3]);
    };
    an_owner_of_an_unknown_domain_is_found: ForeignOwner, "tank/plain", "twin: its owner is of a domain", |s, c| {
        c.put(s.attribute(&s.file("tank/plain", "twin"), OWNER), 3 << 32 | 77);
    };
    what_an_owner_is_charged_wrongly_is_found: OwnerSpace, "tank/plain", "user 0 is charged", |s, c| {
        let used = s.set("tank/plain").accounting(millpond_object::Accounting::User).unwrap();
        c.more(s.entry(&used, "0"), 512);
    };
    files_that_an_owner_is_charged_wrongly_are_found: OwnerSpace, "tank/plain", "project 0 is charged", |s, c| {
        let used = s.set("tank/plain").accounting(millpond_object::Accounting::Project).unwrap();
        c.more(s.entry(&used, "obj-0"), 1);
    };
    a_quota_of_nobody_is_found: Quota, "tank/plain", "'zz' is no owner", |s, c| {
        let (block, at) = s.entry(&s.master("tank/plain", "userquota@"), "3e8");
        c.put_bytes((block, at + 14), b"zz\0");
    };
    a_table_with_a_wrong_count_is_found: Table, "tank/plain", "miscounted", |s, c| {
        let many = s.file("tank/plain", "many");
        // The number of entries in the header.
        c.more((s.data(&many, 0), 72), 1);
    };
    a_table_without_a_salt_is_found: Table, "tank/plain", "no salt", |s, c| {
        c.put((s.data(&s.file("tank/plain", ""), 0), 8), 0);
    };
    a_large_table_without_a_salt_is_found: Table, "tank/plain", "no salt", |s, c| {
        c.put((s.data(&s.file("tank/plain", "many"), 0), 80), 0);
    };
    a_name_with_an_impossible_differentiator_is_found: Table, "tank/plain", "differentiator", |s, c| {
        let (block, at) = s.entry(&s.file("tank/plain", ""), "twin");
        c.put_bytes((block, at + 8), &[0, 0, 1, 0]);
    };
    a_history_that_does_not_say_what_was_done_is_found: History, "", "does not say it", |s, c| {
        let block = s.data(&s.mos(s.directory_entry(key::HISTORY)), 0);
        let words = b"history internal str";
        let content = s.image.blocks[block].content.as_slice();
        let at = content.windows(words.len()).position(|bytes| bytes == words).unwrap();
        c.put_bytes((block, at + 9), b"Internal");
    };
    a_name_under_a_wrong_hash_is_found: Table, "tank/plain", "hash", |s, c| {
        let (block, at) = leaf_entry(s);
        c.more((block, at + 16), 1);
    };
    a_name_that_is_not_found_again_is_found: TableLookup, "tank/plain", "not found again", |s, c| {
        let (block, at) = s.entry(&s.file("tank/plain", ""), "twin");
        c.put_bytes((block, at + 14), b"large\0");
    };
    an_object_that_nothing_refers_to_is_found: UnreferencedObject, "", "nothing refers to", |s, c| {
        let object = s.mos(s.dataset("tank/chain").directory().id().0);
        c.put(s.bonus(&object, CLONES * 8), 0);
    };
    a_reference_to_no_object_is_found: MissingObject, "", "table of permissions is said to be here", |s, c| {
        let object = s.mos(s.dataset("tank/chain").directory().id().0);
        c.put(s.bonus(&object, PERMISSIONS * 8), 9999);
    };
    a_damaged_history_is_found: History, "", "history", |s, c| {
        let history = s.mos(s.directory_entry(key::HISTORY));
        c.put((s.data(&history, 0), 0), 1 << 50);
    };
}

#[test]
fn a_wiped_label_is_found() {
    let report = Scene::get().check_overlay(
        |_, _| {},
        |overlay| overlay.put(256 << 10, vec![0; 256 << 10]),
    );
    expect(&report, Kind::Label, "", "label 1");
    assert_eq!(report.findings.len(), 1);
}

/// Replaces labels by valid labels of a much later txg.
fn renew(overlay: &mut Overlay, labels: &[usize]) {
    let layout = LeafLayout::new(overlay.size_bytes()).unwrap();
    for number in labels {
        let at = layout.label_offset_bytes(*number).unwrap() + LABEL_CONFIG_OFFSET_BYTES;
        let mut region = vec![0; LABEL_CONFIG_BYTES];
        overlay.read(at, &mut region).unwrap();
        let mut config = NvList::decode(&region).unwrap();
        config.insert("txg", 1_000_000_u64);
        let bytes = config.encode_xdr().unwrap();
        let mut region = unsealed_label_region(&bytes, LABEL_CONFIG_BYTES).unwrap();
        seal_label(&mut region, at).unwrap();
        overlay.put(at, region);
    }
}

#[test]
fn labels_of_an_uncommitted_txg_are_no_finding() {
    let labels_found = |over: &dyn Fn(&mut Overlay)| {
        let report = Scene::get().check_overlay(|_, _| {}, over);
        let findings = report.findings.iter();
        assert!(findings.clone().all(|finding| finding.kind == Kind::Label));
        findings.count()
    };
    for half in [&[0, 2][..], &[0], &[2], &[1, 3], &[3]] {
        assert_eq!(labels_found(&|overlay| renew(overlay, half)), 0, "{half:?}");
    }
    // In both halves, or while the other half is invalid.
    assert_eq!(labels_found(&|overlay| renew(overlay, &[0, 1])), 2);
    let torn = |overlay: &mut Overlay| {
        renew(overlay, &[0, 2]);
        overlay.put(256 << 10, vec![0; 256 << 10]);
    };
    assert_eq!(labels_found(&torn), 3);
}

#[test]
fn a_block_of_metadata_that_cannot_be_read_is_found() {
    let scene = Scene::get();
    let (_, _, pointer) = scene.pointer(&scene.file("tank/plain", "large"));
    let report = scene.check_overlay(
        |_, _| {},
        |overlay| {
            for dva in pointer.dvas() {
                let at = millpond_tests::hostile::image::FRONT_BYTES + dva.offset_bytes;
                overlay.put(at, vec![0x5a; pointer.psize_bytes() as usize]);
            }
        },
    );
    expect(&report, Kind::Unreadable, "tank/plain", "large: ");
}

/// Copies a dnode to the slot that must be free.
fn forge_object_0(s: &Scene, c: &mut Changed<'_>) {
    let (block, at) = s.dnode(&s.file("tank/plain", "small"));
    let dnode = c.content(block)[at..at + 512].to_vec();
    let (first, _) = s.dnode(&s.set("tank/plain").object(ObjectId(1)).unwrap());
    c.put_bytes((first, 0), &dnode);
}

#[test]
fn one_wrong_value_gives_one_finding() {
    let report = Scene::get().check(|s, c| {
        c.put(s.attribute(&s.file("tank/plain", "small"), LINKS), 5);
    });
    assert_eq!(report.findings.len(), 1);
    let finding = &report.findings[0];
    assert_eq!(finding.path.as_deref(), Some(&b"folder/second"[..]));
    assert!(!finding.kind.advice().is_empty());
}

/// An entry of a deadlist or livelist whose list has blocks: block and first byte.
fn filled_entry(scene: &Scene, table: &millpond_object::ObjectView) -> (usize, usize) {
    let zap = millpond_zap::Zap::open(table.clone()).unwrap();
    for entry in zap.iter().map(Result::unwrap) {
        let list = scene.mos(entry.value.first().unwrap());
        if list.dnode().bonus[..8] != [0; 8] {
            return scene.entry(table, std::str::from_utf8(&entry.name).unwrap());
        }
    }
    panic!("all lists are empty");
}

/// A list with blocks in a dataset's deadlist.
fn dead_list(scene: &Scene, dataset: &str) -> millpond_object::ObjectView {
    let id = scene.dataset(dataset).phys().deadlist.unwrap();
    let (block, at) = filled_entry(scene, &scene.mos(id.0));
    let bytes = &scene.image.blocks[block].content[at..at + 8];
    scene.mos(u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// The space map of the first metaslab.
fn space_map(scene: &Scene) -> millpond_object::ObjectView {
    let topology = scene.pool.store().topology();
    let (_, top) = topology.tree.tops().next().unwrap();
    let mut number = [0; 8];
    let array = scene.pool.mos().object(top.config.metaslab_array).unwrap();
    array.read(0, &mut number).unwrap();
    scene
        .pool
        .mos()
        .object(ObjectId(u64::from_le_bytes(number)))
        .unwrap()
}

/// An entry in a leaf of a large directory: block and first byte of its chunk.
fn leaf_entry(scene: &Scene) -> (usize, usize) {
    let many = scene.file("tank/plain", "many");
    let block = scene.data(&many, 1);
    let content = &scene.image.blocks[block].content;
    // The header is followed by the hash table, with one word of two bytes per 32 bytes of block size.
    let first = 48 + content.len() / 32 * 2;
    let chunks = (first..content.len() - 24).step_by(24);
    let at = chunks
        .into_iter()
        .find(|at| content[*at] == 252)
        .expect("no entry");
    (block, at)
}
