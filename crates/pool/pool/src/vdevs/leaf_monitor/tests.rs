use super::*;
use millpond_device::MemoryDevice;

const SECOND: u64 = 1_000_000_000;

#[test]
fn ten_errors_in_ten_minutes_are_too_many_and_nine_are_not() {
    let usual = Thresholds::default().io;
    let mut rate = ErrorRate::default();
    assert!(!rate.add(0, 9, usual));
    assert!(rate.add(599 * SECOND, 1, usual));
    let mut rate = ErrorRate::default();
    assert!(!rate.add(0, 9, usual));
    assert!(!rate.add(700 * SECOND, 9, usual), "the first are long ago");
    assert!(rate.add(701 * SECOND, 1, usual));
}

#[test]
fn many_errors_take_little_memory() {
    let usual = Thresholds::default().io;
    let mut rate = ErrorRate::default();
    for at in 0..100_000 {
        rate.add(at * SECOND / 50, 1, usual);
    }
    assert!(
        rate.parts.len() <= PARTS as usize + 2,
        "{}",
        rate.parts.len()
    );
}

#[test]
fn a_threshold_of_zero_is_never_reached() {
    let never = Threshold {
        errors: 0,
        seconds: 600,
    };
    assert!(!ErrorRate::default().add(0, 1000, never));
    assert_eq!(Thresholds::default().slow.errors, 0);
}

#[test]
fn leaf_thresholds_override_those_of_the_vdev() {
    let mut thresholds = Thresholds::default();
    thresholds.set("io_n", 3);
    thresholds.set("io_n", u64::MAX);
    assert_eq!(thresholds.io.errors, 3, "the largest number says nothing");
    thresholds.set("io_n", 5);
    thresholds.set("checksum_t", 7);
    assert_eq!((thresholds.io.errors, thresholds.io.seconds), (5, 600));
    assert_eq!(thresholds.checksum.seconds, 7);
}

#[test]
fn a_probe_changes_nothing_and_fails_on_a_small_device() {
    let bytes: Vec<u8> = (0..64 << 20).map(|at: usize| (at / 511) as u8).collect();
    let device = MemoryDevice::new(bytes.clone());
    assert_eq!(probe(&device), Probe::Answers);
    let mut after = vec![0; bytes.len()];
    device.read(0, &mut after).unwrap();
    assert!(after == bytes);
    assert_eq!(probe(&MemoryDevice::new(vec![0; 4096])), Probe::Fails);
}
