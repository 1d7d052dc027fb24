//! Typed access to one JSON object, as lenient as nvmetcli and the files it meets in the wild: numbers and flags may
//! stand in strings, `null` is the same as nothing, and a key nobody knows is named but stops nothing.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ops::RangeInclusive;

use super::json::{Member, Node, Value, printable, shorten};
use super::report::Report;
use super::section::{Located, Whole};
use super::value;

/// One object and its place in the document, as `ports[0].addr`.
pub(super) struct Object<'a> {
    pub(super) report: &'a Report<'a>,
    members: &'a [Member<'a>],
    path: String,
    pub(super) at: usize,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Object<'a> {
    /// The object that `node` should be.
    pub(super) fn new(report: &'a Report<'a>, node: &'a Node<'a>, path: String) -> Option<Self> {
        match &node.value {
            Value::Object(members) => {
                Some(Self { report, members, path, at: node.at, asked: RefCell::default() })
            }
            other => {
                report.mistake(node.at, path, format!("is {}: expected an object", other.kind()));
                None
            }
        }
    }

    /// The key's place in the document.
    pub(super) fn path(&self, key: &str) -> String {
        match (self.path.as_str(), key) {
            ("", key) => key.to_owned(),
            (path, "") => path.to_owned(),
            (path, key) => format!("{path}.{key}"),
        }
    }

    pub(super) fn mistake(&self, at: usize, key: &str, message: impl Into<String>) {
        self.report.mistake(at, self.path(key), message);
    }

    pub(super) fn warning(&self, at: usize, key: &str, message: impl Into<String>) {
        self.report.warning(at, self.path(key), message);
    }

    pub(super) fn unsupported(&self, at: usize, key: &str, message: impl Into<String>) {
        self.report.unsupported(at, self.path(key), message);
    }

    /// Passes `found` on; reports that the key is missing when it is.
    pub(super) fn require<T>(&self, key: &'static str, found: Option<T>, expected: &str) -> Option<T> {
        if found.is_none() && self.get(key).is_none() {
            self.report.absent(self.at, self.path(key), format!("missing: expected {expected}"));
        }
        found
    }

    /// Whether the key is there with a value.
    pub(super) fn has(&self, key: &'static str) -> bool {
        self.get(key).is_some()
    }

    /// Knows the keys, and makes nothing of them.
    pub(super) fn ignore(&self, keys: &[&'static str]) {
        self.asked.borrow_mut().extend(keys);
    }

    /// A string, or what stands there instead of one.
    pub(super) fn text(&self, key: &'static str) -> Option<Located<Cow<'a, str>>> {
        self.text_in(key, self.get(key)?)
    }

    /// A string taken apart by `parse`.
    pub(super) fn parsed<T>(
        &self,
        key: &'static str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<Located<T>> {
        let text = self.text(key)?;
        match parse(&text.value) {
            Ok(value) => Some(Located { value, at: text.at }),
            Err(message) => {
                self.mistake(text.at, key, message);
                None
            }
        }
    }

    /// One of several words, in any case.
    pub(super) fn choice<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Option<Located<T>> {
        self.parsed(key, |text| {
            let found = words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text.trim()));
            found.map(|&(_, value)| value).ok_or_else(|| {
                let known: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
                format!("{:?} is unknown: expected one of {}", shorten(text), known.join(", "))
            })
        })
    }

    /// An integer within `range`, as a number or in a string.
    pub(super) fn whole<T: Whole>(&self, key: &'static str, range: RangeInclusive<T>) -> Option<Located<T>> {
        self.parsed(key, |text| {
            let found = integer(text).and_then(|whole| T::try_from(whole).ok());
            found.filter(|whole| range.contains(whole)).ok_or_else(|| {
                let shown = shorten(text);
                format!("{shown:?}: expected an integer from {} to {}", range.start(), range.end())
            })
        })
    }

    /// A flag, in every way the kernel takes one.
    pub(super) fn flag(&self, key: &'static str) -> Option<Located<bool>> {
        self.parsed(key, |text| match text.trim().to_ascii_lowercase().as_str() {
            "1" | "y" | "yes" | "t" | "true" | "on" => Ok(true),
            "0" | "n" | "no" | "f" | "false" | "off" => Ok(false),
            _ => Err(format!("{:?}: expected 1 or 0", shorten(text))),
        })
    }

    /// The object `key`, when there is one.
    pub(super) fn child(&self, key: &'static str) -> Option<Object<'a>> {
        Object::new(self.report, self.get(key)?, self.path(key))
    }

    /// The objects of the list `key`; a single object stands for a list of one.
    pub(super) fn children(&self, key: &'static str) -> Vec<Object<'a>> {
        let object = |(index, node)| Object::new(self.report, node, format!("{}[{index}]", self.path(key)));
        match self.get(key) {
            None => Vec::new(),
            Some(Node { value: Value::List(items), .. }) => {
                items.iter().enumerate().filter_map(object).collect()
            }
            Some(node @ Node { value: Value::Object(_), .. }) => {
                self.child_of(key, node).into_iter().collect()
            }
            Some(node) => {
                self.mistake(node.at, key, format!("is {}: expected a list of objects", node.value.kind()));
                Vec::new()
            }
        }
    }

    /// The strings of the list `key`.
    pub(super) fn texts(&self, key: &'static str) -> Vec<Located<Cow<'a, str>>> {
        match self.get(key) {
            None => Vec::new(),
            Some(Node { value: Value::List(items), .. }) => {
                items.iter().filter_map(|item| self.text_in(key, item)).collect()
            }
            Some(node) => {
                self.mistake(node.at, key, format!("is {}: expected a list of names", node.value.kind()));
                Vec::new()
            }
        }
    }

    /// Names every key nobody asked for.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        for member in self.members.iter().filter(|member| !asked.contains(&&*member.name)) {
            if self.report.is_full() {
                self.unsupported(member.at, "", "");
                continue;
            }
            let name = printable(&member.name);
            let message = match value::nearest(&name, &asked) {
                Some(nearest) => format!("unknown key, ignored: did you mean {nearest:?}?"),
                None => "unknown key, ignored".to_owned(),
            };
            self.unsupported(member.at, &name, message);
        }
    }

    fn child_of(&self, key: &str, node: &'a Node<'a>) -> Option<Object<'a>> {
        Object::new(self.report, node, self.path(key))
    }

    /// The value of `key`, unless it is `null`.
    fn get(&self, key: &'static str) -> Option<&'a Node<'a>> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
        let found = self.members.iter().find(|member| member.name == key).map(|member| &member.node);
        found.filter(|node| !matches!(node.value, Value::Null))
    }

    fn text_in(&self, key: &str, node: &'a Node<'a>) -> Option<Located<Cow<'a, str>>> {
        let value = match &node.value {
            Value::Text(text) => Cow::Borrowed(&**text),
            Value::Number(number) => Cow::Borrowed(*number),
            Value::Bool(true) => Cow::Borrowed("1"),
            Value::Bool(false) => Cow::Borrowed("0"),
            other => {
                self.mistake(node.at, key, format!("is {}: expected a string or a number", other.kind()));
                return None;
            }
        };
        Some(Located { value, at: node.at })
    }
}

/// An integer as the kernel reads it: decimal, or hexadecimal with `0x`.
fn integer(text: &str) -> Option<i128> {
    let text = text.trim();
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    let hexadecimal = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (digits, radix) = hexadecimal.map_or((digits, 10), |digits| (digits, 16));
    // from_str_radix would also take a sign here.
    let sound = digits.bytes().all(|digit| char::from(digit).is_digit(radix));
    let whole = sound.then(|| i128::from_str_radix(digits, radix).ok()).flatten()?;
    Some(sign * whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_as_the_kernel_reads_them() {
        for (text, expected) in [("4420", 4420), (" 7 ", 7), ("-1", -1), ("0x10", 16), ("007", 7)] {
            assert_eq!(integer(text), Some(expected), "{text}");
        }
        for text in ["", "-", "0x", "+1", "--1", "1.5", "1e3", "ten", "0x-1"] {
            assert_eq!(integer(text), None, "{text}");
        }
    }
}
