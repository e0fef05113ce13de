//! The objects of the MOS: their tables, feature counts and references.

use super::dsl::Dsl;
use super::features::{self, Counted, InMos};
use super::finding::{Finding, FindingKind};
use super::objects::References;
use super::{Findings, Progress, tables};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_object::ObjectView;
use millpond_ondisk::pool_directory::{OBJECT_DIRECTORY, key, vdev_key};
use millpond_ondisk::{ObjectId, ObjectType, ScanPhys, WordArray};
use millpond_pool::PoolSpaceMaps;
use millpond_pool::PoolView;
use millpond_vdev::VdevConfig;
use millpond_zap::Zap;

/// Size of a space map header with a histogram, in bytes.
const HEADER_WITH_HISTOGRAM: usize = 320;

/// Results of the pass over the objects. Takes 24 bytes per object.
#[derive(Default)]
pub(super) struct MosPass {
    state: Mutex<State, rank::CheckSums>,
}

#[derive(Default)]
struct State {
    existing: Vec<(u64, &'static str)>,
    counted: InMos,
    is_partial: bool,
    /// References found in tables that only this pass reads.
    further: Vec<(ObjectId, &'static str)>,
}

/// Entries of the object directory that are numbers or arrays rather than objects.
const NOT_OBJECTS: [&str; 9] = [
    key::CREATION_VERSION,
    key::DEFLATE,
    key::CHECKSUM_SALT,
    key::SCAN,
    key::ERROR_SCRUB,
    key::LAST_SCRUBBED_TXG,
    key::CHECKPOINT,
    key::REMOVING,
    "com.delphix:condensing_indirect",
];

impl MosPass {
    pub(super) fn run(&self, pool: &Arc<PoolView>, progress: &Progress, findings: &Findings<'_>) {
        let mut state = State::default();
        for object in pool.mos().objects() {
            let object = match object {
                Ok(object) => object,
                Err(_) => {
                    // The pass over blocks reports this.
                    state.is_partial = true;
                    continue;
                }
            };
            progress.add_object();
            state.object(&object, findings);
        }
        *self.state.lock() = state;
    }

    /// Compares counts and references after everything else has been read.
    pub(super) fn finish(
        &self,
        pool: &Arc<PoolView>,
        dsl: &Dsl,
        counted: &Counted<'_>,
        references: References,
        findings: &Findings<'_>,
    ) {
        let state = std::mem::take(&mut *self.state.lock());
        if !state.is_partial {
            features::judge(pool, dsl, counted, &state.counted, findings);
        }
        for (id, what) in &state.further {
            references.note(*id, what);
        }
        note_bookmarks(dsl, &references, findings);
        let is_whole = note_pool(pool, &references) && !dsl.is_partial && !state.is_partial;
        // Old pools keep objects at positions that newer ones do not have.
        let is_known = pool.version() >= 5000;
        references.judge(&state.existing, is_whole && is_known, findings);
    }
}

impl State {
    fn object(&mut self, object: &ObjectView, findings: &Findings<'_>) {
        let dnode = object.dnode();
        let kind = dnode.object_type;
        self.existing.push((object.id().0, kind.name()));
        if tables::is_table(object) {
            tables::judge(object, "", findings);
        }
        if kind == ObjectType::SPACE_MAP && dnode.bonus.len() >= HEADER_WITH_HISTOGRAM {
            self.counted.histograms += 1;
        }
        let zap = || Zap::open(object.clone()).ok();
        let is_table = kind == ObjectType::METADATA_ZAP;
        if is_table
            && matches!(
                dnode.bonus_type,
                ObjectType::DSL_DATASET | ObjectType::DSL_DIRECTORY
            )
        {
            self.counted.extensible += 1;
            for entry in zap().iter().flat_map(|zap| zap.iter()).flatten() {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let is_feature = millpond_ondisk::Feature::by_guid(&name).is_some();
                if is_feature && dnode.bonus_type == ObjectType::DSL_DATASET {
                    *self.counted.in_datasets.entry(name).or_default() += 1;
                }
            }
        }
        // Permission tables refer to further tables, and error logs to those of datasets.
        let leads_on = match kind {
            ObjectType::DSL_PERMISSIONS => "a table of permissions",
            ObjectType::ERROR_LOG => "an error log",
            _ => return,
        };
        for entry in zap().iter().flat_map(|zap| zap.iter()).flatten() {
            if entry.value.integer_bytes == 8 && entry.value.count() == 1 {
                let id = entry.value.first().unwrap_or(0);
                self.further.push((ObjectId(id), leads_on));
            }
        }
    }
}

fn words(object: &ObjectView) -> Vec<u64> {
    object
        .bonus()
        .map(|bonus| {
            WordArray::new(bonus, object.dnode().endian)
                .iter()
                .collect()
        })
        .unwrap_or_default()
}

/// Records all references from the pool's own structures. Returns whether all of them could be read.
fn note_pool(pool: &Arc<PoolView>, references: &References) -> bool {
    let mos = pool.mos();
    let mut is_whole = true;
    references.note(OBJECT_DIRECTORY, "the object directory");
    let open = |id: ObjectId| {
        mos.object(id)
            .ok()
            .and_then(|object| Zap::open(object).ok())
    };
    let Some(directory) = open(OBJECT_DIRECTORY) else {
        return false;
    };
    for entry in directory.iter() {
        let Ok(entry) = entry else {
            is_whole = false;
            continue;
        };
        let name = String::from_utf8_lossy(&entry.name).into_owned();
        if name == key::SCAN {
            let words: Vec<u64> = entry.value.integers().collect();
            let queue = ScanPhys::from_words(&words)
                .ok()
                .and_then(|scan| scan.queue);
            references.note(ObjectId(ObjectId::number(queue)), "the queue of a scan");
        }
        let is_single = entry.value.count() == 1 && entry.value.integer_bytes == 8;
        if NOT_OBJECTS.contains(&name.as_str()) || !is_single {
            if name == "com.delphix:condensing_indirect" {
                // The condensing state refers to a space map and a mapping, which may have counts.
                for (word, id) in entry.value.integers().enumerate().skip(1) {
                    let Ok(object) = mos.object(ObjectId(id)) else {
                        continue;
                    };
                    references.note(ObjectId(id), "a mapping under way");
                    if let Some(counts) = words(&object).get(3).filter(|_| word == 2) {
                        references.note(ObjectId(*counts), "the counts of a mapping under way");
                    }
                }
            }
            continue;
        }
        let id = ObjectId(entry.value.first().unwrap_or(0));
        references.note(id, "an entry of the object directory");
        if name.starts_with("DDT-") && name != key::DEDUP_STATISTICS {
            // The directory of a fast dedup table.
            let is_table = mos
                .object(id)
                .is_ok_and(|object| object.dnode().object_type == ObjectType::METADATA_ZAP);
            for entry in open(id)
                .filter(|_| is_table)
                .iter()
                .flat_map(|zap| zap.iter())
                .flatten()
            {
                if entry.name.starts_with(b"DDT-") {
                    let id = entry.value.first().unwrap_or(0);
                    references.note(ObjectId(id), "a dedup table or log");
                }
            }
        }
    }
    if let Ok(Some(id)) = pool.find_directory_object(key::LOG_SPACE_MAP_ZAP) {
        for entry in open(id).iter().flat_map(|zap| zap.iter()).flatten() {
            references.note(
                ObjectId(entry.value.first().unwrap_or(0)),
                "a log space map",
            );
        }
    }
    let topology = pool.store().topology();
    for node in topology.tree.nodes() {
        note_vdev(pool, &node.config, references, &open);
    }
    for list in pool.spares().iter().chain(pool.caches()) {
        if let Ok(id) = list.u64("com.delphix:vdev_zap_leaf") {
            references.note(ObjectId(id), "the ZAP of a vdev");
        }
    }
    match PoolSpaceMaps::load(pool) {
        Ok(maps) => {
            for (map, what) in maps.objects() {
                references.note(map, what);
            }
        }
        Err(_) => is_whole = false,
    }
    is_whole
}

fn note_vdev(
    pool: &Arc<PoolView>,
    config: &VdevConfig,
    references: &References,
    open: &dyn Fn(ObjectId) -> Option<Zap>,
) {
    for (id, what) in [
        (config.dtl, "a dirty time log"),
        (config.indirect_mapping, "the mapping of a removed vdev"),
        (config.indirect_births, "the births of a removed vdev"),
        (config.zap_leaf, "the ZAP of a vdev"),
        (config.zap_top, "the ZAP of a vdev"),
        (config.zap_root, "the ZAP of the root vdev"),
        (config.metaslab_array.some(), "an array of metaslabs"),
    ] {
        references.note(ObjectId(ObjectId::number(id)), what);
    }
    if let Some(mapping) = config.indirect_mapping
        && let Ok(object) = pool.mos().object(mapping)
        && let Some(counts) = words(&object).get(3)
    {
        references.note(ObjectId(*counts), "the counts of a removed vdev");
    }
    for zap in [config.zap_top, config.zap_leaf, config.zap_root]
        .into_iter()
        .flatten()
        .filter_map(ObjectId::some)
    {
        let Some(zap) = open(zap) else { continue };
        for name in [
            vdev_key::UNFLUSHED_TXGS,
            vdev_key::CHECKPOINT_SPACE_MAP,
            vdev_key::OBSOLETE_SPACE_MAP,
        ] {
            if let Ok(Some(id)) = zap.lookup_u64(name.as_bytes()) {
                references.note(ObjectId(id), "a map of a vdev");
            }
        }
    }
}

/// Records references from the bookmarks of datasets.
fn note_bookmarks(dsl: &Dsl, references: &References, findings: &Findings<'_>) {
    for node in &dsl.datasets {
        match node.dataset.bookmarks() {
            Ok(marks) => {
                for list in marks.iter().filter_map(|mark| mark.phys.redaction_list) {
                    references.note(list, "a list of redaction");
                }
            }
            Err(error) => {
                let finding = Finding::new(FindingKind::Unreadable, error.to_string());
                findings.add(finding.of(&node.name));
            }
        }
    }
}
