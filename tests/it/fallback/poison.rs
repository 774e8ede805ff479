//! A request that breaks replicas ends at the second.

use crate::support::{
    check::json_error,
    client::Request,
    gateway::{attempts, fleet},
    replica::script::Script,
};

#[tokio::test]
async fn a_request_that_broke_two_replicas_is_not_sent_to_a_third() {
    let (replicas, gateway) = fleet(3).await;
    for replica in &replicas {
        replica.plays(Script::new(|play| async move {
            if play.request.has("poison") { play.reset() } else { play.send(answer()).await }
        }));
    }
    let poison = Request::chat("poison");
    // A replica that broke a connection is left alone for a moment, so the second try goes elsewhere.
    for _ in 0..2 {
        json_error(&gateway.send(&poison).await, 502);
    }
    assert_eq!(attempts(&replicas), 2);

    for _ in 0..3 {
        let error = json_error(&gateway.send(&poison).await, 502);
        assert!(error["message"].as_str().unwrap().contains("two replicas"), "{error}");
    }

    assert_eq!(attempts(&replicas), 2, "nobody else is asked");
    assert!(gateway.send(&Request::chat("harmless")).await.is_good(), "others are served");
    gateway.reaches("gateway_requests_total", &[("outcome", "upstream_reset")], 5.0).await;
}

fn answer() -> Vec<u8> {
    let body = crate::support::replica::engine::COMPLETION;
    let length = body.len().to_string();
    let head: &[(&str, &str)] = &[("content-type", "application/json"), ("content-length", &length)];
    [crate::support::replica::script::head(200, head), body.as_bytes().to_vec()].concat()
}
