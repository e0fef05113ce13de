//! Reads recorded JSON of `zpool` into the model and prints it again; also `zpool get`.

mod support;

use millpond_control::{PoolInfo, Property, Value, VdevClass, VdevInfo, VdevKind, VdevState};
use millpond_pool::properties::vdev_table;
use serde_json::Value as Json;
use support::{FakeService, model, recording, run};

fn text(json: &Json) -> String {
    match json {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn number(json: &Json) -> u64 {
    match json {
        Json::Null => 0,
        other => model::number(&text(other)).unwrap_or(0),
    }
}

fn source_word(json: &Json) -> &'static str {
    match json["type"].as_str().expect("a type") {
        "DEFAULT" => "default",
        "LOCAL" => "local",
        _ => "-",
    }
}

fn pool(key: &str, json: &Json) -> PoolInfo {
    let mut pool = PoolInfo {
        name: text(&json["name"]),
        guid: text(&json["pool_guid"]).parse().expect("a guid"),
        config_txg: number(&json["txg"]),
        version: 5000,
        is_loaded: true,
        ..Default::default()
    };
    assert!(key == pool.name || key == pool.guid.to_string());
    let guid = pool.guid;
    for (name, property) in json["properties"].as_object().into_iter().flatten() {
        let value = text(&property["value"]);
        model::pool_property(&mut pool, name, &value, source_word(&property["source"]));
    }
    pool.guid = guid;
    pool.root.state = VdevState::Healthy;
    pool.root.kind = VdevKind::Root;
    let vdevs = json["vdevs"].as_object();
    for (name, member) in vdevs.into_iter().flatten() {
        if member["vdev_type"] == "root" {
            pool.root = vdev(member);
        } else if !vdevs.is_some_and(|all| all.contains_key(&pool.name)) {
            assert_eq!(name.as_str(), text(&member["name"]));
            pool.root.children.push(vdev(member));
        }
    }
    pool
}

fn vdev(json: &Json) -> VdevInfo {
    let at = |key: &str| number(&json[key]);
    let cell = |key: &str| text(&json["properties"][key]["value"]);
    let mut info = VdevInfo {
        kind: match json["vdev_type"].as_str().expect("a type") {
            "root" => VdevKind::Root,
            "mirror" => VdevKind::Mirror,
            "file" => VdevKind::File,
            other => panic!("a vdev of type {other}"),
        },
        guid: text(&json["guid"]).parse().expect("a guid"),
        path: json["path"].as_str().map(str::to_string),
        class: VdevClass::Normal,
        state: VdevState::Healthy,
        allocated_bytes: at("alloc_space"),
        total_bytes: at("total_space"),
        deflated_bytes: at("def_space"),
        replaceable_bytes: at("rep_dev_size"),
        physical_bytes: at("phys_space"),
        checksum_errors: at("checksum_errors"),
        ..Default::default()
    };
    if json["properties"].is_object() {
        info.physical_bytes = model::number(&cell("size")).unwrap_or(0);
        info.allocated_bytes = model::number(&cell("allocated")).unwrap_or(0);
        let free = model::number(&cell("free")).unwrap_or(0);
        info.total_bytes = (info.allocated_bytes + free) >> 24 << 24;
        info.fragmentation_percent = model::number(cell("fragmentation").trim_end_matches('%'));
    }
    info.children = json["vdevs"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, v)| vdev(v))
        .collect();
    info
}

#[test]
fn recorded_json_of_pools_is_written_again_word_for_word() {
    let Some(session) = recording::session("props-get.json") else {
        return;
    };
    let (mut equal, mut different) = (0, Vec::new());
    for entry in session {
        let Some(words) = recording::words(&entry.command) else {
            continue;
        };
        let is_pool = words[0] == "zpool" && ["list", "get", "status"].contains(&words[1].as_str());
        let Ok(json) = serde_json::from_str::<Json>(&entry.printed.stdout) else {
            continue;
        };
        if !is_pool || json["pool"].is_object() {
            continue;
        }
        let pools = json["pools"].as_object().expect("pools");
        let mut control = FakeService {
            pools: pools.iter().map(|(key, json)| pool(key, json)).collect(),
            ..Default::default()
        };
        for pool in &mut control.pools {
            // `get all` leaves out unknown features, and the document does not contain the others.
            if entry.command.contains("feature@edonr") {
                pool.features.truncate(1);
            }
        }
        let ours = run(&control, &words);
        if ours.stdout == entry.printed.stdout {
            equal += 1;
        } else {
            different.push((entry.command, entry.printed.stdout, ours.stdout));
        }
    }
    println!("zpool JSON: {equal} of {} equal", equal + different.len());
    for (command, theirs, ours) in &different {
        let at = theirs
            .bytes()
            .zip(ours.bytes())
            .take_while(|(a, b)| a == b)
            .count();
        let from = at.saturating_sub(60);
        let cut = |text: &str| {
            text.get(from..(at + 120).min(text.len()))
                .map(str::to_string)
        };
        println!(
            "--- {command}\ntheirs {:?}\nours   {:?}",
            cut(theirs),
            cut(&ours.clone())
        );
    }
    assert!(different.is_empty());
    assert!(equal > 8);
}

#[test]
fn recorded_properties_of_pools_and_vdevs_print_unchanged() {
    let mut equal = 0;
    let mut different = Vec::new();
    for file in [
        "props-get.json",
        "devices.json",
        "health.json",
        "topologies.json",
        "import.json",
    ] {
        let Some(session) = recording::session(file) else {
            return;
        };
        for entry in session {
            let Some(words) = recording::words(&entry.command) else {
                continue;
            };
            let theirs = &entry.printed.stdout;
            let is_legible = words.len() > 2
                && words[..2] == ["zpool", "get"]
                && !words
                    .iter()
                    .any(|w| ["-j", "-o"].iter().any(|o| w.starts_with(o)))
                && !theirs.is_empty();
            if !is_legible {
                continue;
            }
            let ours = run(&control_of(&words, theirs), &words);
            if ours.stdout == *theirs {
                equal += 1;
            } else {
                different.push((entry.command, theirs.clone(), ours.stdout + &ours.stderr));
            }
        }
    }
    println!("zpool get: {equal} of {} equal", equal + different.len());
    for (command, theirs, ours) in different.iter().take(8) {
        println!("--- {command}\n<<< theirs\n{theirs}\n>>> ours\n{ours}");
    }
    assert!(different.is_empty());
}

/// A model with the output of `zpool get` about pools, or about the vdevs of `tank`.
fn control_of(words: &[String], printed: &str) -> FakeService {
    let mut control = FakeService::default();
    let is_script = words.iter().any(|word| word == "-H");
    let operands: Vec<&String> = words[2..].iter().filter(|w| !w.starts_with('-')).collect();
    let is_vdev = operands.len() > 2;
    let mut columns = Vec::new();
    if is_vdev {
        let mut root = VdevInfo {
            kind: VdevKind::Root,
            state: VdevState::Healthy,
            ..Default::default()
        };
        root.guid = 1;
        let pool = PoolInfo {
            name: operands[1].clone(),
            root,
            is_loaded: true,
            version: 5000,
            ..Default::default()
        };
        control.pools.push(pool);
    }
    for line in printed.lines() {
        let fields: Vec<String> = if is_script {
            line.split('\t').map(str::to_string).collect()
        } else if line.starts_with("NAME ") {
            columns = ["NAME", "PROPERTY", "VALUE", "SOURCE"]
                .map(|t| line.find(t).expect(t))
                .into();
            continue;
        } else if is_vdev {
            // Names may be wider than their column.
            line.split("  ")
                .map(str::trim)
                .filter(|f| !f.is_empty())
                .map(str::to_string)
                .collect()
        } else {
            (0..4)
                .map(|at| {
                    let end = columns
                        .get(at + 1)
                        .copied()
                        .unwrap_or(line.len())
                        .min(line.len());
                    line[columns[at]..end].trim_end().to_string()
                })
                .collect()
        };
        let [owner, name, value, source] = fields.as_slice() else {
            panic!("{line:?}")
        };
        if is_vdev {
            learn_vdev(&mut control, owner, name, value, source);
            continue;
        }
        if !control.pools.iter().any(|pool| pool.name == *owner) {
            let mut pool = PoolInfo {
                name: owner.clone(),
                is_loaded: true,
                version: 5000,
                ..Default::default()
            };
            pool.root.state = VdevState::Healthy;
            control.pools.push(pool);
        }
        let pool = control
            .pools
            .iter_mut()
            .find(|pool| pool.name == *owner)
            .expect("a pool");
        if name == "health" {
            pool.root.state = match value.as_str() {
                "DEGRADED" => VdevState::Degraded,
                "ONLINE" => VdevState::Healthy,
                "SUSPENDED" => VdevState::Healthy,
                other => panic!("health {other}"),
            };
        }
        model::pool_property(pool, name, value, source);
    }
    control
}

fn learn_vdev(control: &mut FakeService, owner: &str, name: &str, value: &str, source: &str) {
    let pool = &mut control.pools[0];
    let guid = if owner == "root-0" {
        1
    } else if let Some(known) = pool
        .root
        .children
        .iter()
        .find(|v| v.path.as_deref() == Some(owner))
    {
        known.guid
    } else {
        let mut vdev = model::vdev_named(owner);
        vdev.guid = 100 + pool.root.children.len() as u64;
        if !vdev.kind.is_leaf() {
            vdev.path = Some(owner.into());
        }
        let guid = vdev.guid;
        pool.root.children.push(vdev);
        guid
    };
    let parsed = match vdev_table::find(name) {
        _ if name == "state" && value.parse::<u64>().is_ok() => {
            value.parse().ok().map(Value::Number)
        }
        Some(shape) => model::value(shape, value),
        None if value == "-" => None,
        None => Some(Value::Text(value.into())),
    };
    let property = Property::new(name, parsed, model::source(source));
    control
        .vdev_properties
        .entry(guid)
        .or_default()
        .push(property);
}
