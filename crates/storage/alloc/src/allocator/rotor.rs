//! Rotation of allocations among the vdevs of a class.

use std::collections::BTreeMap;

use millpond_ondisk::VdevId;

/// The total credit of one rotation, for each child's worth of data of all vdevs.
const ROUND_BYTES: u64 = 1 << 20;
/// The minimum share of a vdev, so that rotations end.
const SHARE_BYTES_MIN: u64 = 64 << 10;
/// How many steps to search for a vdev with credit.
const STEPS_MAX: usize = 1024;

/// A vdev that may receive blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) vdev: VdevId,
    pub(super) free_bytes: u64,
    pub(super) data_disks: u64,
}

/// Distributes allocations among vdevs.
///
/// In each rotation, all vdevs together get 1 MiB of credit for each child's worth of data, shared in
/// proportion to their free space. A vdev that overdraws its credit has less in the next rotation.
#[derive(Debug, Default)]
pub(super) struct Rotor {
    /// The current vdev.
    turn: Option<VdevId>,
    /// The bytes that each vdev may still receive in its turn.
    credit: BTreeMap<VdevId, i64>,
}

impl Rotor {
    /// The candidates (ascending by vdev), starting with the current one.
    pub(super) fn order(&mut self, candidates: &[Candidate]) -> Vec<VdevId> {
        let found = candidates
            .iter()
            .position(|candidate| Some(candidate.vdev) >= self.turn);
        let mut at = found.unwrap_or(0);
        let first = self.turn;
        if candidates.get(at).map(|candidate| candidate.vdev) != first {
            // On the first call, or if the vdev is gone, the next one starts a new turn.
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
    /// Charges a block of `bytes` to `vdev`.
    pub(super) fn charge(&mut self, vdev: VdevId, bytes: u64) {
        let credit = self.credit.entry(vdev).or_default();
        *credit = credit.saturating_sub_unsigned(bytes);
    }
    /// Ends the turn of `vdev`, which had no space.
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
        // Unused credit does not carry over.
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
    fn the_rotor_advances_after_about_1_mib() {
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
    fn the_rotor_skips_full_vdevs_and_drops_removed_ones() {
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
    fn a_rotor_with_a_large_debt_still_orders_all_vdevs() {
        let candidates = [candidate(0, 1), candidate(1, u64::MAX)];
        let mut rotor = Rotor::default();
        rotor.charge(VdevId(0), u64::MAX);
        rotor.charge(VdevId(1), u64::MAX);
        rotor.charge(VdevId(1), u64::MAX);
        assert_eq!(rotor.order(&candidates).len(), 2);
    }
}
