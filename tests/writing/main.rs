//! Pools that we create and change, judged by OpenZFS's programs and read by our reader.

mod basics;
mod crash;
mod damaged;
mod diverged;
mod exhaustive;
mod exhaustive_log;
mod faults;
mod faulty_hardware;
mod frees;
mod full;
mod gangs;
mod hang;
mod log;
mod properties;
mod reguid;
mod repair;
mod rig;
mod sim;
mod soak;
mod states;
mod sweep;
mod upgraded;
mod views;
mod write_back;
