//! What OpenZFS answers in single cases, as recorded: through the built programs and a daemon.

mod datasets;
mod pools;
#[path = "../support/stage.rs"]
mod stage;

use stage::Stage;
