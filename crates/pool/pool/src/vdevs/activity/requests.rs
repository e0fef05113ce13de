//! The requests of activities to a leaf.

use millpond_device::{Device, WriteRequest};
use millpond_ondisk::{LeafLayout, VDEV_DATA_START_BYTES};
use std::ops::Range;

/// The most bytes of a write.
const WRITE_BYTES: u64 = 1 << 20;
/// The most bytes of a discard.
const DISCARD_BYTES: u64 = 16 << 20;

/// How far [`make`] came.
pub(super) enum Made {
    All,
    /// It gave way. Up to here, in bytes from the start of the leaf's space, it is done.
    UpTo(u64),
    Nothing,
}

/// What is done with free space.
#[derive(Debug, Clone, Copy)]
pub(super) enum Request {
    /// It is filled with this number, little-endian: the byte order of the processor that OpenZFS ran on.
    Fill(u64),
    Discard,
    DiscardSecurely,
}

/// Makes requests for ranges of a leaf's space, where they succeed, as long as it may go on. A range that would reach beyond
/// the space is left out.
pub(super) fn make(
    device: &dyn Device,
    what: Request,
    ranges: &[Range<u64>],
    may_go_on: &dyn Fn() -> bool,
) -> Made {
    let layout = LeafLayout::new(device.size_bytes());
    let space_bytes = layout.map_or(0, LeafLayout::asize_bytes);
    let (pattern, bytes_max) = match what {
        Request::Fill(value) => {
            let pattern = value.to_le_bytes().repeat(WRITE_BYTES as usize / 8);
            (pattern, WRITE_BYTES)
        }
        Request::Discard | Request::DiscardSecurely => (vec![], DISCARD_BYTES),
    };
    let mut done = Made::Nothing;
    for range in ranges.iter().filter(|range| range.end <= space_bytes) {
        let mut at = range.start;
        while at < range.end {
            if !may_go_on() {
                return done;
            }
            let length = (range.end - at).min(bytes_max);
            let offset = VDEV_DATA_START_BYTES + at;
            let outcome = match what {
                Request::Fill(_) => {
                    let bytes = pattern.get(..length as usize).unwrap_or_default();
                    let mut requests = [WriteRequest::new(offset, bytes)];
                    device.write_many(&mut requests);
                    let [request] = requests;
                    request.outcome
                }
                Request::Discard => device.discard(offset, length),
                Request::DiscardSecurely => device.discard_securely(offset, length),
            };
            // Counted as an error of the leaf. Its free space stays as it is here.
            if let Err(error) = outcome {
                tracing::debug!(%error, ?what, "a request for free space failed");
            }
            at += length;
            done = Made::UpTo(at);
        }
    }
    Made::All
}
