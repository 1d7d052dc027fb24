//! A real control thread over real sockets. Signals are tested from outside: tests/lifecycle.rs.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::sync::mpsc;

use super::*;
use crate::metrics::Labels;

fn registry() -> Arc<Registry> {
    Registry::new(1, Labels::nvme("0", 1))
}

fn started() -> ControlThread {
    start((Ipv4Addr::LOCALHOST, 0).into(), registry(), Box::new(|| {})).unwrap()
}

/// Everything the server says to `request`.
fn ask(control: &ControlThread, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(control.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn status(control: &ControlThread, request: &[u8]) -> String {
    let answer = ask(control, request);
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn pages() {
    let control = started();
    let health = ask(&control, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n");
    assert_eq!(
        health,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 3\r\nConnection: \
         close\r\n\r\nok\n"
    );
    let metrics = ask(&control, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    let (head, body) = metrics.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
        "{head}"
    );
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}");
    assert!(body.contains("weft_connections_open 0\n"), "{body}");
    let head_only = ask(&control, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(head_only.starts_with("HTTP/1.1 200 OK\r\n") && head_only.ends_with("\r\n\r\n"), "{head_only}");
    control.stop();
}

#[test]
fn a_reactor_that_does_not_answer_is_ill_until_it_does() {
    let registry = registry();
    let control = start((Ipv4Addr::LOCALHOST, 0).into(), Arc::clone(&registry), Box::new(|| {})).unwrap();
    let (asked, heard) = mpsc::channel();
    registry.attach_with(0, Arc::default(), Box::new(move || asked.send(()).unwrap()));
    let health = || ask(&control, b"GET /healthz HTTP/1.1\r\n\r\n");

    let ill = health();
    assert!(ill.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{ill}");
    assert!(ill.ends_with("\r\n\r\nreactor 0 has not answered within 2 s\n"), "{ill}");
    // The metrics page does not wait for it, and asking again does not fill its mailbox.
    assert_eq!(status(&control, b"GET /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
    assert!(health().starts_with("HTTP/1.1 503"));
    assert_eq!(heard.try_iter().count(), 1);

    registry.reactors()[0].heartbeats.add(1);
    let cells = Arc::clone(&registry.reactors()[0]);
    let reactor = thread::spawn(move || heard.iter().for_each(|()| cells.heartbeats.add(1)));
    assert!(health().ends_with("\r\n\r\nok\n"));
    assert!(health().ends_with("\r\n\r\nok\n"));
    control.stop();
    drop(registry);
    reactor.join().unwrap();
}

#[test]
fn a_real_reactor_answers_from_its_sleep() {
    let registry = registry();
    let thread = reactor::start(reactor::Options::default(), |_| {}).unwrap();
    registry.attach(0, thread.stats.clone(), thread.mailbox.clone());
    let control = start((Ipv4Addr::LOCALHOST, 0).into(), registry, Box::new(|| {})).unwrap();
    thread::sleep(Duration::from_millis(50));
    assert!(ask(&control, b"GET /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\nok\n"));
    let page = ask(&control, b"GET /metrics HTTP/1.1\r\n\r\n");
    assert!(page.contains("\nweft_reactor_messages_total{reactor=\"0\"} 1\n"), "{page}");
    thread.mailbox.send(reactor::Reactor::stop);
    thread.join().unwrap();
}

#[test]
fn refusals() {
    let control = started();
    assert_eq!(status(&control, b"GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
    let post = ask(&control, b"POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello");
    assert!(
        post.starts_with("HTTP/1.1 405 Method Not Allowed\r\n") && post.contains("\r\nAllow: GET, HEAD\r\n"),
        "{post}"
    );
    assert_eq!(status(&control, b"nonsense\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    assert_eq!(status(&control, b"GET /metrics HTTP/1.1\r\n"), "HTTP/1.1 400 Bad Request");
    assert_eq!(ask(&control, b""), "");
    let long = [b"GET /metrics HTTP/1.1\r\nX: ".as_slice(), &[b'x'; 20_000], b"\r\n\r\n"].concat();
    assert_eq!(status(&control, &long), "HTTP/1.1 431 Request Header Fields Too Large");
    // Exactly the limit is still taken.
    let mut fits = b"GET /healthz HTTP/1.1\r\nX: ".to_vec();
    fits.resize((8 << 10) - 4, b'x');
    fits.extend_from_slice(b"\r\n\r\n");
    assert_eq!(status(&control, &fits), "HTTP/1.1 200 OK");
}

#[test]
fn a_request_may_come_byte_by_byte_and_hold_up_nobody() {
    let control = started();
    let mut slow = TcpStream::connect(control.address()).unwrap();
    for byte in b"GET /healthz HTTP/1.1\r\n" {
        slow.write_all(&[*byte]).unwrap();
    }
    assert_eq!(status(&control, b"GET /healthz HTTP/1.1\r\n\r\n"), "HTTP/1.1 200 OK");
    slow.write_all(b"\r\n").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert!(answer.ends_with("\r\n\r\nok\n"), "{answer}");
}

#[test]
fn connections_beyond_the_limit_are_closed_and_places_come_back() {
    let control = started();
    let idle: Vec<TcpStream> =
        (0..MAX_CONNECTIONS).map(|_| TcpStream::connect(control.address()).unwrap()).collect();
    // The kernel hands them over in order, so this one comes after them all.
    let mut surplus = TcpStream::connect(control.address()).unwrap();
    surplus.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    assert_eq!(surplus.read(&mut [0; 16]).unwrap(), 0);
    drop(idle);
    let ok = (0..100).any(|_| {
        thread::sleep(Duration::from_millis(20));
        let mut stream = TcpStream::connect(control.address()).unwrap();
        let mut answer = String::new();
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n");
        stream.read_to_string(&mut answer).is_ok() && answer.ends_with("ok\n")
    });
    assert!(ok, "places did not come back");
}

#[test]
fn a_silent_connection_is_closed_after_its_time() {
    let control = started();
    let mut silent = TcpStream::connect(control.address()).unwrap();
    silent.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    silent.write_all(b"GET /healthz").unwrap();
    let begin = std::time::Instant::now();
    let end = silent.read(&mut [0; 16]);
    assert!(matches!(end, Ok(0)) || end.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionReset));
    assert!((9..15).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

#[test]
fn a_taken_port_is_named_with_its_key() {
    let control = started();
    let address = control.address();
    let error = start(address, registry(), Box::new(|| {})).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot serve metrics on {address}: Address already in use (os error 98) (choose another with \
             metrics.address \
             in the configuration or --metrics)"
        )
    );
    control.stop();
    // Free again at once.
    start(address, registry(), Box::new(|| {})).unwrap().stop();
}

#[test]
fn stopping_does_not_wait_for_open_connections() {
    let control = started();
    let mut open = TcpStream::connect(control.address()).unwrap();
    open.write_all(b"GET /metrics").unwrap();
    let begin = std::time::Instant::now();
    control.stop();
    assert!(begin.elapsed() < Duration::from_secs(5));
}
