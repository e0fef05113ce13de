//! Which objects of the MOS are referred to, and what refers to those that do not exist.

use super::Findings;
use super::finding::{Finding, FindingKind};
use millpond_env::sync::Mutex;
use millpond_ondisk::ObjectId;
use std::collections::BTreeMap;

/// References to objects of the MOS. Holds some 40 bytes for each object that is referred to.
#[derive(Default)]
pub(super) struct References {
    by_object: Mutex<BTreeMap<u64, &'static str>>,
}

impl References {
    /// Something refers to an object. Only references that were read from objects are to be noted, so
    /// that there are not more than there is room for on the devices.
    pub(super) fn note(&self, id: ObjectId, what: &'static str) {
        if id.0 != 0 {
            self.by_object.lock().entry(id.0).or_insert(what);
        }
    }

    /// Compares what is referred to with what exists: numbers in ascending order.
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
