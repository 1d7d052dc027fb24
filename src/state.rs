//! What outlives the process: a few numbers in one small file of the state directory.
//!
//! The file is text: a line with its format, a line for each number, and a check over all of it. It is written anew beside
//! itself, brought to stable storage, and renamed, so that a crash leaves the old one or the new one. A file that is damaged
//! all the same is said so and put aside; nothing in it is worth not starting. Numbers this version does not know are kept.

use std::{
    collections::BTreeMap,
    fmt,
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

/// The first line: what it is, and the version of its form.
const HEAD: &str = "weft state 1";
const FILE: &str = "state";
/// More than this is no state file.
const MAX_BYTES: u64 = 4 << 20;

/// Why a state directory cannot be used.
#[derive(Debug)]
pub enum StateError {
    /// Making, reading or writing something in it failed.
    Io(PathBuf, io::Error),
    /// Another process uses it.
    InUse(PathBuf),
    /// It was written by a later version.
    Later(PathBuf, String),
}

impl fmt::Display for StateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StateError::Io(path, error) => write!(
                f,
                "state_dir: {}: {error} (weft needs a directory it may write to, or no state_dir at all)",
                path.display()
            ),
            StateError::InUse(path) => write!(
                f,
                "state_dir: {} is in use by another weft: each needs a directory of its own",
                path.display()
            ),
            StateError::Later(path, head) => write!(
                f,
                "state_dir: {} was written by a later version of weft ({head:?}, this one writes {HEAD:?}): use that \
                 version, or remove the file",
                path.display()
            ),
        }
    }
}

impl std::error::Error for StateError {}

/// The numbers that are kept, or would be.
pub struct State {
    directory: Option<PathBuf>,
    /// Held open: the lock goes with it.
    _lock: Option<File>,
    numbers: Mutex<BTreeMap<String, u64>>,
    first: u64,
}

impl State {
    /// Nothing is kept; counters begin at `first`.
    pub fn none(first: u64) -> State {
        State { directory: None, _lock: None, numbers: Mutex::default(), first }
    }

    /// Opens the directory, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// It cannot be written to, another process uses it, or a later version has.
    pub fn open(directory: &Path) -> Result<State, StateError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| StateError::Io(path, error)
        };
        fs::create_dir_all(directory).map_err(failed(directory))?;
        let lock_path = directory.join("lock");
        let lock = File::options().create(true).append(true).open(&lock_path).map_err(failed(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateError::InUse(directory.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(&lock_path)(error)),
        }
        let path = directory.join(FILE);
        let numbers = match read(&path).map_err(failed(&path))? {
            Found::Nothing => BTreeMap::new(),
            Found::Numbers(numbers) => numbers,
            Found::Later(head) => return Err(StateError::Later(path, head)),
            Found::Damaged(what) => {
                let aside = directory.join("state.damaged");
                fs::rename(&path, &aside).map_err(failed(&path))?;
                tracing::warn!(
                    "{} is damaged ({what}): starting without what it held; it is kept as {}",
                    path.display(),
                    aside.display()
                );
                BTreeMap::new()
            }
        };
        let state = State {
            directory: Some(directory.to_owned()),
            _lock: Some(lock),
            numbers: Mutex::new(numbers),
            first: now_ms(),
        };
        // Whether it can be written is better known now than at the first change.
        write(directory, &state.numbers()).map_err(failed(&path))?;
        Ok(state)
    }

    fn numbers(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anything is kept.
    pub fn is_kept(&self) -> bool {
        self.directory.is_some()
    }

    /// Where a counter begins of which nothing is known.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// A number, if it is known.
    pub fn number(&self, key: &str) -> Option<u64> {
        self.numbers().get(key).copied()
    }

    /// Sets a number or forgets it: on stable storage when this returns. If that fails, nothing has changed.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn change(&self, key: &str, value: Option<u64>) -> io::Result<()> {
        let mut numbers = self.numbers();
        let mut changed = numbers.clone();
        match value {
            Some(value) => changed.insert(key.to_owned(), value),
            None => changed.remove(key),
        };
        if let Some(directory) = &self.directory {
            write(directory, &changed)?;
        }
        *numbers = changed;
        Ok(())
    }

    /// Sets numbers; they are on stable storage when this returns. If that fails it is said, and they hold for this process.
    pub fn set(&self, new: &[(&str, u64)]) {
        let mut numbers = self.numbers();
        numbers.extend(new.iter().map(|(key, value)| ((*key).to_owned(), *value)));
        if let Some(directory) = &self.directory
            && let Err(error) = write(directory, &numbers)
        {
            tracing::error!("cannot write {}: {error}", directory.join(FILE).display());
        }
    }
}

/// The time in milliseconds: as the beginning of a counter, a number that no earlier process has used.
pub fn now_ms() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(1, |time| time.as_millis() as u64).max(1)
}

enum Found {
    Nothing,
    Numbers(BTreeMap<String, u64>),
    Later(String),
    Damaged(&'static str),
}

fn read(path: &Path) -> io::Result<Found> {
    let bytes = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error),
        Ok(metadata) if metadata.len() > MAX_BYTES => return Ok(Found::Damaged("it is too long")),
        Ok(_) => fs::read(path)?,
    };
    let Ok(text) = String::from_utf8(bytes) else { return Ok(Found::Damaged("it is not text")) };
    Ok(parse(&text))
}

fn parse(text: &str) -> Found {
    let head = text.lines().next().unwrap_or("");
    if head != HEAD {
        let later = head.strip_prefix("weft state ").is_some_and(|version| version.parse::<u32>().is_ok());
        return if later {
            Found::Later(head.to_owned())
        } else {
            Found::Damaged("it does not begin as it should")
        };
    }
    let Some((body, last)) = text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n')) else {
        return Found::Damaged("it is cut off");
    };
    let body = &text[..body.len() + 1];
    if last != check(body) {
        return Found::Damaged("its check does not match");
    }
    let number = |line: &str| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.parse().ok()?))
    };
    match body.lines().skip(1).map(number).collect() {
        Some(numbers) => Found::Numbers(numbers),
        None => Found::Damaged("a line is not a name and a number"),
    }
}

/// The last line of the file: FNV-1a, 64 bits, over everything before it. It finds accidents, not intent.
fn check(body: &str) -> String {
    let hash = body.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("check {hash:016x}")
}

fn write(directory: &Path, numbers: &BTreeMap<String, u64>) -> io::Result<()> {
    let mut text = format!("{HEAD}\n");
    for (key, value) in numbers {
        text += &format!("{key} {value}\n");
    }
    let check = check(&text);
    text += &format!("{check}\n");
    let beside = directory.join("state.new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&beside, directory.join(FILE))?;
    // The name as well is to survive a crash.
    File::open(directory)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(text: &str) -> Option<BTreeMap<String, u64>> {
        match parse(text) {
            Found::Numbers(numbers) => Some(numbers),
            _ => None,
        }
    }

    fn file(numbers: &[(&str, u64)]) -> String {
        let lines: String = numbers.iter().map(|(key, value)| format!("{key} {value}\n")).collect();
        let body = format!("{HEAD}\n{lines}");
        format!("{body}{}\n", check(&body))
    }

    #[test]
    fn what_was_written_is_read() {
        let text = file(&[("discovery.generation", 7), ("some.thing", u64::MAX)]);
        let read = numbers(&text).unwrap();
        assert_eq!((read["discovery.generation"], read["some.thing"]), (7, u64::MAX));
        assert!(numbers(&file(&[])).unwrap().is_empty());
    }

    #[test]
    fn a_change_is_kept_or_has_not_happened() {
        let directory = std::env::temp_dir().join(format!("weft-state-{}", std::process::id()));
        let state = State::open(&directory).unwrap();
        state.change("a", Some(1)).unwrap();
        state.change("b", Some(2)).unwrap();
        state.change("a", None).unwrap();
        // In the way of the file that is written beside.
        fs::create_dir(directory.join("state.new")).unwrap();
        state.change("b", None).unwrap_err();
        assert_eq!((state.number("a"), state.number("b")), (None, Some(2)));
        fs::remove_dir(directory.join("state.new")).unwrap();
        drop(state);
        let state = State::open(&directory).unwrap();
        assert_eq!((state.number("a"), state.number("b")), (None, Some(2)));
        fs::remove_dir_all(directory).unwrap();
    }

    /// Cut off anywhere, or with any byte changed, a file is not taken for a good one.
    #[test]
    fn damage_is_noticed() {
        let text = file(&[("discovery.generation", 42)]);
        for end in 0..text.len() {
            assert!(numbers(&text[..end]).is_none(), "cut off at {end}");
        }
        for at in 0..text.len() {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert!(numbers(&String::from_utf8(bytes).unwrap()).is_none(), "changed at {at}");
        }
    }

    #[test]
    fn a_later_form_is_told_from_garbage() {
        assert!(matches!(parse("weft state 2\nanything"), Found::Later(_)));
        assert!(matches!(parse("weft state x\n"), Found::Damaged(_)));
        assert!(matches!(parse(""), Found::Damaged(_)));
    }
}
