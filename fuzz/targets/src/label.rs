//! What lies in labels.

use millpond_ondisk::{BootEnvironment, ChecksumTrailer, Uberblock};

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

pub fn checksum_trailer(data: &[u8]) {
    let Some(trailer) = ChecksumTrailer::decode(data) else {
        return;
    };
    let _ = ChecksumTrailer::decode(&trailer.encode());
}

pub fn boot_environment(data: &[u8]) {
    let _ = BootEnvironment::decode(data);
}
