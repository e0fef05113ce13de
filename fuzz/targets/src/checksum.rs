//! Checksums, including those embedded in the data that they cover, and parity.

use crate::ordered;
use millpond_checksum::{
    Checksummer, Form, GangVerifier, Salt, find_gang_header, verify_label, verify_zilog,
    verify_zilog2,
};
use millpond_ondisk::{BlockPointer, Txg, VdevId};
use millpond_parity::{generate, reconstruct};
use std::sync::LazyLock;

static CHECKSUMMER: LazyLock<Checksummer> = LazyLock::new(|| Checksummer::new(Some(Salt([5; 32]))));

/// A block pointer and its block.
pub fn checksums(data: &[u8]) {
    let Some((endian, rest)) = ordered(data) else {
        return;
    };
    let (head, bytes) = rest.split_at(rest.len().min(128));
    if let Ok(pointer) = BlockPointer::decode(head, endian) {
        let _ = CHECKSUMMER.verify(&pointer, bytes);
        let _ = Checksummer::new(None).verify(&pointer, bytes);
        let _ = CHECKSUMMER.verify(&pointer, &[]);
    }
    let _ = verify_label(rest, 1 << 20);
    let verifier = GangVerifier {
        vdev: VdevId(1),
        offset_bytes: 4096,
        birth: Txg(9),
    };
    for form in [Form::Full, Form::Truncated] {
        if let Ok(found) = find_gang_header(rest, verifier, form) {
            assert!(found.length <= rest.len());
        }
        let _ = verify_zilog(rest, [1, 2, 3, 4], form);
        let _ = verify_zilog2(rest, [1, 2, 3, 4], form);
    }
}

/// Columns of any number and length. Every loss that the parity covers is reconstructed.
pub fn parity(data: &[u8]) {
    let Some(([columns, parities, lost, stride], bytes)) = data.split_first_chunk::<4>() else {
        return;
    };
    let stride = usize::from(*stride).max(1);
    let mut columns: Vec<Vec<u8>> = bytes
        .chunks(stride)
        .take(usize::from(*columns))
        .map(<[u8]>::to_vec)
        .collect();
    let mut parity = vec![vec![0; stride]; usize::from(parities % 5)];
    let outcome = {
        let data: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
        let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        generate(&data, &mut parity)
    };
    let missing: Vec<usize> = (0..8)
        .filter(|bit| lost >> bit & 1 == 1)
        .map(|bit| bit * 3 % (columns.len() + 1))
        .collect();
    let before = columns.clone();
    for index in &missing {
        if let Some(column) = columns.get_mut(*index) {
            column.fill(0xaa);
        }
    }
    let mut data: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
    let mut parity: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    let mended = reconstruct(&mut data, &mut parity, &missing, &[]);
    if outcome.is_ok() && mended.is_ok() {
        assert_eq!(columns, before);
    }
    let _ = parity.len();
}
