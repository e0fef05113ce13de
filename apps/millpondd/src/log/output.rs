//! Prints tracing events as lines: level, keys, message.
//!
//! ```text
//! millpondd: debug pool=tank txg=117: synced
//! ```
//!
//! Keys of the spans around an event come before its own. Under a service manager that reads severities, a
//! line starts with `<7>` instead of `millpondd: `.

use super::escape;
use std::fmt::{self, Debug, Write as _};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields, MakeWriter};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;

/// Which events are printed: `debug`, or `info,millpond_pool=trace`.
#[derive(Debug, Clone)]
pub struct Filter(Targets);

/// A filter that cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a log filter; examples: debug  info,millpond_pool=trace")]
pub struct FilterError(String);

impl Filter {
    /// Parses a list of levels: one for all crates, or `crate=level` for one crate. Where nothing is said, the
    /// level is `info`.
    ///
    /// # Errors
    /// [`FilterError`].
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        // Not the parser of `Targets`: for it, a misspelt level is a crate, and all others are silent.
        let level = |word: &str| match word {
            "warning" => Ok(LevelFilter::WARN),
            "notice" => Ok(LevelFilter::INFO),
            // Would parse as `error`.
            "" => Err(FilterError(text.to_owned())),
            word => word.parse().map_err(|_| FilterError(text.to_owned())),
        };
        let mut targets = Targets::new().with_default(LevelFilter::INFO);
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            targets = match part.split_once('=') {
                Some((name, word)) => targets.with_target(name, level(word)?),
                None => targets.with_default(level(part)?),
            };
        }
        Ok(Self(targets))
    }
}

/// Prints the events of this process to standard error from now on. Without effect after the first call.
pub fn start(filter: &Filter) {
    let is_journal = std::env::var_os("JOURNAL_STREAM").is_some();
    let printer = printer(filter, is_journal, std::io::stderr);
    // Fails only if there is a printer already.
    let _ = tracing::subscriber::set_global_default(printer);
}

fn printer<W>(filter: &Filter, is_journal: bool, out: W) -> impl Subscriber + Send + Sync
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt::layer()
        .fmt_fields(Keys)
        .event_format(Lines { is_journal })
        .with_writer(out);
    tracing_subscriber::registry()
        .with(filter.0.clone())
        .with(lines)
}

/// The form of a line.
struct Lines {
    is_journal: bool,
}

/// The form of keys and values: ` key=value` for each.
struct Keys;

/// The words and syslog severities of levels.
fn level_of(level: Level) -> (&'static str, u8) {
    match level {
        Level::ERROR => ("error", 3),
        Level::WARN => ("warning", 4),
        Level::INFO => ("notice", 5),
        Level::DEBUG => ("debug", 7),
        Level::TRACE => ("trace", 7),
    }
}

impl<S> FormatEvent<S, Keys> for Lines
where
    S: Subscriber + for<'l> LookupSpan<'l>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, Keys>,
        mut out: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (word, severity) = level_of(*event.metadata().level());
        match self.is_journal {
            true => write!(out, "<{severity}>{word}")?,
            false => write!(out, "millpondd: {word}")?,
        }
        for span in context
            .event_scope()
            .into_iter()
            .flat_map(|all| all.from_root())
        {
            if let Some(keys) = span.extensions().get::<FormattedFields<Keys>>() {
                out.write_str(&keys.fields)?;
            }
        }
        let mut keys = Collected::default();
        event.record(&mut keys);
        out.write_str(&keys.keys)?;
        out.write_str(": ")?;
        escape::message(&mut out, &keys.message)?;
        out.write_char('\n')
    }
}

impl FormatFields<'_> for Keys {
    fn format_fields<R: tracing_subscriber::field::RecordFields>(
        &self,
        mut out: Writer<'_>,
        fields: R,
    ) -> fmt::Result {
        let mut keys = Collected::default();
        fields.record(&mut keys);
        out.write_str(&keys.keys)
    }
}

/// Keys, escaped, and the message, which is not escaped yet.
#[derive(Default)]
struct Collected {
    keys: String,
    message: String,
}

impl Visit for Collected {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            return value.clone_into(&mut self.message);
        }
        // Writing to a string cannot fail.
        let _ = write!(self.keys, " {}=", field.name());
        let _ = escape::value(&mut self.keys, value);
    }
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Line;
    use millpond_env::sync::{Arc, Mutex};
    use std::io::{self, Write};

    #[derive(Clone, Default)]
    struct Printed(Arc<Mutex<Vec<u8>>>);

    impl Write for Printed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn printed(filter: &str, is_journal: bool, emit: impl FnOnce()) -> String {
        let out = Printed::default();
        let copy = out.clone();
        let filter = Filter::parse(filter).unwrap();
        let printer = printer(&filter, is_journal, move || copy.clone());
        tracing::subscriber::with_default(printer, emit);
        String::from_utf8(out.0.lock().clone()).unwrap()
    }

    #[test]
    fn an_event_is_a_line_with_the_keys_of_its_spans() {
        let emit = || {
            let name = "my pool\n";
            let _txg = tracing::debug_span!("txg", pool = %name, txg = 7).entered();
            let _dataset = tracing::debug_span!("dataset", dataset = 54).entered();
            tracing::debug!(bytes = -3, is_new = true, "wrote\n<3>{}", "\u{1b}[2J");
            tracing::trace!("not wanted");
        };
        let line = "debug pool=\"my pool\\n\" txg=7 dataset=54 bytes=-3 is_new=true: wrote\\n<3>\\u{1b}[2J\n";
        assert_eq!(printed("debug", false, emit), format!("millpondd: {line}"));
        assert_eq!(printed("debug", true, emit), format!("<7>{line}"));
        assert_eq!(printed("", false, emit), "");
        assert_eq!(printed("info,millpond_pool=trace", false, emit), "");
    }

    #[test]
    fn lines_of_the_daemon_are_events() {
        let emit = || {
            let line = Line::new(crate::log::Level::Warning, "3 reads failed");
            line.pool("tank").device("/dev/sd b").emit();
        };
        let expected = "<4>warning pool=tank device=\"/dev/sd b\": 3 reads failed\n";
        assert_eq!(printed("", true, emit), expected);
        // A level for one crate leaves the others as they are.
        assert_eq!(printed("millpond_pool=trace", true, emit), expected);
        assert_eq!(printed("warning", true, emit), expected);
        assert_eq!(printed("error", true, emit), "");
    }

    #[test]
    fn an_invalid_log_filter_is_an_error() {
        for text in [
            "millpond_pool=loud",
            "millpond_pool=",
            "debgu",
            "info,debgu",
        ] {
            assert!(Filter::parse(text).is_err(), "{text}");
        }
        assert!(Filter::parse("off").is_ok());
    }
}
