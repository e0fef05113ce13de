//! A bounded table of the payloads that were read from stream files last.

use millpond_env::rank;
use millpond_env::sync::Mutex;
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

/// The most payloads that are remembered. The pool writes a block a few transaction groups after its record was read,
/// and those groups hold fewer blocks than this.
const PAYLOADS_MAX: usize = 1 << 18;
/// The bytes at the beginning, in the middle and at the end of a payload that are hashed.
const SAMPLE_BYTES: usize = 512;

/// Where a payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PayloadPlace {
    /// The number of the stream file.
    pub(crate) file: u32,
    /// The offset in it, in bytes.
    pub(crate) offset: u64,
    /// When it was remembered.
    turn: u64,
}

/// Places of payloads by a hash of a part of their bytes. What is found has to be compared.
#[derive(Debug, Default)]
pub(crate) struct PayloadTable {
    hasher: RandomState,
    known: Mutex<Known, rank::Leaf>,
}

#[derive(Debug, Default)]
struct Known {
    places: HashMap<u64, PayloadPlace>,
    /// Hashes in the order in which they were remembered.
    order: VecDeque<(u64, u64)>,
    turn: u64,
}

impl PayloadTable {
    /// Remembers where a payload is.
    pub(crate) fn remember(&self, file: u32, offset: u64, payload: &[u8]) {
        if payload.len() < SAMPLE_BYTES {
            return;
        }
        let hash = self.hash(payload);
        let mut known = self.known.lock();
        let turn = known.turn;
        known.turn = turn.wrapping_add(1);
        let place = PayloadPlace { file, offset, turn };
        known.places.insert(hash, place);
        known.order.push_back((hash, turn));
        if known.order.len() > PAYLOADS_MAX
            && let Some((oldest, turn)) = known.order.pop_front()
            // It may have been remembered again.
            && known.places.get(&oldest).is_some_and(|place| place.turn == turn)
        {
            known.places.remove(&oldest);
        }
    }

    /// Where these bytes may be.
    pub(crate) fn find(&self, bytes: &[u8]) -> Option<PayloadPlace> {
        if bytes.len() < SAMPLE_BYTES {
            return None;
        }
        let hash = self.hash(bytes);
        self.known.lock().places.get(&hash).copied()
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let sample = |from: usize| bytes.get(from..from.saturating_add(SAMPLE_BYTES));
        let last = bytes.len().saturating_sub(SAMPLE_BYTES);
        self.hasher
            .hash_one((bytes.len(), sample(0), sample(last / 2), sample(last)))
    }
}
