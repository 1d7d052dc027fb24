//! Reads `/healthz` and `/metrics` of the target with a plain socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The status code and body of an HTTP GET; `None` when nobody answers.
pub fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    Some((status, if chunked { unchunk(body)? } else { body.to_owned() }))
}

fn unchunk(mut body: &str) -> Option<String> {
    let mut out = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n")?;
        let size = usize::from_str_radix(size.trim(), 16).ok()?;
        if size == 0 {
            return Some(out);
        }
        out.push_str(rest.get(..size)?);
        body = rest.get(size + 2..)?;
    }
}

/// One line of the Prometheus text format.
#[derive(Clone, Debug)]
pub struct Sample {
    /// The metric's name.
    pub name: String,
    /// What stands between the braces.
    pub labels: String,
    /// The value.
    pub value: f64,
}

/// What one scrape returned.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The whole text.
    pub text: String,
    /// Every sample in it.
    pub samples: Vec<Sample>,
}

impl Metrics {
    /// Parses the text format; panics on a line that is none.
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let samples = lines.map(|line| sample(line).unwrap_or_else(|| panic!("no sample: {line}"))).collect();
        Self { text: text.to_owned(), samples }
    }

    /// The sum of all series of `name` that carry each of these `label="value"` pairs.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<_> = labels.iter().map(|(key, value)| format!("{key}=\"{value}\"")).collect();
        let fits = |sample: &&Sample| {
            let pairs: Vec<_> = sample.labels.split(',').map(str::trim).collect();
            sample.name == name && wanted.iter().all(|pair| pairs.contains(&pair.as_str()))
        };
        self.samples.iter().filter(fits).map(|sample| sample.value).sum()
    }

    /// Whether any series has this name.
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|sample| sample.name == name)
    }
}

fn sample(line: &str) -> Option<Sample> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    Some(Sample { name: name.to_owned(), labels: labels.to_owned(), value: value.parse().ok()? })
}

#[test]
fn samples_are_summed_by_label() {
    let text = "# HELP a b\na_total{opcode=\"read\",status=\"0\"} 3\na_total{opcode=\"write\"} 4\nb 1.5\n";
    let metrics = Metrics::parse(text);
    assert_eq!(metrics.sum("a_total", &[("opcode", "read")]), 3.0);
    assert_eq!(metrics.sum("a_total", &[]), 7.0);
    assert_eq!(metrics.sum("b", &[]), 1.5);
    assert!(!metrics.has("c"));
}
