//! Opens pools from candidates: the assembled devices suffice to read the pool's own configuration.

use crate::CASES;
use millpond_env::Env;
use millpond_pool::import::{PoolCandidate, Rewind};
use millpond_pool::{OpenError, OpenOptions, PoolView};

fn open(pool: &PoolCandidate, rewind: Rewind) -> Result<(), OpenError> {
    let options = OpenOptions {
        rewind,
        ..OpenOptions::default()
    };
    PoolView::open(&Env::real(), pool, &options).map(drop)
}

#[test]
fn pools_open_with_all_permitted_absences() {
    for unpacked in CASES.iter() {
        open(&unpacked.pool(), Rewind::Never)
            .unwrap_or_else(|error| panic!("{}: {error}", unpacked.name()));
        for absent in unpacked.case.may_be_absent() {
            let absent: Vec<&str> = absent.iter().map(String::as_str).collect();
            let pool = unpacked.pool_without(&absent).unwrap();
            open(&pool, Rewind::Never)
                .unwrap_or_else(|error| panic!("{} without {absent:?}: {error}", unpacked.name()));
        }
    }
}

#[test]
fn older_states_open_though_all_labels_are_newer() {
    let mut opened = 0;
    for unpacked in CASES.iter() {
        let pool = unpacked.pool();
        // More than two txgs back, blocks may have been overwritten. Opening may then fail but must return.
        for choice in pool.uberblock_choices(Rewind::Recent).unwrap() {
            let txg = choice.uberblock.txg;
            open(&pool, Rewind::ToTxg(txg))
                .unwrap_or_else(|error| panic!("{} at {txg}: {error}", unpacked.name()));
            opened += 1;
        }
        for choice in pool
            .uberblock_choices(Rewind::Extreme)
            .unwrap()
            .into_iter()
            .take(3)
        {
            opened += u32::from(open(&pool, Rewind::ToTxg(choice.uberblock.txg)).is_ok());
        }
    }
    println!("{opened} states opened");
}
