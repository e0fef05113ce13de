//! What lies in labels.

use millpond_ondisk::{BootEnvironment, RegionTrailer, Uberblock};

pub fn uberblock(data: &[u8]) {
    let Ok(uberblock) = Uberblock::decode(data) else {
        return;
    };
    let _ = (
        uberblock.mmp(),
        uberblock.rank(),
        uberblock.has_known_version(),
    );
    assert_eq!(
        Uberblock::decode(&uberblock.encode()).map(|again| again.rank()),
        Ok(uberblock.rank())
    );
}

pub fn label_region(data: &[u8]) {
    let covered = RegionTrailer::covered(data);
    assert!(covered.len() <= data.len());
    if let Ok(trailer) = RegionTrailer::decode(data) {
        let _ = trailer.verifier(0);
    }
}

pub fn boot_environment(data: &[u8]) {
    let _ = BootEnvironment::decode(data);
}
