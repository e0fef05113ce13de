//! Pools whose checksums hold and whose content lies.
//!
//! Random rot is caught by checksums, so it says little about what stands behind them. Here blocks of a
//! real pool are changed after they are unfolded and sealed again, up to the uberblock: what a hostile
//! writer would hand us. [`image`] knows the blocks and seals, [`mutation`] lies, [`exercise`] asks the
//! library everything, [`child`] holds a run within bounds of memory and time.

pub mod child;
pub mod dice;
pub mod exercise;
pub mod image;
pub mod mutation;
pub mod overlay;
