//! Maps positions to children, slice by slice.

use super::seeds::SEEDS;

/// The first half of the generator's initial state, the same for every map.
const GENERATOR_START: u64 = 0xd_7a1d_5eed;

/// The base permutations for one number of children.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Permutations {
    children: u64,
    base: Vec<u8>,
}

impl core::fmt::Debug for Permutations {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "Permutations({} children, {} bytes)",
            self.children,
            self.base.len()
        )
    }
}

impl Permutations {
    /// Generates the map for `children` (2 to 255): at most 128 KiB.
    pub(crate) fn new(children: u8) -> Option<Self> {
        let (count, seed, _) = SEEDS.get(usize::from(children).checked_sub(2)?)?;
        let mut generator = Generator {
            s0: GENERATOR_START,
            s1: *seed,
        };
        let mut row: Vec<u8> = (0..children).collect();
        let mut base = Vec::with_capacity(row.len().checked_mul(usize::from(*count))?);
        for _ in 0..*count {
            for at in (1..row.len()).rev() {
                let bound = u64::try_from(at).ok()?.checked_add(1)?;
                let other = generator.next().checked_rem(bound)?;
                row.swap(at, usize::try_from(other).ok()?);
            }
            base.extend_from_slice(&row);
        }
        Some(Self {
            children: u64::from(children),
            base,
        })
    }

    /// The child at `position` in slice `slice`.
    pub(crate) fn child(&self, slice: u64, position: u64) -> Option<u64> {
        let total = u64::try_from(self.base.len()).ok()?;
        let turn = slice.checked_rem(total)?;
        let row = turn.checked_div(self.children)?;
        let iteration = turn.checked_rem(self.children)?;
        if position >= self.children {
            return None;
        }
        let at = row.checked_mul(self.children)?.checked_add(position)?;
        let value = u64::from(*self.base.get(usize::try_from(at).ok()?)?);
        value.checked_add(iteration)?.checked_rem(self.children)
    }

    #[cfg(test)]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.base
    }
}

/// A small random number generator whose sequence is part of the disk format.
struct Generator {
    s0: u64,
    s1: u64,
}

impl Generator {
    fn next(&mut self) -> u64 {
        let (s0, mut s1) = (self.s0, self.s1);
        let result = s0.wrapping_add(s1).rotate_left(17).wrapping_add(s0);
        s1 ^= s0;
        self.s0 = s0.rotate_left(49) ^ s1 ^ (s1 << 21);
        self.s1 = s1.rotate_left(28);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_has_the_sum_that_belongs_to_its_number_of_children() {
        for children in 2..=255u8 {
            let map = Permutations::new(children).unwrap();
            let mut padded = map.bytes().to_vec();
            padded.resize(padded.len().next_multiple_of(4), 0);
            let sum = padded
                .chunks_exact(4)
                .map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())))
                .fold(0u64, u64::wrapping_add);
            assert_eq!(
                sum,
                SEEDS[usize::from(children) - 2].2,
                "{children} children"
            );
        }
    }

    #[test]
    fn the_first_rows_of_9_and_14_children_are_as_known() {
        let nine = Permutations::new(9).unwrap();
        assert_eq!(
            &nine.bytes()[..18],
            [7, 3, 6, 5, 0, 2, 8, 4, 1, 8, 1, 5, 2, 3, 7, 0, 6, 4]
        );
        let fourteen = Permutations::new(14).unwrap();
        assert_eq!(
            &fourteen.bytes()[..14],
            [1, 7, 3, 13, 9, 0, 12, 5, 6, 10, 4, 11, 8, 2]
        );
    }

    #[test]
    fn every_slice_uses_every_child_once() {
        let map = Permutations::new(7).unwrap();
        for slice in (0..5000).chain([u64::MAX]) {
            let mut seen: Vec<u64> = (0..7).map(|at| map.child(slice, at).unwrap()).collect();
            seen.sort_unstable();
            assert_eq!(seen, [0, 1, 2, 3, 4, 5, 6]);
        }
        assert_eq!(map.child(0, 7), None);
        assert!(Permutations::new(0).is_none() && Permutations::new(1).is_none());
    }
}
