//! A parser for JSON (RFC 8259) that keeps where everything stands.
//!
//! Of our own because nothing ready serves: `serde_json` gives positions for its own errors only and takes a key that
//! stands twice, and the crates that keep positions are unmaintained. It gives a tree that borrows from the text.
//! Depth is bounded, everything else by the length of the text. A syntax error ends it; a key that stands twice is
//! reported, its first value counts, and reading goes on.

use std::borrow::Cow;
use std::collections::HashMap;

use super::report::Report;

/// How deep lists and objects may nest: far deeper than any configuration, far shallower than a stack.
const DEEPEST: usize = 64;

/// A value and the byte offset where it begins.
#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) at: usize,
    pub(super) value: Value<'a>,
}

#[derive(Debug)]
pub(super) enum Value<'a> {
    Null,
    Bool(bool),
    /// As it is written.
    Number(&'a str),
    Text(Cow<'a, str>),
    List(Vec<Node<'a>>),
    Object(Vec<Member<'a>>),
}

/// A key of an object and what it names.
#[derive(Debug)]
pub(super) struct Member<'a> {
    pub(super) at: usize,
    pub(super) name: Cow<'a, str>,
    pub(super) node: Node<'a>,
}

impl Value<'_> {
    /// What it is, for messages.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(_) => "a string",
            Self::List(_) => "a list",
            Self::Object(_) => "an object",
        }
    }
}

/// Why the text is no JSON, and where.
struct Broken {
    at: usize,
    message: String,
}

type Parsed<T> = Result<T, Broken>;

/// The whole text as one value; `None` when it is broken, which is reported.
pub(super) fn parse<'a>(source: &'a str, report: &Report<'_>) -> Option<Node<'a>> {
    let mut parser = Parser { source, at: 0, report };
    match parser.document() {
        Ok(node) => Some(node),
        Err(Broken { at, message }) => {
            report.broken(at, message);
            None
        }
    }
}

struct Parser<'a, 'r> {
    source: &'a str,
    at: usize,
    report: &'r Report<'r>,
}

impl<'a> Parser<'a, '_> {
    fn document(&mut self) -> Parsed<Node<'a>> {
        let node = self.value(0)?;
        self.skip_blanks();
        match self.peek() {
            None => Ok(node),
            Some(_) => Err(self.expected("the end of the file")),
        }
    }

    fn value(&mut self, depth: usize) -> Parsed<Node<'a>> {
        self.skip_blanks();
        let at = self.at;
        let value = match self.peek() {
            Some(b'{') => Value::Object(self.object(depth)?),
            Some(b'[') => Value::List(self.list(depth)?),
            Some(b'"') => Value::Text(self.string()?),
            Some(b'-' | b'0'..=b'9') => Value::Number(self.number()?),
            _ if self.take_word("true") => Value::Bool(true),
            _ if self.take_word("false") => Value::Bool(false),
            _ if self.take_word("null") => Value::Null,
            Some(b'\'') => return Err(self.broken(at, "a string is written in double quotes")),
            _ => return Err(self.expected("a value")),
        };
        Ok(Node { at, value })
    }

    fn object(&mut self, depth: usize) -> Parsed<Vec<Member<'a>>> {
        let opened = self.open(depth)?;
        let mut members: Vec<Member<'a>> = Vec::new();
        let mut seen: HashMap<Cow<'a, str>, usize> = HashMap::new();
        while !self.closed(b'}', opened, members.is_empty())? {
            self.skip_blanks();
            if self.peek() != Some(b'"') {
                return Err(self.expected("a key in double quotes"));
            }
            let at = self.at;
            let name = self.string()?;
            self.skip_blanks();
            if self.peek() != Some(b':') {
                return Err(self.expected("\":\" after the key"));
            }
            self.at += 1;
            let node = self.value(depth + 1)?;
            if let Some(&first) = seen.get(&name) {
                let line = self.report.line(first);
                self.report.mistake(
                    at,
                    printable(&name),
                    format!("duplicate key: it stands on line {line} too"),
                );
            } else {
                seen.insert(name.clone(), at);
                members.push(Member { at, name, node });
            }
        }
        Ok(members)
    }

    fn list(&mut self, depth: usize) -> Parsed<Vec<Node<'a>>> {
        let opened = self.open(depth)?;
        let mut items = Vec::new();
        while !self.closed(b']', opened, items.is_empty())? {
            items.push(self.value(depth + 1)?);
        }
        Ok(items)
    }

    /// Steps over the opening bracket; gives its place.
    fn open(&mut self, depth: usize) -> Parsed<usize> {
        let at = self.at;
        if depth >= DEEPEST {
            return Err(self.broken(at, &format!("is nested more than {DEEPEST} levels deep")));
        }
        self.at += 1;
        Ok(at)
    }

    /// Steps over the closing bracket when it comes next, and otherwise over the comma in front of the next item.
    fn closed(&mut self, bracket: u8, opened: usize, first: bool) -> Parsed<bool> {
        self.skip_blanks();
        let shown = char::from(bracket);
        match self.peek() {
            Some(byte) if byte == bracket => {
                self.at += 1;
                return Ok(true);
            }
            None => {
                let line = self.report.line(opened);
                return Err(
                    self.broken(self.at, &format!("the file ends before the {shown:?} for line {line}"))
                );
            }
            Some(_) if first => return Ok(false),
            Some(b',') => self.at += 1,
            Some(_) => return Err(self.expected(&format!("\",\" or \"{shown}\""))),
        }
        let comma = self.at - 1;
        self.skip_blanks();
        if self.peek() == Some(bracket) {
            return Err(self.broken(comma, &format!("a comma stands before \"{shown}\": expected none")));
        }
        Ok(false)
    }

    fn string(&mut self) -> Parsed<Cow<'a, str>> {
        let opened = self.at;
        self.at += 1;
        let mut text = Cow::Borrowed("");
        loop {
            let start = self.at;
            let rest = &self.source[start..];
            let Some(length) = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | 0..0x20)) else {
                return Err(self.broken(opened, "the file ends in this string"));
            };
            let piece = &rest[..length];
            if text.is_empty() {
                text = Cow::Borrowed(piece);
            } else {
                text.to_mut().push_str(piece);
            }
            self.at = start + length;
            match rest.as_bytes()[length] {
                b'"' => {
                    self.at += 1;
                    return Ok(text);
                }
                b'\\' => text.to_mut().push(self.escape()?),
                b'\n' | b'\r' => return Err(self.broken(opened, "this string does not end on its line")),
                byte => {
                    let message = format!("byte {byte:#04x} stands in a string: expected \\u{byte:04x}");
                    return Err(self.broken(self.at, &message));
                }
            }
        }
    }

    /// The character behind a backslash.
    fn escape(&mut self) -> Parsed<char> {
        let at = self.at;
        self.at += 1;
        let escaped = self.peek();
        self.at += 1;
        Ok(match escaped {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(at),
            _ => return Err(self.broken(at, "no character stands behind this backslash that JSON knows")),
        })
    }

    /// What stands behind `\u`: one unit of UTF-16, or two that belong together.
    fn unicode(&mut self, at: usize) -> Parsed<char> {
        const MESSAGE: &str = "expected four hexadecimal digits of a character";
        let first = self.unit().ok_or_else(|| self.broken(at, MESSAGE))?;
        let mut units = vec![first];
        if (0xd800..0xdc00).contains(&first) && self.take("\\u") {
            units.push(self.unit().ok_or_else(|| self.broken(at, MESSAGE))?);
        }
        match char::decode_utf16(units).collect::<Result<Vec<_>, _>>().as_deref() {
            Ok(&[character]) => Ok(character),
            _ => Err(self.broken(at, "half of a surrogate pair is no character")),
        }
    }

    fn unit(&mut self) -> Option<u16> {
        let digits = self.source.as_bytes().get(self.at..self.at + 4)?;
        let unit = digits.iter().try_fold(0_u16, |unit, &digit| {
            let digit = char::from(digit).to_digit(16)?;
            Some(unit << 4 | digit as u16)
        })?;
        self.at += 4;
        Some(unit)
    }

    fn number(&mut self) -> Parsed<&'a str> {
        let start = self.at;
        self.take("-");
        let whole = self.at;
        let mut sound = self.digits();
        // A leading zero would be octal elsewhere.
        sound &= self.at == whole + 1 || self.source.as_bytes()[whole] != b'0';
        if self.take(".") {
            sound &= self.digits();
        }
        if self.take("e") || self.take("E") {
            _ = self.take("+") || self.take("-");
            sound &= self.digits();
        }
        sound &= !self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
        if !sound {
            return Err(self.broken(start, "is no number that JSON knows: expected digits, or a string"));
        }
        Ok(&self.source[start..self.at])
    }

    /// Steps over digits; whether there were any.
    fn digits(&mut self) -> bool {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        self.at > start
    }

    fn take(&mut self, text: &str) -> bool {
        let there = self.source.as_bytes()[self.at.min(self.source.len())..].starts_with(text.as_bytes());
        self.at += if there { text.len() } else { 0 };
        there
    }

    fn take_word(&mut self, word: &str) -> bool {
        let before = self.at;
        let whole = self.take(word) && !self.peek().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !whole {
            self.at = before;
        }
        whole
    }

    fn skip_blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.source.as_bytes().get(self.at).copied()
    }

    fn broken(&self, at: usize, message: &str) -> Broken {
        Broken { at, message: message.to_owned() }
    }

    fn expected(&self, what: &str) -> Broken {
        let found = match self.source[self.at..].chars().next() {
            None => "the end of the file".to_owned(),
            Some('#' | '/') => "a comment, which JSON does not have".to_owned(),
            Some(character) => format!("{character:?}"),
        };
        self.broken(self.at, &format!("expected {what}, found {found}"))
    }
}

/// The beginning of a text that may be of any length, for messages.
pub(super) fn shorten(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...", &text[..end]),
    }
}

/// A name for messages: of bounded length, and nothing in it moves a terminal's cursor.
pub(super) fn printable(name: &str) -> String {
    shorten(name).escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What stands in the text, without positions, or the complaints.
    fn outcome(source: &str) -> Result<String, Vec<String>> {
        let report = Report::new(source);
        let node = parse(source, &report);
        let complaints: Vec<_> =
            report.finish("f").iter().map(|said| said.to_string()[2..].to_owned()).collect();
        match node {
            Some(node) if complaints.is_empty() => Ok(show(&node)),
            _ => Err(complaints),
        }
    }

    fn show(node: &Node<'_>) -> String {
        match &node.value {
            Value::Null => "null".to_owned(),
            Value::Bool(flag) => flag.to_string(),
            Value::Number(number) => (*number).to_owned(),
            Value::Text(text) => format!("{text:?}"),
            Value::List(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(",")),
            Value::Object(members) => {
                let shown = members.iter().map(|member| format!("{:?}:{}", member.name, show(&member.node)));
                format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
            }
        }
    }

    #[test]
    fn values_of_every_kind() {
        let text =
            r#" {"a": [1, -2.5e+3, 0, true, false, null], "b\n": {}, "": "\u00e4\ud83d\ude00\/ä", "l": []} "#;
        let expected = r#"{"a":[1,-2.5e+3,0,true,false,null],"b\n":{},"":"ä😀/ä","l":[]}"#;
        assert_eq!(outcome(text).unwrap(), expected);
    }

    #[test]
    fn one_error_each_at_its_place() {
        let deep = "[".repeat(100_000);
        for (text, complaint) in [
            ("", "1:1: expected a value, found the end of the file"),
            ("{\n\"a\": 1,\n}", "2:7: a comma stands before \"}\": expected none"),
            ("{\"a\": 1", "1:8: the file ends before the '}' for line 1"),
            ("{\"a\" 1}", "1:6: expected \":\" after the key, found '1'"),
            ("{a: 1}", "1:2: expected a key in double quotes, found 'a'"),
            ("[1 2]", "1:4: expected \",\" or \"]\", found '2'"),
            ("[1,,2]", "1:4: expected a value, found ','"),
            ("[1] [2]", "1:5: expected the end of the file, found '['"),
            ("['a']", "1:2: a string is written in double quotes"),
            ("[1] // x", "1:5: expected the end of the file, found a comment, which JSON does not have"),
            ("[\"a\nb\"]", "1:2: this string does not end on its line"),
            ("[\"a", "1:2: the file ends in this string"),
            ("[\"\u{1}\"]", "1:3: byte 0x01 stands in a string: expected \\u0001"),
            ("[\"\\x\"]", "1:3: no character stands behind this backslash that JSON knows"),
            ("[\"\\u12g4\"]", "1:3: expected four hexadecimal digits of a character"),
            ("[\"\\ud800 \"]", "1:3: half of a surrogate pair is no character"),
            ("[\"\\ud800\\u0041\"]", "1:3: half of a surrogate pair is no character"),
            ("[012]", "1:2: is no number that JSON knows: expected digits, or a string"),
            ("[1.]", "1:2: is no number that JSON knows: expected digits, or a string"),
            ("[0x1]", "1:2: is no number that JSON knows: expected digits, or a string"),
            ("[nul]", "1:2: expected a value, found 'n'"),
            ("[nullx]", "1:2: expected a value, found 'n'"),
            ("{\"a\": 1,\n \"a\": 2}", "2:2: a: duplicate key: it stands on line 1 too"),
            (deep.as_str(), "1:65: is nested more than 64 levels deep"),
        ] {
            assert_eq!(outcome(text).unwrap_err(), [complaint], "{}", shorten(text));
        }
    }

    proptest! {
        #[test]
        fn any_text(text in r#"([\[\]{}:,"\\/#'0-9a-fnrtuU.eE+\- \n]|true|null|\PC){0,40}"#) {
            let report = Report::new(&text);
            let node = parse(&text, &report);
            let complaints = report.finish("f");
            prop_assert!(node.is_some() || complaints.len() == 1, "{complaints:?}");
        }

        #[test]
        fn any_string(text in any::<String>()) {
            let escaped: String =
                text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect();
            prop_assert_eq!(outcome(&format!("[\"{escaped}\"]")), Ok(format!("[{text:?}]")));
        }
    }
}
