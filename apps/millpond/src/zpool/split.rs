//! `zpool split`.

use super::change_text::{Verb, message};
use super::create::{check_altroot, check_name, resolve};
use super::device_state::find;
use super::groups;
use super::import;
use super::manage::{known, require};
use super::vdev_name::Naming;
use crate::command::Parsed;
use crate::session::{Ending, Failure, Session};
use millpond_control::{
    ChangeError, ImportRequest, NewHalf, PoolChange, PoolInfo, SearchPaths, VdevClass, VdevInfo,
    VdevKind,
};

const NOT_MIRRORS: &str = "Source pool must be composed only of mirrors\n";
const ONE_OF_EACH: &str = "Device list must include at most one disk from each mirror";

/// Makes a pool of one side of each mirror.
pub fn split(session: &mut Session, parsed: &Parsed) -> Ending {
    let [name, new, devices @ ..] = parsed.operands.as_slice() else {
        return Err(Failure::Usage("Missing new pool name".into()));
    };
    let ask = Args::read(parsed)?;
    require(session, name)?;
    let action = format!("Unable to split {name}");
    let refuse = |why: &str| Failure::Refused(format!("{action}: {why}"));
    let mut named = vec![];
    for device in devices {
        if let Some(vdev) = find(session, name, device)? {
            named.push(vdev.guid);
            continue;
        }
        resolve(session.service()?, device).map_err(|why| {
            Failure::Refused(format!(
                "{why}\nUnable to build a pool from the specified devices"
            ))
        })?;
        named.push(0);
    }
    check_name(new).map_err(|reason| refuse(&reason))?;
    let info = session.service()?.pool(name);
    let info = info.map_err(|error| Failure::Refused(error.to_string()))?;
    let sides = sides_of(&info, &named).map_err(refuse)?;
    if known(session)?.contains(new) {
        return Err(refuse("pool already exists"));
    }
    if parsed.has("n") {
        print_layout(session, parsed, new, &sides)?;
        return Ok(0);
    }
    let change = PoolChange::Split(NewHalf {
        name: new.clone(),
        sides: sides.iter().map(|side| side.guid).collect(),
        properties: ask.properties.clone(),
    });
    let done = session.service()?.change(name, &[change], &parsed.line);
    done.map_err(|failed| match &failed.error {
        ChangeError::Failed(why) => refuse(why),
        other => Failure::Refused(message(Verb::Other, &action, other)),
    })?;
    if ask.altroot.is_none() {
        return Ok(0);
    }
    let paths = sides.iter().filter_map(|side| side.path.clone());
    let request = ImportRequest {
        pool: new.clone(),
        search: SearchPaths {
            paths: paths.collect(),
            cache_file: None,
        },
        properties: ask
            .altroot
            .map(|root| ("altroot".to_owned(), root))
            .into_iter()
            .collect(),
        mount_options: ask.mount_options,
        mount: true,
        load_keys: parsed.has("l"),
        ..ImportRequest::default()
    };
    import::import(session, parsed, &request, new)
}

/// The options that have values.
#[derive(Default)]
struct Args {
    altroot: Option<String>,
    properties: Vec<(String, String)>,
    mount_options: Vec<String>,
}

impl Args {
    fn read(parsed: &Parsed) -> Result<Self, Failure> {
        let mut ask = Self::default();
        for (option, value) in &parsed.options {
            let value = value.as_deref().unwrap_or_default();
            match option.as_str() {
                "R" => {
                    check_altroot(value).map_err(Failure::Refused)?;
                    ask.altroot = Some(value.to_owned());
                }
                "o" => match value.split_once('=') {
                    Some((name, value)) => {
                        let known = super::property::PoolProperty::by_name(name);
                        let known = known.ok_or_else(|| {
                            Failure::Refused(format!(
                                "property '{name}' is not a valid pool or vdev property"
                            ))
                        })?;
                        let pair = (known.text().to_owned(), value.to_owned());
                        ask.properties.push(pair);
                    }
                    None => ask.mount_options.push(value.to_owned()),
                },
                _ => {}
            }
        }
        let needs_import = !ask.mount_options.is_empty() || parsed.has("l");
        if ask.altroot.is_none() && needs_import {
            let why = "-l and mount options need -R, which imports the new pool";
            return Err(Failure::Usage(why.into()));
        }
        Ok(ask)
    }
}

/// The named side of each mirror, or its last.
fn sides_of(info: &PoolInfo, named: &[u64]) -> Result<Vec<VdevInfo>, &'static str> {
    let mut sides = vec![];
    let mut used = 0;
    for top in &info.root.children {
        let holds_nothing = matches!(top.kind, VdevKind::Hole | VdevKind::Indirect);
        if holds_nothing || top.class == VdevClass::Log {
            continue;
        }
        let is_plain = top.children.iter().all(|side| side.kind.is_device());
        if top.kind != VdevKind::Mirror || !is_plain {
            return Err(NOT_MIRRORS);
        }
        let is_named = |side: &&VdevInfo| named.contains(&side.guid);
        let chosen: Vec<&VdevInfo> = top.children.iter().filter(is_named).collect();
        used += chosen.len();
        match chosen.as_slice() {
            [] => sides.extend(top.children.last().cloned()),
            [side] => sides.push((*side).clone()),
            _ => return Err(ONE_OF_EACH),
        }
    }
    match used == named.len() {
        true => Ok(sides),
        false => Err(ONE_OF_EACH),
    }
}

fn print_layout(
    session: &mut Session,
    parsed: &Parsed,
    new: &str,
    sides: &[VdevInfo],
) -> std::io::Result<()> {
    let naming = Naming::read(parsed, session.environment);
    let out = &mut *session.out;
    writeln!(
        out,
        "would create '{new}' with the following layout:\n\n\t{new}"
    )?;
    let titled = groups::TITLED
        .iter()
        .map(|(class, title)| (*class, Some(*title)));
    for (class, title) in [(VdevClass::Normal, None)].into_iter().chain(titled) {
        let of_class: Vec<_> = sides.iter().filter(|side| side.class == class).collect();
        if let (Some(title), false) = (title, of_class.is_empty()) {
            writeln!(out, "\t{title}")?;
        }
        for side in of_class {
            writeln!(out, "\t  {}", naming.of(side))?;
        }
    }
    Ok(())
}
