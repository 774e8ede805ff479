//! The container files say nothing that the program does not know: flags, ports, paths, keys, metrics, labels.
//!
//! No container engine is needed: the files are read as data and held against clap's own definition, the configuration
//! loader, the routers and the table of metrics. Each checker is shown a mistake, so that it is known to find one.

mod dashboard;

use std::path::{Path, PathBuf};

use clap::Parser;
use gateway::{
    cli::{Cli, Command},
    config::{self, Overrides, Plan},
    server::admin::{self, AdminView},
};
use http::StatusCode;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Image that the Dockerfile makes.
const OWN_IMAGE: &str = "gateway:local";

pub(crate) fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn text(path: &str) -> String {
    std::fs::read_to_string(root(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn compose() -> Value {
    yaml("docker-compose.yml")
}

fn services(compose: &Value) -> impl Iterator<Item = (&str, &Value)> {
    compose["services"].as_object().unwrap().iter().map(|(name, service)| (name.as_str(), service))
}

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().map(|item| item.as_str().unwrap()).collect()
}

fn own(service: &Value) -> bool {
    service["image"] == OWN_IMAGE
}

/// What the program makes of a service's command line.
pub(crate) fn parsed(arguments: &[&str]) -> Result<Command, String> {
    let line = std::iter::once("gateway").chain(arguments.iter().copied());
    Cli::try_parse_from(line).map(|cli| cli.command).map_err(|error| error.to_string())
}

/// The value of `--name=value` or `--name value`.
fn flag<'a>(arguments: &[&'a str], name: &str) -> Option<&'a str> {
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        if *argument == name {
            return rest.next().copied();
        }
        if let Some(value) = argument.strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            return Some(value);
        }
    }
    None
}

/// Host file of a path inside a container, through the service's bind mounts.
fn mounted(service: &Value, inside: &str) -> Option<PathBuf> {
    strings(&service["volumes"]).into_iter().find_map(|volume| {
        let mut parts = volume.split(':');
        let (host, target) = (parts.next()?, parts.next()?);
        let rest = inside.strip_prefix(target)?;
        Some(root(&format!("{host}{rest}")))
    })
}

/// The plan of the service "gateway": its flags over the configuration file that is mounted.
fn plan(compose: &Value) -> Plan {
    let service = &compose["services"]["gateway"];
    let command = strings(&service["command"]);
    let file = mounted(service, flag(&command, "--config").unwrap()).expect("the configuration file is mounted");
    config::load(&Overrides { config: Some(file), ..Overrides::default() }, &|_| None)
        .unwrap_or_else(|error| panic!("{:?}", error.problems))
}

#[derive(Debug)]
struct Nothing;

impl AdminView for Nothing {
    fn metrics(&self) -> String {
        String::new()
    }
    fn ready(&self) -> bool {
        true
    }
    fn replicas(&self) -> Value {
        json!([])
    }
    fn models(&self) -> Value {
        json!([])
    }
}

/// Whether the admin port answers GET on this path.
pub(crate) async fn admin_answers(path: &str) -> bool {
    let request = http::Request::get(path).body(axum::body::Body::empty()).unwrap();
    let answer = admin::router(std::sync::Arc::new(Nothing)).oneshot(request).await.unwrap();
    answer.status() == StatusCode::OK
}

#[test]
fn every_command_line_of_compose_is_one_that_the_program_takes() {
    let compose = compose();

    let mut engines = 0;
    for (name, service) in services(&compose).filter(|(_, service)| own(service)) {
        let command = strings(&service["command"]);
        match parsed(&command) {
            Ok(Command::Serve(_)) => assert_eq!(name, "gateway"),
            Ok(Command::Engine(engine)) => {
                engines += 1;
                engine.config().unwrap().check().unwrap();
                assert!(engine.host.is_unspecified(), "{name} must be reachable from other containers");
            }
            other => panic!("{name}: {other:?}"),
        }
    }

    assert_eq!(engines, 3);
}

#[test]
fn a_made_up_flag_is_found() {
    assert!(parsed(&["serve", "--config", "x", "--prefix-aware"]).is_err());
    assert!(parsed(&["engine", "--port=8000", "--gpus=h100"]).is_err());
    assert!(parsed(&["proxy"]).is_err());
}

#[test]
fn the_gateway_finds_the_engines_where_compose_puts_them() {
    let compose = compose();
    let plan = plan(&compose);

    let replicas = &plan.models[0].replicas;
    assert_eq!(replicas.len(), 3);
    for replica in replicas {
        let host = replica.url.authority.host();
        let service = &compose["services"][host];
        let command = strings(&service["command"]);
        assert!(own(service), "{host} is a service of the own image");
        assert_eq!(flag(&command, "--port").unwrap(), replica.url.authority.port().unwrap().as_str(), "{host}");
        assert_eq!(flag(&command, "--model").unwrap(), &*plan.models[0].name, "{host} serves what clients ask for");
        assert_eq!(replica.url.path, "", "{host}");
    }
    assert!(plan.server.insecure_no_auth || !plan.keys.is_empty(), "a port beyond loopback says who may use it");
}

#[test]
fn what_is_published_is_what_the_containers_listen_on_and_to_loopback_only() {
    let compose = compose();
    let plan = plan(&compose);

    for (name, service) in services(&compose) {
        for port in strings(&service["ports"]) {
            assert!(port.starts_with("127.0.0.1:"), "{name} publishes {port} beyond the host");
        }
    }
    let listens = [plan.server.listen, plan.server.admin_listen];
    assert!(
        listens.iter().all(|address| address.ip().is_unspecified()),
        "{listens:?} are reached from other containers"
    );
    let wanted = listens.map(|address| format!("127.0.0.1:{0}:{0}", address.port()));
    assert_eq!(strings(&compose["services"]["gateway"]["ports"]), wanted);
}

#[test]
fn every_service_is_hardened_pinned_and_mounts_what_exists() {
    let compose = compose();
    let volumes = compose["volumes"].as_object().unwrap();

    for (name, service) in services(&compose) {
        assert_eq!(service["read_only"], true, "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        let image = service["image"].as_str().unwrap();
        let (_, tag) = image.rsplit_once(':').unwrap_or_else(|| panic!("{name}: {image} has no tag"));
        assert_ne!(tag, "latest", "{name}");
        for volume in strings(&service["volumes"]) {
            let source = volume.split(':').next().unwrap();
            match source.strip_prefix("./") {
                Some(host) => {
                    assert!(root(host).exists(), "{name} mounts {host}");
                    assert!(volume.ends_with(":ro"), "{name} may not write to {host}");
                }
                None => assert!(volumes.contains_key(source), "{name} mounts the unknown volume {source}"),
            }
        }
    }
}

#[test]
fn running_requests_may_end_before_the_container_is_killed() {
    let compose = compose();

    let grace = compose["services"]["gateway"]["stop_grace_period"].as_str().unwrap();
    let grace: u64 = grace.strip_suffix('s').unwrap().parse().unwrap();

    assert!(plan(&compose).server.timeouts.drain.as_secs() < grace);
}

#[tokio::test]
async fn prometheus_scrapes_ports_and_paths_that_answer() {
    let (compose, scrapes) = (compose(), yaml("deploy/prometheus.yml"));
    let plan = plan(&compose);

    let mut jobs = Vec::new();
    for job in scrapes["scrape_configs"].as_array().unwrap() {
        let path = job["metrics_path"].as_str().unwrap_or("/metrics");
        assert!(admin_answers(path).await, "{path}: also the path of the engines' own pages");
        for target in job["static_configs"].as_array().unwrap().iter().flat_map(|set| strings(&set["targets"])) {
            let (host, port) = target.split_once(':').unwrap();
            let service = &compose["services"][host];
            let listens = match host {
                "gateway" => plan.server.admin_listen.port().to_string(),
                _ => flag(&strings(&service["command"]), "--port").unwrap().to_owned(),
            };
            assert_eq!(port, listens, "{target}");
        }
        jobs.push(job["job_name"].as_str().unwrap());
    }

    assert_eq!(jobs, ["gateway", "engine"]);
    let config = flag(&strings(&compose["services"]["prometheus"]["command"]), "--config.file").unwrap().to_owned();
    assert_eq!(mounted(&compose["services"]["prometheus"], &config), Some(root("./deploy/prometheus.yml")));
    assert!(!admin_answers("/metricz").await, "a made-up path is found");
}

#[test]
fn grafana_asks_the_prometheus_of_compose_and_finds_the_dashboard() {
    let compose = compose();
    let source = &yaml("deploy/grafana/provisioning/datasources/prometheus.yml")["datasources"][0];
    let provider = &yaml("deploy/grafana/provisioning/dashboards/gateway.yml")["providers"][0];
    let grafana = &compose["services"]["grafana"];

    let url: http::Uri = source["url"].as_str().unwrap().parse().unwrap();
    let prometheus = &compose["services"][url.host().unwrap()];
    let published = strings(&prometheus["ports"]);
    assert!(
        published.iter().any(|port| port.ends_with(&format!(":{}", url.port().unwrap()))),
        "{url} in {published:?}"
    );
    let folder = mounted(grafana, provider["options"]["path"].as_str().unwrap()).unwrap();
    assert!(folder.join("gateway.json").is_file());
    let home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as_str().unwrap();
    assert!(mounted(grafana, home).unwrap().is_file(), "{home}");
    assert_eq!(mounted(grafana, "/etc/grafana/provisioning"), Some(root("./deploy/grafana/provisioning")));
}

/// Instructions of the Dockerfile with their arguments, continued lines joined.
fn dockerfile() -> Vec<(String, String)> {
    let joined = text("Dockerfile").replace("\\\n", " ");
    let lines = joined.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(' ')).map(|(word, rest)| (word.to_owned(), rest.to_owned())).collect()
}

fn of<'a>(lines: &'a [(String, String)], word: &str) -> Vec<&'a str> {
    lines.iter().filter(|(found, _)| found == word).map(|(_, rest)| rest.as_str()).collect()
}

#[test]
fn the_image_is_built_from_what_exists_with_the_toolchain_of_the_crate() {
    let lines = dockerfile();
    let manifest = text("Cargo.toml");

    let toolchain = of(&lines, "FROM")[0].split(['-', ' ']).next().unwrap().strip_prefix("rust:").unwrap();
    assert!(manifest.contains(&format!("rust-version = \"{toolchain}\"")), "rust {toolchain}");
    let ignored = text(".dockerignore");
    for copy in of(&lines, "COPY").into_iter().filter(|copy| !copy.starts_with("--from")) {
        let words: Vec<&str> = copy.split_whitespace().collect();
        for source in &words[..words.len() - 1] {
            assert!(root(source).exists(), "COPY {source}");
            let top = source.split('/').next().unwrap();
            assert!(ignored.lines().any(|line| line == format!("!{top}")), "{source} is sent to the builder");
        }
    }
    let build = of(&lines, "RUN")[0];
    assert!(build.contains("cargo build --release --locked --bin gateway"), "{build}");
    assert!(manifest.contains("[[bin]]\nname = \"gateway\""));
}

#[test]
fn the_image_runs_the_program_not_as_root_with_arguments_that_it_takes() {
    let lines = dockerfile();
    let last_from = lines.iter().rposition(|(word, _)| word == "FROM").unwrap();
    let runtime = &lines[last_from..];

    let installed = of(runtime, "COPY")[0].split_whitespace().last().unwrap();
    let entry: Vec<String> = serde_json::from_str(of(runtime, "ENTRYPOINT")[0]).unwrap();
    let command: Vec<String> = serde_json::from_str(of(runtime, "CMD")[0]).unwrap();
    assert_eq!(entry, [installed]);
    let command: Vec<&str> = command.iter().map(String::as_str).collect();
    assert!(matches!(parsed(&command), Ok(Command::Serve(_))), "{command:?}");
    let config = flag(&command, "--config").unwrap();
    let name = Path::new(config).file_name().unwrap().to_str().unwrap();
    assert!(
        of(runtime, "COPY").iter().any(|copy| copy.contains(&format!("config/{name}"))),
        "{config} is in the image"
    );
    assert!(!of(runtime, "USER")[0].starts_with('0') && !of(runtime, "USER")[0].starts_with("root"));
    let ports = [config::defaults::LISTEN.port(), config::defaults::ADMIN_LISTEN.port()].map(|port| port.to_string());
    assert_eq!(of(runtime, "EXPOSE"), [ports.join(" ")]);
}
