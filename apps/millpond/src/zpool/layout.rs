//! Parses the vdev layout in `zpool create` and `zpool add`.
//!
//! The parser does no I/O: a [`Resolve`] callback looks up devices, so that tests need none.

use millpond_control::{NewDevices, TopRequest};
use millpond_engine::{AllocationClass, DraidShape, NewLayout};

/// One device named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Full path.
    pub path: String,
}

/// Finds the device for a word. The error is a complete message.
pub type Resolve<'a> = &'a dyn Fn(&str) -> Result<Leaf, String>;

/// A requested top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Top {
    /// Its allocation class.
    pub class: AllocationClass,
    /// Its kind.
    pub shape: NewLayout,
    /// Its devices; exactly one for [`NewLayout::Single`].
    pub leaves: Vec<Leaf>,
}

/// The complete layout.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// Top-level vdevs in the order given.
    pub tops: Vec<Top>,
    /// Hot spares.
    pub spares: Vec<Leaf>,
    /// Cache devices.
    pub caches: Vec<Leaf>,
}

impl Layout {
    /// Converts the layout to a request.
    pub fn devices(&self) -> NewDevices {
        let paths = |leaves: &[Leaf]| leaves.iter().map(|leaf| leaf.path.clone()).collect();
        let top = |top: &Top| TopRequest {
            class: top.class,
            layout: top.shape,
            paths: paths(&top.leaves),
        };
        NewDevices {
            tops: self.tops.iter().map(top).collect(),
            spares: paths(&self.spares),
            caches: paths(&self.caches),
            ..NewDevices::default()
        }
    }
}

/// Where the parser adds the next devices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Class(AllocationClass),
    Spare,
    Cache,
}

/// Parses the words.
///
/// # Errors
/// The complete message, as `zpool` prints it.
pub fn parse(words: &[String], resolve: Resolve<'_>) -> Result<Layout, String> {
    let mut layout = Layout::default();
    let mut section = Section::Class(AllocationClass::Normal);
    let mut seen: Vec<&str> = vec![];
    let mut rest = words;
    // The current group if it must not be empty, and whether it is empty so far.
    let mut open: Option<(&str, bool)> = None;
    let close = |open: Option<(&str, bool)>| match open {
        Some((group @ "log", true)) => Err(too_few(group, "1 device")),
        Some((group, true)) => Err(too_few(group, "1 devices")),
        _ => Ok(()),
    };
    while let Some((word, after)) = rest.split_first() {
        rest = after;
        let word = word.as_str();
        let next = match word {
            "log" => Some(Section::Class(AllocationClass::Log)),
            "special" => Some(Section::Class(AllocationClass::Special)),
            "dedup" => Some(Section::Class(AllocationClass::Dedup)),
            "spare" => Some(Section::Spare),
            "cache" => Some(Section::Cache),
            _ => None,
        };
        if let Some(next) = next {
            close(open)?;
            if matches!(word, "log" | "spare" | "cache") {
                if seen.contains(&word) {
                    return Err(format!(
                        "invalid vdev specification: '{word}' can be specified only once"
                    ));
                }
                seen.push(word);
                open = Some((word, true));
            } else {
                open = None;
            }
            section = next;
            continue;
        }
        let count = rest.iter().take_while(|word| !is_keyword(word)).count();
        if let Some(shape) = shape(word, count)? {
            if matches!(section, Section::Spare | Section::Cache) {
                close(open)?;
            }
            if section == Section::Class(AllocationClass::Log) && shape != NewLayout::Mirror {
                let kind = kind_word(shape);
                return Err(format!(
                    "invalid vdev specification: unsupported 'log' device: {kind}"
                ));
            }
            let (members, after) = rest.split_at(count);
            rest = after;
            let leaves = members
                .iter()
                .map(|word| resolve(word))
                .collect::<Result<Vec<_>, _>>()?;
            let least = match shape {
                NewLayout::Raidz(parity) => usize::from(parity) + 1,
                _ => 2,
            };
            if leaves.len() < least {
                return Err(too_few(word, &format!("{least} devices")));
            }
            let class = match section {
                Section::Class(class) => class,
                _ => AllocationClass::Normal,
            };
            open = None;
            layout.tops.push(Top {
                class,
                shape,
                leaves,
            });
            continue;
        }
        let leaf = resolve(word)?;
        open = None;
        match section {
            Section::Spare => layout.spares.push(leaf),
            Section::Cache => layout.caches.push(leaf),
            Section::Class(class) => layout.tops.push(Top {
                class,
                shape: NewLayout::Single,
                leaves: vec![leaf],
            }),
        }
    }
    close(open)?;
    Ok(layout)
}

/// The groups of a dRAID of `children` devices; `None` if the word does not name one.
fn draid(word: &str, children: usize) -> Result<Option<DraidShape>, String> {
    let Some((parity, spec)) = draid_words(word) else {
        return Ok(None);
    };
    if children < 2 {
        return Err(too_few("draid", "2 devices"));
    }
    let provided = children as u64;
    let (mut data, mut spares, mut wanted) = (None, 0, None);
    for part in spec.into_iter().flat_map(|spec| spec.split(':')) {
        let number = part.get(..part.len().saturating_sub(1));
        match (
            number.and_then(|n| n.parse::<u64>().ok()),
            part.bytes().last(),
        ) {
            (Some(number), Some(b'd')) => data = Some(number),
            (Some(number), Some(b's')) => spares = number,
            (Some(number), Some(b'c')) => wanted = Some(number),
            _ => {
                return Err(format!(
                    "invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'"
                ));
            }
        }
    }
    if let Some(wanted) = wanted.filter(|wanted| *wanted != provided) {
        return Err(format!(
            "invalid number of dRAID children; {wanted} required but {provided} provided"
        ));
    }
    if spares > 100 || spares > provided {
        return Err(format!(
            "invalid number of dRAID spares {spares}; additional disks would be required"
        ));
    }
    let available = provided
        .saturating_sub(spares)
        .saturating_sub(u64::from(parity));
    let data = data.unwrap_or(available.min(8));
    if data > available {
        return Err(format!(
            "requested number of dRAID data disks per group {data} is too high,\n\
             at most {available} disks are available for data"
        ));
    }
    let few = |number: u64| u8::try_from(number).unwrap_or(u8::MAX);
    Ok(Some(DraidShape {
        parity,
        data: few(data),
        spares: few(spares),
    }))
}

/// The parity of a word that names a dRAID, and what follows.
fn draid_words(word: &str) -> Option<(u8, Option<&str>)> {
    let spec = word.strip_prefix("draid")?;
    let (parity, spec) = match spec.split_once(':') {
        Some((parity, rest)) => (parity, Some(rest)),
        None => (spec, None),
    };
    match parity {
        "" | "1" => Some((1, spec)),
        "2" => Some((2, spec)),
        "3" => Some((3, spec)),
        _ => None,
    }
}

fn too_few(group: &str, least: &str) -> String {
    format!("invalid vdev specification: {group} requires at least {least}")
}

/// The layout that a word names, before `devices` words that name devices.
fn shape(word: &str, devices: usize) -> Result<Option<NewLayout>, String> {
    Ok(Some(match word {
        "mirror" => NewLayout::Mirror,
        "raidz" | "raidz1" => NewLayout::Raidz(1),
        "raidz2" => NewLayout::Raidz(2),
        "raidz3" => NewLayout::Raidz(3),
        _ => return Ok(draid(word, devices)?.map(NewLayout::Draid)),
    }))
}

fn kind_word(shape: NewLayout) -> &'static str {
    match shape {
        NewLayout::Single => "disk",
        NewLayout::Mirror => "mirror",
        NewLayout::Raidz(_) => "raidz",
        NewLayout::Draid(_) => "draid",
    }
}

/// Whether a word ends a vdev's list of devices.
fn is_keyword(word: &str) -> bool {
    let is_group = matches!(word, "mirror" | "raidz" | "raidz1" | "raidz2" | "raidz3");
    let is_class = matches!(word, "log" | "special" | "dedup" | "spare" | "cache");
    is_group || is_class || draid_words(word).is_some()
}

/// The title of a group (none for data), and its lines with their depth.
pub type Group = (Option<&'static str>, Vec<(usize, String)>);

/// The groups as `-n` lists them.
pub fn lines(layout: &Layout) -> Vec<Group> {
    let of_class = |class| -> Vec<(usize, String)> {
        let tops = layout.tops.iter().filter(|top| top.class == class);
        let each = |top: &Top| {
            let paths = top.leaves.iter().map(|leaf| leaf.path.clone());
            match top.shape {
                NewLayout::Single => paths.map(|path| (1, path)).collect::<Vec<_>>(),
                shape => {
                    let word = match shape {
                        NewLayout::Raidz(parity) => format!("raidz{parity}"),
                        NewLayout::Draid(groups) => {
                            let DraidShape {
                                parity,
                                data,
                                spares,
                            } = groups;
                            let children = top.leaves.len();
                            format!("draid{parity}:{data}d:{children}c:{spares}s")
                        }
                        _ => "mirror".to_owned(),
                    };
                    let mut all = vec![(1, word)];
                    all.extend(paths.map(|path| (2, path)));
                    all
                }
            }
        };
        tops.flat_map(each).collect()
    };
    let plain = |leaves: &[Leaf]| leaves.iter().map(|leaf| (1, leaf.path.clone())).collect();
    let groups = [
        (None, of_class(AllocationClass::Normal)),
        (Some("dedup"), of_class(AllocationClass::Dedup)),
        (Some("special"), of_class(AllocationClass::Special)),
        (Some("logs"), of_class(AllocationClass::Log)),
        (Some("cache"), plain(&layout.caches)),
        (Some("spares"), plain(&layout.spares)),
    ];
    groups
        .into_iter()
        .filter(|(_, lines)| !lines.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(word: &str) -> Result<Leaf, String> {
        match word.strip_prefix("/pool/") {
            Some(_) => Ok(Leaf { path: word.into() }),
            None => Err(format!(
                "cannot open '{word}': no such device in /dev\nmust be a full path or shorthand device name"
            )),
        }
    }
    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }
    #[test]
    fn groups_that_lack_devices_are_refused_in_openzfs_words() {
        for (line, message) in [
            ("mirror /pool/d0", "mirror requires at least 2 devices"),
            ("raidz /pool/d0", "raidz requires at least 2 devices"),
            (
                "raidz2 /pool/d0 /pool/d1",
                "raidz2 requires at least 3 devices",
            ),
            (
                "raidz3 /pool/d0 /pool/d1 /pool/d2",
                "raidz3 requires at least 4 devices",
            ),
            ("/pool/d0 log", "log requires at least 1 device"),
            ("/pool/d0 spare", "spare requires at least 1 devices"),
            (
                "/pool/d0 spare mirror /pool/d1 /pool/d2",
                "spare requires at least 1 devices",
            ),
            (
                "/pool/d0 cache mirror /pool/d1 /pool/d2",
                "cache requires at least 1 devices",
            ),
            (
                "/pool/d0 log raidz /pool/d1 /pool/d2",
                "unsupported 'log' device: raidz",
            ),
            (
                "/pool/d0 log /pool/d1 log /pool/d2",
                "'log' can be specified only once",
            ),
        ] {
            let found = parse(&words(line), &device).unwrap_err();
            assert_eq!(
                found,
                format!("invalid vdev specification: {message}"),
                "{line}"
            );
        }
        let unknown = parse(&words("raidz4 /pool/d0"), &device).unwrap_err();
        assert!(unknown.starts_with("cannot open 'raidz4'"));
    }

    #[test]
    fn a_whole_layout_is_understood() {
        let layout = parse(
            &words("mirror /pool/a /pool/b raidz2 /pool/c /pool/d /pool/e special mirror /pool/f /pool/g log /pool/h cache /pool/i spare /pool/j /pool/k"),
            &device,
        )
        .unwrap();
        let shapes: Vec<_> = layout
            .tops
            .iter()
            .map(|top| (top.class, top.shape, top.leaves.len()))
            .collect();
        assert_eq!(
            shapes,
            [
                (AllocationClass::Normal, NewLayout::Mirror, 2),
                (AllocationClass::Normal, NewLayout::Raidz(2), 3),
                (AllocationClass::Special, NewLayout::Mirror, 2),
                (AllocationClass::Log, NewLayout::Single, 1),
            ]
        );
        assert_eq!((layout.caches.len(), layout.spares.len()), (1, 2));
        assert_eq!(layout.devices().paths().count(), 11);
        assert!(parse(&words("/pool/d0 special"), &device).is_ok());
    }

    #[test]
    fn a_draid_is_understood_or_refused_in_openzfs_words() {
        let devices = " /pool/a /pool/b /pool/c /pool/d /pool/e /pool/f";
        for (word, parity, data, spares) in [
            ("draid", 1, 5, 0),
            ("draid2:1s", 2, 3, 1),
            ("draid1:1s:6c:2d", 1, 2, 1),
            ("draid3:2d", 3, 2, 0),
        ] {
            let layout = parse(&words(&format!("{word}{devices}")), &device).unwrap();
            let shape = DraidShape {
                parity,
                data,
                spares,
            };
            assert_eq!(layout.tops[0].shape, NewLayout::Draid(shape), "{word}");
            let (_, lines) = &lines(&layout)[0];
            let name = format!("draid{parity}:{data}d:6c:{spares}s");
            assert_eq!(lines[0], (1, name));
        }
        let two = parse(
            &words("draid:1d /pool/a /pool/b draid:1d /pool/c /pool/d"),
            &device,
        );
        assert_eq!(two.unwrap().tops.len(), 2);
        for (line, message) in [
            (
                "draid /pool/a",
                "invalid vdev specification: draid requires at least 2 devices",
            ),
            (
                "draid:8d /pool/a /pool/b /pool/c",
                "requested number of dRAID data disks per group 8 is too high,\nat most 2 disks are available for data",
            ),
            (
                "draid1:2d:9c /pool/a /pool/b /pool/c",
                "invalid number of dRAID children; 9 required but 3 provided",
            ),
            (
                "draid1:2x /pool/a /pool/b",
                "invalid dRAID syntax; expected [:<number><c|d|s>] not 'draid1:2x'",
            ),
            (
                "draid1:2d:101s /pool/a /pool/b",
                "invalid number of dRAID spares 101; additional disks would be required",
            ),
            (
                "/pool/a log draid:1d /pool/b /pool/c",
                "invalid vdev specification: unsupported 'log' device: draid",
            ),
        ] {
            assert_eq!(parse(&words(line), &device).unwrap_err(), message, "{line}");
        }
    }

    #[test]
    fn a_dry_run_lists_groups_in_openzfs_order() {
        let layout = parse(
            &words("mirror /pool/a /pool/b log /pool/c special /pool/d"),
            &device,
        )
        .unwrap();
        let titles: Vec<_> = lines(&layout).into_iter().map(|(title, _)| title).collect();
        assert_eq!(titles, [None, Some("special"), Some("logs")]);
        assert_eq!(
            lines(&layout)[0].1,
            [
                (1, "mirror".into()),
                (2, "/pool/a".into()),
                (2, "/pool/b".into())
            ]
        );
    }
}
