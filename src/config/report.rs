//! Mistakes and warnings, and where in the file they are.
//!
//! Reading collects them by byte offset; at the end they become [`Diagnostic`]s with line and column, in the
//! order of the file.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::iter;
use std::ops::Range;
use std::string::FromUtf8Error;

use super::{Config, Format, Loaded, value};

/// Whether a diagnostic stops the target from starting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration is refused.
    Mistake,
    /// The configuration is taken, but probably not what was meant.
    Warning,
    /// The configuration asks for something weft cannot do yet. It is left out or ignored, as the message says;
    /// `--strict` makes it a mistake.
    Unsupported,
}

/// One thing wrong (or odd) in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file's name, as it was given.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
    /// Mistake or warning.
    pub severity: Severity,
    /// The key, as in `subsystem.namespace.backend`; empty when it is the file as a whole.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: ", self.file, self.line, self.column)?;
        f.write_str(match self.severity {
            Severity::Mistake => "",
            Severity::Warning => "warning: ",
            Severity::Unsupported => "not supported yet: ",
        })?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Why there is no configuration.
#[derive(Debug)]
pub enum ConfigError {
    /// The file cannot be read.
    Read {
        /// The file's name, as it was given.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// The file is larger than any configuration.
    TooLarge {
        /// The file's name, as it was given.
        file: String,
        /// The most bytes a configuration may have.
        most: u64,
    },
    /// The file has mistakes: all of them, warnings included, in the order of the file.
    Mistakes(Vec<Diagnostic>),
}

impl fmt::Display for ConfigError {
    /// One mistake a line, without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { file, source } => write!(f, "{file}: cannot be read: {source}"),
            Self::TooLarge { file, most } => {
                write!(f, "{file}: is no configuration: it is larger than {}", value::show_size(*most))
            }
            Self::Mistakes(list) => {
                for (index, diagnostic) in list.iter().enumerate() {
                    let separator = if index == 0 { "" } else { "\n" };
                    write!(f, "{separator}{diagnostic}")?;
                }
                Ok(())
            }
        }
    }
}

// No `source()`: the text of `Read` already holds the system's, and printing the chain would say it twice.
impl std::error::Error for ConfigError {}

/// The error for a file that is no text.
pub(super) fn not_utf8(file: &str, error: &FromUtf8Error) -> ConfigError {
    let valid = error.utf8_error().valid_up_to();
    let byte = error.as_bytes()[valid];
    let text = String::from_utf8_lossy(&error.as_bytes()[..valid]);
    let (line, column) = Report::new(&text).position(text.len());
    ConfigError::Mistakes(vec![Diagnostic {
        file: file.to_owned(),
        line,
        column,
        severity: Severity::Mistake,
        key: String::new(),
        message: format!("byte {byte:#04x} is not UTF-8: expected a text file in UTF-8"),
    }])
}

/// Collects what is wrong while the document is walked.
pub(super) struct Report<'a> {
    source: &'a str,
    /// Where each line begins, so that naming a line costs nothing in a large file.
    lines: Vec<usize>,
    entries: RefCell<Vec<Entry>>,
    /// How many more there were than [`MOST_ENTRIES`], and whether one of these was a mistake.
    dropped: Cell<(usize, bool)>,
}

/// More than anybody reads. Bounds what a hostile file can make of this.
const MOST_ENTRIES: usize = 500;

struct Entry {
    at: usize,
    severity: Severity,
    kind: Kind,
    key: String,
    message: String,
}

/// What else in the file an entry depends on; decides which entries still hold when the file has syntax
/// errors.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The text itself does not parse from here on.
    Syntax,
    /// True by what stands at its place, whatever follows.
    Present,
    /// True only because something stands nowhere in the file.
    Absent,
}

impl<'a> Report<'a> {
    pub(super) fn new(source: &'a str) -> Self {
        let after_newlines =
            source.bytes().enumerate().filter(|&(_, byte)| byte == b'\n').map(|(at, _)| at + 1);
        let lines = iter::once(0).chain(after_newlines).collect();
        Self { source, lines, entries: RefCell::default(), dropped: Cell::default() }
    }

    /// Something that stands in the file is wrong.
    pub(super) fn mistake(&self, at: usize, key: impl Into<String>, message: impl Into<String>) {
        self.push(at, Severity::Mistake, Kind::Present, key.into(), message.into());
    }

    /// Something is not in the file at all.
    pub(super) fn absent(&self, at: usize, key: impl Into<String>, message: impl Into<String>) {
        self.push(at, Severity::Mistake, Kind::Absent, key.into(), message.into());
    }

    /// Legal but odd.
    pub(super) fn warning(&self, at: usize, key: impl Into<String>, message: impl Into<String>) {
        self.push(at, Severity::Warning, Kind::Absent, key.into(), message.into());
    }

    /// Something weft cannot do yet.
    pub(super) fn unsupported(&self, at: usize, key: impl Into<String>, message: impl Into<String>) {
        self.push(at, Severity::Unsupported, Kind::Absent, key.into(), message.into());
    }

    /// The text does not parse from here on.
    pub(super) fn broken(&self, at: usize, message: impl Into<String>) {
        self.push(at, Severity::Mistake, Kind::Syntax, String::new(), message.into());
    }

    /// The parser of TOML complains.
    pub(super) fn syntax(&self, error: &toml::de::Error) {
        let Range { start, .. } = error.span().unwrap_or(0..0);
        // A key that stands twice leaves the rest of the document whole.
        let kind = if error.message().starts_with("duplicate key") { Kind::Present } else { Kind::Syntax };
        let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        self.push(start, Severity::Mistake, kind, String::new(), message);
    }

    /// Whether what is still to come is only counted, so that nobody need take pains with it.
    pub(super) fn is_full(&self) -> bool {
        self.entries.borrow().len() >= MOST_ENTRIES
    }

    /// The line, from 1, on which `at` lies.
    pub(super) fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|&start| start <= at)
    }

    /// Line and column, both from 1, of a byte offset; the column counts characters.
    fn position(&self, at: usize) -> (usize, usize) {
        let at = at.min(self.source.len());
        let line = self.line(at);
        let before = &self.source.as_bytes()[self.lines[line - 1]..at];
        // Count the bytes that begin a character, so that an offset inside one does no harm.
        (line, before.iter().filter(|&&byte| byte & 0xc0 != 0x80).count() + 1)
    }

    fn push(&self, at: usize, severity: Severity, kind: Kind, key: String, message: String) {
        let mut entries = self.entries.borrow_mut();
        if entries.len() < MOST_ENTRIES {
            entries.push(Entry { at, severity, kind, key, message });
        } else {
            let (count, mistake) = self.dropped.get();
            self.dropped.set((count + 1, mistake || severity == Severity::Mistake));
        }
    }

    /// The configuration when nothing is wrong, with what is worth a remark.
    pub(super) fn conclude(
        self,
        file: &str,
        config: impl Into<Option<Config>>,
        format: Format,
    ) -> Result<Loaded, ConfigError> {
        let diagnostics = self.finish(file);
        let wrong = diagnostics.iter().any(|diagnostic| diagnostic.severity == Severity::Mistake);
        match config.into() {
            Some(config) if !wrong => Ok(Loaded { config, format, remarks: diagnostics }),
            _ => Err(ConfigError::Mistakes(diagnostics)),
        }
    }

    /// Everything collected, in the order of the file.
    ///
    /// After a syntax error the tree is a guess: what it seems to lack may be there, and keys may hang on the
    /// wrong table. Only complaints about the lines before the first one are kept then, and none about
    /// absence.
    pub(super) fn finish(self, file: &str) -> Vec<Diagnostic> {
        let (dropped, mistake_dropped) = self.dropped.get();
        let mut entries = self.entries.take();
        let broken = entries.iter().filter(|entry| entry.kind == Kind::Syntax).map(|entry| entry.at).min();
        if let Some(broken) = broken {
            let broken =
                self.source[..broken.min(self.source.len())].rfind('\n').map_or(0, |newline| newline + 1);
            entries.retain(|entry| match entry.kind {
                Kind::Syntax => true,
                Kind::Present => entry.at < broken,
                Kind::Absent => false,
            });
        }
        entries.sort_by_key(|entry| entry.at);
        if dropped > 0 {
            let severity = if mistake_dropped { Severity::Mistake } else { Severity::Warning };
            let at = entries.last().map_or(0, |entry| entry.at);
            let message = format!("and {dropped} more, which are not listed");
            entries.push(Entry { at, severity, kind: Kind::Present, key: String::new(), message });
        }
        let located = |entry: Entry| {
            let (line, column) = self.position(entry.at);
            let Entry { severity, key, message, .. } = entry;
            Diagnostic { file: file.to_owned(), line, column, severity, key, message }
        };
        entries.into_iter().map(located).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters() {
        let source = "ab\nä = 1\n";
        let report = Report::new(source);
        assert_eq!(report.position(0), (1, 1));
        assert_eq!(report.position(2), (1, 3));
        assert_eq!(report.position(3), (2, 1));
        assert_eq!(report.position(5), (2, 2));
        assert_eq!(report.position(source.len()), (3, 1));
        assert_eq!(report.position(1000), (3, 1));
        assert_eq!(Report::new("").position(0), (1, 1));
    }

    #[test]
    fn a_flood_is_cut_off_and_a_mistake_in_it_still_counts() {
        let report = Report::new("x");
        for _ in 0..MOST_ENTRIES {
            report.warning(0, "key", "odd");
        }
        report.warning(0, "key", "odd");
        report.mistake(0, "key", "wrong");
        let diagnostics = report.finish("file");
        assert_eq!(diagnostics.len(), MOST_ENTRIES + 1);
        let last = diagnostics.last().unwrap();
        assert_eq!(last.to_string(), "file:1:1: and 2 more, which are not listed");
        assert_eq!(last.severity, Severity::Mistake);
    }
}
