use crate::form::Content;
use crate::*;
use millpond_env::sync::Arc;
use millpond_object::{Block, BlockAddress, ObjectError};
use millpond_ondisk::sa::encode_attributes;
use millpond_ondisk::zap::{
    MicroZapEntry, ZapFlags, ZapHashing, ZapHeader, ZapKey, ZapLeafBuilder, encode_micro_zap,
};
use millpond_ondisk::{BlockId, Endian, Level, ObjectId};
use millpond_zap::{Zap, ZapSource, ZapValue};
use std::collections::BTreeMap;

struct Blocks(BTreeMap<u64, Vec<u8>>);

impl ZapSource for Blocks {
    fn read_block(&self, id: BlockId) -> Result<Arc<Block>, ObjectError> {
        Ok(Arc::new(block(
            self.0.get(&id.0).cloned().unwrap_or_default(),
        )))
    }
    fn address(&self, id: BlockId) -> BlockAddress {
        BlockAddress {
            dataset: 3,
            object: ObjectId(9),
            level: Level(0),
            block: id,
        }
    }
}

fn block(bytes: Vec<u8>) -> Block {
    Block {
        bytes: Arc::new(bytes),
        endian: Endian::Little,
        has_ciphertext: false,
    }
}

struct Objects(BTreeMap<u64, (Vec<u8>, Endian)>);

impl ObjectBytes for Objects {
    fn read(&self, id: ObjectId, length_bytes: usize) -> Result<(Vec<u8>, Endian), ObjectError> {
        let (mut bytes, endian) = self.0.get(&id.0).cloned().ok_or(ObjectError::NotFound {
            dataset: 3,
            object: id,
        })?;
        bytes.resize(length_bytes, 0);
        Ok((bytes, endian))
    }
}

fn registry_zap(words: &[(&str, u64)]) -> Zap {
    let entries: Vec<_> = words
        .iter()
        .map(|(name, value)| MicroZapEntry {
            value: *value,
            cd: 0,
            name: name.as_bytes(),
        })
        .collect();
    let bytes = encode_micro_zap(2048, 1, 0, &entries).unwrap();
    Zap::from_source(Arc::new(Blocks(BTreeMap::from([(0, bytes)])))).unwrap()
}

fn layouts_zap(layouts: &[(&str, &[u16])]) -> Zap {
    let mut header = ZapHeader::new(14, 1, 0, ZapFlags::empty()).unwrap();
    header.entry_count = layouts.len() as u64;
    let mut leaf = ZapLeafBuilder::new(14, 0, 0, false).unwrap();
    for (name, numbers) in layouts {
        let hash = ZapHashing::plain(1).name(name.as_bytes());
        let value = ZapValue::from_u16s(numbers);
        leaf.insert(hash, 0, ZapKey::Name(name.as_bytes()), &value)
            .unwrap();
    }
    let head = header.encode(&vec![1; 1024]).unwrap();
    let blocks = BTreeMap::from([(0, head), (1, leaf.finish())]);
    Zap::from_source(Arc::new(Blocks(blocks))).unwrap()
}

fn usual_words() -> Vec<(&'static str, u64)> {
    let mut words: Vec<_> = SaAttribute::ALL
        .iter()
        .map(|one| (one.name(), one.registration().to_word()))
        .collect();
    words.push(("VENDOR_NOTE", 22 | 3 << 16));
    words
}

const FILE: [u16; 15] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];
const LINK: [u16; 15] = [5, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 16, 19, 17];

fn build(words: &[(&str, u64)], layouts: &[(&str, &[u16])]) -> Result<Arc<SaRegistry>, SaError> {
    let objects = Objects(BTreeMap::from([
        (77, (b"x".repeat(100), Endian::Little)),
        (
            78,
            ([1u8, 0, 0, 0x10, 5, 0, 0, 0].repeat(10), Endian::Little),
        ),
    ]));
    let registry = registry_zap(words);
    let layouts = layouts_zap(layouts);
    SaRegistry::from_zaps(3, Arc::new(objects), Some(&registry), Some(&layouts)).map(Arc::new)
}

fn usual() -> Arc<SaRegistry> {
    build(
        &usual_words(),
        &[
            ("2", &FILE),
            ("3", &LINK),
            ("4", &[20]),
            ("5", &[9, 22]),
            ("6", &[5]),
        ],
    )
    .unwrap()
}

fn word(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

/// Encodes the values of a layout. Each word is 1000 plus its attribute's number.
fn encoded(registry: &SaRegistry, layout: u16, special: &[(u16, Vec<u8>)]) -> Vec<u8> {
    let (_, list) = registry
        .layouts()
        .find(|(number, _)| *number == layout)
        .unwrap();
    let values: Vec<Vec<u8>> = list
        .iter()
        .map(|one| {
            let given = special.iter().find(|(number, _)| *number == one.number);
            given.map_or_else(
                || {
                    let words = usize::from(one.length) / 8;
                    word(1000 + u64::from(one.number)).repeat(words)
                },
                |(_, value)| value.clone(),
            )
        })
        .collect();
    let attributes: Vec<_> = list
        .iter()
        .zip(&values)
        .map(|(one, value)| (*one, value.as_slice()))
        .collect();
    encode_attributes(layout, &attributes).unwrap()
}

fn trivial() -> Vec<u8> {
    vec![
        0, 0, 0, 0x10, 0xbf, 0x01, 0x1e, 0, 0, 0, 0x40, 0x20, 0xa9, 0, 0x12, 0, 0, 0, 0, 0x40,
        0xa9, 0, 0x12, 0,
    ]
}

fn reason(error: SaError) -> &'static str {
    match error {
        SaError::Registry { reason, .. } => reason,
        SaError::Corrupt { error, .. } => error.reason,
        SaError::Missing { attribute, .. } => attribute,
        other => panic!("{other}"),
    }
}

#[test]
fn every_getter_finds_its_attribute_in_bonus_and_spill() {
    let registry = usual();
    let bonus = encoded(&registry, 2, &[(16, word(3)), (19, trivial())]);
    let spill = encoded(&registry, 4, &[(20, b"list".to_vec())]);
    let file = registry
        .buffers(
            ObjectId(40),
            Content::Bonus(bonus),
            Ok(Some(Arc::new(block(spill)))),
        )
        .unwrap();
    assert_eq!(file.mode().unwrap(), 1005);
    assert_eq!(file.size().unwrap(), 1006);
    assert_eq!(file.generation().unwrap(), 1004);
    assert_eq!(file.uid().unwrap(), Fuid(1012));
    assert_eq!(file.gid().unwrap(), Fuid(1013));
    assert_eq!(file.parent().unwrap(), ObjectId(1007));
    assert_eq!(file.flags().unwrap().bits(), 1011);
    assert_eq!(file.links().unwrap(), 1008);
    for (time, seconds) in [
        (file.atime(), 1000),
        (file.mtime(), 1001),
        (file.ctime(), 1002),
        (file.crtime(), 1003),
    ] {
        let expected = Timestamp {
            seconds,
            nanoseconds: seconds as u64,
        };
        assert_eq!(time.unwrap(), expected);
    }
    assert_eq!(file.project_id().unwrap(), Some(1021));
    assert_eq!(file.rdev().unwrap(), None);
    assert_eq!(file.xattr_directory().unwrap(), None);
    assert_eq!(file.scanstamp().unwrap(), None);
    assert_eq!(file.xattr_list(), Ok(Some(&b"list"[..])));
    assert_eq!(file.acl().unwrap().unwrap().len(), 3);
    assert_eq!(file.symlink_target().unwrap(), None);
    assert!(!file.is_old_znode());
}

#[test]
fn a_big_endian_buffer_reads_equal() {
    let registry = usual();
    let mut bonus = vec![0x00, 0x2f, 0x50, 0x5a, 0x04, 0x06, 0, 0];
    bonus.extend(0o100_644u64.to_be_bytes());
    let file = registry
        .buffers(ObjectId(40), Content::Bonus(bonus), Ok(None))
        .unwrap();
    assert_eq!(file.mode().unwrap(), 0o100_644);
    assert_eq!(reason(file.size().unwrap_err()), "ZPL_SIZE");
}

#[test]
fn a_symlink_has_its_target() {
    let registry = usual();
    let special = [
        (5, word(0o120_777)),
        (16, word(3)),
        (19, trivial()),
        (17, b"over there".to_vec()),
    ];
    let bonus = encoded(&registry, 3, &special);
    let link = registry
        .buffers(ObjectId(41), Content::Bonus(bonus), Ok(None))
        .unwrap();
    assert_eq!(link.symlink_target().unwrap().unwrap(), &b"over there"[..]);
    assert_eq!(link.project_id().unwrap(), None);
}

#[test]
fn attributes_of_other_software_are_reachable_by_name() {
    let registry = usual();
    let spill = encoded(&registry, 5, &[(22, b"note".to_vec())]);
    let file = registry
        .buffers(ObjectId(41), Content::Bonus(spill), Ok(None))
        .unwrap();
    assert_eq!(file.raw_named(b"VENDOR_NOTE").unwrap().unwrap().0, b"note");
    assert_eq!(file.raw_named(b"OTHER"), Ok(None));
    assert_eq!(file.xattr_directory().unwrap(), Some(ObjectId(1009)));
}

#[test]
fn an_object_just_made_has_no_attributes() {
    let file = usual()
        .buffers(ObjectId(41), Content::Bonus(vec![0; 320]), Ok(None))
        .unwrap();
    assert_eq!(reason(file.mode().unwrap_err()), "ZPL_MODE");
    assert_eq!(file.acl().unwrap(), None);
}

#[test]
fn buffers_that_contradict_the_tables_are_errors() {
    let registry = usual();
    let open = |bonus: Vec<u8>, spill: Option<Vec<u8>>| {
        let spill = spill.map(|bytes| Arc::new(block(bytes)));
        let opened = registry.buffers(ObjectId(4), Content::Bonus(bonus), Ok(spill));
        reason(opened.unwrap_err())
    };
    let mut unknown = encoded(&registry, 6, &[]);
    unknown[4] = 99;
    assert_eq!(open(unknown, None), "layout is not registered");
    let one = encoded(&registry, 6, &[]);
    assert_eq!(
        open(one.clone(), Some(one.clone())),
        "attribute in bonus and spill"
    );
    assert_eq!(
        open(one[..15].to_vec(), None),
        "attribute reaches beyond the buffer"
    );
    assert_eq!(open(Vec::new(), None), "too short");
}

#[test]
fn generation_0_and_wrong_counts_are_errors() {
    let registry = usual();
    let special = [(4, word(0)), (16, word(4)), (19, trivial())];
    let bonus = encoded(&registry, 2, &special);
    let file = registry
        .buffers(ObjectId(40), Content::Bonus(bonus), Ok(None))
        .unwrap();
    assert_eq!(reason(file.generation().unwrap_err()), "generation is 0");
    assert_eq!(reason(file.acl().unwrap_err()), "too short");
}

#[test]
fn tables_that_contradict_themselves_are_errors() {
    let fail = |words: &[(&str, u64)], layouts: &[(&str, &[u16])]| {
        reason(build(words, layouts).unwrap_err())
    };
    let words = usual_words();
    let layouts: [(&str, &[u16]); 1] = [("2", &FILE)];
    assert_eq!(fail(&[], &layouts), "a table is empty");
    assert_eq!(fail(&words, &[]), "a table is empty");
    assert_eq!(
        fail(&[("A", 7), ("B", 7)], &layouts),
        "two attributes have one number"
    );
    assert_eq!(
        fail(&[("A", 5 << 16)], &layouts),
        "a registration makes no sense"
    );
    for name in ["1", "0", "1024", "x", "", "+2", "99999999"] {
        assert_eq!(
            fail(&words, &[(name, &FILE)]),
            "a layout's number is not 2 to 1023",
            "{name}"
        );
    }
    assert_eq!(
        fail(&words, &[("2", &[99])]),
        "a layout names an unknown attribute"
    );
    assert_eq!(
        fail(&words, &[("2", &[5]), ("02", &[6])]),
        "two layouts have one number"
    );
}

#[test]
fn a_table_whose_head_miscounts_is_an_error() {
    let mut header = ZapHeader::new(14, 1, 0, ZapFlags::empty()).unwrap();
    header.entry_count = 2;
    let mut leaf = ZapLeafBuilder::new(14, 0, 0, false).unwrap();
    let hash = ZapHashing::plain(1).name(b"2");
    leaf.insert(hash, 0, ZapKey::Name(b"2"), &ZapValue::from_u16s(&[5]))
        .unwrap();
    let blocks = BTreeMap::from([
        (0, header.encode(&vec![1; 1024]).unwrap()),
        (1, leaf.finish()),
    ]);
    let layouts = Zap::from_source(Arc::new(Blocks(blocks))).unwrap();
    let registry = registry_zap(&usual_words());
    let bytes = Arc::new(Objects(BTreeMap::new()));
    let built = SaRegistry::from_zaps(3, bytes, Some(&registry), Some(&layouts));
    assert_eq!(reason(built.unwrap_err()), "a table miscounts its entries");
}

fn old_znode(mode: u64, size: u64, tail: &[u8]) -> Vec<u8> {
    let mut bonus = Vec::new();
    for number in 0..22u64 {
        bonus.extend(word(100 + number));
    }
    bonus[72..80].copy_from_slice(&word(mode));
    bonus[80..88].copy_from_slice(&word(size));
    bonus.resize(264, 0);
    bonus[176..184].fill(0);
    bonus[184..192].copy_from_slice(&[8, 0, 0, 0, 1, 0, 1, 0]);
    bonus[192..200].copy_from_slice(&trivial()[..8]);
    bonus.extend(tail);
    bonus
}

#[test]
fn an_old_znode_answers_the_same_getters() {
    let registry = usual();
    let bonus = old_znode(0o100_644, 31, b"");
    let file = registry.znode(ObjectId(5), &bonus, Endian::Little).unwrap();
    assert!(file.is_old_znode());
    assert_eq!(file.mode().unwrap(), 0o100_644);
    assert_eq!(file.size().unwrap(), 31);
    assert_eq!(file.generation().unwrap(), 108);
    assert_eq!(file.parent().unwrap(), ObjectId(111));
    assert_eq!(file.links().unwrap(), 112);
    assert_eq!(file.xattr_directory().unwrap(), Some(ObjectId(113)));
    assert_eq!(file.rdev().unwrap(), Some(114));
    assert_eq!(file.flags().unwrap().bits(), 115);
    assert_eq!(file.uid().unwrap(), Fuid(116));
    assert_eq!(file.mtime().unwrap().seconds, 102);
    assert_eq!(file.acl().unwrap().unwrap()[0].who, AceWho::Owner);
    assert_eq!(file.project_id().unwrap(), None);
    assert_eq!(file.xattr_list(), Ok(None));
}

#[test]
fn an_old_symlink_is_in_the_tail_or_in_its_block() {
    let registry = usual();
    let open = |id, size, tail: &[u8]| {
        let bonus = old_znode(0o120_777, size, tail);
        registry
            .znode(ObjectId(id), &bonus, Endian::Little)
            .unwrap()
    };
    let short = open(5, 4, b"aimsXX");
    assert_eq!(short.symlink_target().unwrap().unwrap(), &b"aims"[..]);
    let long = open(77, 57, b"");
    assert_eq!(
        long.symlink_target().unwrap().unwrap(),
        &b"x".repeat(57)[..]
    );
    assert_eq!(
        reason(open(5, 5, b"cut").symlink_target().unwrap_err()),
        "symlink target is cut off"
    );
    assert_eq!(
        reason(open(77, 1 << 40, b"").symlink_target().unwrap_err()),
        "symlink target above 64 KiB"
    );
}

#[test]
fn an_old_acl_of_many_entries_is_in_its_object() {
    let registry = usual();
    let mut bonus = old_znode(0o100_644, 1, b"");
    bonus[176..184].copy_from_slice(&word(78));
    bonus[184..192].copy_from_slice(&[80, 0, 0, 0, 1, 0, 10, 0]);
    let file = registry.znode(ObjectId(5), &bonus, Endian::Little).unwrap();
    let entries = file.acl().unwrap().unwrap();
    assert_eq!(entries.len(), 10);
    assert_eq!((entries[9].kind, entries[9].mask), (AceKind::DENY, 5));

    bonus[184..192].copy_from_slice(&[0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]);
    let file = registry.znode(ObjectId(5), &bonus, Endian::Little).unwrap();
    assert_eq!(
        reason(file.acl().unwrap_err()),
        "access control list above 4 MiB"
    );
}

#[test]
fn without_tables_only_old_znodes_can_be_read() {
    let bytes = Arc::new(Objects(BTreeMap::new()));
    let registry = Arc::new(SaRegistry::from_zaps(3, bytes, None, None).unwrap());
    let bonus = old_znode(0o40755, 2, b"");
    let file = registry.znode(ObjectId(3), &bonus, Endian::Little).unwrap();
    assert_eq!(file.mode().unwrap(), 0o40755);
    let new = encoded(&usual(), 6, &[]);
    let opened = registry.buffers(ObjectId(3), Content::Bonus(new), Ok(None));
    assert_eq!(reason(opened.unwrap_err()), "layout is not registered");
}
