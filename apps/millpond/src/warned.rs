//! Warnings about changes that are done: cache files that could not be written.

use crate::text::terminal::one_line;
use millpond_control::{ControlError, Failure, Item, Note, Reply, Request, Service};
use std::os::fd::OwnedFd;

/// A service whose changes may come with warnings. They go to `warn`, so that each command prints them and succeeds.
pub struct Warned<S> {
    inner: S,
    warn: Box<dyn Fn(&str)>,
}

impl<S: Service> Warned<S> {
    /// `warn` gets each warning, without a line break at its end.
    pub fn new(inner: S, warn: impl Fn(&str) + 'static) -> Self {
        Self {
            inner,
            warn: Box::new(warn),
        }
    }

    fn tell(&self, notes: &mut Vec<Note>) {
        notes.retain(|note| match note {
            Note::CacheFile { path, why } => {
                (self.warn)(&not_written(path, why));
                false
            }
            _ => true,
        });
    }
}

/// The warning for a cache file that was not written.
pub fn not_written(path: &str, why: &str) -> String {
    format!(
        "warning: {}\n\
         The change is done. Until '{}' is written, what starts from it imports the pools that it has now. Each\n\
         change of a pool writes it again.",
        one_line(why),
        one_line(path)
    )
}

impl<S: Service> Service for Warned<S> {
    fn call(&self, request: &Request) -> Result<Reply, Failure> {
        let mut reply = self.inner.call(request)?;
        match &mut reply {
            Reply::CreatePool(changed) | Reply::Change(changed) => self.tell(&mut changed.notes),
            Reply::Import(imported) => self.tell(&mut imported.notes),
            _ => {}
        }
        Ok(reply)
    }

    fn transfer(
        &self,
        request: &Request,
        descriptor: OwnedFd,
        is_abandoned: &(dyn Fn() -> bool + Sync),
    ) -> Result<Reply, Failure> {
        self.inner.transfer(request, descriptor, is_abandoned)
    }

    fn stream(
        &self,
        request: &Request,
        each: &mut dyn FnMut(Item) -> Result<(), ControlError>,
    ) -> Result<(), Failure> {
        self.inner.stream(request, each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_control::{Changed, PoolChange};
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Noting;

    impl Service for Noting {
        fn call(&self, _: &Request) -> Result<Reply, Failure> {
            let file = Note::CacheFile {
                path: "/a".into(),
                why: "cannot note the pools in /a: no".into(),
            };
            let other = Note::NoActivity {
                leaf: 1,
                why: "busy".into(),
            };
            Ok(Reply::Change(Changed {
                notes: vec![file, other],
                ..Changed::default()
            }))
        }

        fn stream(
            &self,
            _: &Request,
            _: &mut dyn FnMut(Item) -> Result<(), ControlError>,
        ) -> Result<(), Failure> {
            Err(Failure::other_reply())
        }
    }

    #[test]
    fn a_cache_file_that_was_not_written_is_a_warning_and_no_failure() {
        let told = Rc::new(RefCell::new(vec![]));
        let telling = Rc::clone(&told);
        let service = Warned::new(Noting, move |text| {
            telling.borrow_mut().push(text.to_owned())
        });
        let changed = service.change("tank", &[PoolChange::Export], "").unwrap();
        assert!(matches!(changed.notes[..], [Note::NoActivity { .. }]));
        let told = told.borrow();
        assert!(told[0].starts_with("warning: cannot note the pools in /a: no\n"));
        assert_eq!(told.len(), 1);
    }
}
