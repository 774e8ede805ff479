//! The child process: ports, logs, end.

use std::{
    fs::File,
    io::ErrorKind,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::net::TcpStream;

use super::{super::until, config::Config};

/// Lines of each log that a failed test prints.
const TAIL: usize = 40;

static STARTED: AtomicU32 = AtomicU32::new(0);

/// A running gateway process, killed when dropped.
pub(super) struct Process {
    child: Child,
    folder: PathBuf,
    pub(super) data: SocketAddr,
    pub(super) admin: SocketAddr,
}

impl Process {
    /// Starts the binary on free ports, or on these.
    pub(super) fn start(config: &Config, ports: Option<(SocketAddr, SocketAddr)>) -> Self {
        let (data, admin) = ports.unwrap_or_else(free_ports);
        let name = format!("gateway-{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed));
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let log = |name: &str| Stdio::from(File::create(folder.join(name)).unwrap());
        let child = Command::new(binary())
            .args(config.arguments(data, admin, &folder.join("gateway.yaml")))
            .envs(config.environment().iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log("access.log"))
            .stderr(log("program.log"))
            .spawn()
            .unwrap();
        Self { child, folder, data, admin }
    }

    /// Whether it accepts connections on both ports within the limit; false at once when it has ended.
    pub(super) async fn listens(&mut self, limit: Duration) -> bool {
        let mut ended = false;
        let (data, admin) = (self.data, self.admin);
        let listening = until(limit, async || {
            ended = !self.is_alive();
            ended || TcpStream::connect(data).await.is_ok() && TcpStream::connect(admin).await.is_ok()
        });
        listening.await && !ended
    }

    pub(super) fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(super) fn kill(&mut self) {
        match self.child.kill() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::InvalidInput => {}
            Err(error) => panic!("the gateway cannot be killed: {error}"),
        }
        self.child.wait().unwrap();
    }

    /// The configuration file.
    pub(super) fn config(&self) -> PathBuf {
        self.folder.join("gateway.yaml")
    }

    /// Sends a signal by its number.
    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Resident memory in bytes.
    pub(super) fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or_default() * 1024
    }

    pub(super) fn access_log(&self) -> String {
        self.read("access.log")
    }

    pub(super) fn program_log(&self) -> String {
        self.read("program.log")
    }

    fn read(&self, log: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.join(log)).unwrap_or_default()).into_owned()
    }

    fn print_tail(&self, log: &str) {
        let text = self.read(log);
        let lines: Vec<&str> = text.lines().collect();
        println!("--- {log} of the gateway, last of {} lines", lines.len());
        println!("{}", lines[lines.len().saturating_sub(TAIL)..].join("\n"));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            self.print_tail("access.log");
            self.print_tail("program.log");
        }
        if let Err(error) = std::fs::remove_dir_all(&self.folder) {
            println!("{} stays: {error}", self.folder.display());
        }
    }
}

/// The binary under test: `GATEWAY_BIN` where it is set, so that another build can be judged.
fn binary() -> PathBuf {
    std::env::var_os("GATEWAY_BIN").map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_gateway")), PathBuf::from)
}

/// Two ports that were free a moment ago; both are held until both are known.
fn free_ports() -> (SocketAddr, SocketAddr) {
    let held = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    (held[0].local_addr().unwrap(), held[1].local_addr().unwrap())
}
