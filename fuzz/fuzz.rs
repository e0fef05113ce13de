//! Runs libFuzzer on the target that `MILLPOND_FUZZ_TARGET` names.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("MILLPOND_FUZZ_TARGET").unwrap_or_default();
    millpond_fuzz_targets::find(&name).unwrap_or_else(|| {
        eprintln!("MILLPOND_FUZZ_TARGET must name a target:");
        for (name, _) in millpond_fuzz_targets::TARGETS {
            eprintln!("  {name}");
        }
        std::process::exit(2);
    })
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
