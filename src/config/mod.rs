//! The configuration: one checked model, and the only code that parses configuration text.
//!
//! [`Config`] is what the rest of the target works with: everything in it has been checked, so nothing
//! further on asks whether a size is a multiple of the block size or a port exists. [`Config::load`] reads it
//! from a file in TOML or in nvmetcli's JSON, told apart by what is in it, and names *every* mistake with line
//! and column, not only the first. What depends on the machine (does the file exist, is the address free, is
//! there memory enough) is left to whoever opens it.
//!
//! | File | What it does |
//! |---|---|
//! | `model.rs` | the checked types and their defaults |
//! | `document.rs`, `subsystem.rs`, `namespace.rs`, `discovery.rs` | walk the TOML tree, section by section |
//! | `section.rs` | typed access to one table, collecting mistakes |
//! | `nvmetcli/` | walk the JSON tree of a file saved by nvmetcli |
//! | `json.rs`, `object.rs` | a JSON parser that keeps positions, and typed access to one object |
//! | `checks.rs`, `ana.rs` | what must fit together, whatever the format |
//! | `write_toml.rs`, `write_json.rs` | the model as text |
//! | `value.rs` | sizes, addresses, NQNs and identifiers out of text |
//! | `identity.rs` | stable serial numbers and UUIDs for what has none of its own |
//! | `report.rs` | mistakes, warnings and where they are |

mod ana;
mod checks;
mod discovery;
mod document;
mod faults;
mod identity;
mod json;
mod model;
mod namespace;
mod nvmetcli;
mod object;
mod report;
mod section;
mod subsystem;
#[cfg(test)]
mod tests;
mod value;
mod write_json;
mod write_toml;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use clap::ValueEnum;
pub use model::{
    ALL_CONTROLLER_IDS, AllowedHosts, AnaGroup, AnaState, Config, DEFAULT_LBA_SIZE, Discovery, Limits,
    MAX_ANA_GROUP, MAX_NSID, Metrics, Namespace, NamespaceBackend, Port, Reactors, Referral, Subsystem,
    TransportKind,
};
pub use report::{ConfigError, Diagnostic, Severity};

/// More than the largest configuration that makes sense, little enough to be read at once.
const LARGEST_FILE: u64 = 8 << 20;

/// What a configuration file is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// weft's own TOML.
    Toml,
    /// The JSON that nvmetcli saves and restores.
    Json,
}

/// A configuration without mistakes, and what is worth a remark all the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// What it was written in.
    pub format: Format,
    /// Warnings (legal, but probably not meant: a subsystem nobody may connect to) and what weft cannot do yet.
    pub remarks: Vec<Diagnostic>,
}

impl Loaded {
    /// What the file asks for and weft cannot do yet: left out or ignored, as each one says.
    pub fn unsupported(&self) -> impl Iterator<Item = &Diagnostic> {
        self.remarks.iter().filter(|remark| remark.severity == Severity::Unsupported)
    }
}

impl Config {
    /// Reads and checks the file at `path`.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or it has mistakes: the error then lists all of them, one a line.
    pub fn load(path: &Path) -> Result<Loaded, ConfigError> {
        let file = path.display().to_string();
        let mut bytes = Vec::new();
        // Not by its length: a device or a pipe has none.
        File::open(path)
            .and_then(|opened| opened.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
            .map_err(|source| ConfigError::Read { file: file.clone(), source })?;
        if bytes.len() as u64 > LARGEST_FILE {
            return Err(ConfigError::TooLarge { file, most: LARGEST_FILE });
        }
        let source = match String::from_utf8(bytes) {
            Ok(source) => source,
            Err(error) => return Err(report::not_utf8(&file, &error)),
        };
        read(&source, &file, path.parent().unwrap_or(Path::new("")))
    }

    /// Reads and checks configuration text; `file` is the name that mistakes carry, relative paths stay as
    /// they are.
    ///
    /// # Errors
    ///
    /// The text has mistakes; the error lists all of them.
    pub fn parse(source: &str, file: &str) -> Result<Loaded, ConfigError> {
        read(source, file, Path::new(""))
    }
}

impl Config {
    /// The configuration as a file in TOML. Read back, it is the same.
    #[must_use]
    pub fn to_toml(&self) -> String {
        write_toml::write(self)
    }

    /// The configuration as a file for nvmetcli, and what that cannot say, a line each. Read back, it is the same
    /// when there is no such line.
    #[must_use]
    pub fn to_json(&self) -> (String, Vec<String>) {
        write_json::write(self)
    }

    /// Makes every path independent of the directory that this process is in.
    ///
    /// # Errors
    ///
    /// The directory cannot be told.
    pub fn make_paths_absolute(&mut self) -> io::Result<()> {
        if let Some(directory) = &mut self.state_dir {
            *directory = std::path::absolute(&*directory)?;
        }
        for namespace in self.subsystems.iter_mut().flat_map(|subsystem| &mut subsystem.namespaces) {
            if let NamespaceBackend::File { path, .. } | NamespaceBackend::Passthrough { device: path, .. } =
                &mut namespace.backend
            {
                *path = std::path::absolute(&*path)?;
            }
        }
        Ok(())
    }
}

fn read(source: &str, file: &str, directory: &Path) -> Result<Loaded, ConfigError> {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    match format_of(source) {
        Format::Toml => document::read(source, file, directory),
        Format::Json => nvmetcli::read(source, file, directory),
    }
}

/// No TOML begins with a brace, or with a bracket and then a brace.
fn format_of(source: &str) -> Format {
    let start = source.trim_start();
    let inner = start.strip_prefix('[').map(str::trim_start);
    let json = start.starts_with('{') || inner.is_some_and(|inner| inner.starts_with('{'));
    if json { Format::Json } else { Format::Toml }
}
