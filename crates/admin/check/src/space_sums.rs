//! Checks the space statistics of datasets and directories against the counted blocks.

use super::Findings;
use super::dsl::Dsl;
use super::finding::{Finding, FindingKind};
use super::lists::DeadCounted;
use super::sums::{Mark, Sums};
use super::trees::Counted;
use millpond_dataset::PropertyValue;
use millpond_ondisk::DslDatasetFlags;
use millpond_ondisk::dsl::{DslDirectoryPhys, keys};
use std::collections::BTreeSet;

/// Results of the pass over trees and lists, by dataset.
pub(super) struct Evidence {
    pub(super) counted: Vec<Counted>,
    pub(super) dead: Vec<Option<DeadCounted>>,
    pub(super) live: Vec<Option<(Mark, Sums)>>,
    pub(super) mos: Counted,
    /// Blocks waiting to be freed; `None` if they could not be counted.
    pub(super) free: Option<Sums>,
}

/// The blocks counted for a dataset.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    referenced: Sums,
    /// The part of `referenced` born after the clone's origin.
    own: Sums,
    is_known: bool,
}

pub(super) struct Judge<'a> {
    pub(super) dsl: &'a Dsl,
    pub(super) evidence: &'a Evidence,
    pub(super) findings: &'a Findings<'a>,
}

struct Charge {
    used: i64,
    unused_reservation: i64,
    sums: Sums,
    filesystems: u64,
    snapshots: u64,
    is_known: bool,
}

impl Judge<'_> {
    fn expect(
        &self,
        kind: FindingKind,
        name: &str,
        what: &str,
        stored: impl TryInto<i64>,
        counted: i64,
    ) {
        let stored = stored.try_into().unwrap_or(i64::MAX);
        if stored != counted {
            let detail = format!("{what}: {stored} stored, {counted} counted");
            self.findings.add(Finding::new(kind, detail).of(name));
        }
    }

    pub(super) fn run(&self) {
        let held = self.held();
        for at in 0..self.dsl.datasets.len() {
            self.dataset(at, &held);
        }
        let mut charges: Vec<Option<Charge>> = vec![];
        charges.resize_with(self.dsl.directories.len(), || None);
        // Children have larger indexes than their parents.
        for at in (0..self.dsl.directories.len()).rev() {
            let charge = self.directory(at, &held, &charges);
            charges[at] = Some(charge);
        }
    }

    /// Computes the blocks of each dataset: those of the previous dataset, minus the dead ones, plus the born
    /// ones.
    fn held(&self) -> Vec<Held> {
        let count = self.dsl.datasets.len();
        let mut held: Vec<Option<Held>> = vec![None; count];
        for start in 0..count {
            // Go back to a dataset that is already computed. Chains can be long, so this avoids recursion.
            let (mut path, mut at, mut met) = (vec![], Some(start), BTreeSet::new());
            while let Some(now) = at.filter(|at| held[*at].is_none() && met.insert(*at)) {
                path.push(now);
                at = self.dsl.datasets[now].previous;
            }
            for now in path.into_iter().rev() {
                let node = &self.dsl.datasets[now];
                let before = node.previous.and_then(|at| Some((at, held[at]?)));
                let (mut referenced, mut own) = (Sums::default(), Sums::default());
                let mut is_known = node.previous.is_none() || before.is_some();
                is_known &= node.previous.is_some() == node.phys.previous_snapshot.is_some();
                if let Some((at, before)) = before {
                    referenced = before.referenced;
                    is_known &= before.is_known;
                    if self.dsl.datasets[at].directory == node.directory {
                        own = before.own;
                    }
                }
                let counted = &self.evidence.counted[now];
                referenced += counted.born;
                referenced -= counted.dead;
                own += counted.born;
                own -= counted.dead_own;
                is_known &= !counted.is_partial;
                held[now] = Some(Held {
                    referenced,
                    own,
                    is_known,
                });
            }
        }
        held.into_iter().map(Option::unwrap_or_default).collect()
    }

    fn dataset(&self, at: usize, held: &[Held]) {
        let node = &self.dsl.datasets[at];
        let (name, phys) = (&node.name, &node.phys);
        let counted = &self.evidence.counted[at];
        let of = |what, stored: u64, counted| {
            self.expect(FindingKind::DatasetSpace, name, what, stored, counted);
        };
        if held[at].is_known {
            let all = held[at].referenced;
            of("referenced bytes", phys.referenced_bytes, all.used);
            of("compressed bytes", phys.compressed_bytes, all.compressed);
            of(
                "uncompressed bytes",
                phys.uncompressed_bytes,
                all.uncompressed,
            );
        }
        let unique = match node.next {
            None => Some(counted),
            Some(next) => Some(&self.evidence.counted[next]),
        };
        // Software before version 9 did not keep the number exact.
        let is_exact = node.phys.flags.contains(DslDatasetFlags::UNIQUE_ACCURATE);
        if let Some(other) = unique.filter(|other| is_exact && !other.is_partial) {
            let unique = if node.next.is_none() {
                other.born
            } else {
                other.dead_unique
            };
            of("unique bytes", phys.unique_bytes, unique.used);
        }
        self.deadlist(at);
        self.livelist(at);
        self.bookmarks(at);
    }

    fn deadlist(&self, at: usize) {
        let node = &self.dsl.datasets[at];
        let name = &node.name;
        let Some(listed) = &self.evidence.dead[at] else {
            return;
        };
        let counted = &self.evidence.counted[at];
        let is_remapped = matches!(node.dataset.extension(keys::REMAP_DEADLIST), Ok(Some(_)));
        if is_remapped {
            let reason =
                format!("{name}: its deadlist, as blocks of removed devices were remapped");
            self.findings.not_judged(reason);
        } else if !counted.is_partial && !listed.is_partial && listed.sums.mark != counted.dead.mark
        {
            let (has, needs) = (listed.sums.count, counted.dead.count);
            let detail = format!(
                "its deadlist has {has} blocks ({} bytes), {needs} died ({} bytes)",
                listed.sums.used, counted.dead.used
            );
            let kind = if has < needs {
                FindingKind::DeadlistMissing
            } else {
                FindingKind::DeadlistExtra
            };
            self.findings.add(Finding::new(kind, detail).of(name));
            if has == needs {
                let detail = "its deadlist has other blocks than those that died";
                let finding = Finding::new(FindingKind::DeadlistMissing, detail);
                self.findings.add(finding.of(name));
            }
        }
        if node.phys.is_snapshot() || listed.is_plain || listed.is_partial || self.dsl.is_partial {
            return;
        }
        // A head's deadlist must have a key for each earlier snapshot, so that it can be split there.
        let mut before = node.previous;
        let mut steps = 0;
        while let Some(index) = before.filter(|_| steps <= self.dsl.datasets.len()) {
            let older = &self.dsl.datasets[index];
            let key = older.phys.previous_snapshot_txg;
            if !listed.keys.contains(&key) {
                let detail = format!("its deadlist has no key for txg {key} ({})", older.name);
                let finding = Finding::new(FindingKind::DeadlistKey, detail);
                self.findings.add(finding.of(name));
            }
            before = older.previous;
            steps += 1;
        }
    }

    fn livelist(&self, at: usize) {
        let node = &self.dsl.datasets[at];
        let Some((places, sums)) = &self.evidence.live[at] else {
            return;
        };
        let counted = &self.evidence.counted[at];
        // The livelist of a clone that has its own snapshots is not used.
        let is_alone = self.dsl.directories[node.directory].chain.len() == 1;
        if !is_alone || counted.is_partial || *places == counted.born.places {
            return;
        }
        let detail = format!(
            "its livelist has {} blocks ({} bytes), the clone {} bytes of its own",
            sums.count, sums.used, counted.born.used
        );
        let finding = Finding::new(FindingKind::Livelist, detail);
        self.findings.add(finding.of(&node.name));
    }

    /// Checks the bookmarks of snapshots that still exist. Such a bookmark counts the blocks that the next
    /// dataset lacks.
    fn bookmarks(&self, at: usize) {
        let node = &self.dsl.datasets[at];
        if node.next.is_some() {
            return;
        }
        let marks = match node.dataset.bookmarks() {
            Ok(marks) => marks,
            Err(error) => {
                let finding = Finding::new(FindingKind::Unreadable, error.to_string());
                return self.findings.add(finding.of(&node.name));
            }
        };
        let chain = &self.dsl.directories[node.directory].chain;
        for mark in marks {
            let flags = mark.phys.to_words().get(4).copied().unwrap_or(0);
            let of = |index: &usize| self.dsl.datasets[*index].phys.guid == mark.phys.guid;
            let Some(place) = chain.iter().position(of).filter(|_| flags & 3 == 3) else {
                continue;
            };
            let Some(next) = chain.get(place + 1) else {
                continue;
            };
            let gone = &self.evidence.counted[*next];
            if gone.is_partial {
                continue;
            }
            let full = format!("{}#{}", node.name, mark.name);
            let freed = mark.phys.freed_before_next;
            for (what, stored, counted) in [
                ("freed since", freed.referenced, gone.dead.used),
                (
                    "freed since, physical",
                    freed.compressed,
                    gone.dead.compressed,
                ),
                (
                    "freed since, logical",
                    freed.uncompressed,
                    gone.dead.uncompressed,
                ),
            ] {
                self.expect(FindingKind::BookmarkSpace, &full, what, stored, counted);
            }
        }
    }

    /// What is known of the space of an internal directory; `None` for any other directory.
    fn internal(&self, component: &str) -> Option<Option<Sums>> {
        match component {
            keys::MOS_DIRECTORY => {
                let mos = &self.evidence.mos;
                Some((!mos.is_partial).then_some(mos.born))
            }
            keys::FREE_DIRECTORY => Some(self.evidence.free),
            // No structure records which blocks could not be freed.
            keys::LEAK_DIRECTORY => Some(None),
            _ => None,
        }
    }

    /// Checks the parts of a directory's used space: their sum, and each of them if `counted` is known.
    fn breakdown(&self, name: &str, phys: &DslDirectoryPhys, counted: Option<[i64; 5]>) {
        let Some(parts) = phys.breakdown() else {
            return;
        };
        let stored = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let parts = [
            ("used by the head", parts.head_bytes),
            ("used by snapshots", parts.snapshots_bytes),
            ("used by children", parts.children_bytes),
            ("reserved by children", parts.children_reserved_bytes),
            ("reserved for the head", parts.ref_reserved_bytes),
        ];
        let sum = parts
            .iter()
            .fold(0, |sum: u64, (_, part)| sum.wrapping_add(*part));
        let kind = FindingKind::DirectorySpace;
        let what = "used bytes and the sum of their parts";
        self.expect(kind, name, what, stored(phys.used_bytes), stored(sum));
        for ((what, part), counted) in parts.into_iter().zip(counted.into_iter().flatten()) {
            self.expect(kind, name, what, stored(part), counted);
        }
    }

    /// Checks a directory after its children. Returns the space charged to its parent.
    fn directory(&self, at: usize, held: &[Held], charges: &[Option<Charge>]) -> Charge {
        let node = &self.dsl.directories[at];
        let directory = &node.directory;
        let (name, phys) = (directory.name(), directory.phys());
        let of = |what: &str, stored: i64, counted: i64| {
            self.expect(FindingKind::DirectorySpace, name, what, stored, counted);
        };
        let stored = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let mut all = Charge {
            used: 0,
            unused_reservation: 0,
            sums: Sums::default(),
            filesystems: 0,
            snapshots: 0,
            is_known: !self.dsl.is_partial,
        };
        if let Some(counted) = self.internal(&node.component) {
            all.is_known &= counted.is_some();
            all.sums = counted.unwrap_or_default();
            all.used = all.sums.used;
            if all.is_known {
                self.totals(name, phys, &all);
            }
            return all;
        }
        let (mut children, mut reserved) = (0i64, 0i64);
        let mut counts = (0u64, 0u64);
        let mut has_temporary = false;
        for child in &node.children {
            let Some(charge) = &charges[*child] else {
                continue;
            };
            all.is_known &= charge.is_known;
            children = children.wrapping_add(charge.used);
            reserved = reserved.wrapping_add(charge.unused_reservation);
            all.sums += charge.sums;
            let component = &self.dsl.directories[*child].component;
            has_temporary |= component.contains('%');
            if !component.starts_with('$') {
                counts.0 = counts.0.wrapping_add(charge.filesystems).wrapping_add(1);
                counts.1 = counts.1.wrapping_add(charge.snapshots);
            }
        }
        let (mut head_bytes, mut snapshots_bytes, mut unused) = (0i64, 0i64, 0i64);
        if let Some(head) = node.chain.last() {
            let mut own = Sums::default();
            for dataset in &node.chain {
                own += self.evidence.counted[*dataset].born;
                all.is_known &= held[*dataset].is_known;
            }
            counts.1 = counts.1.wrapping_add(node.chain.len() as u64 - 1);
            head_bytes = held[*head].own.used;
            snapshots_bytes = own.used.wrapping_sub(head_bytes);
            all.sums += own;
            let wanted = match directory.property("refreservation", false) {
                Ok(Some((PropertyValue::Number(number), _))) => number,
                _ => 0,
            };
            let unique = self.dsl.datasets[*head].phys.unique_bytes;
            unused = stored(wanted.saturating_sub(unique));
        }
        let counted = [head_bytes, snapshots_bytes, children, reserved, unused];
        all.used = counted.into_iter().fold(0, i64::wrapping_add);
        let spare = phys.reserved_bytes.saturating_sub(phys.used_bytes);
        all.unused_reservation = stored(spare);
        (all.filesystems, all.snapshots) = counts;
        self.breakdown(name, phys, all.is_known.then_some(counted));
        if all.is_known {
            self.totals(name, phys, &all);
        }
        let has_count = |key: &str| {
            let words = directory.extension(key).ok().flatten()?;
            words.first().copied()
        };
        if !has_temporary && !self.dsl.is_partial {
            if let Some(number) = has_count(keys::FILESYSTEM_COUNT) {
                of("file systems below", stored(number), stored(counts.0));
            }
            if let Some(number) = has_count(keys::SNAPSHOT_COUNT) {
                of("snapshots below", stored(number), stored(counts.1));
            }
        }
        if phys.quota_bytes != 0 && phys.reserved_bytes > phys.quota_bytes {
            of(
                "reservation within the quota",
                stored(phys.reserved_bytes),
                stored(phys.quota_bytes),
            );
        }
        all
    }

    fn totals(&self, name: &str, phys: &millpond_ondisk::DslDirectoryPhys, all: &Charge) {
        let of = |what, stored: u64, counted| {
            self.expect(FindingKind::DirectorySpace, name, what, stored, counted);
        };
        of("used bytes", phys.used_bytes, all.used);
        of(
            "compressed bytes",
            phys.compressed_bytes,
            all.sums.compressed,
        );
        of(
            "uncompressed bytes",
            phys.uncompressed_bytes,
            all.sums.uncompressed,
        );
    }
}
