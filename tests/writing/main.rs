//! Pools that we make and change, judged by OpenZFS's own programs and read back by our own reader.

mod basics;
mod repair;
mod rig;
mod soak;
