//! The configuration of a gateway under test, as flags where that is enough, else as a file.

use std::{net::SocketAddr, path::Path};

use super::super::replica::ScriptedReplica;

/// What the gateway is told.
#[derive(Clone)]
pub(crate) struct Config {
    replicas: Vec<ScriptedReplica>,
    urls: Vec<String>,
    limits: Vec<String>,
    timeouts: Vec<String>,
    model: Vec<String>,
    top: Vec<String>,
    server: Vec<String>,
    env: Vec<(String, String)>,
}

impl Config {
    /// One model `m` on these replicas.
    pub(crate) fn new(replicas: &[ScriptedReplica]) -> Self {
        Self {
            replicas: replicas.to_vec(),
            urls: replicas.iter().map(ScriptedReplica::url).collect(),
            limits: Vec::new(),
            timeouts: Vec::new(),
            model: Vec::new(),
            top: Vec::new(),
            server: Vec::new(),
            env: Vec::new(),
        }
    }

    /// Every URL has this path.
    pub(crate) fn base_path(mut self, path: &str) -> Self {
        for url in &mut self.urls {
            url.push_str(path);
        }
        self
    }

    /// One more entry of `server.limits`.
    pub(crate) fn limit(mut self, entry: &str) -> Self {
        self.limits.push(entry.to_owned());
        self
    }

    /// One more entry of `server.timeouts`.
    pub(crate) fn timeout(mut self, entry: &str) -> Self {
        self.timeouts.push(entry.to_owned());
        self
    }

    /// One more line of the server section.
    pub(crate) fn server(mut self, line: &str) -> Self {
        self.server.push(line.to_owned());
        self
    }

    /// One more line of the model.
    pub(crate) fn model(mut self, line: &str) -> Self {
        self.model.push(line.to_owned());
        self
    }

    /// One more line at the top level, after the models.
    pub(crate) fn top(mut self, line: &str) -> Self {
        self.top.push(line.to_owned());
        self
    }

    /// One more environment variable.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// How many of its replicas listen now.
    pub(super) fn listening(&self) -> f64 {
        self.replicas.iter().map(|replica| f64::from(u8::from(replica.is_listening()))).sum()
    }

    pub(super) fn environment(&self) -> &[(String, String)] {
        &self.env
    }

    fn is_plain(&self) -> bool {
        self.limits.is_empty()
            && self.timeouts.is_empty()
            && self.model.is_empty()
            && self.top.is_empty()
            && self.server.is_empty()
    }

    /// Arguments after `gateway`; the file is written where they need one.
    pub(super) fn arguments(&self, data: SocketAddr, admin: SocketAddr, file: &Path) -> Vec<String> {
        if !self.is_plain() {
            std::fs::write(file, self.yaml(data, admin)).unwrap();
            return vec!["serve".to_owned(), "--config".to_owned(), file.display().to_string()];
        }
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(["--listen".to_owned(), data.to_string(), "--admin-listen".to_owned(), admin.to_string()]);
        arguments.extend(self.urls.iter().flat_map(|url| ["--replica".to_owned(), url.clone()]));
        arguments
    }

    fn yaml(&self, data: SocketAddr, admin: SocketAddr) -> String {
        let mut yaml = format!("server:\n  listen: {data}\n  admin_listen: {admin}\n");
        for (section, entries) in [("limits", &self.limits), ("timeouts", &self.timeouts)] {
            if !entries.is_empty() {
                yaml.push_str(&format!("  {section}: {{ {} }}\n", entries.join(", ")));
            }
        }
        for line in &self.server {
            yaml.push_str(&format!("  {line}\n"));
        }
        let urls: Vec<String> = self.urls.iter().map(|url| format!("{{ url: \"{url}\" }}")).collect();
        yaml.push_str(&format!("models:\n  - name: m\n    replicas: [ {} ]\n", urls.join(", ")));
        for line in &self.model {
            yaml.push_str(&format!("    {line}\n"));
        }
        for line in &self.top {
            yaml.push_str(&format!("{line}\n"));
        }
        yaml
    }
}
