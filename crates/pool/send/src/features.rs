//! What a reader of the stream must know.

use crate::error::SendError;
use crate::send::SendFlags;
use millpond_dataset::{Dataset, DatasetError};
use millpond_object::ObjectSetView;
use millpond_ondisk::ObjectSetKind;
use millpond_stream::StreamFeatures;

/// File systems of this version on have system attributes.
const VERSION_WITH_ATTRIBUTES: u64 = 5;

/// The features of a stream of this dataset.
pub(crate) fn features_of(
    dataset: &Dataset,
    set: &ObjectSetView,
    version: Option<u64>,
    flags: SendFlags,
) -> Result<StreamFeatures, SendError> {
    let pool = dataset.pool().features();
    let has =
        |guid: &str| -> Result<bool, DatasetError> { Ok(dataset.extension_value(guid)?.is_some()) };
    let mut found = StreamFeatures::empty();
    let mut add = |is_used: bool, feature: StreamFeatures| {
        if is_used {
            found |= feature;
        }
    };
    let is_file_system = set.kind() == ObjectSetKind::FileSystem;
    let has_attributes = version.is_some_and(|version| version >= VERSION_WITH_ATTRIBUTES);
    add(is_file_system && has_attributes, StreamFeatures::SPILL);
    let is_encrypted = dataset.is_encrypted()?;
    let is_raw = flags.raw && is_encrypted;
    add(is_raw, StreamFeatures::RAW);
    let sends_embedded =
        flags.embedded && !is_encrypted && pool.is_active("com.delphix:embedded_data");
    add(sends_embedded, StreamFeatures::EMBEDDED);
    let has_lz4 = pool.is_active("org.illumos:lz4_compress");
    add(
        (sends_embedded || flags.compressed) && has_lz4,
        StreamFeatures::LZ4,
    );
    let is_large = flags.large_blocks && has("org.open-zfs:large_blocks")?;
    add(is_large, StreamFeatures::LARGE_BLOCKS);
    add(flags.compressed, StreamFeatures::COMPRESSED);
    add(
        has("org.zfsonlinux:large_dnode")?,
        StreamFeatures::LARGE_DNODE,
    );
    let has_zstd = flags.compressed && has("org.freebsd:zstd_compress")?;
    add(has_zstd, StreamFeatures::ZSTD);
    add(has("org.zfsonlinux:longname")?, StreamFeatures::LONG_NAMES);
    if has("com.klarasystems:large_microzap")? {
        if !is_large {
            return Err(SendError::LargeMicroZap);
        }
        add(true, StreamFeatures::LARGE_MICRO_ZAP);
    }
    Ok(found)
}
