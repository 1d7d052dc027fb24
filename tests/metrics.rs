//! `/metrics` and `/healthz`: the numbers are those of the commands that were sent.

use crate::host::target::ONE_NQN;
use crate::host::*;

#[test]
fn commands_and_bytes_are_counted() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 32).await?;
        let before = target.metrics();
        for lba in 0..25 {
            io.write(1, lba * 16, &pattern(lba, 8192)).await?;
        }
        for lba in 0..10 {
            io.read(2, lba, 4096).await?;
        }
        for _ in 0..3 {
            io.flush(1).await?;
        }
        let after = target.metrics();
        let grew = |name: &str, labels: &[(&str, &str)]| after.sum(name, labels) - before.sum(name, labels);
        assert_eq!(grew("weft_commands_total", &[("opcode", "write")]), 25.0);
        assert_eq!(grew("weft_commands_total", &[("opcode", "read")]), 10.0);
        assert_eq!(grew("weft_commands_total", &[("opcode", "flush")]), 3.0);
        assert_eq!(grew("weft_written_bytes_total", &[]), 25.0 * 8192.0);
        assert_eq!(grew("weft_read_bytes_total", &[]), 10.0 * 4096.0);
        assert_eq!(grew("weft_commands_failed_total", &[]), 0.0);
        let transport = [("transport", "tcp")];
        assert!(grew("weft_command_duration_seconds_count", &transport) >= 38.0);
        assert!(grew("weft_command_duration_seconds_sum", &transport) > 0.0);
        Ok(())
    });
    target.stop();
}

#[test]
fn failures_are_counted_by_status() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 32).await?;
        let before = target.metrics();
        for _ in 0..4 {
            io.read(1, 1 << 40, 512).await.map(|_| Completion::default()).fails_with(LBA_OUT_OF_RANGE, true);
        }
        io.write(9, 0, &[0; 512]).await.fails_with(INVALID_NAMESPACE, true);
        let after = target.metrics();
        let grew = |labels: &[(&str, &str)]| {
            after.sum("weft_commands_failed_total", labels) - before.sum("weft_commands_failed_total", labels)
        };
        assert_eq!(grew(&[("opcode", "read")]), 4.0);
        assert_eq!(grew(&[("opcode", "write")]), 1.0);
        let named: Vec<_> =
            after.samples.iter().filter(|sample| sample.name == "weft_commands_failed_total").collect();
        assert!(named.iter().all(|sample| sample.labels.contains("status=\"")), "{named:?}");
        Ok(())
    });
    target.stop();
}

#[test]
fn connections_are_counted() {
    let target = Target::with_three_backends();
    assert_eq!(target.metrics().sum("weft_connections_open", &[]), 0.0);
    assert!(target.metrics().has("weft_connections_open"), "the gauge is there from the start");
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let queues = [host.io_queue(1, 16).await?, host.io_queue(2, 16).await?];
        target.metric_becomes("weft_connections_open", &[], 3.0).await?;
        assert_eq!(target.metrics().sum("weft_connections_total", &[]), 3.0);
        drop(queues);
        target.metric_becomes("weft_connections_open", &[], 1.0).await?;
        drop(host);
        target.metric_becomes("weft_connections_open", &[], 0.0).await
    });
    assert_eq!(target.metrics().sum("weft_connections_total", &[]), 3.0);
    target.stop();
}

/// The text is what Prometheus expects: help and type for every family, counters that end in `_total`, buckets that
/// only grow.
#[test]
fn the_page_is_well_formed() {
    let target = Target::with_three_backends();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 32).await?;
        for lba in 0..50 {
            io.write(1, lba, &pattern(lba, 512)).await?;
        }
        Ok(())
    });
    let metrics = target.metrics();
    let described = |name: &str| {
        let family =
            ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let typed = |name: &str| metrics.text.contains(&format!("# TYPE {name} "));
        (typed(name) || typed(family)) && metrics.text.contains("# HELP ")
    };
    for sample in &metrics.samples {
        assert!(described(&sample.name), "{} has no type", sample.name);
        assert!(sample.value.is_finite() && sample.value >= 0.0, "{sample:?}");
    }
    for line in metrics.text.lines().filter(|line| line.starts_with("# TYPE ") && line.ends_with(" counter"))
    {
        assert!(line.contains("_total counter"), "{line}");
    }
    let name = "weft_command_duration_seconds";
    let buckets = metrics.samples.iter().filter(|sample| sample.name == format!("{name}_bucket"));
    let infinite: f64 =
        buckets.filter(|sample| sample.labels.contains("le=\"+Inf\"")).map(|sample| sample.value).sum();
    assert_eq!(infinite, metrics.sum(&format!("{name}_count"), &[]));
    assert!(infinite >= 50.0);
    target.stop();
}

#[test]
fn other_pages_do_not_exist() {
    let target = Target::with_three_backends();
    let status = |path: &str| http::get(target.metrics_address, path).map(|(status, _)| status);
    assert_eq!(status("/healthz"), Some(200));
    assert_eq!(status("/metrics"), Some(200));
    assert_eq!(status("/nothing"), Some(404));
    target.stop();
}

/// Peers of the metrics port that misbehave disturb neither scrapes nor hosts.
#[test]
fn a_stuck_scraper_disturbs_nobody() {
    let target = Target::with_three_backends();
    let stuck: Vec<_> = (0..20)
        .map(|_| std::net::TcpStream::connect(target.metrics_address).expect("the metrics port"))
        .collect();
    run(async {
        let host = Host::connect(&target, ONE_NQN, Options::default()).await?;
        let io = host.io_queue(1, 32).await?;
        for lba in 0..20 {
            io.write(1, lba, &pattern(lba, 512)).await?;
            target.metrics();
        }
        Ok(())
    });
    drop(stuck);
    target.stop();
}
