//! Logging: `tracing` events to standard error, as text for people or as JSON for collectors.

use std::fmt;
use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};

/// The filter when neither the command line nor the configuration names one.
pub const DEFAULT_FILTER: &str = "info";

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// How a log line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// One line of text for each event, coloured on a terminal.
    #[default]
    Text,
    /// One JSON object for each event.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug)]
pub enum LoggingError {
    /// A part of the filter is neither a level nor `target=level`.
    Level(String),
    /// The filter library does not understand the filter.
    Filter(String, ParseError),
    /// This process logs already.
    Initialised(TryInitError),
}

impl fmt::Display for LoggingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const EXPECTED: &str =
            "expected off, error, warn, info, debug or trace, or parts such as info,weft=debug";
        match self {
            Self::Level(part) => write!(f, "unknown log level {part:?}: {EXPECTED}"),
            Self::Filter(filter, error) => write!(f, "{filter:?} is no log filter ({error}): {EXPECTED}"),
            Self::Initialised(error) => write!(f, "logging is set up already: {error}"),
        }
    }
}

// No `source()`: the texts above hold the inner ones already.
impl std::error::Error for LoggingError {}

/// Whether `filter` would be taken by [`init`].
///
/// # Errors
///
/// What is wrong with it.
pub fn check_filter(filter: &str) -> Result<(), LoggingError> {
    parse_filter(filter).map(drop)
}

/// Starts logging to standard error for the whole process.
///
/// # Errors
///
/// The filter is wrong, or logging has been started before.
pub fn init(filter: &str, format: Format) -> Result<(), LoggingError> {
    // When nobody reads standard error any more, lines are lost and nothing else: the default would be to complain about it
    // on standard error, which panics.
    let builder = tracing_subscriber::fmt()
        .with_env_filter(parse_filter(filter)?)
        .with_writer(io::stderr)
        .log_internal_errors(false);
    match format {
        Format::Text => {
            let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            builder.with_ansi(colours).finish().try_init()
        }
        Format::Json => builder.with_ansi(false).json().flatten_event(true).finish().try_init(),
    }
    .map_err(LoggingError::Initialised)
}

fn parse_filter(filter: &str) -> Result<EnvFilter, LoggingError> {
    // EnvFilter takes a lone word for the name of a module and shows everything of it: "inof" would be
    // silence with an odd name, so a lone word has to be a level here.
    let parts: Vec<&str> = filter.split(',').map(str::trim).collect();
    for &part in &parts {
        let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
        let by_field = part.ends_with(']');
        if !by_field && !LEVELS.iter().any(|known| known.eq_ignore_ascii_case(level)) {
            return Err(LoggingError::Level(part.to_owned()));
        }
    }
    EnvFilter::try_new(parts.join(",")).map_err(|error| LoggingError::Filter(filter.to_owned(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_people_write_are_taken() {
        for filter in
            ["info", "DEBUG", "off", "warn,weft=debug", "info, weft::metrics=trace", "weft[{nsid=1}]=debug"]
        {
            assert!(check_filter(filter).is_ok(), "{filter}");
        }
    }

    #[test]
    fn slips_are_named() {
        let message = |filter| check_filter(filter).unwrap_err().to_string();
        let expected = "expected off, error, warn, info, debug or trace, or parts such as info,weft=debug";
        assert_eq!(message("inof"), format!("unknown log level \"inof\": {expected}"));
        assert_eq!(message("info,weft=loud"), format!("unknown log level \"weft=loud\": {expected}"));
        assert_eq!(message(""), format!("unknown log level \"\": {expected}"));
        assert_eq!(message("info,,weft=debug"), format!("unknown log level \"\": {expected}"));
        assert!(message("weft[{=debug").contains("is no log filter"), "{}", message("weft[{=debug"));
    }
}
