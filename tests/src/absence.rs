//! Enumerates the disks that may be absent.

use std::collections::BTreeSet;

/// Every set of images that may be absent together, sorted by size, the empty set first.
///
/// These are all subsets of the `largest` sets. Sets of more than 16 images are used only as a whole.
pub fn permitted(largest: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut sets: BTreeSet<(usize, Vec<String>)> = BTreeSet::from([(0, Vec::new())]);
    for set in largest {
        let mut sorted = set.clone();
        sorted.sort();
        if sorted.len() > MEMBERS_MAX {
            sets.insert((sorted.len(), sorted));
            continue;
        }
        for mask in 1_u32..1 << sorted.len() {
            let chosen: Vec<String> = sorted
                .iter()
                .enumerate()
                .filter(|(position, _)| mask >> position & 1 == 1)
                .map(|(_, name)| name.clone())
                .collect();
            sets.insert((chosen.len(), chosen));
        }
    }
    sets.into_iter().map(|(_, set)| set).collect()
}

const MEMBERS_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn names(sets: &[&[&str]]) -> Vec<Vec<String>> {
        sets.iter()
            .map(|set| set.iter().map(|name| (*name).to_owned()).collect())
            .collect()
    }

    #[test]
    fn every_subset_is_listed_once_smallest_first() {
        assert_eq!(
            permitted(&names(&[&["b", "a"], &["a", "c"]])),
            names(&[&[], &["a"], &["b"], &["c"], &["a", "b"], &["a", "c"]])
        );
        assert_eq!(permitted(&[]), names(&[&[]]));
    }
}
