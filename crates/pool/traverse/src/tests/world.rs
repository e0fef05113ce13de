//! Object sets on a device in memory, with every pointer as the test wants it.

use crate::*;
use millpond_block::{BlockAddress, BlockCache, BlockStore, Topology};
use millpond_checksum::checksum;
use millpond_device::{Device, MemoryDevice};
use millpond_env::sync::atomic::{AtomicU64, Ordering};
use millpond_env::sync::{Arc, Mutex};
use millpond_ondisk::{
    BlockId, BlockPointer, ChecksumKind, CompressionKind, Dnode, DnodeFlags, Dva, Endian, Guid,
    Level, ObjectId, ObjectSetKind, ObjectSetPhys, ObjectType, Txg, VDEV_DATA_START_BYTES, VdevId,
};
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevConfig, VdevTree, VdevType};

/// Pointers in an indirect block of 4 KiB.
pub const FANOUT: usize = 32;
pub const NEW: Txg = Txg(20);

pub struct World {
    device: Arc<MemoryDevice>,
    pub store: Arc<BlockStore>,
    end: AtomicU64,
}

impl World {
    pub fn new() -> Self {
        let device = Arc::new(MemoryDevice::new(vec![0; 64 << 20]));
        let store = Self::store_of(&device);
        let end = AtomicU64::new(0);
        Self { device, store, end }
    }

    /// The same device with an empty cache.
    pub fn reopen(&mut self) {
        self.store = Self::store_of(&self.device);
    }

    fn store_of(device: &Arc<MemoryDevice>) -> Arc<BlockStore> {
        let mut leaf = VdevConfig::new(VdevType::File, Guid(2));
        (leaf.id, leaf.ashift) = (Some(0), 9);
        (leaf.asize_bytes, leaf.metaslab_shift) = (56 << 20, 24);
        let tree = VdevTree::new(VdevConfig::root(Guid(1), vec![leaf]), Reflow::default()).unwrap();
        let devices = vec![Some(Arc::clone(device) as Arc<dyn Device>)];
        let (health, indirect) = (LeafTable::all_good(1), IndirectTables::default());
        let topology = Topology::new(tree, devices, health, indirect);
        Arc::new(BlockStore::new(topology, BlockCache::new(8 << 20)))
    }

    pub fn damage(&self, pointer: &BlockPointer) {
        for dva in pointer.dvas() {
            let place = VDEV_DATA_START_BYTES + dva.offset_bytes;
            self.device.write(place, &[0xa5; 512]).unwrap();
        }
    }

    pub fn block(&self, content: &[u8], kind: ObjectType, level: u8, birth: Txg) -> BlockPointer {
        let size = content.len() as u64;
        let offset_bytes = self.end.fetch_add(size, Ordering::Relaxed);
        let place = VDEV_DATA_START_BYTES + offset_bytes;
        self.device.write(place, content).unwrap();
        let dva = Dva {
            vdev: VdevId(0),
            offset_bytes,
            asize_bytes: size,
            is_gang: false,
        };
        let function = ChecksumKind::Fletcher4;
        let mut pointer = BlockPointer::default();
        pointer.words[..2].copy_from_slice(&dva.to_words());
        pointer.words[6] = (size / 512 - 1)
            | (size / 512 - 1) << 16
            | u64::from(CompressionKind::Off.number()) << 32
            | u64::from(function.number()) << 40
            | u64::from(kind.0) << 48
            | u64::from(level) << 56
            | 1 << 63;
        (pointer.words[10], pointer.words[11]) = (birth.0, 1);
        let words = checksum(function, content, Endian::Little, None).unwrap();
        pointer.words[12..].copy_from_slice(&words);
        pointer
    }

    pub fn indirect(&self, children: &[BlockPointer], kind: ObjectType, level: u8) -> BlockPointer {
        let birth = children.iter().map(|child| child.birth()).max().unwrap();
        let mut content: Vec<u8> = children.iter().flat_map(BlockPointer::encode).collect();
        content.resize(FANOUT * 128, 0);
        self.block(&content, kind, level, birth)
    }

    /// An object above these data blocks, with up to three pointers in the dnode.
    pub fn object(&self, kind: ObjectType, sectors: u16, data: Vec<BlockPointer>) -> Dnode {
        let block_id_max = BlockId(data.len() as u64 - 1);
        let (mut pointers, mut levels) = (data, 1);
        while pointers.len() > 3 {
            let groups = pointers.chunks(FANOUT);
            pointers = groups
                .map(|group| self.indirect(group, kind, levels))
                .collect();
            levels += 1;
        }
        Dnode {
            object_type: kind,
            indirect_block_shift: 12,
            levels,
            bonus_type: ObjectType::NONE,
            checksum: 0,
            compression: 0,
            flags: DnodeFlags::empty(),
            data_block_sectors: sectors,
            extra_slots: 0,
            block_id_max,
            used: 0,
            block_pointers: pointers,
            bonus: vec![],
            bonus_tail: vec![],
            spill: None,
            endian: Endian::Little,
        }
    }

    pub fn file(&self, births: &[Txg]) -> Dnode {
        let data = |birth: &Txg| self.block(&[7; 512], ObjectType::OTHER_U8, 0, *birth);
        self.object(ObjectType::OTHER_U8, 1, births.iter().map(data).collect())
    }

    /// A set with these objects from 1 on. Eight dnodes are in a block.
    pub fn set(&self, objects: &[Dnode], birth: Txg) -> BlockPointer {
        let mut bytes = vec![0; 512];
        for dnode in objects {
            bytes.extend(dnode.encode().unwrap());
        }
        self.set_of(&bytes, birth)
    }

    pub fn set_of(&self, dnodes: &[u8], birth: Txg) -> BlockPointer {
        let blocks = dnodes.chunks(4096).map(|chunk| {
            let mut content = chunk.to_vec();
            content.resize(4096, 0);
            self.block(&content, ObjectType::DNODE, 0, birth)
        });
        let meta = self.object(ObjectType::DNODE, 8, blocks.collect());
        let phys = ObjectSetPhys {
            meta_dnode: meta,
            intent_log_header: [0; 24],
            kind: ObjectSetKind::Other,
            flags: 0,
            portable_mac: [0; 32],
            local_mac: [0; 32],
            user_used: Some(self.file(&[birth])),
            group_used: Some(self.file(&[birth])),
            project_used: None,
        };
        let content = phys.encode(4096).unwrap();
        self.block(&content, ObjectType::OBJECT_SET, 0, birth)
    }

    /// A set with several levels of dnodes and of data, a spill block, and an object without blocks.
    pub fn varied(&self) -> BlockPointer {
        let mut objects: Vec<Dnode> = (0..40)
            .map(|number| self.file(&vec![NEW; number % 4 + 1]))
            .collect();
        objects[5] = self.file(&[NEW; 100]);
        objects[7] = self.file(&[NEW; 1100]);
        objects[9].flags = DnodeFlags::SPILL_POINTER;
        objects[9].spill = Some(self.block(&[9; 512], ObjectType::SA, 0, NEW));
        objects[11].block_pointers = vec![BlockPointer::default()];
        self.set(&objects, NEW)
    }
}

/// Records what it is called for.
#[derive(Default)]
pub struct Recorder {
    pub seen: Mutex<Vec<(BlockAddress, Side)>>,
    /// The blocks that hold pointers or dnodes.
    pub parents: Mutex<Vec<BlockPointer>>,
    pub faults: Mutex<Vec<Fault>>,
    pub objects_done: Mutex<Vec<ObjectId>>,
    /// Stops before this many blocks were visited.
    pub stops_after: Option<usize>,
    pub stops_at_faults: bool,
    pub stops_at: Option<ObjectId>,
}

impl Recorder {
    pub fn seen(&self) -> Vec<(BlockAddress, Side)> {
        self.seen.lock().clone()
    }
    pub fn sorted(&self) -> Vec<BlockAddress> {
        let mut seen: Vec<_> = self.seen().iter().map(|(address, _)| *address).collect();
        seen.sort();
        seen
    }
}

impl Visitor for Recorder {
    type Tree = ();
    type Object = Mutex<u64>;

    fn visit(&self, block: &Visit<'_, Self>) -> Step {
        let mut seen = self.seen.lock();
        if self.stops_after == Some(seen.len()) {
            return Step::Stop;
        }
        *block.object.state.lock() += 1;
        seen.push((block.address(), block.side));
        if block.leads_on() {
            self.parents.lock().push(*block.pointer);
        }
        Step::Descend
    }
    fn object(&self, object: &Object<Self>) -> Step {
        match self.stops_at == Some(object.id) {
            true => Step::Stop,
            false => Step::Descend,
        }
    }
    fn object_done(&self, object: Object<Self>) {
        self.objects_done.lock().push(object.id);
    }
    fn fault(&self, _: &Visit<'_, Self>, fault: Fault) -> Step {
        self.faults.lock().push(fault);
        match self.stops_at_faults {
            true => Step::Stop,
            false => Step::Skip,
        }
    }
}

pub fn address(object: u64, level: u8, block: u64) -> BlockAddress {
    BlockAddress {
        dataset: 5,
        object: ObjectId(object),
        level: Level(level),
        block: BlockId(block),
    }
}
