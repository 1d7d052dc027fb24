//! The configuration: one checked model, and the only code that parses configuration text.
//!
//! [`Config`] is what the rest of the target works with: everything in it has been checked, so nothing
//! further on asks whether a size is a multiple of the block size or a port exists. [`Config::load`] reads it
//! from a TOML file and names *every* mistake with line and column, not only the first. What depends on the
//! machine (does the file exist, is the address free, is there memory enough) is left to whoever opens it.
//!
//! | File | What it does |
//! |---|---|
//! | `model.rs` | the checked types and their defaults |
//! | `document.rs`, `subsystem.rs`, `namespace.rs` | walk the TOML tree, section by section |
//! | `section.rs` | typed access to one table, collecting mistakes |
//! | `value.rs` | sizes, addresses, NQNs and identifiers out of text |
//! | `identity.rs` | stable serial numbers and UUIDs for what has none of its own |
//! | `report.rs` | mistakes, warnings and where they are |

mod document;
mod identity;
mod model;
mod namespace;
mod report;
mod section;
mod subsystem;
#[cfg(test)]
mod tests;
mod value;

use std::fs;
use std::path::Path;

pub use model::{
    AllowedHosts, Config, DEFAULT_LBA_SIZE, Limits, MAX_NSID, Metrics, Namespace, NamespaceBackend, Port,
    Reactors, Subsystem, TransportKind,
};
pub use report::{ConfigError, Diagnostic, Severity};

/// A configuration without mistakes, and what is worth a remark all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// Legal, but probably not meant: a subsystem nobody may connect to, one file behind two namespaces.
    pub warnings: Vec<Diagnostic>,
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or it has mistakes: the error then lists all of them, one a line.
    pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
        let file = path.display().to_string();
        let bytes = fs::read(path).map_err(|source| ConfigError::Read { file: file.clone(), source })?;
        let source = match String::from_utf8(bytes) {
            Ok(source) => source,
            Err(error) => return Err(report::not_utf8(&file, &error)),
        };
        document::read(&source, &file, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads and checks configuration text; `file` is the name that mistakes carry, relative paths stay as
    /// they are.
    ///
    /// # Errors
    ///
    /// The text has mistakes; the error lists all of them.
    pub fn parse(source: &str, file: &str) -> Result<Loaded, ConfigError> {
        document::read(source, file, Path::new(""))
    }
}
