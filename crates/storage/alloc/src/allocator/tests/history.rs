//! Random histories of pools.

use super::world::World;
use super::*;
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Allocate {
        sectors: u64,
        copies: u8,
        lane: usize,
    },
    AllocateEarly {
        sectors: u64,
    },
    FreeOld(usize),
    FreeYoung(usize),
    FreeYoungLater(usize),
    Pass,
    Sync,
    FlushAll,
    Crash {
        is_claiming: bool,
    },
    Unload,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        14 => (1u64..40, 1u8..=3, 0usize..3).prop_map(|(sectors, copies, lane)| Step::Allocate { sectors, copies, lane }),
        2 => (1u64..20).prop_map(|sectors| Step::AllocateEarly { sectors }),
        8 => any::<usize>().prop_map(Step::FreeOld),
        3 => any::<usize>().prop_map(Step::FreeYoung),
        1 => any::<usize>().prop_map(Step::FreeYoungLater),
        3 => Just(Step::Pass),
        4 => Just(Step::Sync),
        1 => Just(Step::FlushAll),
        1 => any::<bool>().prop_map(|is_claiming| Step::Crash { is_claiming }),
        1 => Just(Step::Unload),
    ]
}

fn run(vdevs: Vec<VdevSpace>, forms: SpaceMapForms, policy: LogPolicy, steps: Vec<Step>) {
    // Tiny blocks, so that padding and condensing happen.
    let mut world = World::new(vdevs, 128, forms);
    world.allocator.set_log_policy(policy);
    let mut pass = 1;
    for step in steps {
        match step {
            Step::Allocate {
                sectors,
                copies,
                lane,
            } => {
                let request = AllocRequest {
                    lane,
                    ..normal(sectors * 512, copies)
                };
                let _ = world.allocate(&request);
            }
            Step::AllocateEarly { sectors } => {
                let _ = world.allocate_early(&normal(sectors * 512, 1));
            }
            Step::FreeOld(index) if !world.blocks.is_empty() => {
                world.free_old(index % world.blocks.len());
            }
            Step::FreeYoung(index) if !world.young.is_empty() => {
                world.free_young(index % world.young.len());
            }
            Step::FreeYoungLater(index) if !world.young.is_empty() => {
                world.free_young_later(index % world.young.len());
            }
            Step::Pass => {
                world.pass(pass);
                pass += 1;
            }
            Step::Sync => {
                while world.pass(pass) {
                    pass += 1;
                }
                pass = 1;
                world.commit();
            }
            Step::FlushAll => world.allocator.flush_all_in_next_txg(),
            Step::Crash { is_claiming } => {
                world.crash(is_claiming);
                world.allocator.set_log_policy(policy);
                pass = 1;
            }
            Step::Unload => {
                for vdev in world.allocator.vdevs().values() {
                    for metaslab in &vdev.metaslabs {
                        metaslab.with(|state| state.unload());
                    }
                }
            }
            _ => {}
        }
    }
    while world.pass(pass) {
        pass += 1;
    }
    world.commit();
}

fn eager() -> LogPolicy {
    LogPolicy {
        logs_max: 3,
        blocks_min: 2,
        blocks_max: 6,
        ranges_max: 40,
    }
}

fn two_vdevs() -> Vec<VdevSpace> {
    vec![plain(0, 4, 17, 9), plain(1, 9, 17, 9)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn with_log_space_maps_allocations_match_the_blocks(steps in proptest::collection::vec(step(), 1..300)) {
        run(two_vdevs(), LOGS, eager(), steps);
    }

    #[test]
    fn with_many_logs_allocations_match_the_blocks(steps in proptest::collection::vec(step(), 1..300)) {
        run(vec![raidz(2, 5, 17, 4, 1)], LOGS, LogPolicy::default(), steps);
    }

    #[test]
    fn without_log_space_maps_allocations_match_the_blocks(steps in proptest::collection::vec(step(), 1..300)) {
        run(vec![plain(0, 3, 17, 9), raidz(1, 3, 17, 5, 2)], OLD, eager(), steps);
    }
}
