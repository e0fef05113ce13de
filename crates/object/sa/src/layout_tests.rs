//! Layouts and changes of attributes, on files and tables in memory.

mod in_place;
mod old;

use crate::form::Content;
use crate::{
    Attributes, FileFlags, ObjectBytes, SaAttribute, SaBuffers, SaChange, SaError, SaFile,
    SaLayouts, SaRegistration, SaRegistry, SaTables,
};
use millpond_env::Env;
use millpond_env::sync::{Arc, Mutex};
use millpond_env::thread;
use millpond_object::{Block, ObjectError};
use millpond_ondisk::{Endian, ObjectId, ObjectType, Txg};
use millpond_txg::{DirtyLimits, Transaction, TxgGroups};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn transaction() -> Transaction {
    let groups = TxgGroups::new(&Env::real(), Txg(9), DirtyLimits::default());
    begin(&groups)
}

/// A transaction of another thread: no thread holds two.
fn begin(groups: &Arc<TxgGroups>) -> Transaction {
    let begun = thread::scope(|scope| scope.spawn(|| groups.begin(0)).join());
    begun.unwrap().unwrap()
}

/// Tables in memory, with the txg of each stored item.
#[derive(Default, Clone)]
struct Tables(Arc<Mutex<Stored>>);

#[derive(Default)]
struct Stored {
    registered: Vec<(Vec<u8>, SaRegistration)>,
    layouts: BTreeMap<u16, (Vec<u16>, Txg)>,
    carried: Vec<Txg>,
}

impl SaTables for Tables {
    fn register(
        &mut self,
        _: &Transaction,
        added: &[(Vec<u8>, SaRegistration)],
    ) -> Result<(), SaError> {
        self.0.lock().registered.extend_from_slice(added);
        Ok(())
    }
    fn add_layout(&mut self, tx: &Transaction, number: u16, list: &[u16]) -> Result<(), SaError> {
        let old = self
            .0
            .lock()
            .layouts
            .insert(number, (list.to_vec(), tx.txg()));
        assert!(old.is_none(), "a number given twice");
        Ok(())
    }
    fn carry_back(&mut self, tx: &Transaction) -> Result<(), SaError> {
        self.0.lock().carried.push(tx.txg());
        Ok(())
    }
}

struct NoObjects;

impl ObjectBytes for NoObjects {
    fn read(&self, id: ObjectId, _: usize) -> Result<(Vec<u8>, Endian), ObjectError> {
        Err(ObjectError::NotFound {
            dataset: 3,
            object: id,
        })
    }
}

fn new_file_system() -> (SaLayouts, Tables) {
    let registry = SaRegistry::from_zaps(3, Arc::new(NoObjects), None, None).unwrap();
    let tables = Tables::default();
    let boxed = Box::new(tables.clone());
    (SaLayouts::new(Arc::new(registry), Some(boxed)), tables)
}

struct MemoryFile {
    dnode_bytes: usize,
    state: Mutex<FileState>,
}

struct FileState {
    bonus_type: ObjectType,
    freed: Vec<ObjectId>,
    /// The access control list in its own object 51.
    acl: Option<(ObjectType, Vec<u8>)>,
    target: Option<Vec<u8>>,
    bonus: Arc<[u8]>,
    spill: Option<Arc<Block>>,
    spill_reads: usize,
}

fn block(bytes: Vec<u8>) -> Arc<Block> {
    Arc::new(Block {
        bytes: Arc::new(bytes),
        endian: Endian::Little,
        has_ciphertext: false,
    })
}

impl MemoryFile {
    fn new(dnode_bytes: usize, buffers: SaBuffers) -> Self {
        assert!(buffers.bonus.len() <= dnode_bytes - 192);
        Self {
            dnode_bytes,
            state: Mutex::new(FileState {
                bonus_type: ObjectType::SA,
                freed: vec![],
                acl: None,
                target: None,
                bonus: buffers.bonus.into(),
                spill: buffers.spill.map(block),
                spill_reads: 0,
            }),
        }
    }
    fn read(&self, layouts: &SaLayouts) -> Attributes {
        let state = self.state.lock();
        let bonus = Content::Bonus(state.bonus.to_vec());
        layouts
            .registry()
            .buffers(ObjectId(40), bonus, Ok(state.spill.clone()))
            .unwrap()
    }
    /// Lengths of the header, the bonus and the spill block, in bytes.
    fn sizes(&self) -> (usize, usize, Option<usize>) {
        let state = self.state.lock();
        let units = u16::from_le_bytes([state.bonus[4], state.bonus[5]]) >> 10;
        let spill = state.spill.as_ref().map(|spill| spill.bytes.len());
        (usize::from(units) * 8, state.bonus.len(), spill)
    }
}

impl SaFile for MemoryFile {
    fn id(&self) -> ObjectId {
        ObjectId(40)
    }
    fn bonus_type(&self) -> ObjectType {
        self.state.lock().bonus_type
    }
    fn dnode_bytes(&self) -> usize {
        self.dnode_bytes
    }
    fn bonus(&self) -> Arc<[u8]> {
        Arc::clone(&self.state.lock().bonus)
    }
    fn spill(&self) -> Result<Option<Arc<Block>>, ObjectError> {
        let mut state = self.state.lock();
        state.spill_reads += 1;
        Ok(state.spill.clone())
    }
    fn set_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError> {
        let mut state = self.state.lock();
        let pointer = if state.spill.is_some() { 128 } else { 0 };
        assert!(
            bytes.len() <= self.dnode_bytes - 192 - pointer,
            "no room for the bonus"
        );
        state.bonus = bytes.into();
        Ok(())
    }
    fn set_attributes_bonus(&self, bytes: Vec<u8>) -> Result<(), ObjectError> {
        self.set_bonus(bytes)?;
        self.state.lock().bonus_type = ObjectType::SA;
        Ok(())
    }
    fn free_acl(&self, id: ObjectId) -> Result<(), ObjectError> {
        self.state.lock().freed.push(id);
        Ok(())
    }
    fn store_acl(&self, object_type: ObjectType, bytes: Vec<u8>) -> Result<ObjectId, ObjectError> {
        self.state.lock().acl = Some((object_type, bytes));
        Ok(ObjectId(51))
    }
    fn store_target(&self, target: &[u8]) -> Result<(), ObjectError> {
        self.state.lock().target = Some(target.to_vec());
        Ok(())
    }
    fn set_spill(&self, content: Option<Vec<u8>>) -> Result<(), ObjectError> {
        let mut state = self.state.lock();
        if let Some(content) = &content {
            assert!(content.len() % 512 == 0 && content.len() <= 128 << 10);
            assert!(
                state.bonus.len() <= self.dnode_bytes - 192 - 128,
                "no room for the pointer"
            );
        }
        state.spill = content.map(block);
        Ok(())
    }
}

fn trivial() -> Vec<u8> {
    let mut aces = Vec::new();
    for (flags, mask) in [
        (0x1000u16, 0x1e_01bfu32),
        (0x2040, 0x12_00a9),
        (0x4000, 0x12_00a9),
    ] {
        aces.extend([0, 0]);
        aces.extend(flags.to_le_bytes());
        aces.extend(mask.to_le_bytes());
    }
    aces
}

type List = Vec<(SaAttribute, Vec<u8>)>;

fn template(with_project: bool, aces: Vec<u8>) -> List {
    use SaAttribute::*;
    let word = |value: u64| value.to_le_bytes().to_vec();
    let mut list: List = [
        (Mode, 0o100_644),
        (Size, 5),
        (Generation, 7),
        (Uid, 1000),
        (Gid, 1001),
        (Parent, 34),
        (
            Flags,
            if with_project {
                0x8408_0000_0144
            } else {
                0x408_0000_0144
            },
        ),
    ]
    .map(|(one, value)| (one, word(value)))
    .to_vec();
    list.extend([Atime, Mtime, Ctime, Crtime].map(|one| (one, [word(9), word(1)].concat())));
    list.push((Links, word(1)));
    if with_project {
        list.push((ProjectId, word(77)));
    }
    list.push((DaclCount, word(aces.len() as u64 / 8)));
    list.push((DaclAces, aces));
    list
}

fn build(layouts: &SaLayouts, dnode_bytes: usize, list: &List) -> MemoryFile {
    let borrowed: Vec<_> = list
        .iter()
        .map(|(one, bytes)| (*one, bytes.as_slice()))
        .collect();
    MemoryFile::new(
        dnode_bytes,
        layouts
            .build(&transaction(), dnode_bytes, &borrowed)
            .unwrap(),
    )
}

#[test]
fn a_new_file_system_registers_all_attributes() {
    let (layouts, tables) = new_file_system();
    let tx = transaction();
    let file = build(&layouts, 512, &template(true, trivial()));
    assert_eq!(file.sizes(), (8, 176, None));
    let stored = tables.0.lock();
    assert_eq!(stored.registered.len(), 22);
    for (index, (name, registration)) in stored.registered.iter().enumerate() {
        let attribute = SaAttribute::ALL[index];
        assert_eq!(
            (name.as_slice(), *registration),
            (attribute.name().as_bytes(), attribute.registration())
        );
    }
    let expected = vec![5u16, 6, 4, 12, 13, 7, 11, 0, 1, 2, 3, 8, 21, 16, 19];
    assert_eq!(stored.layouts[&2].0, expected);
    drop(stored);
    let again = build(&layouts, 512, &template(true, trivial()));
    assert_eq!(again.bonus(), file.bonus());
    assert_eq!(tables.0.lock().layouts.len(), 1);
    layouts
        .change(
            &tx,
            &file,
            &[SaChange::Set(SaAttribute::Xattr, &9u64.to_le_bytes())],
        )
        .unwrap();
    assert_eq!(tables.0.lock().layouts[&3].0.last(), Some(&9));
    assert_eq!(tables.0.lock().registered.len(), 22);
    assert_eq!(
        file.read(&layouts).xattr_directory().unwrap(),
        Some(ObjectId(9))
    );
}

#[test]
fn an_older_registry_gains_the_missing_attributes() {
    let registry = SaRegistry::from_zaps(3, Arc::new(NoObjects), None, None).unwrap();
    // As another system might have it: no project, and one additional attribute.
    let mut old: Vec<_> = SaAttribute::ALL[..21]
        .iter()
        .map(|one| (one.name().as_bytes().to_vec(), one.registration()))
        .collect();
    let own = SaRegistration {
        number: 21,
        ..SaAttribute::Scanstamp.registration()
    };
    old.push((b"OWN".to_vec(), own));
    let tables = Tables::default();
    let layouts = SaLayouts::new(
        Arc::new(registry.with_attributes(&old)),
        Some(Box::new(tables.clone())),
    );
    let file = build(&layouts, 512, &template(true, trivial()));
    let stored = tables.0.lock();
    assert_eq!(stored.registered.len(), 1);
    assert_eq!(stored.registered[0].0, b"ZPL_PROJID");
    assert_eq!(stored.registered[0].1.number, 22);
    assert_eq!(stored.layouts[&2].0[12], 22);
    drop(stored);
    assert_eq!(file.read(&layouts).project_id().unwrap(), Some(77));
}

/// The table of examples on the format page.
#[test]
fn buffers_are_laid_out_as_openzfs_does() {
    let (layouts, _) = new_file_system();
    let tx = transaction();
    let set = |file: &MemoryFile, what, bytes: &[u8]| {
        layouts
            .change(&tx, file, &[SaChange::Set(what, bytes)])
            .unwrap();
        file.sizes()
    };
    let file = build(&layouts, 512, &template(true, trivial()));
    assert_eq!(set(&file, SaAttribute::Dxattr, &[1; 136]), (16, 320, None));
    assert_eq!(
        set(&file, SaAttribute::Dxattr, &[1; 137]),
        (8, 192, Some(512))
    );
    assert_eq!(
        set(&file, SaAttribute::Dxattr, &[1; 1000]),
        (8, 192, Some(1024))
    );
    assert_eq!(
        set(&file, SaAttribute::Dxattr, &[1; 65535]),
        (8, 192, Some(66048))
    );
    assert_eq!(
        set(&file, SaAttribute::Dxattr, &[1; 2000]),
        (8, 192, Some(66048))
    );
    let remove = [SaChange::Remove(SaAttribute::Dxattr)];
    layouts.change(&tx, &file, &remove).unwrap();
    assert_eq!(file.sizes(), (8, 176, None));
    assert_eq!(file.read(&layouts).xattr_list(), Ok(None));

    let aces = |count: usize| [0u8, 0, 0, 0x10, 1, 0, 0, 0].repeat(count);
    let file = build(&layouts, 512, &template(true, aces(20)));
    assert_eq!(file.sizes(), (8, 312, None));
    let file = build(&layouts, 512, &template(true, aces(40)));
    set(&file, SaAttribute::Xattr, &9u64.to_le_bytes());
    assert_eq!(file.sizes(), (8, 192, Some(512)));
    assert_eq!(file.bonus()[152 + 8 - 8..], [0; 40]);
    let spill = file.spill().unwrap().unwrap();
    assert_eq!(spill.bytes[6..8], 320u16.to_le_bytes());
    assert_eq!(spill.bytes[0x148..0x150], 9u64.to_le_bytes());

    let link = build(&layouts, 512, &template(false, trivial()));
    assert_eq!(
        set(&link, SaAttribute::Symlink, b"abcdefghijk"),
        (16, 187, None)
    );
    let file = build(&layouts, 1024, &template(true, trivial()));
    assert_eq!(set(&file, SaAttribute::Dxattr, &[1; 500]), (16, 684, None));
    assert_eq!(
        set(&file, SaAttribute::Dxattr, &[1; 700]),
        (8, 704, Some(1024))
    );
}

#[test]
fn equal_lengths_change_in_place_without_reading_the_spill() {
    let (layouts, tables) = new_file_system();
    let tx = transaction();
    let mut list = template(true, trivial());
    list.push((SaAttribute::Dxattr, vec![1; 700]));
    let file = build(&layouts, 512, &list);
    let before = tables.0.lock().layouts.len();
    let time = [3u64.to_le_bytes(), 4u64.to_le_bytes()].concat();
    let changes = [
        SaChange::Set(SaAttribute::Size, &1234u64.to_le_bytes()),
        SaChange::Set(SaAttribute::Mtime, &time),
    ];
    layouts.change(&tx, &file, &changes).unwrap();
    assert_eq!(file.state.lock().spill_reads, 0);
    layouts
        .change(&tx, &file, &[SaChange::Set(SaAttribute::Dxattr, &[2; 700])])
        .unwrap();
    assert_eq!(tables.0.lock().layouts.len(), before);
    let read = file.read(&layouts);
    assert_eq!(read.size().unwrap(), 1234);
    assert_eq!(read.mtime().unwrap().seconds, 3);
    assert_eq!(read.xattr_list(), Ok(Some(&[2; 700][..])));
    assert_eq!(read.mode().unwrap(), 0o100_644);
}

#[test]
fn a_project_id_added_later_has_its_slot_and_flag() {
    let (layouts, _) = new_file_system();
    let mut list = template(false, trivial());
    list.push((SaAttribute::Xattr, 9u64.to_le_bytes().to_vec()));
    list.push((SaAttribute::Dxattr, vec![5; 30]));
    let file = build(&layouts, 512, &list);
    let project = [SaChange::Set(SaAttribute::ProjectId, &55u64.to_le_bytes())];
    layouts.change(&transaction(), &file, &project).unwrap();
    let (header, _, _) = file.sizes();
    assert_eq!(
        file.bonus()[header + 128..header + 136],
        55u64.to_le_bytes()
    );
    let read = file.read(&layouts);
    assert!(read.flags().unwrap().contains(FileFlags::PROJECT_ID));
    assert_eq!(read.xattr_list(), Ok(Some(&[5; 30][..])));
    assert_eq!(read.acl().unwrap().unwrap().len(), 3);
}

#[test]
fn a_big_endian_buffer_is_written_anew_in_little_endian() {
    let (layouts, _) = new_file_system();
    let file = build(&layouts, 512, &template(true, trivial()));
    let little = file.bonus();
    let mut big = little.to_vec();
    big[..4].reverse();
    big[4..6].reverse();
    big[6..8].reverse();
    big[8..152].chunks_exact_mut(8).for_each(<[u8]>::reverse);
    for ace in big[152..176].chunks_exact_mut(8) {
        ace[..2].reverse();
        ace[2..4].reverse();
        ace[4..].reverse();
    }
    file.state.lock().bonus = big.into();
    assert_eq!(file.read(&layouts).size().unwrap(), 5);
    let size = [SaChange::Set(SaAttribute::Size, &5u64.to_le_bytes())];
    layouts.change(&transaction(), &file, &size).unwrap();
    assert_eq!(file.bonus(), little);
}

#[test]
fn invalid_attributes_are_refused_and_change_nothing() {
    let (layouts, _) = new_file_system();
    let file = build(&layouts, 512, &template(true, trivial()));
    let before = file.bonus();
    let tx = transaction();
    for (what, bytes) in [
        (SaAttribute::Size, vec![0; 4]),
        (SaAttribute::Dxattr, vec![0; 65536]),
    ] {
        let change = [SaChange::Set(what, bytes.as_slice())];
        assert!(matches!(
            layouts.change(&tx, &file, &change),
            Err(SaError::Refused { .. })
        ));
    }
    let both = [
        SaChange::Set(SaAttribute::Dxattr, &[0; 65535]),
        SaChange::Set(SaAttribute::Symlink, &[0; 65535]),
    ];
    assert!(matches!(
        layouts.change(&tx, &file, &both),
        Err(SaError::TooLarge { .. })
    ));
    assert_eq!(file.bonus(), before);
    file.state.lock().bonus_type = ObjectType::NONE;
    let size = [SaChange::Set(SaAttribute::Size, &5u64.to_le_bytes())];
    assert!(matches!(
        layouts.change(&tx, &file, &size),
        Err(SaError::NotAFile { .. })
    ));
    let empty = SaRegistry::from_zaps(3, Arc::new(NoObjects), None, None).unwrap();
    let old = SaLayouts::new(Arc::new(empty), None);
    assert!(matches!(
        old.build(&tx, 512, &[]),
        Err(SaError::Refused { .. })
    ));
}

#[test]
fn a_layout_of_a_newer_txg_moves_to_the_older_that_uses_it() {
    let (layouts, tables) = new_file_system();
    let groups = TxgGroups::new(&Env::real(), Txg(9), DirtyLimits::default());
    let older = begin(&groups);
    groups.ask(Txg(9));
    // The older transaction delays the sync of its txg; the next txg opens meanwhile.
    let waiting = Arc::clone(&groups);
    let sync = thread::spawn("sync", move || {
        waiting
            .next_to_sync(std::time::Duration::from_secs(60))
            .map(|syncing| syncing.txg())
    })
    .unwrap();
    groups.wait_open(Txg(10)).unwrap();
    let younger = begin(&groups);
    assert_eq!((older.txg(), younger.txg()), (Txg(9), Txg(10)));
    let list = template(true, trivial());
    let list: Vec<_> = list
        .iter()
        .map(|(one, bytes)| (*one, bytes.as_slice()))
        .collect();
    let new = layouts.build(&younger, 512, &list).unwrap();
    assert!(tables.0.lock().carried.is_empty());
    assert_eq!(layouts.build(&older, 512, &list).unwrap(), new);
    assert_eq!(tables.0.lock().carried, [Txg(9)]);
    layouts.build(&older, 512, &list).unwrap();
    assert_eq!(tables.0.lock().carried, [Txg(9)]);
    drop((older, younger));
    assert_eq!(sync.join().unwrap(), Some(Txg(9)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn attributes_set_and_removed_match_a_map(
        steps in proptest::collection::vec((0usize..5, proptest::option::weighted(0.7, 0usize..900), any::<u8>()), 1..30),
        slots in 1usize..4,
        with_project in any::<bool>(),
    ) {
        let (layouts, tables) = new_file_system();
        let tx = transaction();
        let start = template(with_project, trivial());
        let file = build(&layouts, slots * 512, &start);
        let mut model: BTreeMap<&str, (SaAttribute, Vec<u8>)> =
            start.into_iter().map(|(one, bytes)| (one.name(), (one, bytes))).collect();
        for (which, length, fill) in steps {
            let attribute = [
                SaAttribute::Dxattr,
                SaAttribute::Symlink,
                SaAttribute::Scanstamp,
                SaAttribute::Xattr,
                SaAttribute::Size,
            ][which];
            match length {
                None if attribute != SaAttribute::Size => {
                    layouts.change(&tx, &file, &[SaChange::Remove(attribute)]).unwrap();
                    model.remove(attribute.name());
                }
                length => {
                    let fixed = usize::from(attribute.registration().length);
                    let length = if fixed > 0 { fixed } else { length.unwrap_or(0) };
                    let value = vec![fill; length];
                    layouts.change(&tx, &file, &[SaChange::Set(attribute, &value)]).unwrap();
                    model.insert(attribute.name(), (attribute, value));
                }
            }
            let read = file.read(&layouts);
            for attribute in SaAttribute::ALL {
                let found = read.raw(attribute).unwrap().map(|(bytes, _)| bytes.to_vec());
                let expected = model.get(attribute.name()).map(|(_, bytes)| bytes.clone());
                prop_assert_eq!(found, expected, "{}", attribute.name());
            }
        }
        let stored = tables.0.lock();
        let numbers: Vec<u16> = stored.layouts.keys().copied().collect();
        prop_assert_eq!(numbers, (2..2 + stored.layouts.len() as u16).collect::<Vec<_>>());
    }

    #[test]
    fn changing_any_bytes_never_panics(
        bytes in proptest::collection::vec(any::<u8>(), 0..320),
        layout in 0u8..4,
        header in 0u8..4,
    ) {
        let (layouts, _) = new_file_system();
        let file = build(&layouts, 512, &template(true, trivial()));
        let mut bytes = bytes;
        if bytes.len() > 6 {
            bytes[..6].copy_from_slice(&[0x5a, 0x50, 0x2f, 0, layout, header << 2]);
        }
        file.state.lock().bonus = bytes.into();
        for change in [
            SaChange::Set(SaAttribute::Size, &[1; 8]),
            SaChange::Set(SaAttribute::Dxattr, &[1; 80]),
            SaChange::Remove(SaAttribute::DaclAces),
        ] {
            let _ = layouts.change(&transaction(), &file, &[change]);
        }
    }
}
