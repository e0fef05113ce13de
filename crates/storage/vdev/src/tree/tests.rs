use millpond_nvlist::{NvList, NvValue};
use millpond_ondisk::{Guid, ObjectId, Txg, VdevId};
use proptest::prelude::*;

use super::*;
use crate::twin::{leaf, over};
use crate::{METASLABS_MIN, metaslab_shift_for};

fn pool(tops: Vec<VdevConfig>) -> Result<VdevTree, TreeError> {
    VdevTree::new(VdevConfig::root(Guid(1), tops), Reflow::default())
}

fn top(config: VdevConfig) -> VdevConfig {
    VdevConfig {
        ashift: 12,
        ..config
    }
}

fn raidz(guid: u64, parity: Option<u64>, children: Vec<VdevConfig>) -> VdevConfig {
    VdevConfig {
        nparity: parity,
        ..top(over(VdevType::Raidz, guid, children))
    }
}

fn draid(children: Vec<VdevConfig>) -> VdevConfig {
    VdevConfig {
        nparity: Some(1),
        draid_ndata: Some(2),
        draid_nspares: Some(1),
        draid_ngroups: Some(1),
        ..top(over(VdevType::Draid, 50, children))
    }
}

fn dspare(guid: u64, spare_id: u64) -> VdevConfig {
    VdevConfig {
        spare_id: Some(spare_id),
        ..VdevConfig::new(VdevType::DraidSpare, Guid(guid))
    }
}

#[test]
fn leaves_and_tops_are_numbered_from_the_left() {
    let spare = over(VdevType::Spare, 60, vec![leaf(61), dspare(62, 0)]);
    let tops = vec![
        top(leaf(10)),
        VdevConfig::hole(),
        raidz(20, None, vec![leaf(21), leaf(22), leaf(23)]),
        draid(vec![leaf(51), spare, leaf(53), leaf(54)]),
        VdevConfig {
            is_log: true,
            ..top(over(VdevType::Mirror, 70, vec![leaf(71), leaf(72)]))
        },
    ];
    let mut tree = pool(tops).unwrap();
    assert_eq!(tree.top_count(), 5);
    let leaves: Vec<u64> = tree.leaves().map(|(_, node)| node.config.guid.0).collect();
    assert_eq!(leaves, [10, 21, 22, 23, 51, 61, 62, 53, 54, 71, 72]);
    assert_eq!(tree.find_leaf(Guid(62)), Some(LeafId(6)));
    assert!(!tree.leaf(LeafId(6)).unwrap().is_device());
    assert_eq!(tree.leaf(LeafId(5)).unwrap().top, Some(VdevId(3)));
    assert_eq!(tree.leaf(LeafId(5)).unwrap().ashift, Ashift(12));
    assert_eq!(tree.find(Guid(0)), None, "holes have no guid");
    assert_eq!(
        tree.guid_sum(),
        tree.nodes()
            .iter()
            .map(|node| node.config.guid.0)
            .sum::<u64>()
    );
    assert_eq!(tree.top(VdevId(4)).unwrap().class, AllocationClass::Log);
    tree.set_class(VdevId(0), AllocationClass::Special);
    assert_eq!(
        tree.leaf(LeafId(0)).unwrap().class,
        AllocationClass::Special
    );
    let names: Vec<String> = tree
        .tops()
        .map(|(_, node)| tree.name(tree.find(node.config.guid).unwrap_or(NodeId(0))))
        .collect();
    assert_eq!(
        names,
        ["10", "root", "raidz1-2", "draid1:2d:4c:1s-3", "mirror-4"]
    );
}

#[test]
fn configurations_that_no_pool_has_are_refused() {
    let reason = |tops: Vec<VdevConfig>| pool(tops).unwrap_err().reason;
    assert_eq!(reason(vec![leaf(5)]), "ashift is not between 9 and 16");
    assert_eq!(
        reason(vec![VdevConfig {
            ashift: 17,
            ..leaf(5)
        }]),
        "ashift is not between 9 and 16"
    );
    assert_eq!(
        reason(vec![top(leaf(5)), top(leaf(5))]),
        "its guid stands twice in the tree"
    );
    let misplaced = VdevConfig {
        id: Some(1),
        ..top(leaf(5))
    };
    assert_eq!(
        reason(vec![misplaced]),
        "its id is not its place among its siblings"
    );
    assert_eq!(
        reason(vec![top(over(VdevType::Mirror, 5, vec![]))]),
        "no children"
    );
    let with_child = VdevConfig {
        children: vec![leaf(6)],
        ..top(leaf(5))
    };
    assert_eq!(
        reason(vec![with_child]),
        "children below a vdev that has none"
    );
    let below = "only a top-level vdev can be of this kind";
    let nested = raidz(6, Some(1), vec![leaf(7), leaf(8)]);
    assert_eq!(
        reason(vec![top(over(VdevType::Mirror, 5, vec![nested]))]),
        below
    );
    let root = VdevConfig::root(Guid(9), vec![]);
    assert_eq!(reason(vec![top(root)]), "a root vdev below another vdev");
    let spare = over(VdevType::Spare, 5, vec![leaf(6), dspare(7, 0)]);
    assert_eq!(
        reason(vec![top(spare)]),
        "a distributed spare outside a dRAID vdev"
    );
    let direct = draid(vec![leaf(51), dspare(52, 0), leaf(53), leaf(54)]);
    // The child whose place it has was detached.
    assert!(pool(vec![direct]).is_ok());
    let beyond = over(VdevType::Spare, 60, vec![leaf(61), dspare(62, 1)]);
    let beyond = draid(vec![leaf(51), beyond, leaf(53), leaf(54)]);
    assert_eq!(reason(vec![beyond]), "spareid beyond the vdev's spares");
    assert_eq!(
        reason(vec![raidz(5, Some(3), vec![leaf(6), leaf(7)])]),
        "fewer children than parity and one data column need"
    );
    assert!(VdevTree::new(leaf(5), Reflow::default()).is_err());
}

#[test]
fn deep_and_wide_configurations_are_refused_without_harm() {
    let mut deep = leaf(1000);
    for guid in 0..60 {
        deep = over(VdevType::Mirror, 2000 + guid, vec![deep]);
    }
    assert_eq!(
        pool(vec![top(deep)]).unwrap_err().reason,
        "the tree is too deep"
    );
    let wide = (0..=CHILDREN_MAX as u64).map(|at| leaf(10 + at)).collect();
    assert!(pool(vec![top(over(VdevType::Mirror, 5, wide))]).is_err());
}

fn list(pairs: Vec<(&str, NvValue)>) -> NvList {
    let mut list = NvList::new();
    for (name, value) in pairs {
        list.push(name, value);
    }
    list
}

fn leaf_list(id: u64, guid: u64) -> NvList {
    list(vec![
        ("type", "disk".into()),
        ("id", id.into()),
        ("guid", guid.into()),
        ("path", "/dev/sda1".into()),
        ("whole_disk", 1u64.into()),
        ("DTL", 77u64.into()),
        ("offline", u64::from(id == 1).into()),
        ("com.delphix:vdev_zap_leaf", 130u64.into()),
    ])
}

#[test]
fn a_vdevs_list_becomes_a_configuration() {
    let mut raidz = list(vec![
        ("type", "raidz".into()),
        ("id", 0u64.into()),
        ("guid", 20u64.into()),
        ("nparity", 1u64.into()),
        ("metaslab_array", 71u64.into()),
        ("metaslab_shift", 25u64.into()),
        ("ashift", 12u64.into()),
        ("asize", 287_834_112u64.into()),
        ("min_alloc", 4096u64.into()),
        ("create_txg", 4u64.into()),
        ("raidz_expand_txgs", NvValue::Uint64Array(vec![31, 55])),
        (
            "children",
            NvValue::ListArray((0..5).map(|at| leaf_list(at, 21 + at)).collect()),
        ),
    ]);
    raidz.insert_flag("raidz_expanding");
    let root = list(vec![
        ("type", "root".into()),
        ("id", 0u64.into()),
        ("guid", 1u64.into()),
        ("com.klarasystems:vdev_zap_root", 129u64.into()),
        ("children", NvValue::ListArray(vec![raidz])),
    ]);
    let bytes = root.encode_xdr().unwrap();
    let config = VdevConfig::from_nvlist(&NvList::decode(&bytes).unwrap()).unwrap();
    assert_eq!(config.zap_root, Some(ObjectId(129)));
    let top = &config.children[0];
    assert_eq!(top.raidz_expand_txgs, [Txg(31), Txg(55)]);
    assert!(top.raidz_expanding && top.children[1].offline && !top.children[0].offline);
    assert_eq!((top.asize_bytes, top.metaslab_shift), (287_834_112, 25));
    assert_eq!(top.children[2].path.as_deref(), Some("/dev/sda1"));
    assert_eq!(top.children[2].dtl, Some(ObjectId(77)));
    let tree = VdevTree::new(config, Reflow::default()).unwrap();
    assert_eq!(tree.raidz_width(VdevId(0), Txg(54)), Some(3));
}

#[test]
fn lists_that_are_no_vdev_are_refused() {
    let read = |pairs| VdevConfig::from_nvlist(&list(pairs));
    assert!(matches!(read(vec![]), Err(VdevConfigError::Lookup(_))));
    let unknown = read(vec![("type", "raid9".into())]);
    assert_eq!(
        unknown,
        Err(VdevConfigError::UnknownType("raid9".to_owned()))
    );
    let wrong = read(vec![("type", "disk".into()), ("guid", "text".into())]);
    assert!(matches!(wrong, Err(VdevConfigError::Lookup(_))));
    let groups = read(vec![
        ("type", "draid".into()),
        ("draid_nchildren", 7u64.into()),
    ]);
    assert_eq!(groups, Err(VdevConfigError::FailureGroups));
    let mut deep = leaf_list(0, 1);
    for guid in 0..40u64 {
        let children = NvValue::ListArray(vec![deep]);
        deep = list(vec![
            ("type", "mirror".into()),
            ("guid", guid.into()),
            ("children", children),
        ]);
    }
    assert_eq!(
        VdevConfig::from_nvlist(&deep),
        Err(VdevConfigError::TooDeep)
    );
}

#[test]
fn progress_of_an_expansion_is_taken_from_the_uberblock() {
    let reflow = Reflow::from_uberblock(4 << 55 | 1200);
    assert_eq!(
        reflow,
        Reflow {
            offset_bytes: 1200 * 512,
            scratch_state: 4
        }
    );
    let all = Reflow::from_uberblock(u64::MAX);
    assert_eq!(all.scratch_state, 511);
}

#[test]
fn sizes_of_every_kind_are_those_of_the_known_examples() {
    let leaves = |count: u64| (0..count).map(|at| leaf(100 + at)).collect::<Vec<_>>();
    let one = |config: VdevConfig| pool(vec![config]).unwrap();
    let id = VdevId(0);
    for (ashift, children, parity, ratio) in [
        (12u64, 4u64, 1u64, 372u64),
        (9, 5, 1, 409),
        (12, 6, 2, 341),
        (12, 8, 2, 364),
        (12, 5, 2, 303),
        (12, 9, 3, 315),
        (9, 4, 1, 383),
    ] {
        let tree = one(VdevConfig {
            ashift,
            ..raidz(5, Some(parity), leaves(children))
        });
        assert_eq!(
            tree.deflate_ratio(id),
            Some(ratio),
            "{ashift} {children} {parity}"
        );
    }
    let disk = one(VdevConfig {
        asize_bytes: 517_996_544,
        metaslab_shift: 25,
        ..top(leaf(5))
    });
    assert_eq!(disk.deflate_ratio(id), Some(512));
    assert_eq!(disk.asize(id, 512, Txg(9)), Some(4096));
    assert_eq!((disk.metaslab_count(id), disk.space(id)), (15, 15 << 25));
    assert_eq!(disk.metaslab_range(id, 14), Some((14 << 25, 1 << 25)));
    assert_eq!(disk.metaslab_range(id, 15), None);
    assert_eq!(
        (disk.min_alloc(id), disk.data_disks(id)),
        (Some(4096), Some(1))
    );
    assert_eq!(disk.gang_header_size(id, false), Some(512));
    assert_eq!(disk.gang_header_size(id, true), Some(4096));
    assert_eq!(disk.gang_header_asize(id), Some(4096));

    // Expanded from 4 to 5: new blocks are wider, the ratio stays.
    let widened = one(VdevConfig {
        raidz_expand_txgs: vec![Txg(30)],
        ..raidz(5, Some(1), leaves(5))
    });
    assert_eq!(widened.deflate_ratio(id), Some(372));
    assert_eq!(widened.asize(id, 131_072, Txg(29)), Some(180_224));
    assert_eq!(widened.asize(id, 131_072, Txg(30)), Some(163_840));
    assert_eq!(widened.gang_header_asize(id), Some(8192));

    // draid1:2d:4c:1s: stripes of 3 sectors do not divide a metaslab evenly.
    let spread = VdevConfig {
        asize_bytes: 96 << 20,
        metaslab_shift: 24,
        ..draid(leaves(4))
    };
    let spread = one(spread);
    assert_eq!(
        (spread.min_alloc(id), spread.data_disks(id)),
        (Some(8192), Some(2))
    );
    assert_eq!(spread.gang_header_size(id, true), Some(8192));
    let stripe = 3 * 4096u64;
    let mut total = 0;
    for at in 0..6 {
        let (start, length) = spread.metaslab_range(id, at).unwrap();
        assert!(start % stripe == 0 && length % stripe == 0);
        assert!(start >= at << 24 && start + length <= (at + 1) << 24);
        total += length;
    }
    assert_eq!(spread.space(id), total);
    for (ashift, ndata, count) in [(9u64, 2u64, 40u64), (12, 1, 7), (16, 2, 100)] {
        let config = VdevConfig {
            ashift,
            draid_ndata: Some(ndata),
            draid_ngroups: Some(if ndata == 1 { 3 } else { 1 }),
            asize_bytes: count << 19,
            metaslab_shift: 19,
            ..draid(leaves(4))
        };
        let tree = one(config);
        let sizes = (0..count).map(|at| tree.metaslab_range(id, at).unwrap().1);
        assert_eq!(tree.space(id), sizes.sum::<u64>());
    }

    let holes = pool(vec![VdevConfig::hole(), VdevConfig::missing()]).unwrap();
    assert_eq!(
        (
            holes.space(id),
            holes.asize(id, 512, Txg(1)),
            holes.min_alloc(id)
        ),
        (0, None, None)
    );
}

#[test]
fn allocatable_bytes_follow_from_the_smallest_device() {
    let leaves = |count: u64| (0..count).map(|at| leaf(100 + at)).collect::<Vec<_>>();
    let size = |config: VdevConfig| {
        let tree = pool(vec![config]).unwrap();
        tree.asize_from_devices(NodeId(1), &|node| match node.config.guid.0 {
            100 => None,
            101 => Some((64 << 20) + 100_000),
            _ => Some(96 << 20),
        })
    };
    let small = (64u64 << 20) - (4 << 20) - (512 << 10);
    assert_eq!(size(top(over(VdevType::Mirror, 5, leaves(3)))), Some(small));
    assert_eq!(size(raidz(5, Some(1), leaves(3))), Some(3 * small));
    let growing = VdevConfig {
        raidz_expanding: true,
        ..raidz(5, Some(1), leaves(4))
    };
    assert_eq!(size(growing), Some(3 * small));
    assert_eq!(size(draid(leaves(4))), Some(48 << 20));
    assert_eq!(size(VdevConfig::hole()), None);
}

#[test]
fn metaslabs_of_new_vdevs_have_the_known_sizes() {
    for (asize, shift) in [
        (517_996_544u64, 25u32),
        (1_744_830_464, 27),
        (129_499_136, 24),
        (62_390_272, 24),
        (187_170_816, 24),
        (1 << 33, 29),
        (1 << 40, 33),
        (u64::MAX, 47),
    ] {
        assert_eq!(metaslab_shift_for(asize, METASLABS_MIN), shift, "{asize}");
    }
    assert_eq!(metaslab_shift_for(1 << 30, 16), 27);
    assert_eq!(metaslab_shift_for(1 << 30, 32), 26);
    // No metaslab is smaller than 16 MiB.
    assert_eq!(metaslab_shift_for(1 << 30, 1 << 17), 24);
}

fn any_config() -> impl Strategy<Value = VdevConfig> {
    let kind = prop_oneof![
        Just(VdevType::Disk),
        Just(VdevType::File),
        Just(VdevType::Mirror),
        Just(VdevType::Replacing),
        Just(VdevType::Spare),
        Just(VdevType::Raidz),
        Just(VdevType::Draid),
        Just(VdevType::DraidSpare),
        Just(VdevType::Indirect),
        Just(VdevType::Hole),
        Just(VdevType::Missing),
    ];
    let numbers = prop::array::uniform6(prop_oneof![0u64..5, Just(1u64), Just(2u64), any::<u64>()]);
    let base =
        (kind, any::<u64>(), numbers, any::<bool>()).prop_map(|(kind, guid, numbers, flag)| {
            let [nparity, data, spares, groups, spare_id, asize_bytes] = numbers;
            VdevConfig {
                ashift: 9 + guid % 8,
                nparity: Some(nparity),
                draid_ndata: Some(data),
                draid_nspares: Some(spares),
                draid_ngroups: Some(groups),
                spare_id: Some(spare_id % 3),
                asize_bytes,
                metaslab_shift: guid % 70,
                raidz_expanding: flag,
                ..VdevConfig::new(kind, Guid(guid))
            }
        });
    base.clone().prop_recursive(4, 24, 6, move |inner| {
        (base.clone(), proptest::collection::vec(inner, 0..6))
            .prop_map(|(config, children)| VdevConfig { children, ..config })
    })
}

proptest! {
    #[test]
    fn damaged_lists_are_a_configuration_or_an_error(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
    ) {
        let children = NvValue::ListArray((0..4).map(|at| leaf_list(at, 21 + at)).collect());
        let raidz = list(vec![
            ("type", "raidz".into()),
            ("guid", 20u64.into()),
            ("nparity", 1u64.into()),
            ("ashift", 12u64.into()),
            ("raidz_expand_txgs", NvValue::Uint64Array(vec![31])),
            ("children", children),
        ]);
        let root = list(vec![("type", "root".into()), ("children", NvValue::ListArray(vec![raidz]))]);
        let mut bytes = root.encode_xdr().unwrap();
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Ok(list) = NvList::decode(&bytes)
            && let Ok(config) = VdevConfig::from_nvlist(&list)
        {
            let _ = VdevTree::new(config, Reflow::default());
        }
    }

    #[test]
    fn any_configuration_parses_or_fails_without_panic(
        tops in proptest::collection::vec(any_config(), 0..5),
        reflow in any::<u64>(), offset in any::<u64>(), size in 1u64..200_000, birth in any::<u64>(),
    ) {
        let root = VdevConfig::root(Guid(1), tops);
        if let Ok(tree) = VdevTree::new(root, Reflow::from_uberblock(reflow)) {
            for vdev in (0..tree.top_count() as u32 + 1).map(VdevId) {
                let (psize, birth) = (offset, Txg(birth));
                let _ = (tree.asize(vdev, psize, birth), tree.psize_max(vdev, psize, birth));
                let _ = (tree.deflate_ratio(vdev), tree.deflated(vdev, psize), tree.data_disks(vdev));
                let _ = (tree.metaslab_range(vdev, offset % 100), tree.space(vdev));
                for offset_bytes in [offset, offset & !0xf_ffff, offset >> 20 << 16] {
                    let range = crate::BlockRange { vdev, offset_bytes, size_bytes: size, birth };
                    let plan = crate::ReadPlan::new(&tree, &crate::AllGood, &crate::NoIndirect, range);
                    if let Ok(mut plan) = plan {
                        let _ = plan.advance(Vec::new(), &mut |_| false);
                        let _ = plan.advance(Vec::new(), &mut |_| false);
                    }
                }
            }
        }
    }
}
