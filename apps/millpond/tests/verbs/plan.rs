//! Plans: their space is that of pools which are really made so.

use crate::golden::text;
use crate::into::WorkFolder;
use serde_json::Value;

/// The plans for a number of disks of one size.
fn plans(place: &WorkFolder, disks: usize, bytes: u64, ashift: &str) -> Vec<Value> {
    let (disks, bytes) = (disks.to_string(), bytes.to_string());
    let printed = place.well(["--json", "plan", &disks, &bytes, "--ashift", ashift]);
    let printed: Value = serde_json::from_str(&printed).unwrap();
    printed["plans"].as_array().unwrap().clone()
}

/// USED and AVAIL of a pool's first file system together, and the pool's size.
fn made(place: &WorkFolder, create: &str, bytes: u64, ashift: &str) -> (u64, u64) {
    let mut words: Vec<String> = ["zpool", "create", "-o", &format!("ashift={ashift}"), "tank"]
        .map(str::to_owned)
        .to_vec();
    for word in create.split(' ') {
        match word.strip_prefix("disk") {
            None => words.push(word.to_owned()),
            Some(_) => {
                let image = place.image(word);
                std::fs::File::create(&image)
                    .unwrap()
                    .set_len(bytes)
                    .unwrap();
                words.push(image);
            }
        }
    }
    place.well(words);
    let number = |text: String| text.trim().parse::<u64>().unwrap();
    let usable = ["used", "available"]
        .map(|name| number(place.well(["zfs", "get", "-Hp", "-o", "value", name, "tank"])))
        .iter()
        .sum();
    let size = number(place.well(["zpool", "get", "-Hp", "-o", "value", "size", "tank"]));
    place.well(["zpool", "destroy", "tank"]);
    (usable, size)
}

#[test]
fn space_is_that_of_a_pool_made_so() {
    let place = WorkFolder::new();
    let mut compared = 0;
    for (disks, bytes, ashift) in [
        (1, 1 << 30, "9"),
        (5, 300 << 20, "12"),
        (7, 3_000_592_982_016, "12"),
        (8, 1 << 40, "9"),
        (10, 12_000_000_000_000, "12"),
    ] {
        for plan in plans(&place, disks, bytes, ashift) {
            let create = plan["create"].as_str().unwrap();
            let (usable, size) = made(&place, create, bytes, ashift);
            let layout = &plan["layout"];
            assert_eq!(plan["usable_bytes"], usable, "{disks} of {bytes}: {layout}");
            assert_eq!(plan["size_bytes"], size, "{disks} of {bytes}: {layout}");
            compared += 1;
        }
    }
    println!("{compared} layouts");
    assert!(compared > 25);
}

#[test]
fn a_plan_is_a_table_and_a_picture() {
    let place = WorkFolder::new();
    let picture = place.path("plan.svg");
    let printed = place.well([
        "plan",
        "6",
        "4T",
        "--for",
        "speed",
        "--svg",
        picture.to_str().unwrap(),
    ]);
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("LAYOUT"), "{printed}");
    assert!(
        lines[1].starts_with("3 x mirror of 2") || lines[1].starts_with("2 x mirror of 3"),
        "{printed}"
    );
    assert!(
        printed.contains("zpool create -o ashift=12 POOL mirror disk1 disk2"),
        "{printed}"
    );
    let picture = std::fs::read_to_string(picture).unwrap();
    assert!(picture.starts_with("<svg ") && picture.ends_with("</svg>\n"));
    let refused = place.run(["plan", "2", "1M"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused.stderr).contains("too small"),
        "{}",
        text(&refused.stderr)
    );
}
