//! What a person meets in everyday use: help, words for mistakes, pools that the daemon has imported, progress.

mod help;
mod places;
#[path = "../support/stage.rs"]
mod stage;

use stage::Stage;

impl Stage {
    /// Makes a file of these bytes beside the images.
    fn file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.image(name), bytes).unwrap();
    }
}
