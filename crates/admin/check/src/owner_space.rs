//! Checks the space accounting of users, groups and projects against their files.

use super::Findings;
use super::finding::{Finding, FindingKind};
use millpond_env::sync::Arc;
use millpond_object::{Accounting, ObjectSetView, ObjectView, Owners};
use millpond_ondisk::dsl::hex_key_number;
use millpond_ondisk::{DnodeFlags, ObjectType};
use millpond_zap::Zap;
use std::collections::BTreeMap;

/// Bytes charged for an object in addition to its blocks.
const DNODE_BYTES: u64 = 512;
const OBJECTS_PREFIX: &[u8] = b"obj-";

/// Totals by owner. Takes 40 bytes per owner.
#[derive(Default)]
pub(super) struct OwnerSums {
    /// Bytes and objects, by kind (0 user, 1 group, 2 project) and id.
    sums: BTreeMap<(usize, u64), (u64, u64)>,
    is_partial: bool,
}

const KINDS: [(Accounting, &str); 3] = [
    (Accounting::User, "user"),
    (Accounting::Group, "group"),
    (Accounting::Project, "project"),
];

impl OwnerSums {
    /// Adds the space and the count that an object is accounted with.
    pub(super) fn add(&mut self, object: &ObjectView) {
        let dnode = object.dnode();
        if !matches!(dnode.bonus_type, ObjectType::SA | ObjectType::ZNODE) {
            return;
        }
        let spill;
        let attributes = match object.bonus() {
            Ok([]) => {
                spill = object.read_spill();
                match &spill {
                    Ok(Some(block)) => block.bytes.as_slice(),
                    _ => &[],
                }
            }
            Ok(bonus) => bonus,
            Err(_) => {
                self.is_partial = true;
                return;
            }
        };
        let Ok(Some(owners)) = Owners::of(dnode.bonus_type, attributes, dnode.endian) else {
            self.is_partial = true;
            return;
        };
        let bytes = if dnode.flags.contains(DnodeFlags::USER_USED_ACCOUNTED) {
            dnode.used_bytes().saturating_add(DNODE_BYTES)
        } else {
            0
        };
        let objects = u64::from(dnode.flags.contains(DnodeFlags::USER_OBJECT_ACCOUNTED));
        for (kind, owner) in [owners.user, owners.group, owners.project]
            .into_iter()
            .enumerate()
        {
            let sum = self.sums.entry((kind, owner)).or_default();
            sum.0 = sum.0.saturating_add(bytes);
            sum.1 = sum.1.saturating_add(objects);
        }
    }

    /// Compares the totals with the accounting objects.
    pub(super) fn judge(&self, set: &Arc<ObjectSetView>, dataset: &str, findings: &Findings<'_>) {
        if self.is_partial {
            return;
        }
        let flags = set.phys().flags;
        for (kind, (which, word)) in KINDS.into_iter().enumerate() {
            // Objects older than project accounting are not included in the project totals.
            let is_counted = flags & [1, 1, 4][kind] != 0;
            if !is_counted {
                continue;
            }
            let mut stored: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            if let Some(object) = set.accounting(which) {
                // The check of tables reports errors in the table itself.
                let Ok(zap) = Zap::open(object) else { continue };
                for entry in zap.iter().flatten() {
                    let value = entry.value.first().unwrap_or(0);
                    let (key, is_objects) = match entry.name.strip_prefix(OBJECTS_PREFIX) {
                        Some(key) => (key, true),
                        None => (entry.name.as_slice(), false),
                    };
                    match hex_key_number(key) {
                        Some(owner) if is_objects => stored.entry(owner).or_default().1 = value,
                        Some(owner) => stored.entry(owner).or_default().0 = value,
                        None => {
                            let name = entry.name.escape_ascii();
                            let detail = format!("'{name}' is no {word}");
                            let finding = Finding::new(FindingKind::OwnerSpace, detail);
                            findings.add(finding.of(dataset));
                        }
                    }
                }
            }
            let of_kind = self.sums.range((kind, 0)..=(kind, u64::MAX));
            let counted: BTreeMap<u64, (u64, u64)> =
                of_kind.map(|((_, owner), sums)| (*owner, *sums)).collect();
            let owners: std::collections::BTreeSet<u64> =
                counted.keys().chain(stored.keys()).copied().collect();
            for owner in owners {
                let is = stored.get(&owner).copied().unwrap_or_default();
                let should = counted.get(&owner).copied().unwrap_or_default();
                let has_objects = flags & 2 != 0;
                if is.0 != should.0 || (has_objects && is.1 != should.1) {
                    let detail = format!(
                        "{word} {owner} is charged {} bytes and {} files, they take {} and are {}",
                        is.0, is.1, should.0, should.1
                    );
                    let finding = Finding::new(FindingKind::OwnerSpace, detail);
                    findings.add(finding.of(dataset));
                }
            }
        }
    }
}
