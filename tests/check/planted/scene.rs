//! A small pool with all kinds of content, and the tools to damage it.
//!
//! The damage is applied to decoded blocks of an image. They and all blocks above them are then compressed,
//! checksummed and written back to their positions. Nothing else in the pool changes.

use millpond_check::{CheckOptions, CheckReport, FindingKind, check_pool};
use millpond_dataset::{Dataset, PropertyValue};
use millpond_engine::{Caller, FeatureChoice, NewMode, Pool, PoolBuilder, WriteAt, XattrMode};
use millpond_env::Env;
use millpond_env::sync::Arc;
use millpond_object::{ObjectSetView, ObjectView};
use millpond_ondisk::{BlockId, BlockPointer, FEATURES, Level, ObjectId};
use millpond_pool::import::{find_pools, scan_devices};
use millpond_pool::{OpenOptions, PoolView};
use millpond_posix::{QuotaMeasure, QuotaOwner};
use millpond_sim::noise;
use millpond_tests::hostile::image::{Changed, PoolImage, candidate};
use millpond_tests::hostile::overlay::Overlay;
use millpond_zap::Zap;
use std::sync::OnceLock;

/// The original pool, its blocks and the whole image.
pub struct Scene {
    pub pool: Arc<PoolView>,
    pub image: PoolImage,
}

fn write(pool: &Pool, dataset: &str, name: &str, length: usize) {
    let files = pool.file_system(dataset).unwrap();
    let (root, caller) = (files.root().unwrap(), Caller::root());
    let made = files.create(
        &caller,
        &root,
        name.as_bytes(),
        NewMode::exactly(0o644),
        false,
    );
    let (node, _) = made.unwrap();
    let bytes = noise(length as u64, length);
    files
        .write(&caller, &node, WriteAt::Offset(0), &bytes)
        .unwrap();
}

fn number(name: &str, value: u64) -> (String, PropertyValue) {
    (name.to_owned(), PropertyValue::Number(value))
}

/// Disables embedded blocks, so that small tables are stored in blocks that can be changed in place.
fn features() -> FeatureChoice {
    let names = FEATURES.iter().map(|feature| feature.name());
    let kept = names.filter(|name| *name != "embedded_data");
    FeatureChoice::Compatible(kept.map(str::to_owned).collect())
}

fn make(path: &std::path::Path) {
    std::fs::File::create(path)
        .unwrap()
        .set_len(80 << 20)
        .unwrap();
    let plan = PoolBuilder::new("tank").single(path).features(features());
    let pool = plan.create().unwrap();
    let datasets = pool.datasets();
    let caller = Caller::root();

    // Files of all kinds, without snapshots.
    datasets.create_filesystem("tank/plain", &[]).unwrap();
    write(&pool, "tank/plain", "large", 400_000);
    write(&pool, "tank/plain", "small", 3000);
    write(&pool, "tank/plain", "twin", 3000);
    {
        let files = pool.file_system("tank/plain").unwrap();
        let root = files.root().unwrap();
        let mode = NewMode::exactly(0o755);
        let folder = files
            .make_directory(&caller, &root, b"folder", mode)
            .unwrap();
        files
            .make_directory(&caller, &folder, b"below", mode)
            .unwrap();
        let small = root.lookup(b"small").unwrap();
        files.link(&small, &folder, b"second").unwrap();
        files
            .make_symlink(&caller, &root, b"link", b"folder/second")
            .unwrap();
        let many = files.make_directory(&caller, &root, b"many", mode).unwrap();
        for at in 0..40 {
            let name = format!("{at:03}-{}", "x".repeat(60));
            let mode = NewMode::exactly(0o600);
            files
                .create(&caller, &many, name.as_bytes(), mode, true)
                .unwrap();
        }
        files
            .set_quota(QuotaOwner::User, QuotaMeasure::Bytes, 1000, 1 << 30)
            .unwrap();
    }
    let directory = [("xattr".to_owned(), PropertyValue::Number(1))];
    datasets
        .create_filesystem("tank/attributes", &directory)
        .unwrap();
    write(&pool, "tank/attributes", "owner", 100);
    {
        let files = pool.file_system("tank/attributes").unwrap();
        let owner = files.root().unwrap().lookup(b"owner").unwrap();
        let set = files.set_xattr(&caller, &owner, b"user.note", b"value", XattrMode::Set);
        set.unwrap();
    }
    datasets
        .create_filesystem("tank/large", &[number("recordsize", 1 << 20)])
        .unwrap();
    write(&pool, "tank/large", "file", 2 << 20);
    let size = [number("volsize", 4 << 20)];
    datasets.create_volume("tank/disk", &size).unwrap();

    // Snapshots, a bookmark, a clone, and blocks freed between them.
    datasets.create_filesystem("tank/chain", &[]).unwrap();
    write(&pool, "tank/chain", "a", 200_000);
    write(&pool, "tank/chain", "b", 100_000);
    datasets.snapshot(&["tank/chain@one"], &[]).unwrap();
    datasets
        .bookmark("tank/chain@one", "tank/chain#one")
        .unwrap();
    write(&pool, "tank/chain", "a", 150_000);
    write(&pool, "tank/chain", "c", 300_000);
    datasets.snapshot(&["tank/chain@two"], &[]).unwrap();
    write(&pool, "tank/chain", "c", 250_000);
    datasets.hold(&["tank/chain@one"], "kept").unwrap();
    datasets
        .clone_snapshot("tank/chain@two", "tank/clone", &[])
        .unwrap();
    write(&pool, "tank/clone", "d", 60_000);
    pool.export().unwrap();
}

fn open(overlay: Overlay) -> Result<Arc<PoolView>, String> {
    let found = scan_devices(vec![candidate(overlay)]);
    let pools = find_pools(&found, 0);
    let pool = pools.first().ok_or("no pool")?;
    PoolView::open(&Env::real(), pool, &OpenOptions::default()).map_err(|error| error.to_string())
}

impl Scene {
    /// Returns the scene, which is created once for all tests.
    pub fn get() -> &'static Self {
        static SCENE: OnceLock<Scene> = OnceLock::new();
        SCENE.get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("d0.img");
            make(&path);
            let image = PoolImage::load(&path).unwrap();
            let pool = open(image.change().seal_in_place().unwrap()).unwrap();
            Self { pool, image }
        })
    }

    /// Applies damage to the pool and returns the result of a check.
    pub fn check(&self, damage: impl FnOnce(&Self, &mut Changed<'_>)) -> CheckReport {
        self.check_overlay(damage, |_| {})
    }

    /// Like `check`, with further changes to the finished image.
    pub fn check_overlay(
        &self,
        damage: impl FnOnce(&Self, &mut Changed<'_>),
        over: impl FnOnce(&mut Overlay),
    ) -> CheckReport {
        let pool = self.open(damage, over);
        check_pool(&pool, &CheckOptions::default()).unwrap()
    }

    /// The pool with damage.
    pub fn open(
        &self,
        damage: impl FnOnce(&Self, &mut Changed<'_>),
        over: impl FnOnce(&mut Overlay),
    ) -> Arc<PoolView> {
        let mut change = self.image.change();
        damage(self, &mut change);
        let mut overlay = change.seal_in_place().unwrap();
        over(&mut overlay);
        open(overlay).unwrap()
    }

    pub fn dataset(&self, name: &str) -> Dataset {
        Dataset::find(&self.pool, name).unwrap()
    }
    pub fn set(&self, name: &str) -> Arc<ObjectSetView> {
        self.dataset(name).object_set(None).unwrap()
    }
    /// Finds a file's object by its name in the root directory of a dataset.
    pub fn file(&self, dataset: &str, path: &str) -> ObjectView {
        let set = self.set(dataset);
        let master = Zap::open(set.object(ObjectId(1)).unwrap()).unwrap();
        let mut at = master.lookup_u64(b"ROOT").unwrap().unwrap();
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let zap = Zap::open(set.object(ObjectId(at)).unwrap()).unwrap();
            at = zap.lookup_u64(name.as_bytes()).unwrap().unwrap() & 0xffff_ffff_ffff;
        }
        set.object(ObjectId(at)).unwrap()
    }
    pub fn master(&self, dataset: &str, key: &str) -> ObjectView {
        let set = self.set(dataset);
        let master = Zap::open(set.object(ObjectId(1)).unwrap()).unwrap();
        let id = master.lookup_u64(key.as_bytes()).unwrap().unwrap();
        set.object(ObjectId(id)).unwrap()
    }
    pub fn mos(&self, id: u64) -> ObjectView {
        self.pool.mos().object(ObjectId(id)).unwrap()
    }
    pub fn directory_entry(&self, key: &str) -> u64 {
        self.pool.directory_number(key).unwrap().unwrap()
    }

    /// The position of an object's dnode: block and first byte.
    pub fn dnode(&self, object: &ObjectView) -> (usize, usize) {
        let set = object.object_set();
        let per_block = set.phys().meta_dnode.data_block_bytes() / 512;
        let id = object.id().0;
        let block = BlockId(id / per_block);
        let pointer = set.meta_object().pointer(Level(0), block).unwrap();
        let number = self.image.block_of(&pointer).unwrap();
        (number, (id % per_block) as usize * 512)
    }
    /// The position of a byte in an object's bonus.
    pub fn bonus(&self, object: &ObjectView, byte: usize) -> (usize, usize) {
        let (block, at) = self.dnode(object);
        let pointers = object.dnode().block_pointers.len();
        (block, at + 64 + 128 * pointers + byte)
    }
    /// The position of a byte in a file's attributes, counted from the end of their header.
    pub fn attribute(&self, file: &ObjectView, byte: usize) -> (usize, usize) {
        let header = u16::from_le_bytes([file.dnode().bonus[4], file.dnode().bonus[5]]);
        self.bonus(file, usize::from(header >> 10) * 8 + byte)
    }
    /// The number of an object's data block in the image.
    pub fn data(&self, object: &ObjectView, block: u64) -> usize {
        let pointer = object.pointer(Level(0), BlockId(block)).unwrap();
        self.image.block_of(&pointer).unwrap()
    }
    /// The position of an object's first block pointer, and the pointer.
    pub fn pointer(&self, object: &ObjectView) -> (usize, usize, BlockPointer) {
        let (block, at) = self.dnode(object);
        (block, at + 64, object.dnode().block_pointers[0])
    }
    /// The position of an entry in a single-block table: its first byte.
    pub fn entry(&self, table: &ObjectView, name: &str) -> (usize, usize) {
        let block = self.data(table, 0);
        let bytes = &self.image.blocks[block].content;
        let mut wanted = name.as_bytes().to_vec();
        wanted.push(0);
        let entries = bytes
            .chunks_exact(64)
            .skip(1)
            .position(|entry| entry[14..].starts_with(&wanted));
        (
            block,
            (entries.unwrap_or_else(|| panic!("no entry {name}")) + 1) * 64,
        )
    }
}

/// Changes blocks by words.
pub trait Damage {
    fn get(&self, place: (usize, usize)) -> u64;
    fn put(&mut self, place: (usize, usize), value: u64);
    /// Adds to a word.
    fn more(&mut self, place: (usize, usize), more: u64) {
        let value = self.get(place).wrapping_add(more);
        self.put(place, value);
    }
    fn put_bytes(&mut self, place: (usize, usize), bytes: &[u8]);
}

impl Damage for Changed<'_> {
    fn get(&self, (block, at): (usize, usize)) -> u64 {
        let bytes = &self.content(block)[at..at + 8];
        u64::from_le_bytes(bytes.try_into().unwrap())
    }
    fn put(&mut self, (block, at): (usize, usize), value: u64) {
        self.put_u64(block, at, value);
    }
    fn put_bytes(&mut self, (block, at): (usize, usize), bytes: &[u8]) {
        self.content_mut(block)[at..at + bytes.len()].copy_from_slice(bytes);
    }
}

/// Asserts that the damage was found and identified.
pub fn expect(report: &CheckReport, kind: FindingKind, dataset: &str, words: &str) {
    for finding in &report.findings {
        println!("{finding}");
    }
    let is_it = |finding: &&millpond_check::Finding| {
        finding.kind == kind
            && finding.dataset.as_deref().unwrap_or("") == dataset
            && finding.to_string().contains(words)
    };
    assert!(
        report.findings.iter().any(|finding| is_it(&finding)),
        "no {} of '{dataset}' with '{words}'",
        kind.code()
    );
}
