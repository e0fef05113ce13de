//! Lies that once were believed, or that look as if they could be.

use anyhow::{Result, bail, ensure};
use millpond_tests::hostile::exercise::exercise;
use millpond_tests::hostile::image::PoolImage;

/// Every lie, by name.
pub const NAMES: &[&str] = &["nothing_is_changed", "everything_is_sealed_again"];

/// Tells one of them.
pub fn run(name: &str, load: &dyn Fn(&str) -> Result<PoolImage>, confine: &dyn Fn()) -> Result<()> {
    let image = load("single")?;
    confine();
    let mut changed = image.change();
    match name {
        "nothing_is_changed" => {}
        "everything_is_sealed_again" => {
            for number in 0..image.blocks.len() {
                changed.content_mut(number);
            }
        }
        _ => bail!("no lie has this name: {name}"),
    }
    ensure!(exercise(changed.seal()), "the pool does not open");
    Ok(())
}
