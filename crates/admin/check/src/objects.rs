//! References to objects of the MOS: finds unreferenced objects, and references to missing ones.

use super::Findings;
use super::finding::{Finding, FindingKind};
use millpond_env::rank;
use millpond_env::sync::Mutex;
use millpond_ondisk::ObjectId;
use std::collections::BTreeMap;

/// References to objects of the MOS. Takes about 40 bytes per referenced object.
#[derive(Default)]
pub(super) struct References {
    by_object: Mutex<BTreeMap<u64, &'static str>, rank::CheckSums>,
}

impl References {
    /// Records a reference to an object. Only references read from objects may be recorded, so that the size
    /// of the devices bounds their count.
    pub(super) fn note(&self, id: ObjectId, what: &'static str) {
        if id.0 != 0 {
            self.by_object.lock().entry(id.0).or_insert(what);
        }
    }

    /// Compares the references with the existing objects, which are in ascending order of id.
    pub(super) fn judge(
        self,
        existing: &[(u64, &'static str)],
        knows_all: bool,
        findings: &Findings<'_>,
    ) {
        let referred = self.by_object.into_inner();
        for (id, what) in &referred {
            if existing.binary_search_by_key(id, |(id, _)| *id).is_err() {
                let detail = format!("{what} is said to be here, and nothing is");
                let finding = Finding::new(FindingKind::MissingObject, detail);
                findings.add(finding.object(*id));
            }
        }
        if !knows_all {
            return;
        }
        for (id, kind) in existing {
            if !referred.contains_key(id) {
                let detail = format!("an object ({kind}) that nothing refers to");
                let finding = Finding::new(FindingKind::UnreferencedObject, detail);
                findings.add(finding.object(*id));
            }
        }
    }
}
