//! What the beginning of a stream says.

use crate::error::ReceiveError;
use millpond_dataset::{IncomingSnapshot, ResumeAllowances};
use millpond_nvlist::NvList;
use millpond_ondisk::{Endian, Guid, ObjectSetKind};
use millpond_stream::{Begin, BeginFlags, RawKeys, StreamFeatures, Taken};

/// Features of a stream with those that the pool must have enabled.
const NEEDED: [(StreamFeatures, &str); 10] = [
    (StreamFeatures::LZ4, "org.illumos:lz4_compress"),
    (StreamFeatures::ZSTD, "org.freebsd:zstd_compress"),
    (StreamFeatures::EMBEDDED, "com.delphix:embedded_data"),
    (StreamFeatures::LARGE_BLOCKS, "org.open-zfs:large_blocks"),
    (StreamFeatures::LARGE_DNODE, "org.zfsonlinux:large_dnode"),
    (StreamFeatures::REDACTED, "com.delphix:redacted_datasets"),
    (StreamFeatures::RAW, "com.datto:encryption"),
    (StreamFeatures::RAW, "com.datto:bookmark_v2"),
    (StreamFeatures::LONG_NAMES, LONG_NAMES),
    (StreamFeatures::LARGE_MICRO_ZAP, LARGE_MICRO_ZAP),
];
const LONG_NAMES: &str = "org.zfsonlinux:longname";
const LARGE_MICRO_ZAP: &str = "com.klarasystems:large_microzap";

/// Checks whether all features of a stream or package are known and received.
///
/// # Errors
/// [`ReceiveError::UnknownFeatures`], [`ReceiveError::Deduplicated`].
pub fn check_features(begin: &Begin) -> Result<(), ReceiveError> {
    let features = begin.features;
    let unknown = features.difference(StreamFeatures::all());
    if !unknown.is_empty() {
        return Err(ReceiveError::UnknownFeatures { features, unknown });
    }
    if features.intersects(StreamFeatures::DEDUP | StreamFeatures::DEDUP_PROPERTIES) {
        return Err(ReceiveError::Deduplicated);
    }
    Ok(())
}

/// What a stream says of its snapshot.
///
/// # Errors
/// As [`check_features`]; if it is neither that of a file system nor that of a volume; [`ReceiveError::Keys`].
pub fn incoming_snapshot(first: &Taken, begin: &Begin) -> Result<IncomingSnapshot, ReceiveError> {
    check_features(begin)?;
    let kind = match begin.object_set_type {
        2 => ObjectSetKind::FileSystem,
        3 => ObjectSetKind::Volume,
        _ => {
            return Err(ReceiveError::Invalid {
                at: 0,
                reason: "neither a file system nor a volume".to_owned(),
            });
        }
    };
    let (redacted, redacted_from) = redaction(first, begin)?;
    let has = |feature| begin.features.contains(feature);
    let needs = NEEDED.iter().filter(|(feature, _)| has(*feature));
    let uses = NEEDED
        .iter()
        .filter(|(feature, guid)| has(*feature) && [LONG_NAMES, LARGE_MICRO_ZAP].contains(guid));
    Ok(IncomingSnapshot {
        guid: Guid(begin.to_guid),
        from: Some(Guid(begin.from_guid)).filter(|from| from.0 != 0),
        creation_s: begin.creation_s,
        kind,
        is_case_insensitive: begin.flags.contains(BeginFlags::CASE_INSENSITIVE),
        has_large_blocks: has(StreamFeatures::LARGE_BLOCKS),
        needs_system_attributes: has(StreamFeatures::SPILL),
        needs: needs.map(|(_, guid)| *guid).collect(),
        uses: uses.map(|(_, guid)| *guid).collect(),
        sent_name: String::from_utf8_lossy(&begin.to_name).into_owned(),
        raw: raw_keys(first, begin)?,
        redacted,
        redacted_from,
    })
}

type Guids = Option<Vec<u64>>;

/// With respect to which snapshots a stream is redacted, and its older snapshot.
fn redaction(first: &Taken, begin: &Begin) -> Result<(Guids, Guids), ReceiveError> {
    let invalid = |reason: &str| ReceiveError::Invalid {
        at: first.at,
        reason: reason.to_owned(),
    };
    let is_redacted = begin.features.contains(StreamFeatures::REDACTED);
    if is_redacted && begin.features.contains(StreamFeatures::RAW) {
        return Err(invalid("a raw stream that is redacted"));
    }
    let list = match first.payload.is_empty() {
        true => None,
        false => NvList::decode(&first.payload).ok(),
    };
    let guids = |key: &str| {
        let found = list.as_ref()?.u64_array(key).ok()?;
        Some(found.to_vec()).filter(|guids| !guids.is_empty())
    };
    let redacted = guids("redact_snaps").filter(|_| is_redacted);
    if is_redacted && redacted.is_none() {
        return Err(invalid(
            "a redacted stream that does not name its snapshots",
        ));
    }
    Ok((redacted, guids("redact_from_snaps")))
}

/// The keys of a raw stream.
fn raw_keys(first: &Taken, begin: &Begin) -> Result<Option<RawKeys>, ReceiveError> {
    if !begin.features.contains(StreamFeatures::RAW) {
        return Ok(None);
    }
    let invalid = |reason: &str| ReceiveError::Invalid {
        at: first.at,
        reason: reason.to_owned(),
    };
    if first.endian == Endian::Big {
        return Err(ReceiveError::Unsupported(
            "raw streams of big-endian systems",
        ));
    }
    if !begin.flags.contains(BeginFlags::SPILL_BLOCKS) {
        return Err(invalid(
            "a raw stream that does not say which objects have spill blocks",
        ));
    }
    if begin.features.contains(StreamFeatures::EMBEDDED) {
        return Err(invalid("a raw stream with blocks in pointers"));
    }
    let list = NvList::decode(&first.payload)
        .map_err(|_| invalid("the list at the beginning of a raw stream cannot be read"))?;
    Ok(Some(RawKeys::find(&list)?))
}

/// What a stream that resumes this one may contain.
#[must_use]
pub fn resume_allowances(begin: &Begin) -> ResumeAllowances {
    let has = |feature| begin.features.contains(feature);
    ResumeAllowances {
        large_blocks: has(StreamFeatures::LARGE_BLOCKS),
        embedded: has(StreamFeatures::EMBEDDED),
        compressed: has(StreamFeatures::COMPRESSED),
    }
}
