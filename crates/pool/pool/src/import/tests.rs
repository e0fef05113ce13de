//! Whole imports on devices in memory, made of labels that the tests write themselves.

use millpond_ondisk::RegionTrailer;
use sha2::{Digest, Sha256};

/// Completes a region made by [`RegionTrailer::unsealed_region`] for its place on the device.
pub(crate) fn seal(region: &mut [u8], offset_bytes: u64) {
    let trailer = RegionTrailer::decode(region).unwrap();
    let digest = Sha256::new()
        .chain_update(RegionTrailer::covered(region))
        .chain_update(trailer.verifier(offset_bytes))
        .finalize();
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(digest.chunks(8)) {
        *word = u64::from_be_bytes(bytes.try_into().unwrap());
    }
    RegionTrailer::seal(region, words);
}
