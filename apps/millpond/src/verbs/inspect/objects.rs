//! `inspect object`: shows dnodes and the block tree of single objects.

use super::items::{Items, hundredths};
use super::pointer;
use crate::session::{Ending, Failure, Session};
use crate::text::number;
use crate::verbs::Global;
use crate::verbs::flag;
use crate::verbs::global::refused;
use clap::{Arg, ArgMatches, value_parser};
use millpond_engine::{ObjectId, ObjectSetView, ObjectView};
use millpond_inspect::{ObjectSummary, TreeStep, object_summaries, visit_blocks};
use serde_json::{Value, json};
use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Its arguments.
pub fn arguments() -> Vec<Arg> {
    vec![
        Arg::new("dataset")
            .value_name("DATASET")
            .required(true)
            .help("A dataset or snapshot; with --mos a pool"),
        Arg::new("number")
            .value_name("OBJECT")
            .help("Object numbers to show in full (0: the array of dnodes)")
            .num_args(0..)
            .value_parser(value_parser!(u64)),
        flag("mos", "Show the objects of the MOS"),
        flag("bonus", "Also show the bonus bytes in hexadecimal"),
    ]
}

/// Runs the subcommand.
pub fn run(session: &mut Session, global: &Global, matches: &ArgMatches) -> Ending {
    let Some(name) = matches.get_one::<String>("dataset") else {
        return Err(Failure::Usage("inspect object: which dataset?".into()));
    };
    let pool = global.open_pool(name.split(['/', '@']).next().unwrap_or(name))?;
    let set = if matches.get_flag("mos") {
        Arc::clone(pool.inner().mos())
    } else {
        let dataset = pool.dataset(name).map_err(refused)?;
        dataset.object_set().map_err(refused)?
    };
    let numbers: Vec<u64> = matches
        .get_many("number")
        .map(|numbers| numbers.copied().collect())
        .unwrap_or_default();
    let has_bonus = matches.get_flag("bonus");
    if numbers.is_empty() {
        return list(session, global, &set);
    }
    let mut items = Items::begin(session, global.is_json, "")?;
    for id in numbers {
        let object = match id {
            0 => Ok(set.meta_object()),
            id => set.object(ObjectId(id)),
        };
        match object {
            Ok(object) => show(&mut items, &object, has_bonus)?,
            Err(error) => items.failure(error)?,
        }
    }
    Ok(items.end()?)
}

fn list(session: &mut Session, global: &Global, set: &Arc<ObjectSetView>) -> Ending {
    let mut items = Items::begin(session, global.is_json, HEAD)?;
    for summary in object_summaries(set) {
        match summary {
            Ok(summary) => items.item(|| value(&summary), || line(&summary))?,
            Err(error) => items.failure(error)?,
        }
    }
    Ok(items.end()?)
}

const HEAD: &str = "    OBJECT LVL   IBLK   DBLK   USED DNODE LENGTH   FULL BONUS TYPE";

fn line(summary: &ObjectSummary) -> String {
    let bonus = match summary.bonus_bytes {
        0 => String::new(),
        _ => format!(" ({})", summary.bonus_type.name()),
    };
    format!(
        "{:>10} {:>3} {:>6} {:>6} {:>6} {:>5} {:>6} {:>6} {:>5} {}{bonus}",
        summary.number,
        summary.levels,
        number::count(summary.indirect_block_bytes),
        number::count(summary.data_block_bytes),
        number::count(summary.used_bytes),
        number::count(summary.dnode_bytes),
        number::count(summary.length_bytes),
        hundredths(summary.full_hundredths()),
        summary.bonus_bytes,
        summary.object_type.name(),
    )
}

fn value(summary: &ObjectSummary) -> Value {
    json!({
        "object": summary.number,
        "type": summary.object_type.name(),
        "type_number": summary.object_type.0,
        "levels": summary.levels,
        "indirect_block_size": summary.indirect_block_bytes,
        "data_block_size": summary.data_block_bytes,
        "used": summary.used_bytes,
        "dnode_size": summary.dnode_bytes,
        "length": summary.length_bytes,
        "fill": summary.fill,
        "full_percent": hundredths(summary.full_hundredths()),
        "max_block_id": summary.block_id_max,
        "bonus_type": summary.bonus_type.name(),
        "bonus_size": summary.bonus_bytes,
        "checksum": summary.checksum,
        "compression": summary.compression,
        "flags": summary.flags.bits(),
        "spill": summary.spill.as_ref().map(pointer::value),
        "locked": summary.is_locked,
    })
}

/// Shows the dnode, then its block pointers as they are read.
fn show(items: &mut Items, object: &ObjectView, has_bonus: bool) -> io::Result<()> {
    let summary = ObjectSummary::of(object);
    let bonus = match object.bonus() {
        Ok(bonus) if has_bonus => Some(hexadecimal(bonus)),
        _ => None,
    };
    items.item(
        || {
            let mut value = value(&summary);
            if let Some(bonus) = &bonus {
                value["bonus"] = bonus.as_str().into();
            }
            value
        },
        || {
            let mut text = format!("{HEAD}\n{}\n", line(&summary));
            text += &format!(
                "    flags {:#x}, checksum {}, compression {}, largest block {}{}\n",
                summary.flags.bits(),
                summary.checksum,
                summary.compression,
                summary.block_id_max,
                if summary.is_locked {
                    ", bonus locked"
                } else {
                    ""
                },
            );
            if let Some(bonus) = &bonus {
                text += &format!("    bonus {bonus}\n");
            }
            text
        },
    )?;
    let mut outcome = Ok(());
    let _ = visit_blocks(object, &mut |step| {
        outcome = one_step(items, object, step);
        match outcome {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    outcome
}

fn one_step(items: &mut Items, object: &ObjectView, step: TreeStep<'_>) -> io::Result<()> {
    match step {
        TreeStep::Unreadable { error, .. } => items.failure(error),
        TreeStep::Pointer { address, pointer } => {
            let shift = object.dnode().pointers_shift() * u32::from(address.level.0);
            let offset = address
                .block
                .0
                .checked_shl(shift)
                .unwrap_or(u64::MAX)
                .saturating_mul(object.block_bytes());
            let is_spill = address.block == millpond_inspect::ondisk::SPILL_BLOCK_ID;
            items.item(
                || {
                    json!({
                        "object": object.id().0,
                        "level": address.level.0,
                        "block": if is_spill { Value::Null } else { address.block.0.into() },
                        "offset": if is_spill { Value::Null } else { offset.into() },
                        "spill": is_spill,
                        "pointer": pointer::value(pointer),
                    })
                },
                || {
                    let place = if is_spill {
                        "spill".to_owned()
                    } else {
                        format!("{offset:x}")
                    };
                    let indent =
                        2 * usize::from(object.dnode().levels.saturating_sub(address.level.0));
                    format!("{place:>16} {:indent$}{}", "", pointer::text(pointer))
                },
            )
        }
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
