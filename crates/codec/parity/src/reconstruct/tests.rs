use super::*;
use crate::{generate, implementations};
use proptest::prelude::*;

/// A small generator (SplitMix64), so that failing cases shrink to one number.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 17) as u8).collect()
    }
}

type Columns = Vec<Vec<u8>>;

fn views(columns: &mut Columns) -> Vec<&mut [u8]> {
    columns.iter_mut().map(|c| &mut c[..]).collect()
}

/// A group whose data columns from `big` on are `short` bytes shorter.
fn group(random: &mut Random, data: usize, parity: usize, length: usize) -> (Columns, Columns) {
    let big = 1 + random.next() as usize % data;
    let short = random.next() as usize % (length + 1);
    let columns: Columns = (0..data)
        .map(|i| random.bytes(if i < big { length } else { length - short }))
        .collect();
    let mut sums = vec![vec![0; length]; parity];
    let borrowed: Vec<&[u8]> = columns.iter().map(|c| &c[..]).collect();
    generate(&borrowed, &mut views(&mut sums)).unwrap();
    (columns, sums)
}

/// Overwrites the missing columns, rebuilds them and compares everything.
fn check(
    implementation: Implementation,
    (data, parity): &(Columns, Columns),
    missing_data: &[usize],
    missing_parity: &[usize],
) {
    let (mut broken, mut sums) = (data.clone(), parity.clone());
    for &column in missing_data {
        broken[column].fill(0xee);
    }
    for &column in missing_parity {
        sums[column].fill(0xdd);
    }
    reconstruct_with(
        implementation,
        &mut views(&mut broken),
        &mut views(&mut sums),
        missing_data,
        missing_parity,
    )
    .unwrap();
    assert!(
        broken == *data && sums == *parity,
        "{implementation:?}: {} data, {} parity, lost {missing_data:?} {missing_parity:?}",
        data.len(),
        parity.len()
    );
}

#[test]
fn every_implementation_rebuilds_every_erasure_pattern() {
    let mut random = Random(1);
    for implementation in implementations() {
        for parity in 1..=3usize {
            for data in 1..=6usize {
                let whole = group(&mut random, data, parity, 97);
                for pattern in 0u32..1 << (data + parity) {
                    if pattern.count_ones() as usize > parity {
                        continue;
                    }
                    let lost: Vec<usize> = (0..data + parity)
                        .filter(|i| pattern >> i & 1 == 1)
                        .collect();
                    let missing_data: Vec<usize> =
                        lost.iter().copied().filter(|i| *i < data).collect();
                    let missing_parity: Vec<usize> = lost
                        .iter()
                        .filter(|i| **i >= data)
                        .map(|i| i - data)
                        .collect();
                    check(implementation, &whole, &missing_data, &missing_parity);
                }
            }
        }
    }
}

#[test]
fn the_widest_group_survives_the_loss_of_any_ends_and_middles() {
    let mut random = Random(2);
    let whole = group(&mut random, 255, 3, 64);
    for missing in [[0, 1, 2], [0, 127, 254], [252, 253, 254], [84, 85, 170]] {
        check(Implementation::best(), &whole, &missing, &[]);
        check(Implementation::best(), &whole, &missing[..2], &[0]);
        check(Implementation::best(), &whole, &missing[1..], &[1]);
        check(Implementation::best(), &whole, &missing[1..], &[2]);
    }
}

#[test]
fn every_system_of_up_to_three_lost_columns_has_an_answer() {
    // All pairs for each choice of two rows; triples over every distance in a wide group.
    for rows in [[0, 1], [0, 2], [1, 2]] {
        for x in 0..255 {
            for y in x + 1..255 {
                assert!(
                    Solution::solve(255, &[x, y], &rows).is_ok(),
                    "{x} {y} {rows:?}"
                );
            }
        }
    }
    for y in 1..254 {
        for z in y + 1..255 {
            let matrix = (0..3)
                .map(|row| [0, y, z].map(|i| power_of_two(row * (254 - i))).to_vec())
                .collect();
            assert!(inverted(matrix).is_some(), "0 {y} {z}");
        }
    }
}

#[test]
fn impossible_requests_are_refused_and_change_nothing() {
    let mut random = Random(3);
    let (mut data, mut parity) = group(&mut random, 4, 2, 32);
    let before = (data.clone(), parity.clone());
    let mut ask = |lost: &[usize], lost_parity: &[usize]| {
        reconstruct(
            &mut views(&mut data),
            &mut views(&mut parity),
            lost,
            lost_parity,
        )
    };
    assert_eq!(
        ask(&[0, 1, 2], &[]),
        Err(ParityError::TooManyMissing {
            missing: 3,
            parity: 2
        })
    );
    assert_eq!(
        ask(&[0, 1], &[1]),
        Err(ParityError::TooManyMissing {
            missing: 2,
            parity: 1
        })
    );
    assert_eq!(
        ask(&[4], &[]),
        Err(ParityError::NoSuchColumn {
            column: 4,
            count: 4
        })
    );
    assert_eq!(
        ask(&[], &[usize::MAX]),
        Err(ParityError::NoSuchColumn {
            column: usize::MAX,
            count: 2
        })
    );
    // A repeated column counts as one loss.
    assert_eq!(ask(&[1, 1, 1, 1], &[0, 0]), Ok(()));
    assert_eq!((data, parity), before);
}

#[test]
fn implementations_that_this_processor_lacks_are_named() {
    let present = implementations();
    assert!(present.contains(&Implementation::Portable));
    for implementation in Implementation::ALL {
        if !present.contains(&implementation) {
            println!(
                "not tested, the processor lacks it: {}",
                implementation.name()
            );
            let error = reconstruct_with(implementation, &mut [], &mut [], &[], &[]);
            assert_eq!(error, Err(ParityError::Unavailable));
        }
    }
}

#[test]
fn every_implementation_multiplies_every_pair_correctly() {
    let all: Vec<u8> = (0..=255).collect();
    for implementation in implementations() {
        for coefficient in 0..=255u8 {
            let mut out = vec![9u8; 256];
            implementation.combine(&mut out, &[&all], &[coefficient]);
            let expected: Vec<u8> = all.iter().map(|&x| multiply(x, coefficient)).collect();
            assert_eq!(out, expected, "{implementation:?} {coefficient}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn every_implementation_combines_like_the_portable_one(
        count in 0usize..20,
        length in prop_oneof![0usize..300, 1000usize..3000],
        shift in 0usize..64,
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        // The sources are longer than the result and at odd addresses.
        let bytes: Columns = (0..count).map(|_| random.bytes(length + shift + 3)).collect();
        let sources: Vec<&[u8]> = bytes.iter().map(|b| &b[shift..]).collect();
        let coefficients = random.bytes(count);
        let mut expected = vec![1u8; length];
        Implementation::Portable.combine(&mut expected, &sources, &coefficients);
        for implementation in implementations() {
            let mut out = vec![2u8; length + shift];
            implementation.combine(&mut out[shift..], &sources, &coefficients);
            prop_assert!(out[shift..] == expected, "{:?}", implementation);
            prop_assert!(out[..shift].iter().all(|b| *b == 2));
        }
    }

    #[test]
    fn any_group_is_rebuilt_after_any_bearable_loss(
        data in 1usize..24,
        parity in 1usize..=3,
        length in prop_oneof![0usize..600, 16000usize..40000],
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let whole = group(&mut random, data, parity, length);
        let losses = 1 + random.next() as usize % parity;
        let (mut missing_data, mut missing_parity) = (vec![], vec![]);
        for _ in 0..losses {
            let column = random.next() as usize % (data + parity);
            if column < data { missing_data.push(column) } else { missing_parity.push(column - data) }
        }
        check(Implementation::best(), &whole, &missing_data, &missing_parity);
    }

    #[test]
    fn random_losses_are_rebuilt_or_change_nothing(
        data_lengths in proptest::collection::vec(0usize..40, 0..8),
        parity_lengths in proptest::collection::vec(prop_oneof![Just(30usize), 0usize..40], 0..5),
        missing_data in proptest::collection::vec(0usize..9, 0..5),
        missing_parity in proptest::collection::vec(0usize..5, 0..4),
        seed in any::<u64>(),
    ) {
        let mut random = Random(seed);
        let mut data: Columns = data_lengths.iter().map(|n| random.bytes(*n)).collect();
        let mut parity: Columns = parity_lengths.iter().map(|n| random.bytes(*n)).collect();
        let before = (data.clone(), parity.clone());
        let borrowed: Vec<&[u8]> = data.iter().map(|c| &c[..]).collect();
        let sound = generate(&borrowed, &mut views(&mut parity)).is_ok();
        let whole = (data.clone(), parity.clone());
        let answer = reconstruct(
            &mut views(&mut data),
            &mut views(&mut parity),
            &missing_data,
            &missing_parity,
        );
        // Valid groups stay unchanged after reconstruction. Refused calls change nothing.
        prop_assert!(sound || answer.is_err());
        prop_assert_eq!(&(data, parity), &whole);
        prop_assert!(sound || whole == before);
    }
}
