//! Checks ZAPs: their consistency, and that a look-up finds each entry.

use super::Findings;
use super::finding::{Finding, FindingKind};
use millpond_object::ObjectView;
use millpond_ondisk::ByteswapClass;
use millpond_zap::Zap;

/// Whether an object is a ZAP with content.
pub(super) fn is_table(object: &ObjectView) -> bool {
    let dnode = object.dnode();
    dnode.object_type.byteswap() == Some(ByteswapClass::Zap)
        && dnode
            .block_pointers
            .iter()
            .any(|pointer| !pointer.is_hole())
}

/// Checks a ZAP's hashes, leaves, chunks and counts, then looks up each entry.
pub(super) fn judge(object: &ObjectView, dataset: &str, findings: &Findings<'_>) {
    let tell = |kind, detail: String| {
        let finding = Finding::new(kind, detail);
        findings.add(finding.of(dataset).object(object.id().0));
    };
    let zap = match Zap::open(object.clone()) {
        Ok(zap) => zap,
        Err(error) => return tell(FindingKind::Table, error.to_string()),
    };
    let summary = match zap.check() {
        Ok(summary) => Some(summary),
        Err(error) => {
            tell(FindingKind::Table, error.to_string());
            None
        }
    };
    let (mut listed, mut reported) = (0u64, false);
    for entry in zap.iter() {
        let entry = match entry {
            Ok(entry) => entry,
            // The consistency check has already reported an error.
            Err(_) if summary.is_none() => return,
            Err(error) => return tell(FindingKind::Table, error.to_string()),
        };
        listed += 1;
        let found = if zap.has_word_keys() {
            zap.lookup_words(&entry.words())
        } else {
            zap.lookup(&entry.name)
        };
        if found.ok().flatten().as_ref() != Some(&entry.value) && !reported {
            reported = true;
            let name = entry.name.escape_ascii().to_string();
            tell(
                FindingKind::TableLookup,
                format!("'{name}' is listed and not found again"),
            );
        }
    }
    if let Some(summary) = summary
        && summary.entries != listed
    {
        let detail = format!("{} entries counted, {listed} listed", summary.entries);
        tell(FindingKind::Table, detail);
    }
}
