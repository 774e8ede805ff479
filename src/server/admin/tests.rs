//! Each route of the admin port, asked as a client asks.

use axum::http::Request;
use http_body_util::BodyExt as _;
use tower::ServiceExt as _;

use super::*;

#[derive(Debug)]
struct View {
    ready: bool,
}

impl AdminView for View {
    fn metrics(&self) -> String {
        "# TYPE up gauge\nup 1\n".to_owned()
    }

    fn ready(&self) -> bool {
        self.ready
    }

    fn replicas(&self) -> Value {
        json!([{ "model": "m", "replica": "h:1", "up": true, "in_flight": 1, "waiting": null }])
    }

    fn models(&self) -> Value {
        json!([{ "model": "m" }])
    }
}

async fn ask(ready: bool, method: &str, path: &str) -> (Response<()>, String) {
    let request = Request::builder().method(method).uri(path).body(Body::empty()).unwrap();
    let response = router(Arc::new(View { ready })).oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let bytes = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(head, ()), String::from_utf8(bytes.to_vec()).unwrap())
}

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap()
}

#[tokio::test]
async fn healthz_is_ok_whether_ready_or_not() {
    for ready in [true, false] {
        let (head, body) = ask(ready, "GET", "/healthz").await;
        assert_eq!((head.status(), body.as_str()), (StatusCode::OK, "ok\n"));
    }
}

#[tokio::test]
async fn readyz_follows_the_gateway() {
    let (yes, yes_body) = ask(true, "GET", "/readyz").await;
    let (no, no_body) = ask(false, "GET", "/readyz").await;

    assert_eq!((yes.status(), json_of(&yes_body)), (StatusCode::OK, json!({ "ready": true })));
    assert_eq!((no.status(), json_of(&no_body)), (StatusCode::SERVICE_UNAVAILABLE, json!({ "ready": false })));
}

#[tokio::test]
async fn metrics_are_served_in_the_exposition_format() {
    let (head, body) = ask(true, "GET", "/metrics").await;

    assert_eq!(head.headers()[header::CONTENT_TYPE], METRICS_CONTENT_TYPE);
    assert_eq!(body, "# TYPE up gauge\nup 1\n");
}

#[tokio::test]
async fn replicas_lists_replicas_and_models() {
    let (head, body) = ask(true, "GET", "/replicas").await;

    assert_eq!(head.headers()[header::CONTENT_TYPE], "application/json");
    let value = json_of(&body);
    assert_eq!(value["replicas"][0]["replica"], "h:1");
    assert_eq!(value["replicas"][0]["waiting"], Value::Null);
    assert_eq!(value["models"][0]["model"], "m");
}

#[tokio::test]
async fn the_page_runs_only_its_own_script_and_loads_nothing_from_elsewhere() {
    let (head, body) = ask(true, "GET", "/").await;
    let (second, _) = ask(true, "GET", "/").await;

    let policy = head.headers()[header::CONTENT_SECURITY_POLICY].to_str().unwrap();
    let (_, nonce) = policy.split_once("script-src 'nonce-").unwrap();
    let nonce = nonce.split_once('\'').unwrap().0;
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    assert_eq!(body.matches(&format!("nonce=\"{nonce}\"")).count(), 2, "one style and one script");
    assert!(!body.contains("NONCE"));
    assert_ne!(second.headers()[header::CONTENT_SECURITY_POLICY], policy, "each answer has its own nonce");
    assert!(!body.contains("innerHTML") && !body.contains("http://") && !body.contains("https://"));
}

#[tokio::test]
async fn other_paths_and_methods_get_json_errors() {
    let (unknown, unknown_body) = ask(true, "GET", "/v1/models").await;
    let (posted, posted_body) = ask(true, "POST", "/replicas").await;

    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
    assert_eq!(json_of(&unknown_body)["error"]["code"], "unknown_url");
    assert_eq!(posted.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(json_of(&posted_body)["error"]["code"], "method_not_allowed");
}
