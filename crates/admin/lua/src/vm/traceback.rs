//! The text of the stack at an error.

use super::Lua;
use super::names::line;
use std::fmt::Write;

/// Frames at the top and at the bottom that a longer stack shows.
const SHOWN_FIRST: usize = 10;
const SHOWN_LAST: usize = 11;
/// Frames of the longest stack that is shown as a whole.
const SHOWN_WHOLE: usize = 22;

impl Lua<'_> {
    /// The running coroutine's frames, from the top on.
    pub(crate) fn describe_stack(&self) -> String {
        let mut text = String::from("stack traceback:");
        let count = self.exec.frames.len();
        for (level, index) in (0..count).rev().enumerate() {
            if count > SHOWN_WHOLE {
                if level == SHOWN_FIRST {
                    text.push_str("\n\t...");
                }
                if level >= SHOWN_FIRST && level < count - SHOWN_LAST {
                    continue;
                }
            }
            self.describe_frame(index, &mut text);
        }
        text
    }

    fn describe_frame(&self, index: usize, text: &mut String) {
        let frame = &self.exec.frames[index];
        let name = self.called_name(index).map(|name| name.name);
        let name = match &frame.proto {
            Some(_) => name,
            None => name.or_else(|| self.own_name(index)),
        };
        // Writing to a string cannot fail.
        let _ = match (&frame.proto, name) {
            (None, Some(name)) => write!(text, "\n\t[C]: in function '{name}'"),
            (None, None) => write!(text, "\n\t[C]: in ?"),
            (Some(proto), name) => {
                let (source, at) = (&proto.source, line(proto, frame.next));
                let _ = write!(text, "\n\t{source}:{at}: in ");
                match name {
                    Some(name) => write!(text, "function '{name}'"),
                    None if proto.line == 0 => write!(text, "main chunk"),
                    None => write!(text, "function <{source}:{}>", proto.line),
                }
            }
        };
        if frame.is_tail {
            text.push_str("\n\t(...tail calls...)");
        }
    }
}
