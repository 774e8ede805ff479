//! Scripted answers.

use std::sync::Mutex;

use super::*;

/// Plays its answers in order, then says nothing for ever.
struct Scripted(Mutex<Vec<Result<Addresses, DnsError>>>);

impl Resolve for Scripted {
    fn resolve<'a>(&'a self, host: &'a str) -> BoxFuture<'a, Result<Addresses, DnsError>> {
        assert_eq!(host, "engines.svc");
        match self.0.lock().unwrap().pop() {
            Some(answer) => std::future::ready(answer).boxed(),
            None => std::future::pending().boxed(),
        }
    }
}

fn dns(answers: Vec<Result<Addresses, DnsError>>) -> Dns<Scripted> {
    let settings = DnsSettings {
        host: "engines.svc".into(),
        port: 8000,
        interval: Duration::from_millis(1),
        scheme: Scheme::HTTP,
        path: "/openai/v1".into(),
    };
    Dns::new(Scripted(Mutex::new(answers.into_iter().rev().collect())), settings)
}

fn ok(last: &[u8]) -> Result<Addresses, DnsError> {
    let addresses = last.iter().map(|&n| IpAddr::from([10, 0, 0, n])).collect();
    Ok(Addresses { addresses, ttl: Duration::from_secs(30) })
}

fn servfail() -> Result<Addresses, DnsError> {
    Err(DnsError("SERVFAIL".into()))
}

async fn next(dns: &mut Dns<Scripted>) -> Option<Vec<String>> {
    let next = tokio::time::timeout(Duration::from_millis(200), dns.next()).await.ok()?;
    Some(next.iter().map(ToString::to_string).collect())
}

#[tokio::test]
async fn each_address_is_a_replica_with_the_port_and_path_of_the_settings() {
    let mut dns = dns(vec![Ok(Addresses {
        addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        ttl: Duration::ZERO,
    })]);

    let replicas = next(&mut dns).await.unwrap();

    assert_eq!(replicas, ["http://10.0.0.2:8000/openai", "http://[fd00::1]:8000/openai"]);
}

#[tokio::test]
async fn the_last_good_answer_is_kept_over_errors_and_empty_answers() {
    let mut dns = dns(vec![ok(&[1, 2]), servfail(), ok(&[]), servfail(), ok(&[1, 2]), ok(&[1, 2, 3])]);
    assert_eq!(next(&mut dns).await.unwrap().len(), 2);

    let replicas = next(&mut dns).await.unwrap();

    assert_eq!(replicas.len(), 3, "the next news is the new address, not a loss");
}

#[tokio::test]
async fn an_address_is_removed_after_two_answers_agree() {
    let mut dns = dns(vec![ok(&[1, 2]), ok(&[1]), servfail(), ok(&[1])]);
    next(&mut dns).await.unwrap();

    assert_eq!(next(&mut dns).await.unwrap(), ["http://10.0.0.1:8000/openai"]);
}

#[tokio::test]
async fn a_flapping_set_is_no_news() {
    let mut dns = dns(vec![ok(&[1, 2]), ok(&[1]), ok(&[2]), ok(&[1]), ok(&[2, 1])]);
    next(&mut dns).await.unwrap();

    assert_eq!(next(&mut dns).await, None);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_at_first_is_asked_again() {
    let mut dns = dns(vec![servfail(), ok(&[]), ok(&[7])]);

    assert_eq!(next(&mut dns).await.unwrap(), ["http://10.0.0.7:8000/openai"]);
}

#[test]
fn the_pause_follows_the_ttl_above_its_floor_and_below_the_interval() {
    let mut dns = dns(Vec::new());
    dns.settings.interval = Duration::from_secs(10);
    let pause = |dns: &mut Dns<Scripted>, ttl| {
        dns.take(Ok(Addresses { addresses: vec![IpAddr::from([10, 0, 0, 1])], ttl: Duration::from_secs(ttl) })).1
    };

    assert_eq!(dns.take(servfail()).1, UNKNOWN_PAUSE);
    assert_eq!(pause(&mut dns, 0), TTL_FLOOR);
    assert_eq!(pause(&mut dns, 7), Duration::from_secs(7));
    assert_eq!(pause(&mut dns, 3600), Duration::from_secs(10));
    assert_eq!(dns.take(servfail()).1, Duration::from_secs(10));
}

#[tokio::test]
async fn the_systems_resolver_reads_the_hosts_file() {
    let Ok(resolver) = Hickory::from_system() else { return };

    let answer = resolver.resolve("localhost").await.unwrap();

    assert!(answer.addresses.iter().all(IpAddr::is_loopback) && !answer.addresses.is_empty(), "{answer:?}");
}
