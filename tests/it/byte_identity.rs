//! Byte identity: every recorded stream arrives as it was sent, wherever the network cuts it.

use std::{collections::HashMap, path::Path, sync::Arc};

use futures_util::{StreamExt, stream};
use serde_json::Value;

use crate::support::{
    check::same,
    client::{Call, End, PATIENCE, Request},
    gateway::TestGateway,
    ms,
    replica::{
        Flavor, ScriptedReplica,
        script::{LAST, Script, chunk, head},
    },
};

/// Streams up to this size are cut at every position.
const EVERY_POSITION: usize = 800;
/// Random splits of each longer stream.
const RANDOM_SPLITS: u64 = 16;
/// Streams up to this size come in pieces of one byte too, longer ones in pieces of seven.
const BYTE_BY_BYTE: usize = 1500;
/// Requests in flight.
const AT_ONCE: usize = 48;
/// Header lines that describe one connection of the recording.
const CONNECTION_HEADERS: [&str; 1] = ["connection"];

/// One recorded exchange.
struct Capture {
    name: String,
    path: String,
    request: Value,
    head: Vec<u8>,
    wires: Vec<String>,
    body: Vec<u8>,
}

impl Capture {
    fn read(path: &Path, engine: &str) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let headers: Vec<(String, String)> = serde_json::from_value(rows[1]["headers"].clone()).unwrap();
        let kept = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let kept: Vec<_> =
            kept.filter(|(name, _)| !CONNECTION_HEADERS.contains(&name.to_lowercase().as_str())).collect();
        let wires: Vec<String> = rows[2..].iter().filter_map(|row| row["wire"].as_str().map(str::to_owned)).collect();
        let file = path.file_stem().unwrap().to_string_lossy();
        Self {
            name: format!("{engine}/{file}"),
            path: rows[0]["request"]["path"].as_str().unwrap().to_owned(),
            request: rows[0]["request"]["body"].clone(),
            head: head(200, &kept),
            body: dechunked(wires.concat().as_bytes()),
            wires,
        }
    }

    /// Whether its client asked for the usage chunk.
    fn asked_for_usage(&self) -> bool {
        self.request["stream_options"]["include_usage"] == true
    }

    /// The body without its usage-only event.
    fn without_usage(&self) -> Vec<u8> {
        let text = String::from_utf8(self.body.clone()).unwrap();
        let events = text.split_inclusive("\n\n").filter(|event| !event.contains(r#""choices":[]"#));
        events.collect::<String>().into_bytes()
    }

    /// The request, with a marker that tells the replica what to play.
    fn request(&self, marker: &str) -> Request {
        let mut body = self.request.clone();
        body["replay"] = Value::from(marker);
        Request::post(self.endpoint(), body.to_string())
    }

    /// Its path, or chat for engines' own endpoints, which the gateway does not serve: the stream is what counts.
    fn endpoint(&self) -> &str {
        if self.path.ends_with("generate") { "/v1/chat/completions" } else { &self.path }
    }
}

fn dechunked(mut wire: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let at = memchr::memmem::find(wire, b"\r\n").unwrap();
        let size = usize::from_str_radix(std::str::from_utf8(&wire[..at]).unwrap(), 16).unwrap();
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&wire[at + 2..at + 2 + size]);
        wire = &wire[at + 4 + size..];
    }
}

fn captures() -> Vec<Arc<Capture>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/captures");
    let mut all = Vec::new();
    for engine in ["vllm", "sglang"] {
        let files = std::fs::read_dir(root.join(engine)).unwrap();
        all.extend(files.map(|file| Arc::new(Capture::read(&file.unwrap().path(), engine))));
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(all.len(), 79, "every recorded stream is replayed");
    all
}

/// How a replayed body is cut. Each chunk of the wire reaches the gateway's observer as a piece of its own.
enum Cuts {
    /// As the engine's socket was read.
    AsRecorded,
    /// Into chunks between these bytes, all in one write.
    Chunks(Vec<usize>),
    /// Into chunks between these bytes, each in a write of its own after a pause.
    Writes(Vec<usize>),
    /// Into chunks of one byte (of seven if long), some of them in each write.
    Tiny,
}

impl Cuts {
    fn parse(text: &str) -> Self {
        let list = |text: &str| text.split(',').map(|cut| cut.parse().unwrap()).collect();
        match text.strip_prefix("writes ") {
            Some(text) => Self::Writes(list(text)),
            None if text == "recorded" => Self::AsRecorded,
            None if text == "tiny" => Self::Tiny,
            None => Self::Chunks(list(text)),
        }
    }
}

fn pieces(body: &[u8], cuts: Vec<usize>) -> Vec<Vec<u8>> {
    let mut from = 0;
    let ends = cuts.into_iter().chain([body.len()]);
    ends.map(|end| chunk(&body[std::mem::replace(&mut from, end)..end])).collect()
}

fn tiny(body: &[u8]) -> Vec<Vec<u8>> {
    let size = if body.len() <= BYTE_BY_BYTE { 1 } else { 7 };
    body.chunks(61 * size).map(|run| run.chunks(size).flat_map(chunk).collect()).collect()
}

/// Plays what the marker in the request's body asks for: `name#cuts`.
fn replay(captures: &[Arc<Capture>]) -> Script {
    let by_name: HashMap<String, Arc<Capture>> = captures.iter().map(|one| (one.name.clone(), one.clone())).collect();
    let by_name = Arc::new(by_name);
    Script::new(move |play| {
        let by_name = by_name.clone();
        async move {
            let marker = play.request.json()["replay"].as_str().unwrap_or_default().to_owned();
            let (name, cuts) = marker.split_once('#').unwrap_or_default();
            let Some(capture) = by_name.get(name) else { return play.close() };
            let body = capture.body.as_slice();
            let (writes, pause) = match Cuts::parse(cuts) {
                Cuts::AsRecorded => (capture.wires.iter().map(|wire| wire.clone().into_bytes()).collect(), true),
                Cuts::Writes(cuts) => (pieces(body, cuts), true),
                Cuts::Chunks(cuts) => (vec![pieces(body, cuts).concat()], false),
                Cuts::Tiny => (tiny(body), false),
            };
            play.send(&capture.head).await?;
            for write in &writes {
                play.send(write).await?;
                if pause {
                    play.pause(ms(1)).await?;
                }
            }
            if cuts == "recorded" { Ok(()) } else { play.send(LAST).await }
        }
    })
}

/// Sends every request on a few kept connections and judges each answer.
async fn judge(gateway: &TestGateway, jobs: Vec<(Arc<Capture>, Request, Arc<Vec<u8>>)>) {
    let mut lanes: Vec<Vec<_>> = (0..AT_ONCE).map(|_| Vec::new()).collect();
    for (n, job) in jobs.into_iter().enumerate() {
        lanes[n % AT_ONCE].push(job);
    }
    let lanes = lanes.into_iter().map(|jobs| async move {
        let mut call = Call::open(gateway.address()).await;
        for (capture, request, want) in jobs {
            call.send(&request).await;
            call.rest(PATIENCE).await;
            same(&call.answer, &*want, &format!("{} {}", capture.name, String::from_utf8_lossy(request.sent_body())));
            if call.answer.header("connection").is_some_and(|value| value == "close") {
                call = Call::open(gateway.address()).await;
            }
        }
    });
    stream::iter(lanes).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}

/// Three cuts from a seed: in one write for even seeds, each in its own write for odd ones.
fn random_split(length: usize, seed: u64) -> String {
    let cuts = random_cuts(length, seed);
    if seed.is_multiple_of(2) { cuts } else { format!("writes {cuts}") }
}

/// Increasing cuts inside a body, from a seed.
fn random_cuts(length: usize, seed: u64) -> String {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut cuts: Vec<usize> = (0..3)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            1 + usize::try_from(state >> 33).unwrap() % (length - 1)
        })
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

async fn stage(captures: &[Arc<Capture>]) -> (ScriptedReplica, TestGateway) {
    let replica = ScriptedReplica::start_as(Flavor::Vllm, "tiny");
    replica.plays(replay(captures));
    let gateway = TestGateway::over(std::slice::from_ref(&replica)).await;
    (replica, gateway)
}

fn known_model(mut request: Value) -> Value {
    request["model"] = Value::from("tiny");
    request
}

/// Recordings that named no model, or one that only SGLang takes, name the served one here.
fn with_known_models(captures: Vec<Arc<Capture>>) -> Vec<Arc<Capture>> {
    let all = captures.into_iter().map(|capture| {
        let mut capture = Arc::into_inner(capture).unwrap();
        capture.request = known_model(capture.request);
        Arc::new(capture)
    });
    all.collect()
}

#[tokio::test]
async fn every_recorded_stream_is_relayed_as_recorded() {
    let captures = with_known_models(captures());
    let (_replica, gateway) = stage(&captures).await;
    let jobs = captures.iter().flat_map(|capture| {
        let want = Arc::new(capture.body.clone());
        ["recorded", "tiny"].map(|cuts| {
            let request = capture.request(&format!("{}#{cuts}", capture.name));
            (capture.clone(), request, want.clone())
        })
    });

    judge(&gateway, jobs.collect()).await;

    gateway.reaches("gateway_requests_total", &[], 158.0).await;
    let good = gateway.metrics().await.total("gateway_requests_total", &[("outcome", "success")]);
    assert!(
        good >= 154.0,
        "all are complete but the two of engines' own endpoints, whose ends a chat does not know: {good}"
    );
    gateway.idle().await;
}

/// Plays every capture with the cuts that `choose` names for its length.
async fn relayed_with(choose: impl Fn(usize) -> Vec<String>) {
    let captures = with_known_models(captures());
    let (replica, gateway) = stage(&captures).await;
    replica.forget_when_full();
    let mut jobs = Vec::new();
    for capture in &captures {
        let want = Arc::new(capture.body.clone());
        let requests = choose(want.len()).into_iter().map(|cuts| capture.request(&format!("{}#{cuts}", capture.name)));
        jobs.extend(requests.map(|request| (capture.clone(), request, want.clone())));
    }

    judge(&gateway, jobs).await;

    gateway.idle().await;
}

fn every_cut(length: usize) -> Vec<String> {
    (1..length).map(|cut| cut.to_string()).collect()
}

fn some_cuts(length: usize) -> Vec<String> {
    if length <= EVERY_POSITION {
        every_cut(length)
    } else {
        (0..RANDOM_SPLITS).map(|seed| random_split(length, seed)).collect()
    }
}

#[tokio::test]
async fn every_cut_of_the_shorter_streams_and_random_cuts_of_the_rest() {
    relayed_with(some_cuts).await;
}

#[tokio::test]
#[ignore = "181,000 requests: run it against a release build"]
async fn every_cut_of_every_stream() {
    relayed_with(every_cut).await;
}

#[tokio::test]
async fn a_client_that_did_not_ask_misses_the_usage_event_and_nothing_else() {
    let captures: Vec<_> = with_known_models(captures()).into_iter().filter(|one| one.asked_for_usage()).collect();
    assert!(captures.len() >= 15, "recordings with usage: {}", captures.len());
    let (replica, gateway) = stage(&captures).await;
    replica.forget_when_full();
    let mut jobs = Vec::new();
    for capture in &captures {
        let want = capture.without_usage();
        assert!(want.len() < capture.body.len(), "{} has a usage event", capture.name);
        let mut silent = capture.request.clone();
        silent.as_object_mut().unwrap().remove("stream_options");
        let (length, want) = (capture.body.len(), Arc::new(want));
        let mut cuts: Vec<String> = vec!["recorded".to_owned(), "tiny".to_owned()];
        cuts.extend(some_cuts(length));
        for cuts in cuts {
            silent["replay"] = Value::from(format!("{}#{cuts}", capture.name));
            jobs.push((capture.clone(), Request::post(capture.endpoint(), silent.to_string()), want.clone()));
        }
    }

    judge(&gateway, jobs).await;

    gateway.idle().await;
}

#[tokio::test]
async fn the_recordings_replay_without_a_gateway() {
    let captures = captures();
    let replica = ScriptedReplica::start();
    replica.plays(replay(&captures));
    for capture in captures.iter().step_by(9) {
        for cuts in ["recorded", "tiny", "1", "5,9", "writes 3,4"] {
            let mut call = Call::start(replica.address(), &capture.request(&format!("{}#{cuts}", capture.name))).await;
            call.rest(PATIENCE).await;
            assert_eq!(call.answer.end, Some(End::Clean));
            assert_eq!(call.answer.body, capture.body, "{} {cuts}", capture.name);
        }
    }
}
