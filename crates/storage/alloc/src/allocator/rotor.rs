//! Whose turn it is among the vdevs of a class.

use std::collections::BTreeMap;

use millpond_ondisk::VdevId;

/// What a vdev is given in a round, for each child's worth of data of all vdevs together.
const ROUND_BYTES: u64 = 1 << 20;
/// No vdev is given less than this, so that rounds come to an end.
const SHARE_BYTES_MIN: u64 = 64 << 10;
/// How often the turn passes on before the search for somebody with credit is given up.
const STEPS_MAX: usize = 1024;

/// A vdev that may be given blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) vdev: VdevId,
    pub(super) free_bytes: u64,
    pub(super) data_disks: u64,
}

/// Gives each vdev its share: in a round, 1 MiB for each child's worth of data of all vdevs,
/// divided by how much space they have free. What a vdev took too much it lacks in the next round.
#[derive(Debug, Default)]
pub(super) struct Rotor {
    /// The vdev whose turn it is.
    turn: Option<VdevId>,
    /// Bytes that each may still take in its turn.
    credit: BTreeMap<VdevId, i64>,
}

impl Rotor {
    /// The candidates (ascending by vdev), beginning with the one whose turn it is.
    pub(super) fn order(&mut self, candidates: &[Candidate]) -> Vec<VdevId> {
        let found = candidates
            .iter()
            .position(|candidate| Some(candidate.vdev) >= self.turn);
        let mut at = found.unwrap_or(0);
        let first = self.turn;
        if candidates.get(at).map(|candidate| candidate.vdev) != first {
            // The first call, or the vdev is gone: the next one begins a turn of its own.
            self.begin_turn(candidates, at);
        }
        for _ in 0..STEPS_MAX {
            let Some(candidate) = candidates.get(at) else {
                return Vec::new();
            };
            if self
                .credit
                .get(&candidate.vdev)
                .is_some_and(|credit| *credit > 0)
            {
                break;
            }
            at = at.saturating_add(1);
            if at >= candidates.len() {
                at = 0;
            }
            self.begin_turn(candidates, at);
        }
        self.turn = candidates.get(at).map(|candidate| candidate.vdev);
        let (before, from) = candidates.split_at_checked(at).unwrap_or((&[], candidates));
        let order = from.iter().chain(before);
        order.map(|candidate| candidate.vdev).collect()
    }
    /// `vdev` was given a block of `bytes`.
    pub(super) fn charge(&mut self, vdev: VdevId, bytes: u64) {
        let credit = self.credit.entry(vdev).or_default();
        *credit = credit.saturating_sub_unsigned(bytes);
    }
    /// `vdev` had no room: its turn is over.
    pub(super) fn pass(&mut self, vdev: VdevId) {
        let credit = self.credit.entry(vdev).or_default();
        *credit = (*credit).min(0);
    }
    fn begin_turn(&mut self, candidates: &[Candidate], at: usize) {
        let Some(candidate) = candidates.get(at) else {
            return;
        };
        let (mut round, mut free) = (0u128, 0u128);
        for other in candidates {
            let disks = u128::from(other.data_disks.max(1));
            round = round.saturating_add(disks.saturating_mul(u128::from(ROUND_BYTES)));
            free = free.saturating_add(u128::from(other.free_bytes));
        }
        let share = round
            .saturating_mul(u128::from(candidate.free_bytes))
            .checked_div(free)
            .unwrap_or(0);
        let share = u64::try_from(share)
            .unwrap_or(u64::MAX)
            .max(SHARE_BYTES_MIN);
        let credit = self.credit.entry(candidate.vdev).or_default();
        // What was not used in a turn is not saved up.
        *credit = (*credit).min(0).saturating_add_unsigned(share);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(vdev: u32, free_bytes: u64) -> Candidate {
        Candidate {
            vdev: VdevId(vdev),
            free_bytes,
            data_disks: 1,
        }
    }

    #[test]
    fn vdevs_get_blocks_in_proportion_to_their_free_space() {
        let candidates = [
            candidate(0, 1 << 30),
            candidate(1, 3 << 30),
            candidate(5, 4 << 30),
        ];
        let mut rotor = Rotor::default();
        let mut given = BTreeMap::new();
        for round in 0..20_000u64 {
            let vdev = rotor.order(&candidates)[0];
            let bytes = 4096 << (round % 6);
            rotor.charge(vdev, bytes);
            *given.entry(vdev).or_insert(0) += bytes;
        }
        let total: u64 = given.values().sum();
        for (vdev, eighths) in [(0, 1), (1, 3), (5, 4)] {
            let share = given[&VdevId(vdev)] * 800 / total;
            assert!(share.abs_diff(eighths * 100) <= 5, "{vdev}: {share} of 800");
        }
    }

    #[test]
    fn a_vdev_keeps_its_turn_for_about_a_mebibyte_and_the_next_follows() {
        let candidates = [candidate(0, 1 << 30), candidate(1, 1 << 30)];
        let mut rotor = Rotor::default();
        let turns: Vec<u32> = (0..64)
            .map(|_| {
                let vdev = rotor.order(&candidates)[0];
                rotor.charge(vdev, 128 << 10);
                vdev.0
            })
            .collect();
        assert_eq!(
            turns[..18],
            [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0]
        );
    }

    #[test]
    fn a_full_vdev_passes_its_turn_and_one_that_is_gone_is_forgotten() {
        let both = [candidate(0, 1 << 30), candidate(1, 1 << 30)];
        let mut rotor = Rotor::default();
        assert_eq!(rotor.order(&both), [VdevId(0), VdevId(1)]);
        rotor.pass(VdevId(0));
        assert_eq!(rotor.order(&both), [VdevId(1), VdevId(0)]);
        assert_eq!(rotor.order(&both[..1]), [VdevId(0)]);
        assert_eq!(rotor.order(&[]), []);
        let empty = [candidate(0, 0), candidate(1, 0)];
        assert_eq!(rotor.order(&empty).len(), 2);
    }

    #[test]
    fn a_debt_of_many_rounds_does_not_stop_anything() {
        let candidates = [candidate(0, 1), candidate(1, u64::MAX)];
        let mut rotor = Rotor::default();
        rotor.charge(VdevId(0), u64::MAX);
        rotor.charge(VdevId(1), u64::MAX);
        rotor.charge(VdevId(1), u64::MAX);
        assert_eq!(rotor.order(&candidates).len(), 2);
    }
}
