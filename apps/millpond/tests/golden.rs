//! Prints the golden pools from the model and compares the result with the output of OpenZFS.

mod support;

use millpond_control::{
    DatasetInfo, FeatureInfo, FeatureState, RequestedFeatures, Value, VdevInfo, VdevKind,
};
use serde_json::Value as Json;
use support::{FakeService, history, kind_of, model, recording, run};

/// The description of every golden pool by case name, without compressed ones.
fn cases() -> Vec<(String, Json)> {
    let Some(folder) = recording::golden() else {
        return Vec::new();
    };
    let mut cases = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let folder = entry.expect("an entry").path();
        if let Ok(text) = std::fs::read_to_string(folder.join("CASE.json")) {
            let name = folder
                .file_name()
                .expect("a name")
                .to_string_lossy()
                .into_owned();
            let case: Json = serde_json::from_str(&text).expect("JSON");
            if case["zpool_get"].is_object() {
                cases.push((name, case));
            }
        }
    }
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    cases
}

fn pairs(object: &Json) -> impl Iterator<Item = (&str, &str, &str)> {
    object
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, pair)| {
            (
                name.as_str(),
                pair[0].as_str().unwrap_or("-"),
                pair[1].as_str().unwrap_or("-"),
            )
        })
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_string).collect()
}

fn control(case: &Json) -> FakeService {
    let mut control = FakeService::default();
    let status = case["zpool_status"].as_str().unwrap_or_default();
    control.pools = model::pools_from_status(status);
    for pool in &mut control.pools {
        pool.features.clear();
        for (name, text, source) in pairs(&case["zpool_get"]) {
            model::pool_property(pool, name, text, source);
        }
    }
    for pool in &mut control.pools {
        let wish = pool.property("compatibility").and_then(|p| p.value.clone());
        let is_used = |f: &&FeatureInfo| f.state != FeatureState::Disabled;
        pool.requested = match wish.as_ref().and_then(Value::text) {
            None | Some("off") => RequestedFeatures::All,
            Some("legacy") => RequestedFeatures::Legacy,
            // The feature file is not available here. The pool was created with exactly the features in it.
            Some(_) => {
                let used = pool.features.iter().filter(is_used).map(|f| f.name.clone());
                RequestedFeatures::Listed(used.collect())
            }
        };
    }
    for dataset in case["datasets"].as_array().into_iter().flatten() {
        let mut info = DatasetInfo {
            name: dataset["name"].as_str().expect("a name").into(),
            kind: kind_of(dataset["type"].as_str().expect("a type")),
            created_txg: 0,
            properties: Vec::new(),
        };
        for (name, text, source) in pairs(&dataset["properties"]) {
            info.properties
                .push(model::dataset_property(name, text, source));
        }
        if let Some(Value::Number(txg)) = info.property("createtxg").and_then(|p| p.value.clone()) {
            info.created_txg = txg;
        }
        control.datasets.push(info);
    }
    control
}

fn report(what: &str, equal: usize, different: &[(String, String, String)]) {
    println!("{what}: {equal} of {} equal", equal + different.len());
    for (name, theirs, ours) in different.iter().take(6) {
        println!("--- {name}\n<<< theirs\n{theirs}\n>>> ours\n{ours}");
    }
    assert!(different.is_empty(), "{what}: {} differ", different.len());
}

#[test]
fn all_golden_pool_properties_print_as_in_openzfs() {
    let (mut equal, mut different) = (0, Vec::new());
    for (name, case) in cases() {
        let control = control(&case);
        let Some(pool) = control.pools.first().map(|pool| pool.name.clone()) else {
            continue;
        };
        let theirs: String = pairs(&case["zpool_get"])
            .map(|(property, text, source)| format!("{pool}\t{property}\t{text}\t{source}\n"))
            .collect();
        let ours = run(&control, &words(&format!("zpool get -Hp all {pool}"))).stdout;
        if ours == theirs {
            equal += 1
        } else {
            different.push((name, theirs, ours))
        }
    }
    report("zpool get -Hp all", equal, &different);
}

#[test]
fn all_golden_dataset_properties_print_as_in_openzfs() {
    let (mut equal, mut different) = (0, Vec::new());
    for (_, case) in cases() {
        let control = control(&case);
        for dataset in case["datasets"].as_array().into_iter().flatten() {
            let name = dataset["name"].as_str().expect("a name");
            let theirs: String = pairs(&dataset["properties"])
                .map(|(property, text, source)| format!("{name}\t{property}\t{text}\t{source}\n"))
                .collect();
            let command = ["zfs", "get", "-Hp", "all", name].map(str::to_string);
            let ours = run(&control, &command).stdout;
            if ours == theirs {
                equal += 1
            } else {
                different.push((name.into(), theirs, ours))
            }
        }
    }
    report("zfs get -Hp all", equal, &different);
}

#[test]
fn the_status_of_golden_pools_prints_as_in_openzfs() {
    let (mut equal, mut different) = (0, Vec::new());
    for (name, case) in cases() {
        let theirs = case["zpool_status"].as_str().unwrap_or_default();
        // The progress of an expansion depends on the clock; another test covers that line.
        let is_timeless =
            |line: &&str| !line.starts_with("expand: expansion") && !line.contains(" copied at ");
        let theirs: String = theirs.split_inclusive('\n').filter(is_timeless).collect();
        let ours = run(&control(&case), &words("zpool status -P")).stdout;
        if ours == theirs {
            equal += 1
        } else {
            different.push((name, theirs, ours))
        }
    }
    report("zpool status", equal, &different);
}

#[test]
fn the_history_of_golden_pools_prints_as_in_openzfs() {
    let (mut equal, mut different) = (0, Vec::new());
    for (name, case) in cases() {
        let Some(theirs) = case["zpool_history"].as_str() else {
            continue;
        };
        let mut control = control(&case);
        let Some(pool) = control.pools.first().map(|pool| pool.name.clone()) else {
            continue;
        };
        control.history.insert(pool, history::records(theirs));
        let ours = run(&control, &words("zpool history -il")).stdout;
        if ours.trim_end() == theirs.trim_end() {
            equal += 1;
        } else {
            let (theirs, ours) = first_difference(theirs, &ours);
            different.push((name, theirs, ours));
        }
    }
    report("zpool history -il", equal, &different);
}

fn first_difference(theirs: &str, ours: &str) -> (String, String) {
    let mut ours = ours.lines();
    for line in theirs.lines() {
        let own = ours.next().unwrap_or_default();
        if own != line {
            return (line.into(), own.into());
        }
    }
    (String::new(), ours.next().unwrap_or_default().into())
}

/// Copies the sizes of `zpool list -Hpv` into the tree.
fn sizes(control: &mut FakeService, list: &str) {
    let Some(pool) = control.pools.first_mut() else {
        return;
    };
    // The pool's own line was printed slightly later than its properties.
    let fields: Vec<&str> = list
        .lines()
        .next()
        .unwrap_or_default()
        .split('\t')
        .collect();
    for (name, at) in [
        ("size", 1),
        ("allocated", 2),
        ("free", 3),
        ("fragmentation", 6),
        ("capacity", 7),
    ] {
        let property = pool
            .properties
            .iter_mut()
            .find(|property| property.name == name);
        if let (Some(property), Some(number)) =
            (property, fields.get(at).and_then(|f| f.parse().ok()))
        {
            property.value = Some(Value::Number(number));
        }
    }
    for line in list.lines().filter(|line| line.starts_with('\t')) {
        let fields: Vec<&str> = line[1..].split('\t').collect();
        let number = |at: usize| fields[at].parse::<u64>().ok();
        if fields[0].starts_with("indirect-") {
            let vdev = model::vdev_named(fields[0]);
            let is_known = |known: &VdevInfo| known.kind == vdev.kind && known.id == vdev.id;
            if !pool.root.children.iter().any(is_known) {
                pool.root.children.push(vdev);
                pool.root.children.sort_by_key(|vdev| vdev.id);
            }
            continue;
        }
        let tops = pool
            .root
            .children
            .iter_mut()
            .chain(&mut pool.caches)
            .chain(&mut pool.spares);
        for top in tops {
            visit(top, &mut |vdev| {
                let own = vdev.path.clone().unwrap_or_else(|| match vdev.kind {
                    VdevKind::RaidZ { parity } => format!("raidz{parity}-{}", vdev.id),
                    VdevKind::Draid { .. } => draid_name(vdev),
                    VdevKind::DistributedSpare {
                        parity,
                        top_id,
                        spare_id,
                    } => {
                        format!("draid{parity}-{top_id}-{spare_id}")
                    }
                    VdevKind::File if vdev.guid != 0 => vdev.guid.to_string(),
                    kind => format!("{}-{}", kind.word(), vdev.id),
                });
                if own != fields[0] {
                    return;
                }
                if vdev.kind.is_leaf() {
                    vdev.physical_bytes = number(1).unwrap_or(0);
                }
                if let (Some(allocated), Some(free)) = (number(2), number(3)) {
                    vdev.allocated_bytes = allocated;
                    vdev.total_bytes = allocated + free;
                }
                vdev.fragmentation_percent = number(6);
                vdev.expandable_bytes = number(5).unwrap_or(0);
                vdev.checkpoint_bytes = number(4).unwrap_or(0);
            });
        }
    }
}

fn draid_name(vdev: &VdevInfo) -> String {
    let VdevKind::Draid {
        parity,
        data,
        children,
        spares,
    } = vdev.kind
    else {
        panic!("no dRAID: {vdev:?}");
    };
    format!("draid{parity}:{data}d:{children}c:{spares}s-{}", vdev.id)
}

fn visit(vdev: &mut VdevInfo, each: &mut impl FnMut(&mut VdevInfo)) {
    each(vdev);
    for child in &mut vdev.children {
        visit(child, each);
    }
}

#[test]
fn the_verbose_list_of_golden_pools_prints_as_in_openzfs() {
    let (mut equal, mut different) = (0, Vec::new());
    for (name, case) in cases() {
        let Some(theirs) = case["zpool_list_v"].as_str() else {
            continue;
        };
        // OpenZFS 2.4 ends the lines of vdevs with the pool's ALTROOT column.
        let theirs: String = theirs
            .lines()
            .map(
                |line| match line.strip_prefix('\t').and_then(|l| l.strip_suffix("\t-")) {
                    Some(vdev) => format!("\t{vdev}\n"),
                    None => format!("{line}\n"),
                },
            )
            .collect();
        let mut control = control(&case);
        sizes(&mut control, &theirs);
        let ours = run(&control, &words("zpool list -HpvP")).stdout;
        // It also makes the dashes after class titles as wide as its columns.
        let bare = |text: String| -> String {
            let title = |line: &str| line.split_once("   ").map_or(line, |(t, _)| t).to_string();
            text.lines().map(|line| title(line) + "\n").collect()
        };
        let is_2_4 = name.starts_with("v24");
        let (theirs, ours) = if is_2_4 {
            (bare(theirs), bare(ours))
        } else {
            (theirs, ours)
        };
        if ours == theirs {
            equal += 1
        } else {
            different.push((name, theirs, ours))
        }
    }
    report("zpool list -HpvP", equal, &different);
}
