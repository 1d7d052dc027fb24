//! Rules about the source that the compiler does not keep: sizes, heads, where `unsafe` and the ring may appear, who
//! may import whom, and that the README knows every dependency.

use std::fs;
use std::path::{Path, PathBuf};

/// A source file of this repository.
struct Source {
    /// Its path from the root.
    path: String,
    text: String,
    /// The text without comments and without what stands between quotes.
    code: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> Vec<Source> {
    let mut found = Vec::new();
    walk(&root(), &mut found);
    assert!(found.len() > 10, "this test looks in the wrong place");
    found
}

fn walk(directory: &Path, found: &mut Vec<Source>) {
    let mut entries: Vec<_> =
        fs::read_dir(directory).expect("a directory").flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if !matches!(name.as_str(), "target" | "build" | "corpus" | "artifacts") && !name.starts_with('.')
            {
                walk(&path, found);
            }
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path).expect("UTF-8");
            let path = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
            found.push(Source { path, code: code_of(&text), text });
        }
    }
}

/// Blanks out comments, strings and character literals; lines stay lines.
fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let length = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => line_length(&bytes[at..]),
            b'/' if bytes[at..].starts_with(b"/*") => block_comment_length(&bytes[at..]),
            b'"' => string_length(&bytes[at..]),
            b'r' if !follows_word(bytes, at) => raw_string_length(&bytes[at..]),
            b'\'' => char_length(&bytes[at..]),
            _ => 0,
        };
        if length == 0 {
            out.push(bytes[at]);
            at += 1;
        } else {
            out.extend(bytes[at..at + length].iter().map(|byte| if *byte == b'\n' { b'\n' } else { b' ' }));
            at += length;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn line_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len())
}

fn block_comment_length(bytes: &[u8]) -> usize {
    let mut depth = 0;
    let mut at = 0;
    while at < bytes.len() {
        match &bytes[at..(at + 2).min(bytes.len())] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    at
}

fn string_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// 0 where no raw string begins.
fn raw_string_length(bytes: &[u8]) -> usize {
    let hashes = bytes[1..].iter().take_while(|byte| **byte == b'#').count();
    if bytes.get(1 + hashes) != Some(&b'"') {
        return 0;
    }
    let end = [&b"\""[..], &vec![b'#'; hashes]].concat();
    let body = &bytes[2 + hashes..];
    let length = body.windows(end.len()).position(|window| window == end).unwrap_or(body.len() - end.len());
    2 + hashes + length + end.len()
}

/// 0 for a lifetime.
fn char_length(bytes: &[u8]) -> usize {
    match bytes.get(1) {
        Some(b'\\') => 2 + bytes[2..].iter().skip(1).position(|byte| *byte == b'\'').map_or(0, |at| at + 2),
        Some(_) => {
            let end = bytes.iter().skip(2).take(4).position(|byte| *byte == b'\'');
            let letter = bytes.get(1).is_some_and(u8::is_ascii) && bytes.get(2) != Some(&b'\'');
            if letter { 0 } else { end.map_or(0, |at| at + 3) }
        }
        None => 0,
    }
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    at > 0 && (bytes[at - 1].is_ascii_alphanumeric() || bytes[at - 1] == b'_')
}

/// The lines of `code` that have `word` as a whole word.
fn lines_with(code: &str, word: &str) -> Vec<usize> {
    let is_word = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let has = |line: &str| {
        line.match_indices(word).any(|(at, _)| {
            let bytes = line.as_bytes();
            !is_word(at.checked_sub(1).and_then(|at| bytes.get(at))) && !is_word(bytes.get(at + word.len()))
        })
    };
    code.lines().enumerate().filter(|(_, line)| has(line)).map(|(index, _)| index + 1).collect()
}

/// Panics with all complaints at once.
fn none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn files_have_a_head_and_are_not_too_long() {
    let mut complaints = Vec::new();
    for source in sources() {
        let lines = source.text.lines().count();
        if lines > 800 {
            complaints.push(format!("{}: {lines} lines, more than 800", source.path));
        }
        if !source.text.trim_start().starts_with("//!") {
            complaints.push(format!("{}: no //! head that says what it is for", source.path));
        }
    }
    none(&complaints);
}

#[test]
fn unsafe_stays_where_it_belongs() {
    let allowed = |path: &str| {
        ["src/reactor/", "tests/", "bench/"].iter().any(|prefix| path.starts_with(prefix))
            || path == "transports/rdma/verbs.rs"
            || path == "transports/rdma/bindings.rs"
            || path.starts_with("transports/rdma/bindings/")
            || path.ends_with("tests.rs")
            || path.contains("/tests/")
    };
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| !allowed(&source.path)) {
        for line in lines_with(&source.code, "unsafe") {
            complaints.push(format!("{}:{line}: unsafe outside of the reactor", source.path));
        }
    }
    none(&complaints);
}

#[test]
fn only_the_reactor_names_the_ring() {
    let allowed =
        |path: &str| ["src/reactor/", "bench/", "tests/"].iter().any(|prefix| path.starts_with(prefix));
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| !allowed(&source.path)) {
        for word in ["io_uring", "tokio_uring"] {
            for line in lines_with(&source.code, word) {
                complaints.push(format!("{}:{line}: names {word}", source.path));
            }
        }
    }
    none(&complaints);
}

#[test]
fn nothing_is_left_undone() {
    let mut complaints = Vec::new();
    for source in sources().iter().filter(|source| source.path != "tests/tidy.rs") {
        for word in ["todo!", "unimplemented!", "dbg!"] {
            for line in lines_with(&source.code, word.trim_end_matches('!')) {
                if source.code.lines().nth(line - 1).is_some_and(|code| code.contains(word)) {
                    complaints.push(format!("{}:{line}: {word}", source.path));
                }
            }
        }
        for (index, line) in source.text.lines().enumerate() {
            if ["FIXME", "XXX", "TODO"].iter().any(|word| !lines_with(line, word).is_empty()) {
                complaints.push(format!("{}:{}: {}", source.path, index + 1, line.trim()));
            }
        }
    }
    none(&complaints);
}

/// The keys of a table of a manifest, such as `[dependencies]`.
fn keys(manifest: &str, table: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == format!("[{table}]");
        } else if inside && !line.is_empty() && !line.starts_with('#') {
            let end = line.find(['.', ' ', '=']).unwrap_or(line.len());
            found.push(line[..end].trim_matches('"').to_owned());
        }
    }
    found
}

fn manifest(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("a manifest")
}

#[test]
fn packages_import_only_what_lies_below_them() {
    let ours = ["weft", "transports", "backends", "reactor", "nvme", "bench"];
    for (path, allowed) in [
        ("src/nvme/Cargo.toml", &[][..]),
        ("src/reactor/Cargo.toml", &[]),
        ("transports/Cargo.toml", &["reactor", "nvme"]),
        ("backends/Cargo.toml", &["reactor", "nvme"]),
        ("bench/Cargo.toml", &[]),
        ("Cargo.toml", &["transports", "backends", "reactor", "nvme"]),
    ] {
        let manifest = manifest(path);
        for table in ["dependencies", "dev-dependencies", "build-dependencies"] {
            for name in keys(&manifest, table) {
                let wrong = ours.contains(&name.as_str()) && !allowed.contains(&name.as_str());
                assert!(!wrong, "{path}: {table} has {name}");
            }
        }
    }
    let mut complaints = Vec::new();
    for source in sources() {
        let forbidden: &[&str] = match source.path.split_once('/') {
            Some(("transports", _)) => &["backends", "weft"],
            Some(("backends", _)) => &["transports", "weft"],
            _ => &[],
        };
        for word in forbidden {
            for line in lines_with(&source.code, word) {
                let code = source.code.lines().nth(line - 1).unwrap_or_default();
                if code.contains(&format!("{word}::")) || code.contains(&format!("use {word}")) {
                    complaints.push(format!("{}:{line}: names {word}", source.path));
                }
            }
        }
    }
    none(&complaints);
}

/// The test host must not share code with what it tests.
#[test]
fn the_test_host_is_independent() {
    let mut complaints = Vec::new();
    for source in
        // Some run the target in their own process: there is no other way to count its allocations, to let something
        // happen inside of it, to give it an RDMA adapter of memory, or to make up its time.
        sources().iter().filter(|source| {
            let inside = ["tests/allocations.rs", "tests/inside.rs", "tests/rdma.rs"]
                .contains(&source.path.as_str())
                || source.path.starts_with("tests/simulation")
                || source.path.starts_with("tests/fuzz/");
            source.path.starts_with("tests/") && !inside
        })
    {
        for word in ["nvme", "reactor", "transports", "backends", "weft"] {
            for line in lines_with(&source.code, word) {
                if source.code.lines().nth(line - 1).is_some_and(|code| code.contains(&format!("{word}::"))) {
                    complaints.push(format!("{}:{line}: uses {word}", source.path));
                }
            }
        }
    }
    none(&complaints);
}

#[test]
fn the_readme_has_a_row_for_every_dependency() {
    let readme = fs::read_to_string(root().join("README.md")).expect("README.md");
    let ours = ["nvme", "reactor", "transports", "backends"];
    let names = keys(&manifest("Cargo.toml"), "workspace.dependencies");
    assert!(names.len() > 10, "{names:?}");
    let missing: Vec<_> = names
        .iter()
        .filter(|name| !ours.contains(&name.as_str()))
        .filter(|name| {
            let quoted = format!("`{name}`");
            !readme.lines().any(|line| line.trim_start().starts_with('|') && line.contains(&quoted))
        })
        .collect();
    assert!(missing.is_empty(), "README.md has no table row for {missing:?}");
}

#[test]
fn the_stripper_keeps_code_and_nothing_else() {
    let text = "let a = \"unsafe \\\" b\"; // unsafe\nlet c = 'x'; /* unsafe /* */ */ fn f<'a>() {}\nr#\"unsafe\"# '\\'' unsafe";
    let code = code_of(text);
    assert_eq!(lines_with(&code, "unsafe"), [3]);
    assert!(code.contains("fn f<'a>()"));
    assert_eq!(code.lines().count(), 3);
    assert!(lines_with("unsafe_code", "unsafe").is_empty());
}
