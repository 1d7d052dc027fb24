//! The metrics page: the cells of all reactors as Prometheus text, rendered when it is asked for.
//!
//! What is on the page is declared in one table, [`FAMILIES`]. Integer counters and gauges go through the
//! `metrics` facade into the recorder of `metrics-exporter-prometheus`. Two kinds of metric do not fit
//! through it, and are written by [`Exporter::render`] itself in the same format:
//!
//! - **Histograms.** The facade takes samples one by one and keeps each until it is drained; there is no way
//!   to hand
//!   over buckets that a reactor has counted already.
//! - **Counters of seconds.** The facade's counters are integers; a share of a second would be lost.
//!
//! This runs on the control thread and takes no lock that a reactor knows of.

mod families;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use metrics::{Label, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

pub use families::{FAMILIES, Family, Kind};

use crate::metrics::{HistogramSnapshot, Registry};

/// The media type of the page.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Renders the metrics page.
#[derive(Debug)]
pub struct Exporter {
    registry: Arc<Registry>,
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
}

impl Exporter {
    /// A page over the cells of `registry`. The recorder is private to it: nothing global is installed.
    #[must_use]
    pub fn new(registry: Arc<Registry>) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        with_local_recorder(&recorder, || {
            for family in FAMILIES {
                match family.kind {
                    Kind::Counter => describe_counter!(family.name, family.unit, family.help),
                    Kind::Gauge => describe_gauge!(family.name, family.unit, family.help),
                    Kind::SecondsCounter | Kind::Histogram => {}
                }
            }
        });
        Self { registry, recorder, handle }
    }

    /// The page as it is now.
    #[must_use]
    pub fn render(&self) -> String {
        let mut own = BTreeMap::new();
        with_local_recorder(&self.recorder, || {
            for family in FAMILIES {
                match family.kind {
                    Kind::Counter | Kind::Gauge => {
                        (family.read)(&self.registry, &mut |labels, value| record(family, labels, &value));
                    }
                    Kind::SecondsCounter | Kind::Histogram => {
                        let mut text = head(family);
                        let sample =
                            &mut |labels: &[&str], value| write_sample(&mut text, family, labels, &value);
                        (family.read)(&self.registry, sample);
                        own.insert(family.name, text);
                    }
                }
            }
        });
        let recorded = self.handle.render();
        assemble(&recorded, &own)
    }
}

/// What a family's reader hands out for each combination of labels.
#[derive(Debug)]
pub enum Value {
    /// A counter or gauge.
    Whole(u64),
    /// A gauge, or a counter of seconds.
    Real(f64),
    /// A histogram.
    Distribution(Box<HistogramSnapshot>),
}

/// Puts one value into the recorder, which is set for this thread.
fn record(family: &'static Family, labels: &[&str], value: &Value) {
    debug_assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
    // The recorder escapes, but takes a backslash before a quote or another backslash for an escape that is
    // already there. Doubled ones come out right.
    let label = |(&key, &value): (&&'static str, &&str)| Label::new(key, value.replace('\\', "\\\\"));
    let labels: Vec<Label> = family.labels.iter().zip(labels).map(label).collect();
    match (family.kind, value) {
        (Kind::Counter, Value::Whole(value)) => counter!(family.name, labels).absolute(*value),
        (Kind::Gauge, Value::Whole(value)) => gauge!(family.name, labels).set(*value as f64),
        (Kind::Gauge, Value::Real(value)) => gauge!(family.name, labels).set(*value),
        _ => debug_assert!(false, "{} is not read as what it is declared", family.name),
    }
}

/// Writes the sample lines of one value that the recorder cannot hold.
fn write_sample(text: &mut String, family: &Family, labels: &[&str], value: &Value) {
    debug_assert_eq!(labels.len(), family.labels.len(), "{}", family.name);
    let mut pairs: Vec<String> =
        family.labels.iter().zip(labels).map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
    match value {
        Value::Whole(value) => write_line(text, family.name, "", &pairs, value),
        Value::Real(value) => write_line(text, family.name, "", &pairs, value),
        Value::Distribution(histogram) => {
            for (bound_ns, count) in histogram.page() {
                pairs.push(format!("le=\"{}\"", seconds(bound_ns)));
                write_line(text, family.name, "_bucket", &pairs, &count);
                pairs.pop();
            }
            // The total is counted from the same snapshot, so that it is never behind the last bucket.
            pairs.push("le=\"+Inf\"".to_owned());
            write_line(text, family.name, "_bucket", &pairs, &histogram.count());
            pairs.pop();
            write_line(text, family.name, "_sum", &pairs, &seconds(histogram.sum_ns()));
            write_line(text, family.name, "_count", &pairs, &histogram.count());
        }
    }
}

fn write_line(text: &mut String, name: &str, suffix: &str, labels: &[String], value: &dyn std::fmt::Display) {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{name}{suffix}{labels} {value}");
}

/// `# HELP` and `# TYPE`.
fn head(family: &Family) -> String {
    let help = family.help.replace('\\', "\\\\").replace('\n', "\\n");
    format!("# HELP {0} {help}\n# TYPE {0} {1}\n", family.name, family.kind.name())
}

/// A label value as the format wants it between its quotes.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

/// Nanoseconds in the base unit.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// All families in the order of the table. The recorder keeps its own in hash maps and writes them in a new
/// order at every render; sorted, two pages can be compared by eye and with `diff`.
fn assemble(recorded: &str, own: &BTreeMap<&'static str, String>) -> String {
    let mut blocks = BTreeMap::new();
    for block in recorded.split("\n\n").filter(|block| !block.is_empty()) {
        let (comments, mut samples): (Vec<&str>, Vec<&str>) =
            block.lines().partition(|line| line.starts_with('#'));
        samples.sort_unstable();
        let name = comments.first().and_then(|line| line.split(' ').nth(2)).unwrap_or_default();
        blocks.insert(name, [comments, samples].concat());
    }
    let mut page = String::with_capacity(recorded.len() + own.values().map(String::len).sum::<usize>());
    for family in FAMILIES {
        if let Some(text) = own.get(family.name) {
            page.push_str(text);
        }
        for line in blocks.remove(family.name).unwrap_or_default() {
            page.push_str(line);
            page.push('\n');
        }
    }
    debug_assert!(blocks.is_empty(), "not in the table: {:?}", blocks.keys());
    page
}

#[cfg(test)]
mod tests;
