use super::*;
use crate::labels::write_initial_labels;
use crate::{LabelHalf, PoolConfig, WriteOrder, write_labels};
use millpond_block::Topology;
use millpond_device::MemoryDevice;
use millpond_vdev::{IndirectTables, LeafTable, Reflow, VdevTree};

const MIB: usize = 1 << 20;

fn file(path: &str, mib: usize) -> NewDevice {
    NewDevice::file(path, Arc::new(MemoryDevice::new(vec![0; mib * MIB])))
}

fn files(count: usize, mib: usize) -> Vec<NewDevice> {
    (0..count).map(|n| file(&format!("/d{n}"), mib)).collect()
}

fn build(new: &NewVdevs, options: NewVdevOptions) -> Result<BuiltVdevs, NewVdevError> {
    let nothing_open = |_| false;
    build_vdevs(
        &Env::real(),
        new,
        options,
        Txg(4),
        &[],
        &BTreeSet::new(),
        &nothing_open,
    )
}

#[test]
fn a_device_by_itself_is_a_top_level_vdev() {
    let built = build(
        &NewVdevs::of(vec![NewTop::normal(NewLayout::Single, files(1, 64))]),
        NewVdevOptions::default(),
    )
    .unwrap();
    let (vdev, class) = &built.tops[0];
    assert_eq!(
        (vdev.kind, *class),
        (VdevType::File, AllocationClass::Normal)
    );
    assert_eq!(vdev.path.as_deref(), Some("/d0"));
    assert_eq!(
        (vdev.ashift, vdev.asize_bytes, vdev.metaslab_shift),
        (9, 62_390_272, 24)
    );
    assert_eq!((vdev.id, vdev.create_txg), (Some(0), Some(Txg(4))));
    assert_eq!(vdev.whole_disk, None);
    assert_ne!(vdev.guid, Guid(0));
    assert!(built.devices.contains_key(&vdev.guid));
}

#[test]
fn sizes_of_groups_follow_from_their_smallest_device() {
    let mut devices = files(3, 65);
    devices[1] = file("/small", 64);
    let options = NewVdevOptions {
        ashift: Some(12),
        ..NewVdevOptions::default()
    };
    let raidz = build(
        &NewVdevs::of(vec![NewTop::normal(NewLayout::Raidz(1), devices.clone())]),
        options,
    )
    .unwrap();
    let (vdev, _) = &raidz.tops[0];
    assert_eq!((vdev.asize_bytes, vdev.nparity), (187_170_816, Some(1)));
    assert_eq!((vdev.ashift, vdev.children.len()), (12, 3));
    let ids: Vec<_> = vdev.children.iter().map(|child| child.id).collect();
    assert_eq!(ids, [Some(0), Some(1), Some(2)]);
    assert!(vdev.children.iter().all(|child| child.ashift == 0));
    let mirror = build(
        &NewVdevs::of(vec![NewTop::normal(NewLayout::Mirror, devices)]),
        options,
    )
    .unwrap();
    assert_eq!(mirror.tops[0].0.asize_bytes, 62_390_272);
    let tree = VdevConfig::root(Guid(1), vec![vdev.clone()]);
    assert!(VdevTree::new(tree, Reflow::default()).is_ok());
}

#[test]
fn the_largest_sector_decides_unless_one_is_asked_for() {
    let disk = |path: &str, sector| {
        NewDevice::file(
            path,
            Arc::new(MemoryDevice::new(vec![0; 64 * MIB]).with_sector_bytes(sector)),
        )
    };
    let new = NewVdevs::of(vec![NewTop::normal(
        NewLayout::Mirror,
        vec![disk("/a", 512), disk("/b", 4096)],
    )]);
    let ashift = |options| build(&new, options).map(|built| built.tops[0].0.ashift);
    assert_eq!(ashift(NewVdevOptions::default()), Ok(12));
    let asked = |ashift| NewVdevOptions {
        ashift: Some(ashift),
        ..NewVdevOptions::default()
    };
    assert_eq!(ashift(asked(13)), Ok(13));
    assert!(matches!(
        ashift(asked(9)),
        Err(NewVdevError::SectorTooLarge {
            sector_bytes: 4096,
            ..
        })
    ));
    assert_eq!(ashift(asked(8)), Err(NewVdevError::Ashift(8)));
    assert_eq!(ashift(asked(17)), Err(NewVdevError::Ashift(17)));
}

#[test]
fn tunables_decide_about_files_and_the_number_of_metaslabs() {
    let built = |new: &NewVdevs, env: &Env| {
        let options = NewVdevOptions::default();
        let (taken, nothing_open) = (BTreeSet::new(), |_| false);
        let built = build_vdevs(env, new, options, Txg(4), &[], &taken, &nothing_open);
        let (top, _) = built.unwrap().tops.swap_remove(0);
        (top.ashift, top.metaslab_shift)
    };
    let new = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, files(1, 512))]);
    let env = Env::real();
    assert_eq!(built(&new, &env), (9, 25));
    assert!(env.tunables.set(Tunable::VdevMinMetaslabs, 32));
    assert!(env.tunables.set(Tunable::FilePhysicalAshift, 13));
    assert_eq!(built(&new, &env), (13, 24));
    // What a device prefers does not count above this.
    assert!(env.tunables.set(Tunable::VdevMaxAutoAshift, 12));
    assert_eq!(built(&new, &env), (9, 24));
    let disk = NewDevice {
        is_block_device: true,
        ..file("/disk", 64)
    };
    assert!(env.tunables.set(Tunable::VdevMaxAutoAshift, 14));
    let disk = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, vec![disk])]);
    assert_eq!(built(&disk, &env).0, 9);
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    let error = |new: &NewVdevs| build(new, NewVdevOptions::default()).unwrap_err();
    assert_eq!(error(&NewVdevs::default()), NewVdevError::NoData);
    assert!(matches!(
        error(&NewVdevs::of(vec![NewTop::normal(
            NewLayout::Mirror,
            files(1, 64)
        )])),
        NewVdevError::TooFew { least: 2, .. }
    ));
    assert!(matches!(
        error(&NewVdevs::of(vec![NewTop::normal(
            NewLayout::Raidz(3),
            files(3, 64)
        )])),
        NewVdevError::TooFew { least: 4, .. }
    ));
    assert_eq!(
        error(&NewVdevs::of(vec![NewTop::normal(
            NewLayout::Raidz(4),
            files(9, 64)
        )])),
        NewVdevError::Parity(4)
    );
    let mut log = NewTop::normal(NewLayout::Raidz(1), files(3, 64));
    log.class = AllocationClass::Log;
    let data = NewTop::normal(NewLayout::Single, vec![file("/x", 64)]);
    assert_eq!(
        error(&NewVdevs::of(vec![data.clone(), log])),
        NewVdevError::RaidzLog
    );
    let mut only_log = data;
    only_log.class = AllocationClass::Log;
    assert_eq!(error(&NewVdevs::of(vec![only_log])), NewVdevError::NoData);
}

#[test]
fn devices_that_cannot_be_are_refused() {
    let error = |devices| {
        let new = NewVdevs::of(vec![NewTop::normal(NewLayout::Mirror, devices)]);
        build(&new, NewVdevOptions::default()).unwrap_err()
    };
    assert!(matches!(
        error(vec![file("/a", 64), file("/b", 63)]),
        NewVdevError::TooSmall { path } if path == "/b"
    ));
    assert!(matches!(
        error(vec![file("/a", 64), file("/a", 64)]),
        NewVdevError::Twice { .. }
    ));
    let one = file("/a", 64);
    let other_name = NewDevice {
        path: "/b".into(),
        ..one.clone()
    };
    assert!(matches!(
        error(vec![one, other_name]),
        NewVdevError::Twice { .. }
    ));
    assert!(matches!(
        error(vec![file("/a", 64), file("b", 64)]),
        NewVdevError::RelativePath { .. }
    ));
}

#[test]
fn mixed_redundancy_needs_force() {
    let new = NewVdevs::of(vec![
        NewTop::normal(NewLayout::Mirror, vec![file("/a", 64), file("/b", 80)]),
        NewTop::normal(NewLayout::Single, vec![file("/c", 64)]),
    ]);
    let NewVdevError::Replication(found) = build(&new, NewVdevOptions::default()).unwrap_err()
    else {
        panic!("not told")
    };
    assert!(matches!(found[0], ReplicationMismatch::DeviceSizes(one) if one.ways == 2));
    assert!(matches!(
        found[1],
        ReplicationMismatch::BetweenNew(first, second)
            if first.kind == VdevType::Mirror && second.kind == VdevType::File
    ));
    assert_eq!(found.len(), 2);
    let force = NewVdevOptions {
        force: true,
        ..NewVdevOptions::default()
    };
    assert_eq!(build(&new, force).unwrap().tops.len(), 2);
    // A two-way mirror survives as many losses as raidz1.
    let new = NewVdevs::of(vec![
        NewTop::normal(NewLayout::Mirror, vec![file("/a", 64), file("/b", 64)]),
        NewTop::normal(
            NewLayout::Raidz(1),
            vec![file("/c", 64), file("/d", 64), file("/e", 64)],
        ),
    ]);
    assert!(build(&new, NewVdevOptions::default()).is_ok());
}

/// A device with the labels of a single-device pool in `state`.
fn labelled(state: LeafState, txg: u64) -> (NewDevice, Guid) {
    let new = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, files(1, 64))]);
    let built = build(&new, NewVdevOptions::default()).unwrap();
    let guid = built.tops[0].0.guid;
    let pool = Guid(77);
    let root = VdevConfig::root(pool, vec![built.tops[0].0.clone()]);
    let config = PoolConfig {
        state,
        txg: Txg(txg),
        ..PoolConfig::new("other", root.clone())
    };
    let device = new.tops[0].devices[0].clone();
    if txg == 0 {
        let list = config.initial_label_list(guid, Txg(4)).unwrap();
        write_initial_labels(device.device.as_ref(), &list, None).unwrap();
    } else {
        let tree = VdevTree::new(root, Reflow::default()).unwrap();
        let topology = Topology::new(
            tree,
            vec![Some(Arc::clone(&device.device))],
            LeafTable::all_good(1),
            IndirectTables::default(),
        );
        let tops = [millpond_ondisk::VdevId(0)];
        let report = write_labels(
            &topology,
            &config,
            &tops,
            LabelHalf::Odd,
            WriteOrder::Together,
        )
        .unwrap();
        assert!(report.reached(tops[0]));
    }
    (device, guid)
}

#[test]
fn devices_of_other_pools_need_force() {
    for (state, is_used) in [
        (LeafState::Active, true),
        (LeafState::Exported, true),
        (LeafState::Destroyed, false),
    ] {
        let (device, guid) = labelled(state, 9);
        let new = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, vec![device])]);
        let outcome = build(&new, NewVdevOptions::default());
        assert_eq!(outcome.is_err(), is_used, "{state:?}");
        if let Err(NewVdevError::InUse(uses)) = outcome {
            let (path, used) = &uses[0];
            assert_eq!((path.as_str(), used.state, used.guid), ("/d0", state, guid));
            assert_eq!(
                (used.pool.as_deref(), used.pool_guid),
                (Some("other"), Guid(77))
            );
        }
        let force = NewVdevOptions {
            force: true,
            ..NewVdevOptions::default()
        };
        assert!(build(&new, force).is_ok());
        let is_open = |guid| guid == Guid(77);
        let open = build_vdevs(
            &Env::real(),
            &new,
            force,
            Txg(4),
            &[],
            &BTreeSet::new(),
            &is_open,
        );
        assert_eq!(open.is_err(), is_used, "{state:?}");
    }
    let (never_joined, _) = labelled(LeafState::Active, 0);
    let new = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, vec![never_joined])]);
    assert!(build(&new, NewVdevOptions::default()).is_ok());
}

#[test]
fn spares_and_caches_are_listed_with_their_sectors() {
    let mut new = NewVdevs::of(vec![NewTop::normal(NewLayout::Single, files(1, 64))]);
    new.spares = vec![file("/s", 64)];
    new.caches = vec![file("/c", 64)];
    let built = build(&new, NewVdevOptions::default()).unwrap();
    assert!(built.spares[0].is_spare && !built.caches[0].is_spare);
    assert_eq!((built.spares[0].ashift, built.spares[0].id), (9, None));
    assert_eq!(built.devices.len(), 3);
    let list = built.spares[0].to_auxiliary_nvlist();
    let keys: Vec<_> = list.iter().map(|p| p.name.to_string_lossy()).collect();
    assert_eq!(keys, ["type", "guid", "path", "is_spare", "ashift"]);
}
