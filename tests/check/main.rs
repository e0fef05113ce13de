//! The checker: sound pools have nothing to report, planted damage is found and named.

mod golden;
mod planted;
mod random;
