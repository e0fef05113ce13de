//! Checks labels against the configuration, dirty time logs, and history.

use super::Findings;
use super::finding::{Finding, FindingKind};
use millpond_env::sync::Arc;
use millpond_ondisk::{LABEL_COUNT, ObjectType, SpaceMapPhys, Txg};
use millpond_pool::PoolView;
use millpond_pool::import::{LabelFault, LeafLabel, read_labels};

pub(super) fn judge(pool: &Arc<PoolView>, findings: &Findings<'_>) {
    judge_labels(pool, findings);
    judge_time_logs(pool, findings);
    judge_history(pool, findings);
}

fn judge_labels(pool: &Arc<PoolView>, findings: &Findings<'_>) {
    let topology = pool.store().topology();
    let tree = &topology.tree;
    let txg = pool.uberblock().txg;
    for ((leaf, node), device) in tree.leaves().zip(&topology.devices) {
        let Some(device) = device else { continue };
        let name = topology.leaf_name(leaf);
        let tell = |number: usize, words: String| {
            let detail = format!("{name}: label {number}: {words}");
            Finding::new(FindingKind::Label, detail).into(findings);
        };
        let labels = read_labels(device.as_ref());
        let unfinished = half_of_an_unfinished_txg(&labels, txg);
        for (number, label) in labels.iter().enumerate() {
            let label = match label {
                Ok(label) => label,
                Err(fault) => {
                    tell(number, fault.to_string());
                    continue;
                }
            };
            if !label.is_verified {
                tell(number, "its checksum does not hold".into());
            }
            if label.guid != node.config.guid {
                tell(
                    number,
                    format!("it is of device {}, not {}", label.guid, node.config.guid),
                );
            }
            if label.pool_guid != tree.pool_guid() {
                tell(number, format!("it is of pool {}", label.pool_guid));
            }
            if label.txg > txg && Some(number % 2) != unfinished {
                tell(
                    number,
                    format!("of txg {}, and the pool is at {txg}", label.txg),
                );
            }
        }
    }
}

/// Which half of the labels an unfinished txg may have written (0: labels 0 and 2; 1: labels 1 and 3).
///
/// A txg that changes the configuration writes labels 0 and 2 first, then its uberblock. After a crash
/// between the two, that half is newer than the pool. This is valid as long as the other half is intact and
/// not newer. Page `docs/format/commit-order.md`.
fn half_of_an_unfinished_txg(
    labels: &[Result<LeafLabel, LabelFault>; LABEL_COUNT],
    txg: Txg,
) -> Option<usize> {
    let is_old = |label: &Result<LeafLabel, LabelFault>| {
        label
            .as_ref()
            .is_ok_and(|label| label.is_verified && label.txg <= txg)
    };
    let [first, second, third, fourth] = labels;
    match (
        is_old(first) && is_old(third),
        is_old(second) && is_old(fourth),
    ) {
        (false, true) => Some(0),
        (true, false) => Some(1),
        _ => None,
    }
}

fn judge_time_logs(pool: &Arc<PoolView>, findings: &Findings<'_>) {
    let topology = pool.store().topology();
    for (_, node) in topology.tree.leaves() {
        let Some(id) = node.config.dtl else { continue };
        let tell = |words: String| {
            let finding = Finding::new(FindingKind::DirtyTimeLog, words);
            findings.add(finding.object(id.0));
        };
        let object = match pool.mos().object(id) {
            Ok(object) => object,
            Err(error) => {
                tell(error.to_string());
                continue;
            }
        };
        if object.dnode().object_type != ObjectType::SPACE_MAP {
            tell("the object is no log of missed writes".into());
            continue;
        }
        let phys = object
            .bonus()
            .map_err(|error| error.to_string())
            .and_then(|bonus| {
                SpaceMapPhys::decode(bonus, object.dnode().endian)
                    .map_err(|error| error.to_string())
            });
        match phys {
            Ok(phys) if phys.length_bytes > object.length_bytes() => {
                tell("it is longer than its object".into());
            }
            Ok(_) => {}
            Err(error) => tell(error),
        }
    }
}

fn judge_history(pool: &Arc<PoolView>, findings: &Findings<'_>) {
    let tell = |words: String| Finding::new(FindingKind::History, words).into(findings);
    match pool.history() {
        Ok(Some(history)) => {
            for record in history {
                match record {
                    Err(error) => return tell(error.to_string()),
                    Ok(record)
                        if record.contains("internal_name")
                            && record.string("history internal str").is_err() =>
                    {
                        tell("a record of what was done inside does not say it".into());
                    }
                    Ok(_) => {}
                }
            }
        }
        Ok(None) => {}
        Err(error) => tell(error.to_string()),
    }
}
