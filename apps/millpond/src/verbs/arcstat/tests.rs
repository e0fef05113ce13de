//! Tests of the columns.

use super::*;
use millpond_control::{ArcLookups, ArcMemory};

fn table(names: &[&str]) -> Table {
    Table {
        fields: names
            .iter()
            .map(|name| fields::find(name).unwrap())
            .collect(),
        separator: None,
        is_parsable: false,
        is_json: false,
        zone: TimeZone::UTC,
    }
}

fn lookups(hits: u64, io_hits: u64, misses: u64) -> ArcLookups {
    ArcLookups {
        hits,
        io_hits,
        misses,
    }
}

fn before() -> ArcInfo {
    ArcInfo {
        demand_data: lookups(100, 0, 50),
        demand_metadata: lookups(10, 0, 0),
        mfu_hits: 7,
        ..ArcInfo::default()
    }
}

fn now() -> ArcInfo {
    ArcInfo {
        demand_data: lookups(3100, 400, 650),
        demand_metadata: lookups(30, 0, 0),
        prefetch_data: lookups(0, 0, 20),
        mfu_hits: 27,
        size_bytes: 8_482_560_410,
        c_bytes: 16 << 30,
        memory: Some(ArcMemory {
            free_bytes: 1 << 30,
            reserve_bytes: 3 << 30,
            may_grow: false,
        }),
        ..ArcInfo::default()
    }
}

#[test]
fn the_default_columns_are_those_of_arcstat() {
    let (before, now) = (before(), now());
    let table = table(DEFAULT);
    let row = Row {
        before: Some(&before),
        now: &now,
        seconds: 2,
        time_s: 3_723,
    };
    let header = "    time  read  ddread  ddh%  dmread  dmh%  pread  ph%   size      c  avail\n";
    assert_eq!(table.header(), header);
    // 4000 look-ups of data, 20 of metadata, 20 of prefetch, in two seconds.
    let line = "01:02:03  2.0K    2.0K    75      10   100     10    0   7.9G    16G  -2.0G\n";
    assert_eq!(table.line(&row), line);
}

#[test]
fn without_an_interval_counts_are_since_the_start() {
    let now = now();
    let row = Row {
        before: None,
        now: &now,
        seconds: 1,
        time_s: 0,
    };
    let mut table = table(&[
        "hits", "iohs", "miss", "ddi%", "mfu", "need", "grow", "eskip",
    ]);
    table.is_parsable = true;
    table.separator = Some(",".into());
    let line = table.line(&row);
    let cells: Vec<&str> = line.trim_end().split(',').map(str::trim).collect();
    assert_eq!(
        cells,
        ["3130", "400", "670", "9", "27", "2147483648", "1", "-"]
    );
    table.is_json = true;
    let json = r#"{"ddi%":9,"eskip":null,"grow":1,"hits":3130,"iohs":400,"mfu":27,"miss":670,"need":2147483648}"#;
    let sorted: std::collections::BTreeMap<String, Json> =
        serde_json::from_str(&table.line(&row)).unwrap();
    assert_eq!(serde_json::to_string(&sorted).unwrap(), json);
}

#[test]
fn a_restarted_daemon_counts_from_the_start() {
    let (before, now) = (now(), before());
    let row = Row {
        before: Some(&before),
        now: &now,
        seconds: 1,
        time_s: 0,
    };
    assert_eq!(table(&["ddhit"]).line(&row).trim(), "100");
    let idle = Row {
        before: Some(&now),
        ..row
    };
    assert_eq!(table(&["hit%"]).line(&idle).trim(), "0");
    assert_eq!(table(&["avail"]).line(&idle).trim(), "-", "not known");
}

#[test]
fn numbers_have_one_decimal_below_ten_of_a_unit() {
    let cases = [
        (0, "0"),
        (999, "999"),
        (1000, "1.0K"),
        (9_949, "9.9K"),
        (9_951, "10K"),
        (12_345_678, "12M"),
    ];
    for (number, text) in cases {
        assert_eq!(scaled(number, 1000), text);
    }
    assert_eq!(scaled(1023, 1024), "1023");
    assert_eq!(scaled(-1536, 1024), "-1.5K");
}

#[test]
fn every_name_is_that_of_one_field_and_fits_its_column() {
    for field in FIELDS {
        assert!(field.width >= field.name.len(), "{}", field.name);
        let same = FIELDS.iter().filter(|other| other.name == field.name);
        assert_eq!(same.count(), 1, "{}", field.name);
    }
    for name in DEFAULT.iter().chain(EXTENDED) {
        assert!(fields::find(name).is_some(), "{name}");
    }
}
