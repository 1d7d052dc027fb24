//! Asynchronous events: told once, masked until their log is read, from whatever thread they come. The target runs in
//! this process, so that a test can let things happen to it.

use crate::host::target::{ONE_NQN, namespace, one_subsystem};
use crate::host::*;
use crate::inside::Inside;

/// NS attribute changed, as DW0 says it.
const NAMESPACE_CHANGED: u32 = 0x0004_0002;
/// OAES and AEC: NS attribute changes.
const NAMESPACE_EVENTS: u32 = 1 << 8;

/// A controller that is enabled and wants to hear of namespaces.
async fn listener(inside: &Inside) -> Result<Host, Failure> {
    let options = Options { kato_ms: 60_000, ..Options::default() };
    let host = Host::attach(inside.address(), ONE_NQN, options).await?;
    host.enable().await?;
    host.admin.execute(&Command::set_features(0x0b, NAMESPACE_EVENTS)).await?;
    Ok(host)
}

fn three_namespaces() -> String {
    let all: Vec<_> = (1..=3).map(|nsid| namespace(nsid, "null", 512, "1 MiB", "")).collect();
    one_subsystem(&all.concat())
}

fn event_request(host: &Host) -> Pending {
    host.admin.submit(&Command::async_event_request())
}

/// Nothing has come for a request: a command that was sent after the event was raised has been answered before.
async fn nothing(host: &Host, request: &mut Pending) -> Result<(), Failure> {
    for _ in 0..20 {
        host.admin.execute(&Command::keep_alive()).await?;
    }
    assert!(request.poll().is_none(), "there is nothing to tell");
    Ok(())
}

/// The changed namespace list.
async fn changed(host: &Host, retain: bool) -> Result<Vec<u32>, Failure> {
    let command = Command::get_log(0x04, 4096, 0);
    let command = if retain { command.retaining_event() } else { command };
    let page = host.admin.execute(&command).await?.data;
    let all: Vec<_> = (0..1024).map(|index| u32_at(&page, index * 4)).collect();
    let end = all.iter().position(|nsid| *nsid == 0).unwrap_or(1024);
    assert!(all[end..].iter().all(|nsid| *nsid == 0), "zero behind the list");
    Ok(all[..end].to_vec())
}

#[test]
fn a_changed_namespace_is_told_once_until_the_list_is_read() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let host = listener(&inside).await?;
        assert_eq!(u32_at(&host.identify(0x01, 0).await?, 92), NAMESPACE_EVENTS, "OAES");
        let request = event_request(&host);
        target.namespace_changed(3);
        assert_eq!(request.done().await?.dw0, NAMESPACE_CHANGED);
        // More of the same is in the list, and not told.
        let mut request = event_request(&host);
        for nsid in [1, 3, 2, 1] {
            target.namespace_changed(nsid);
        }
        nothing(&host, &mut request).await?;
        assert_eq!(changed(&host, true).await?, [1, 2, 3], "each once, ascending");
        target.namespace_changed(2);
        nothing(&host, &mut request).await?;
        assert_eq!(changed(&host, false).await?, [1, 2, 3]);
        assert!(changed(&host, false).await?.is_empty(), "reading has cleared it");
        target.namespace_changed(2);
        assert_eq!(request.done().await?.dw0, NAMESPACE_CHANGED, "the next change is told again");
        assert_eq!(changed(&host, false).await?, [2]);
        Ok(())
    });
}

/// What happens while no request waits is remembered, once.
#[test]
fn an_event_waits_for_its_request() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let host = listener(&inside).await?;
        target.namespace_changed(1);
        target.namespace_changed(2);
        assert_eq!(event_request(&host).done().await?.dw0, NAMESPACE_CHANGED);
        let mut request = event_request(&host);
        nothing(&host, &mut request).await?;
        assert_eq!(changed(&host, false).await?, [1, 2]);
        nothing(&host, &mut request).await
    });
}

#[test]
fn more_than_the_list_holds_are_all() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let host = listener(&inside).await?;
        let request = event_request(&host);
        (1..=1100).for_each(|nsid| target.namespace_changed(nsid));
        assert_eq!(request.done().await?.dw0, NAMESPACE_CHANGED);
        assert_eq!(changed(&host, false).await?, [u32::MAX]);
        assert!(changed(&host, false).await?.is_empty());
        Ok(())
    });
}

/// State is per controller: one host's reading takes nothing from another, and who did not ask is not told.
#[test]
fn every_controller_hears_for_itself() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let (first, second, deaf) =
            (listener(&inside).await?, listener(&inside).await?, listener(&inside).await?);
        deaf.admin.execute(&Command::set_features(0x0b, 0)).await?;
        let (one, two, mut none) = (event_request(&first), event_request(&second), event_request(&deaf));
        target.namespace_changed(1);
        assert_eq!(one.done().await?.dw0, NAMESPACE_CHANGED);
        assert_eq!(two.done().await?.dw0, NAMESPACE_CHANGED);
        nothing(&deaf, &mut none).await?;
        assert_eq!(changed(&first, false).await?, [1]);
        assert_eq!(changed(&second, false).await?, [1]);
        // What it did not hear of is in its list.
        assert_eq!(changed(&deaf, false).await?, [1]);
        let unknown = deaf.admin.execute(&Command::set_features(0x0b, 1 << 31)).await;
        unknown.fails_with(INVALID_FIELD, true);
        deaf.admin.execute(&Command::set_features(0x0b, NAMESPACE_EVENTS | 0xff)).await?;
        target.namespace_changed(1);
        assert_eq!(none.done().await?.dw0, NAMESPACE_CHANGED, "now it wants to know");
        Ok(())
    });
}

/// The oldest request carries the event; the others wait on.
#[test]
fn one_event_takes_one_request() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let host = listener(&inside).await?;
        let oldest = event_request(&host);
        host.identify(0x01, 0).await?;
        let mut others = [event_request(&host), event_request(&host), event_request(&host)];
        host.identify(0x01, 0).await?;
        target.namespace_changed(1);
        assert_eq!(oldest.done().await?.dw0, NAMESPACE_CHANGED);
        for other in &mut others {
            nothing(&host, other).await?;
        }
        // Its place is free again, and no more than that.
        let mut next = event_request(&host);
        nothing(&host, &mut next).await?;
        host.admin.execute(&Command::async_event_request()).await.fails_with(AER_LIMIT, true);
        Ok(())
    });
}

/// A reset aborts the requests (the admin queue lives on) and forgets events, masks and configuration.
#[test]
fn a_reset_starts_anew() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let host = listener(&inside).await?;
        for _ in 0..3 {
            let told = event_request(&host);
            target.namespace_changed(1);
            assert_eq!(told.done().await?.dw0, NAMESPACE_CHANGED);
            let waiting: Vec<_> = (0..4).map(|_| event_request(&host)).collect();
            host.identify(0x01, 0).await?;
            host.set_property(property::CC, CC_CONFIGURED).await?;
            for request in waiting {
                request.done().await.fails_with(0x007, false);
            }
            host.wait_for_status(1, 0).await?;
            host.admin.execute(&Command::async_event_request()).await.fails_with(SEQUENCE_ERROR, true);
            host.enable().await?;
            assert_eq!(host.admin.execute(&Command::get_features(0x0b)).await?.dw0, 0, "AEC");
            assert!(changed(&host, true).await?.is_empty());
            host.admin.execute(&Command::set_features(0x0b, NAMESPACE_EVENTS)).await?;
        }
        Ok(())
    });
}

/// A shutdown leaves requests unanswered and tells nothing; enabling anew ends them.
#[test]
fn a_shutdown_is_silent() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let host = listener(&inside).await?;
        let mut request = event_request(&host);
        host.set_property(property::CC, CC_CONFIGURED | 1 << 14 | 1).await?;
        host.wait_for_status(0xc, 0x8).await?;
        target.namespace_changed(1);
        host.property(property::CSTS).await?;
        assert!(request.poll().is_none());
        host.set_property(property::CC, CC_CONFIGURED).await?;
        request.done().await.fails_with(0x007, false);
        host.enable().await?;
        host.admin.execute(&Command::set_features(0x0b, NAMESPACE_EVENTS)).await?;
        let request = event_request(&host);
        target.namespace_changed(2);
        assert_eq!(request.done().await?.dw0, NAMESPACE_CHANGED);
        assert_eq!(changed(&host, false).await?, [2]);
        Ok(())
    });
}

/// The discovery log has its own event, for controllers that asked for it.
#[test]
fn a_changed_discovery_log_is_told() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let options = || Options { kato_ms: 60_000, ..Options::default() };
        let address = inside.address();
        let (host, deaf) = (
            Host::attach(address, DISCOVERY_NQN, options()).await?,
            Host::attach(address, DISCOVERY_NQN, options()).await?,
        );
        host.enable().await?;
        deaf.enable().await?;
        assert_eq!(u32_at(&host.identify(0x01, 0).await?, 92), 1 << 31, "OAES");
        host.admin.execute(&Command::set_features(0x0b, 1 << 31)).await?;
        let generation = async || Ok::<_, Failure>(u64_at(&host.log(0x70, 20, 0).await?, 0));
        let before = generation().await?;
        let (mut request, mut none) = (event_request(&host), event_request(&deaf));
        nothing(&host, &mut request).await?;
        assert_eq!(generation().await?, before, "nothing has changed");
        target.discovery_changed();
        assert_eq!(request.done().await?.dw0, 0x0070_f002);
        let mut request = event_request(&host);
        target.discovery_changed();
        nothing(&host, &mut request).await?;
        host.admin.execute(&Command::get_log(0x70, 1024, 1024).retaining_event()).await?;
        target.discovery_changed();
        nothing(&host, &mut request).await?;
        assert_eq!(generation().await?, before + 3, "this has read it with RAE clear");
        target.discovery_changed();
        assert_eq!(request.done().await?.dw0, 0x0070_f002);
        nothing(&deaf, &mut none).await
    });
}

/// Changes from several threads while the host reads and asks again: the last one is never lost.
#[test]
fn the_last_change_is_always_told() {
    let inside = Inside::start(&three_namespaces());
    let target = inside.target();
    run(async {
        let host = listener(&inside).await?;
        for round in 1..=50_u32 {
            let threads: Vec<_> = (1..=3)
                .map(|nsid| {
                    let target = target.clone();
                    std::thread::spawn(move || (0..20).for_each(|_| target.namespace_changed(nsid)))
                })
                .collect();
            let last = 100 + round;
            let target = target.clone();
            let after = std::thread::spawn(move || {
                threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
                target.namespace_changed(last);
            });
            while !changed(&host, false).await?.contains(&last) {
                event_request(&host).done().await?;
            }
            after.join().expect("it ends");
        }
        Ok(())
    });
}
