//! What a person meets in everyday use: help, words for mistakes, pools that the daemon has imported, progress.

mod copies;
mod help;
mod imported;
mod places;
mod progress;
#[path = "../support/stage.rs"]
mod stage;

use stage::Stage;

impl Stage {
    /// Makes a file of these bytes beside the images.
    fn file(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.image(name), bytes).unwrap();
    }

    /// Runs a command in which `@` is no image and that succeeds. Returns what it prints on standard output.
    fn done_as_it_is(&self, line: &str) -> Vec<u8> {
        let done = self.command(line, false).output().unwrap();
        assert!(done.status.success(), "{line}: {done:?}");
        done.stdout
    }
}
