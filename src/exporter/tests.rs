//! The page is parsed strictly, and compared with what was put into the cells.

use std::collections::{BTreeMap, BTreeSet};

use reactor::Stats;

use super::*;
use crate::config::TransportKind;
use crate::metrics::{Labels, RejectReason};

fn status_name(_: usize, status: u16) -> &'static str {
    if status == 0x81 { "a \"quoted\"\\\nname" } else { "lba_out_of_range" }
}

fn registry() -> Arc<Registry> {
    let opcodes = &["read", "write", "flush"];
    Registry::new(2, Labels { version: "1.2.3", opcodes, status: status_name, connection_limit: 77 })
}

/// One sample line.
#[derive(Debug, PartialEq)]
struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    value: f64,
}

/// A metric's type and samples.
type Page = BTreeMap<String, (String, Vec<Sample>)>;

/// Takes a page apart, and panics at whatever the text format does not allow.
fn parse(page: &str) -> Page {
    assert!(page.ends_with('\n'), "the last line is not ended");
    let mut families = Page::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let (name, help) = line.strip_prefix("# HELP ").expect(line).split_once(' ').expect(line);
        assert!(!help.is_empty());
        let (typed, kind) = lines
            .next()
            .and_then(|line| line.strip_prefix("# TYPE "))
            .expect(name)
            .split_once(' ')
            .expect(name);
        assert_eq!(typed, name);
        assert!(["counter", "gauge", "histogram"].contains(&kind), "{kind}");
        let mut samples = Vec::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with('#')) {
            let sample = parse_sample(line);
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(
                suffixes.iter().any(|suffix| sample.name == format!("{name}{suffix}")),
                "{line} under {name}"
            );
            samples.push(sample);
        }
        assert!(!samples.is_empty(), "{name} has no sample");
        let labels: BTreeSet<String> = samples.iter().map(|s| format!("{}{:?}", s.name, s.labels)).collect();
        assert_eq!(labels.len(), samples.len(), "{name} has a series twice");
        assert!(
            families.insert(name.to_owned(), (kind.to_owned(), samples)).is_none(),
            "{name} is there twice"
        );
    }
    families
}

fn parse_sample(line: &str) -> Sample {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = line.find(|c| !word(c)).expect(line);
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        loop {
            let (key, value) = inner.split_once("=\"").expect(line);
            assert!(!key.is_empty() && key.chars().all(word), "{line}");
            let mut text = String::new();
            let mut chars = value.char_indices();
            let end = loop {
                match chars.next().expect(line) {
                    (at, '"') => break at,
                    (_, '\\') => match chars.next().expect(line).1 {
                        'n' => text.push('\n'),
                        c @ ('"' | '\\') => text.push(c),
                        c => panic!("escape {c:?} in {line}"),
                    },
                    (_, c) => text.push(c),
                }
            };
            labels.push((key.to_owned(), text));
            inner = &value[end + 1..];
            match inner.split_at(1) {
                (",", more) => inner = more,
                ("}", more) => break rest = more,
                _ => panic!("{line}"),
            }
        }
    }
    let value = rest.strip_prefix(' ').expect(line);
    assert!(!value.contains(' '), "{line}");
    Sample { name: name.to_owned(), labels, value: value.parse().expect(line) }
}

fn value(page: &Page, name: &str, labels: &[(&str, &str)]) -> f64 {
    let family = name.strip_suffix("_bucket").or(name.strip_suffix("_sum")).or(name.strip_suffix("_count"));
    let (_, samples) = page.get(name).or_else(|| page.get(family?)).expect(name);
    let matches = |sample: &&Sample| {
        sample.name == name
            && sample
                .labels
                .iter()
                .map(|(key, value)| (key.as_str(), value.as_str()))
                .eq(labels.iter().copied())
    };
    samples.iter().find(matches).unwrap_or_else(|| panic!("{name} {labels:?}")).value
}

#[test]
fn an_idle_page_shows_every_metric_of_the_table_in_its_order() {
    let page = Exporter::new(registry()).render();
    let parsed = parse(&page);
    let names: BTreeSet<&str> = parsed.keys().map(String::as_str).collect();
    assert_eq!(names, FAMILIES.iter().map(|family| family.name).collect());
    let order: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(order, FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>());
    for family in FAMILIES {
        let (kind, samples) = &parsed[family.name];
        assert_eq!(kind, family.kind.name());
        for sample in samples {
            let keys: Vec<&str> =
                sample.labels.iter().map(|(key, _)| key.as_str()).filter(|key| *key != "le").collect();
            assert_eq!(keys, family.labels, "{}", family.name);
            if kind == "counter" {
                assert_eq!(sample.value, 0.0, "{}", family.name);
            }
        }
    }
}

#[test]
fn names_follow_the_conventions() {
    for family in FAMILIES {
        let name = family.name;
        assert!(name.starts_with("weft_"), "{name}");
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
        let counter = matches!(family.kind, Kind::Counter | Kind::SecondsCounter);
        assert_eq!(name.ends_with("_total"), counter, "{name}");
        let base = name.strip_suffix("_total").unwrap_or(name);
        match family.unit {
            metrics::Unit::Seconds => assert!(base.ends_with("_seconds"), "{name}"),
            metrics::Unit::Bytes => assert!(base.ends_with("_bytes"), "{name}"),
            _ => assert!(!base.ends_with("_seconds") && !base.ends_with("_bytes"), "{name}"),
        }
        assert!(family.help.ends_with('.'), "{name}");
    }
}

#[test]
fn cells_of_all_reactors_arrive() {
    let registry = registry();
    let exporter = Exporter::new(Arc::clone(&registry));
    let [first, second] = registry.reactors() else { panic!("two reactors") };
    first.connections_accepted.add(5);
    second.connections_closed.add(2);
    second.reject(RejectReason::HostNotAllowed);
    first.queue_pairs_open.add(3);
    first.command(0, TransportKind::Tcp, 5_000);
    second.command(0, TransportKind::Tcp, 2_000_000_000);
    first.failures.add(0, 0x80);
    second.failures.add(0, 0x80);
    second.failures.add(9, 0x81);
    second.read_bytes.add(u64::from(u32::MAX) * 16);
    let stats = [Arc::new(Stats::default()), Arc::new(Stats::default())];
    for (index, stats) in stats.iter().enumerate() {
        registry.attach_with(index, Arc::clone(stats), Box::new(|| {}));
    }
    stats[0].orphans.add(2);
    stats[1].orphans.add(1);
    stats[1].asleep_ns.add(1_500_000_000);

    let page = parse(&exporter.render());
    assert_eq!(value(&page, "weft_build_info", &[("version", "1.2.3")]), 1.0);
    assert_eq!(value(&page, "weft_connections_open", &[]), 3.0);
    assert_eq!(value(&page, "weft_connections_limit", &[]), 77.0);
    assert_eq!(value(&page, "weft_connections_total", &[]), 5.0);
    assert_eq!(value(&page, "weft_connections_rejected_total", &[("reason", "host_not_allowed")]), 1.0);
    assert_eq!(value(&page, "weft_connections_rejected_total", &[("reason", "limit")]), 0.0);
    assert_eq!(value(&page, "weft_queue_pairs_open", &[("reactor", "0")]), 3.0);
    assert_eq!(value(&page, "weft_commands_total", &[("opcode", "read")]), 2.0);
    let failed = "weft_commands_failed_total";
    assert_eq!(value(&page, failed, &[("opcode", "read"), ("status", "lba_out_of_range")]), 2.0);
    assert_eq!(value(&page, failed, &[("opcode", "other"), ("status", "a \"quoted\"\\\nname")]), 1.0);
    assert_eq!(value(&page, failed, &[("opcode", "other"), ("status", "other")]), 0.0);
    assert_eq!(value(&page, "weft_read_bytes_total", &[]), 68_719_476_720.0);
    assert_eq!(value(&page, "weft_reactor_asleep_seconds_total", &[("reactor", "1")]), 1.5);
    assert_eq!(value(&page, "weft_orphaned_operations", &[]), 3.0);
    assert!(value(&page, "weft_start_time_seconds", &[]) > 1.7e9);
    assert!(value(&page, "weft_open_fds", &[]) >= 3.0);
    assert!(value(&page, "weft_resident_memory_bytes", &[]) > 1e5);
}

#[test]
fn histograms_are_cumulative_and_agree_with_themselves() {
    let registry = registry();
    for latency_ns in [1_000, 5_000, 5_000, 2_000_000_000, 100_000_000_000] {
        registry.reactors()[1].command(1, TransportKind::Tcp, latency_ns);
    }
    let page = parse(&Exporter::new(registry).render());
    let name = "weft_command_duration_seconds";
    let tcp = [("transport", "tcp")];
    assert_eq!(value(&page, &format!("{name}_count"), &tcp), 5.0);
    assert_eq!(value(&page, &format!("{name}_sum"), &tcp), 102.000_011);
    assert_eq!(value(&page, &format!("{name}_count"), &[("transport", "rdma")]), 0.0);
    let buckets: Vec<(f64, f64)> = page[name]
        .1
        .iter()
        .filter(|sample| sample.name.ends_with("_bucket") && sample.labels[0].1 == "tcp")
        .map(|sample| (sample.labels[1].1.parse().unwrap(), sample.value))
        .collect();
    assert_eq!(buckets[..2], [(0.000_004_096, 1.0), (0.000_006_144, 3.0)]);
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 5.0)));
    assert!(buckets.is_sorted_by(|left, right| left.0 < right.0 && left.1 <= right.1));
}

#[test]
fn rendering_again_repeats_and_then_follows() {
    let registry = registry();
    let exporter = Exporter::new(Arc::clone(&registry));
    let stable = |page: String| -> Vec<String> {
        let process = ["weft_open_fds", "weft_resident_memory_bytes"];
        page.lines()
            .filter(|line| !process.iter().any(|name| line.starts_with(name)))
            .map(str::to_owned)
            .collect()
    };
    let first = stable(exporter.render());
    assert_eq!(stable(exporter.render()), first);
    registry.reactors()[0].written_bytes.add(10);
    registry.reactors()[0].queue_pairs_open.set(4);
    let _ = exporter.render();
    registry.reactors()[0].queue_pairs_open.set(1);
    let page = parse(&exporter.render());
    assert_eq!(value(&page, "weft_written_bytes_total", &[]), 10.0);
    assert_eq!(value(&page, "weft_queue_pairs_open", &[("reactor", "0")]), 1.0);
}
