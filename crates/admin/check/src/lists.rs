//! Lists of block pointers: deadlists, livelists and deferred frees.

use super::finding::{Finding, FindingKind};
use super::objects::References;
use super::sums::{Ratios, Sums, place_mark};
use super::{Findings, Mark};
use millpond_env::rank;
use millpond_env::sync::{Arc, Mutex};
use millpond_object::{ObjectSetView, ObjectView};
use millpond_ondisk::dsl::hex_key_number;
use millpond_ondisk::{
    BlockId, BlockPointer, BpObjectEntries, BpObjectEntry, BpObjectForm, BpObjectPhys,
    DeadlistPhys, ObjectId, ObjectType, Txg, WordArray, live_pointers,
};
use millpond_zap::Zap;
use std::collections::HashSet;

/// Upper bound of the nesting depth of lists.
const DEPTH_MAX: u32 = 64;

/// Reads the lists of a pool. Remembers the lists it has seen, because each list has exactly one parent.
/// Takes 16 bytes per list.
pub(super) struct Lists<'a> {
    pub(super) mos: &'a Arc<ObjectSetView>,
    pub(super) ratios: &'a Ratios,
    pub(super) findings: &'a Findings<'a>,
    pub(super) references: &'a References,
    pub(super) empty: Option<ObjectId>,
    pub(super) met: Mutex<HashSet<u64>, rank::CheckSums>,
    /// References to the shared empty list.
    pub(super) empty_references: Mutex<u64, rank::CheckSums>,
}

/// The result of counting a deadlist.
#[derive(Debug, Clone, Default)]
pub(super) struct DeadCounted {
    pub(super) sums: Sums,
    /// Its keys in ascending order.
    pub(super) keys: Vec<Txg>,
    pub(super) is_partial: bool,
    /// Whether it has the old format without keys.
    pub(super) is_plain: bool,
}

type Each<'e> = &'e mut dyn FnMut(&BpObjectEntry);

impl Lists<'_> {
    fn tell(&self, kind: FindingKind, name: &str, id: ObjectId, detail: String) {
        let detail = format!("list {id}: {detail}");
        self.findings.add(Finding::new(kind, detail).of(name));
    }

    /// Calls `each` for every entry of a list and its sublists, and checks their headers. `None` if something
    /// could not be read.
    pub(super) fn read(&self, name: &str, id: ObjectId, each: Each<'_>) -> Option<Sums> {
        self.read_at(name, id, 0, each)
    }

    fn read_at(&self, name: &str, id: ObjectId, depth: u32, each: Each<'_>) -> Option<Sums> {
        self.references.note(id, "a list of blocks");
        if depth > DEPTH_MAX || !self.met.lock().insert(id.0) {
            let detail = "it hangs in two places, or below itself".to_owned();
            self.tell(FindingKind::BlockListSum, name, id, detail);
            return None;
        }
        let unreadable = |error: String| {
            self.tell(FindingKind::MissingObject, name, id, error);
        };
        let object = self
            .mos
            .object(id)
            .map_err(|error| unreadable(error.to_string()))
            .ok()?;
        if object.dnode().object_type != ObjectType::BPOBJ {
            unreadable("the object is not a list of blocks".into());
            return None;
        }
        let header = object
            .bonus()
            .map_err(|error| error.to_string())
            .and_then(|bonus| {
                BpObjectPhys::decode(bonus, object.dnode().endian)
                    .map_err(|error| error.to_string())
            })
            .map_err(unreadable)
            .ok()?;
        let mut sums = Sums::default();
        let mut own = 0u64;
        let mut freed = 0u64;
        let whole = each_block(&object, header.pointer_count, 128, &mut |bytes, endian| {
            for entry in BpObjectEntries::new(bytes, endian) {
                own += 1;
                let counted = self.ratios.sums(&entry.pointer);
                if entry.is_freed {
                    freed += 1;
                    sums -= counted;
                } else {
                    sums += counted;
                }
                each(&entry);
            }
        });
        if let Err(error) = whole {
            unreadable(error);
            return None;
        }
        if own != header.pointer_count {
            let detail = format!("{} entries counted, {own} there", header.pointer_count);
            self.tell(FindingKind::BlockListSum, name, id, detail);
        }
        if let Some(array) = header.sub_objects {
            self.references.note(array, "an array of lists");
            let object = self
                .mos
                .object(array)
                .map_err(|error| unreadable(error.to_string()))
                .ok()?;
            let mut subs = vec![];
            let read = each_block(&object, header.sub_object_count, 8, &mut |bytes, endian| {
                // Each id is a separate list, so their count is bounded by that of the objects in the MOS.
                subs.extend(WordArray::new(bytes, endian).iter());
            });
            if let Err(error) = read {
                unreadable(error);
                return None;
            }
            for sub in subs {
                sums += self.read_at(name, ObjectId(sub), depth + 1, each)?;
            }
        }
        let expect = |what: &str, stored: u64, counted: i64| {
            if i64::try_from(stored) != Ok(counted) {
                let detail = format!("{what}: {stored} stored, {counted} counted");
                self.tell(FindingKind::BlockListSum, name, id, detail);
            }
        };
        // The totals of one list of a livelist may be negative; they are stored with wrap-around.
        let is_livelist = freed > 0 || header.freed_count > 0;
        if !is_livelist {
            expect("bytes", header.bytes, sums.used);
            if header.form >= BpObjectForm::Sizes {
                expect("physical bytes", header.compressed_bytes, sums.compressed);
                expect(
                    "logical bytes",
                    header.uncompressed_bytes,
                    sums.uncompressed,
                );
            }
        }
        if header.form >= BpObjectForm::Freed {
            expect(
                "freed entries",
                header.freed_count,
                i64::try_from(freed).unwrap_or(i64::MAX),
            );
        }
        Some(sums)
    }

    /// The keys of a deadlist or livelist with their lists, in ascending order.
    fn keys(&self, name: &str, object: &ObjectView) -> Option<Vec<(Txg, ObjectId)>> {
        let id = object.id();
        let zap = Zap::open(object.clone())
            .map_err(|error| self.tell(FindingKind::Unreadable, name, id, error.to_string()))
            .ok()?;
        let mut keys = vec![];
        for entry in zap.iter() {
            match entry {
                Ok(entry) => match (hex_key_number(&entry.name), entry.value.first()) {
                    (Some(key), Some(list)) => keys.push((Txg(key), ObjectId(list))),
                    _ => {
                        let detail = format!("{:?} is no key", entry.name.escape_ascii());
                        self.tell(FindingKind::DeadlistKey, name, id, detail.replace('"', ""));
                    }
                },
                Err(error) => {
                    self.tell(FindingKind::Unreadable, name, id, error.to_string());
                    return None;
                }
            }
        }
        keys.sort();
        Some(keys)
    }

    /// Counts a deadlist. Checks headers, keys, and that the birth of each entry matches its key.
    pub(super) fn deadlist(&self, name: &str, id: ObjectId, each: Each<'_>) -> DeadCounted {
        self.references.note(id, "a deadlist");
        let mut counted = DeadCounted::default();
        let failed = DeadCounted {
            is_partial: true,
            ..DeadCounted::default()
        };
        let object = match self.mos.object(id) {
            Ok(object) => object,
            Err(error) => {
                self.tell(FindingKind::MissingObject, name, id, error.to_string());
                return failed;
            }
        };
        if object.dnode().object_type == ObjectType::BPOBJ {
            return match self.read(name, id, each) {
                Some(sums) => DeadCounted {
                    sums,
                    is_plain: true,
                    ..counted
                },
                None => failed,
            };
        }
        let Some(keys) = self.keys(name, &object) else {
            return failed;
        };
        for (at, (key, list)) in keys.iter().enumerate() {
            counted.keys.push(*key);
            if Some(*list) == self.empty {
                *self.empty_references.lock() += 1;
                continue;
            }
            let end = keys.get(at + 1).map_or(Txg(u64::MAX), |(next, _)| *next);
            let mut wrong = None;
            let sums = self.read(name, *list, &mut |entry| {
                let birth = entry.pointer.allocation_birth();
                if birth <= *key || birth > end {
                    wrong.get_or_insert(birth);
                }
                each(entry);
            });
            if let Some(birth) = wrong {
                let detail = format!("a block of txg {birth} under the key {key} (up to {end})");
                self.tell(FindingKind::DeadlistKey, name, *list, detail);
            }
            match sums {
                Some(sums) => counted.sums += sums,
                None => counted.is_partial = true,
            }
        }
        let header = object
            .bonus()
            .ok()
            .and_then(|bonus| DeadlistPhys::decode(bonus, object.dnode().endian).ok());
        let Some(header) = header else {
            self.tell(FindingKind::Unreadable, name, id, "it has no header".into());
            return counted;
        };
        if !counted.is_partial {
            let sums = counted.sums;
            for (what, stored, counted) in [
                ("bytes", header.used_bytes, sums.used),
                ("physical bytes", header.compressed_bytes, sums.compressed),
                (
                    "logical bytes",
                    header.uncompressed_bytes,
                    sums.uncompressed,
                ),
            ] {
                if i64::try_from(stored) != Ok(counted) {
                    let detail =
                        format!("deadlist, {what}: {stored} stored, {counted} in its lists");
                    self.tell(FindingKind::BlockListSum, name, id, detail);
                }
            }
        }
        counted
    }

    /// The live blocks according to a livelist: the mark of their addresses, and their totals. Only one
    /// sublist is in memory at a time, usually half a million entries.
    pub(super) fn livelist(
        &self,
        name: &str,
        id: ObjectId,
        each: &mut dyn FnMut(&BlockPointer),
    ) -> Option<(Mark, Sums)> {
        self.references.note(id, "a livelist");
        let object = match self.mos.object(id) {
            Ok(object) => object,
            Err(error) => {
                self.tell(FindingKind::MissingObject, name, id, error.to_string());
                return None;
            }
        };
        let (mut places, mut sums) = (Mark::default(), Sums::default());
        for (key, list) in self.keys(name, &object)? {
            let mut entries = vec![];
            self.read(name, list, &mut |entry| entries.push(*entry))?;
            for pointer in live_pointers(&entries) {
                if pointer.allocation_birth() <= key {
                    let detail = format!("a block of txg {} under the key {key}", pointer.birth());
                    self.tell(FindingKind::Livelist, name, list, detail);
                }
                places = places.plus(place_mark(&pointer));
                sums += self.ratios.sums(&pointer);
                each(&pointer);
            }
        }
        let header = object
            .bonus()
            .ok()
            .and_then(|bonus| DeadlistPhys::decode(bonus, object.dnode().endian).ok());
        if let Some(header) = header
            && i64::try_from(header.used_bytes) != Ok(sums.used)
        {
            let detail = format!(
                "livelist: {} bytes stored, {} in its lists",
                header.used_bytes, sums.used
            );
            self.tell(FindingKind::BlockListSum, name, id, detail);
        }
        Some((places, sums))
    }
}

/// Passes the first `count` entries of `width` bytes of an object to `each`, block by block. Holes are
/// skipped: no writer leaves one in a list.
pub(super) fn each_block(
    object: &ObjectView,
    count: u64,
    width: u64,
    each: &mut dyn FnMut(&[u8], millpond_ondisk::Endian),
) -> Result<(), String> {
    let length = count.saturating_mul(width);
    let size = object.block_bytes();
    if size == 0 || length > object.length_bytes() {
        return Err(if length == 0 {
            return Ok(());
        } else {
            "it is longer than its object".into()
        });
    }
    let mut next = BlockId(0);
    while let Some(block) = object
        .next_data_block(next)
        .map_err(|error| error.to_string())?
    {
        let start = block.0.saturating_mul(size);
        if start >= length {
            break;
        }
        let content = object
            .read_block(block)
            .map_err(|error| error.to_string())?;
        let take = usize::try_from((length - start).min(size)).unwrap_or(0);
        let take = take.min(content.bytes.len());
        each(&content.bytes[..take], content.endian);
        next = BlockId(block.0.saturating_add(1));
    }
    Ok(())
}
