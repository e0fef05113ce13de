//! Parses the vdev layout in `zpool create` and `zpool add`.
//!
//! The parser does no I/O: a [`Resolve`] callback looks up devices, so that tests need none.

use millpond_control::{NewDevices, TopRequest};
use millpond_engine::{AllocationClass, NewLayout};

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
        if let Some(shape) = shape(word) {
            if matches!(section, Section::Spare | Section::Cache) {
                close(open)?;
            }
            if section == Section::Class(AllocationClass::Log) && shape != NewLayout::Mirror {
                return Err("invalid vdev specification: unsupported 'log' device: raidz".into());
            }
            let count = rest.iter().take_while(|word| !is_keyword(word)).count();
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
        if let Some(spec) = word.strip_prefix("draid") {
            let count = rest.iter().take_while(|word| !is_keyword(word)).count();
            if let Some(refusal) = draid(word, spec, count) {
                return Err(refusal);
            }
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

/// Reports what is wrong with a dRAID of `children` devices, or that dRAID is not supported.
///
/// `None` if the word does not name a dRAID.
fn draid(word: &str, spec: &str, children: usize) -> Option<String> {
    let (parity, spec) = match spec.split_once(':') {
        Some((parity, rest)) => (parity, Some(rest)),
        None => (spec, None),
    };
    let parity: u64 = match parity {
        "" | "1" => 1,
        "2" => 2,
        "3" => 3,
        _ => return None,
    };
    if children < 2 {
        return Some(too_few("draid", "2 devices"));
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
                return Some(format!(
                    "invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'"
                ));
            }
        }
    }
    if let Some(wanted) = wanted.filter(|wanted| *wanted != provided) {
        return Some(format!(
            "invalid number of dRAID children; {wanted} required but {provided} provided"
        ));
    }
    if spares > 100 || spares > provided {
        return Some(format!(
            "invalid number of dRAID spares {spares}; additional disks would be required"
        ));
    }
    let available = provided.saturating_sub(spares).saturating_sub(parity);
    let data = data.unwrap_or(available.min(8));
    if data > available {
        return Some(format!(
            "requested number of dRAID data disks per group {data} is too high,\n\
             at most {available} disks are available for data"
        ));
    }
    Some("millpond: creating dRAID vdevs is not implemented yet".into())
}

fn too_few(group: &str, least: &str) -> String {
    format!("invalid vdev specification: {group} requires at least {least}")
}

fn shape(word: &str) -> Option<NewLayout> {
    Some(match word {
        "mirror" => NewLayout::Mirror,
        "raidz" | "raidz1" => NewLayout::Raidz(1),
        "raidz2" => NewLayout::Raidz(2),
        "raidz3" => NewLayout::Raidz(3),
        _ => return None,
    })
}

/// Whether a word ends a vdev's list of devices.
fn is_keyword(word: &str) -> bool {
    shape(word).is_some() || matches!(word, "log" | "special" | "dedup" | "spare" | "cache")
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
