//! Typed access to one table of the document.
//!
//! A [`Section`] hands out the values it is asked for by key, reports what has the wrong type or is out of
//! range, and in the end names every key nobody asked for. It never stops at a mistake: the caller gets
//! `None` and goes on, so that one run of `weft check` finds everything.

use std::cell::RefCell;
use std::fmt::Display;
use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::json::printable;
use super::report::Report;
use super::value;

/// A value and the byte offset where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located<T> {
    pub(super) value: T,
    pub(super) at: usize,
}

impl<T> Located<T> {
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Located<U> {
        Located { value: change(self.value), at: self.at }
    }
}

/// The integer types a key can have.
pub(super) trait Whole: Copy + PartialOrd + Display + TryFrom<i128> {}

impl<T: Copy + PartialOrd + Display + TryFrom<i128>> Whole for T {}

/// One table, as `[metrics]` or one of several `[[port]]`.
pub(super) struct Section<'a> {
    pub(super) report: &'a Report<'a>,
    table: &'a DeTable<'a>,
    path: &'static str,
    /// Where the table begins: the place to name when something is missing.
    pub(super) at: usize,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Section<'a> {
    /// The document itself.
    pub(super) fn root(report: &'a Report<'a>, table: &'a DeTable<'a>) -> Self {
        Self { report, table, path: "", at: 0, asked: RefCell::default() }
    }

    /// The key's full name, as in `subsystem.namespace.backend`.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Reports a mistake at the value of `key` (or wherever `at` points).
    pub(super) fn mistake(&self, at: usize, key: &str, message: impl Into<String>) {
        self.report.mistake(at, self.path(key), message);
    }

    /// Passes `found` on; reports that the key is missing when it is (and not when its value was wrong, which
    /// has been reported already).
    pub(super) fn require<T>(&self, key: &str, found: Option<T>, expected: &str) -> Option<T> {
        if found.is_none() && !self.table.contains_key(key) {
            self.report.absent(self.at, self.path(key), format!("missing: expected {expected}"));
        }
        found
    }

    /// A string, taken apart by `parse`, which says what is wrong and what was expected.
    pub(super) fn text<T>(
        &self,
        key: &'static str,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Located<T>> {
        self.text_in(key, self.get(key)?, expected, parse)
    }

    /// A list of strings, each taken apart by `parse`.
    pub(super) fn texts<T>(
        &self,
        key: &'static str,
        expected: &str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Option<Located<Vec<Located<T>>>> {
        self.list(key, expected, |item| self.text_in(key, item, expected, &parse))
    }

    /// An integer within `range`.
    pub(super) fn whole<T: Whole>(&self, key: &'static str, range: RangeInclusive<T>) -> Option<Located<T>> {
        self.whole_in(key, self.get(key)?, range)
    }

    /// A list of integers, each within `range`.
    pub(super) fn wholes<T: Whole>(
        &self,
        key: &'static str,
        expected: &str,
        range: RangeInclusive<T>,
    ) -> Option<Located<Vec<Located<T>>>> {
        self.list(key, expected, |item| self.whole_in(key, item, range.clone()))
    }

    /// `true` or `false`.
    pub(super) fn flag(&self, key: &'static str) -> Option<Located<bool>> {
        let found = self.get(key)?;
        let flag = found.get_ref().as_bool();
        self.typed(key, found, flag, "true or false")
    }

    /// A number of bytes within `range`, as an integer or as text with a unit.
    pub(super) fn size(&self, key: &'static str, range: RangeInclusive<u64>) -> Option<Located<u64>> {
        let found = self.get(key)?;
        let size = match found.get_ref() {
            DeValue::String(_) => self.text_in(key, found, value::SIZE_FORM, value::size)?,
            DeValue::Integer(_) => self.whole_in(key, found, 0..=u64::MAX / 2)?,
            _ => return self.typed(key, found, None, value::SIZE_FORM),
        };
        if !range.contains(&size.value) {
            let (least, most) = (value::show_size(*range.start()), value::show_size(*range.end()));
            let limits = if *range.end() == u64::MAX {
                format!("at least {least}")
            } else {
                format!("{least} to {most}")
            };
            let message = format!("{} is out of range: expected {limits}", value::show_size(size.value));
            self.mistake(size.at, key, message);
            return None;
        }
        Some(size)
    }

    /// One of several words.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<Located<T>> {
        let expected = alternatives(words.iter().map(|(word, _)| *word));
        self.text(key, &expected, |text| {
            let found = words.iter().find(|(word, _)| *word == text).map(|&(_, value)| value);
            found.ok_or_else(|| format!("unknown {key} {text:?}: expected {expected}"))
        })
    }

    /// The table `key`, when there is one.
    pub(super) fn child(&self, key: &'static str, path: &'static str) -> Option<Section<'a>> {
        let found = self.get(key)?;
        let table = found.get_ref().as_table();
        let table = self.typed(key, found, table, &format!("a table: [{path}]"))?;
        Some(Section {
            table: table.value,
            path,
            at: table.at,
            report: self.report,
            asked: RefCell::default(),
        })
    }

    /// Every table of the array `key`. A single table is reported, but read as well.
    pub(super) fn children(&self, key: &'static str, path: &'static str) -> Vec<Section<'a>> {
        let section = |table, at| Section { table, path, at, report: self.report, asked: RefCell::default() };
        let Some(found) = self.get(key) else { return Vec::new() };
        match found.get_ref() {
            DeValue::Array(array) => {
                let item = |item: &'a Spanned<DeValue<'a>>| {
                    let table = item.get_ref().as_table();
                    let table = self.typed(key, item, table, &format!("tables: [[{path}]]"))?;
                    Some(section(table.value, table.at))
                };
                array.iter().filter_map(item).collect()
            }
            DeValue::Table(table) => {
                let at = found.span().start;
                // A part without its whole, as `[[subsystem.namespace]]` before any `[[subsystem]]`, arrives
                // as a table of nothing but tables; what it lacks would only repeat the mistake.
                if table.values().all(|part| part.get_ref().is_array() || part.get_ref().is_table()) {
                    self.mistake(at, key, format!("has not begun: expected [[{path}]] before its parts"));
                    return Vec::new();
                }
                self.mistake(at, key, format!("is a single table: expected [[{path}]], once for each {key}"));
                vec![section(table, at)]
            }
            _ => {
                self.typed::<()>(key, found, None, &format!("tables: [[{path}]]"));
                Vec::new()
            }
        }
    }

    /// Whether `key` is there and names nothing.
    pub(super) fn is_empty_list(&self, key: &str) -> bool {
        self.table
            .get(key)
            .is_some_and(|found| found.get_ref().as_array().is_some_and(|list| list.is_empty()))
    }

    /// Reports every key that was not asked for.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        for key in self.table.keys() {
            let name: &str = key.get_ref();
            if asked.contains(&name) {
                continue;
            }
            if self.report.is_full() {
                self.mistake(key.span().start, "", "");
                continue;
            }
            let hint = match value::nearest(name, &asked) {
                Some(nearest) => format!("did you mean {nearest:?}?"),
                None => format!("expected {}", alternatives(asked.iter().copied())),
            };
            self.mistake(key.span().start, &printable(name), format!("unknown key: {hint}"));
        }
    }

    fn get(&self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.asked.borrow_mut().push(key);
        self.table.get(key)
    }

    fn list<T>(
        &self,
        key: &'static str,
        expected: &str,
        item: impl Fn(&'a Spanned<DeValue<'a>>) -> Option<Located<T>>,
    ) -> Option<Located<Vec<Located<T>>>> {
        let found = self.get(key)?;
        let array = found.get_ref().as_array();
        let array = self.typed(key, found, array, &format!("a list of {expected}"))?;
        Some(array.map(|array| array.iter().filter_map(item).collect()))
    }

    fn text_in<T>(
        &self,
        key: &str,
        found: &'a Spanned<DeValue<'a>>,
        expected: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Located<T>> {
        let text = self.typed(key, found, found.get_ref().as_str(), expected)?;
        parse(text.value)
            .map_err(|message| self.mistake(text.at, key, message))
            .ok()
            .map(|value| Located { value, at: text.at })
    }

    fn whole_in<T: Whole>(
        &self,
        key: &str,
        found: &'a Spanned<DeValue<'a>>,
        range: RangeInclusive<T>,
    ) -> Option<Located<T>> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        let integer = self.typed(key, found, found.get_ref().as_integer(), &expected)?;
        let parsed = i128::from_str_radix(integer.value.as_str(), integer.value.radix()).ok();
        let whole = parsed.and_then(|whole| T::try_from(whole).ok()).filter(|whole| range.contains(whole));
        if whole.is_none() {
            self.mistake(integer.at, key, format!("{} is out of range: expected {expected}", integer.value));
        }
        whole.map(|value| Located { value, at: integer.at })
    }

    /// The value when it has the right type; a mistake when not.
    fn typed<T>(
        &self,
        key: &str,
        found: &Spanned<DeValue<'_>>,
        value: Option<T>,
        expected: &str,
    ) -> Option<Located<T>> {
        let at = found.span().start;
        if value.is_none() {
            let article = match found.get_ref() {
                DeValue::Array(_) | DeValue::Integer(_) => "an",
                _ => "a",
            };
            self.mistake(
                at,
                key,
                format!("is {article} {}: expected {expected}", found.get_ref().type_str()),
            );
        }
        value.map(|value| Located { value, at })
    }
}

/// `"memory", "file" or "null"`
fn alternatives<'a>(words: impl Iterator<Item = &'a str>) -> String {
    let mut quoted: Vec<String> = words.map(|word| format!("{word:?}")).collect();
    match quoted.pop() {
        Some(last) if quoted.is_empty() => last,
        Some(last) => format!("{} or {last}", quoted.join(", ")),
        None => String::new(),
    }
}
