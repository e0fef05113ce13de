//! Known values: sets of failures counted by hand, and the mean time to loss of textbooks.

use super::*;

fn plan(layout: Layout, ask: &Assumptions) -> Plan {
    Plan::new(layout, ask).expect("a plan")
}

fn mirrors(vdevs: u64) -> Layout {
    Layout {
        kind: VdevLayout::Mirror { sides: 2 },
        vdevs,
        spares: 0,
    }
}

fn raidz(vdevs: u64, disks: u64, parity: u64) -> Layout {
    Layout {
        kind: VdevLayout::Raidz { disks, parity },
        vdevs,
        spares: 0,
    }
}

fn is_near(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-9 * other.abs().max(1.0)
}

#[test]
fn sets_of_failures_are_counted_exactly() {
    let ask = Assumptions::hard_disks(4, 4 << 40);
    // Two of four disks: 2 of 6 pairs are a mirror. Three always have one.
    let risk = plan(mirrors(2), &ask).risk;
    assert!(is_near(risk.lost_with[1], 2.0 / 6.0), "{risk:?}");
    assert!(is_near(risk.next_kills, 1.0 / 3.0), "{risk:?}");
    assert_eq!((risk.lost_with[0], risk.lost_with[2]), (0.0, 1.0));
    assert_eq!((risk.always_survived, risk.survived_at_most), (1, 2));
    // Two vdevs of six with two parities: three failures in one vdev, 2 x 20 of 220 sets.
    let risk = plan(raidz(2, 6, 2), &ask).risk;
    assert_eq!(risk.lost_with[..2], [0.0, 0.0]);
    assert!(is_near(risk.lost_with[2], 40.0 / 220.0), "{risk:?}");
    assert_eq!(risk.next_kills, 0.0);
    // A stripe is lost with its first disk.
    let stripe = Layout {
        kind: VdevLayout::Stripe,
        vdevs: 4,
        spares: 0,
    };
    let risk = plan(stripe, &ask).risk;
    assert_eq!((risk.lost_with[0], risk.next_kills), (1.0, 1.0));
    assert!((risk.yearly_loss - (1.0 - 0.985f64.powi(4))).abs() < 1e-9);
}

#[test]
fn loss_follows_the_textbook() {
    let ask = Assumptions {
        fill: 0.0,
        ..Assumptions::hard_disks(2, 4 << 40)
    };
    // A mirror: MTTDL = (3 failures + repairs) / (2 failures²).
    let failures = -(0.985f64).ln() / YEAR_HOURS;
    let repairs = 1.0 / 24.0;
    let hours = (3.0 * failures + repairs) / (2.0 * failures * failures);
    let expected = 1.0 - (-YEAR_HOURS / hours).exp();
    let found = plan(mirrors(1), &ask).risk.yearly_loss;
    assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
}

/// One mirror of two disks of 4 TB, full: it loses its redundancy twice in a hundred disks' years, and one bit of 10^14 is
/// unreadable when the other side is read.
#[test]
fn unreadable_bits_cost_files_when_no_redundancy_is_left() {
    let ask = Assumptions {
        fill: 1.0,
        yearly_failure: 0.01,
        read_errors_per_bit: 1e-14,
        ..Assumptions::hard_disks(2, 4_000_000_000_000)
    };
    let plan = plan(mirrors(1), &ask);
    let unprotected = 2.0 * -(0.99f64).ln();
    let bits = plan.space.usable_bytes as f64 * 8.0;
    let rate = unprotected * (1.0 - (-bits * 1e-14).exp());
    let expected = 1.0 - (-rate).exp();
    let found = plan.risk.yearly_damage - plan.risk.yearly_loss;
    assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
    assert!(expected > 0.004);
}

#[test]
fn more_parity_is_safer_and_smaller() {
    let ask = Assumptions::hard_disks(12, 8 << 40);
    let [one, two, three] = [1, 2, 3].map(|parity| plan(raidz(2, 6, parity), &ask));
    assert!(one.risk.yearly_loss > two.risk.yearly_loss * 10.0);
    assert!(two.risk.yearly_loss > three.risk.yearly_loss * 10.0);
    assert!(one.space.usable_bytes > two.space.usable_bytes);
    assert!(two.space.usable_bytes > three.space.usable_bytes);
}

/// With a distributed spare, all disks take part in a rebuild, and none has to be brought first.
#[test]
fn draid_is_rebuilt_sooner_and_lost_less_often() {
    let ask = Assumptions::hard_disks(24, 12 << 40);
    let draid = |spares| Layout {
        kind: VdevLayout::Draid {
            disks: 24,
            parity: 2,
            data: 8,
            spares,
        },
        vdevs: 1,
        spares: 0,
    };
    let (with, without) = (plan(draid(1), &ask), plan(draid(0), &ask));
    assert_eq!(draid(1).to_string(), "draid2:8d:24c:1s");
    // 23 disks read eight times and write once what the failed one held.
    let held =
        |plan: &Plan, disks: f64| ask.fill * plan.space.usable_bytes as f64 / (disks * 8.0 / 10.0);
    let hours = held(&with, 23.0) * 9.0 / 23.0 / ask.rebuild_bytes_per_s / 3600.0;
    assert!(is_near(with.rebuild_hours, hours), "{with:?}");
    let hours = held(&without, 24.0) / ask.rebuild_bytes_per_s / 3600.0;
    assert!(is_near(without.rebuild_hours, hours), "{without:?}");
    assert!(with.risk.yearly_loss * 4.0 < without.risk.yearly_loss);
    assert!(with.space.usable_bytes < without.space.usable_bytes);
    // Any three disks have a group in common.
    assert_eq!(with.risk.lost_with[..3], [0.0, 0.0, 1.0]);
    assert!(is_near(with.reads_per_s, 150.0 * 2.3));
}

#[test]
fn every_layout_uses_all_disks_and_the_goal_orders_them() {
    for disks in 1..60 {
        let ask = Assumptions::hard_disks(disks, 4 << 40);
        for goal in [Goal::Balance, Goal::Space, Goal::Safety, Goal::Speed] {
            let plans = plans(&ask, goal).unwrap();
            for plan in &plans {
                let layout = plan.layout;
                let used = layout.vdevs * layout.kind.disks() + layout.spares;
                assert_eq!(used, disks, "{layout}");
                let words = layout.create_arguments();
                let named = words.split(' ').filter(|word| word.starts_with("disk"));
                assert_eq!(named.count() as u64, disks, "{words}");
            }
            let (first, rest) = plans.split_first().unwrap();
            for other in rest {
                let survives = other.layout.kind.parity() > 0;
                match goal {
                    Goal::Safety => assert!(first.risk.yearly_damage <= other.risk.yearly_damage),
                    Goal::Space if survives => {
                        assert!(first.space.usable_bytes >= other.space.usable_bytes);
                    }
                    Goal::Speed if survives => assert!(first.reads_per_s >= other.reads_per_s),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn impossible_wishes_are_refused() {
    let ask = |disks, bytes| plans(&Assumptions::hard_disks(disks, bytes), Goal::Balance);
    assert_eq!(ask(0, 1 << 40), Err(PlanError::NoDisks));
    assert_eq!(ask(1001, 1 << 40), Err(PlanError::TooManyDisks));
    assert_eq!(ask(2, 1 << 20), Err(PlanError::TooSmall));
    let wrong = Assumptions {
        yearly_failure: 0.0,
        ..Assumptions::hard_disks(2, 1 << 40)
    };
    assert_eq!(plans(&wrong, Goal::Balance), Err(PlanError::Assumption));
    assert!(ask(1000, u64::MAX).is_err());
}
