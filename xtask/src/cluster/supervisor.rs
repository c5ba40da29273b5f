//! The one process that stays after `up`: it keeps the services running until it gets SIGTERM.

use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use signal_hook::consts::{SIGINT, SIGTERM};

use super::cgroup::{self, Hierarchies};
use super::layout::Layout;
use super::process::Process;
use super::services::Service;

/// The supervisor's own name, for its log and pid file.
pub const NAME: &str = "supervisor";

const PAUSE: Duration = Duration::from_millis(100);
const FIRST_DELAY: Duration = Duration::from_millis(250);
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// A program that ran this long has proved itself: its next delay is the first again.
const PROVED: Duration = Duration::from_secs(20);
/// kube-apiserver drains slowly; nothing here needs that.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs the services until SIGTERM or SIGINT.
///
/// # Errors
/// When the list of services can't be read.
pub fn run(layout: &Layout) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    // Away from the terminal, whose end would be ours too.
    let _ = nix::unistd::setsid();
    let own = Process::of(nix::unistd::getpid().as_raw()).context("no /proc")?;
    fs::write(Hierarchies::detect()?.entrance(&cgroup::control_plane()), own.pid.to_string())?;
    let services: Vec<Service> = serde_json::from_slice(&fs::read(layout.services())?)?;
    own.note(&layout.pid_file(NAME))?;

    let mut kept: Vec<_> = services.into_iter().map(Kept::new).collect();
    while !stop.load(Ordering::Relaxed) {
        for service in &mut kept {
            if let Err(error) = service.tend(layout) {
                eprintln!("{}: {error:#}", service.service.name);
            }
        }
        sleep(PAUSE);
    }
    end_all(&mut kept, layout);
    let _ = fs::remove_file(layout.pid_file(NAME));
    Ok(())
}

struct Kept {
    service: Service,
    running: Option<(Child, Instant)>,
    delay: Duration,
    not_before: Instant,
}

impl Kept {
    fn new(service: Service) -> Self {
        Self { service, running: None, delay: FIRST_DELAY, not_before: Instant::now() }
    }

    /// Notices an end, and starts the program when it may run.
    fn tend(&mut self, layout: &Layout) -> Result<()> {
        if let Some((child, since)) = &mut self.running {
            let Some(status) = child.try_wait()? else { return Ok(()) };
            let lived = since.elapsed();
            self.running = None;
            let _ = fs::remove_file(layout.pid_file(&self.service.name));
            self.delay = next_delay(self.delay, lived);
            self.not_before = Instant::now() + self.delay;
            eprintln!(
                "{} ended after {} s ({status}); next start in {:?}",
                self.service.name,
                lived.as_secs(),
                self.delay
            );
        }
        if Instant::now() >= self.not_before && may_run(&self.service, layout) {
            self.not_before = Instant::now() + self.delay;
            self.running = Some((start(&self.service, layout)?, Instant::now()));
        }
        Ok(())
    }
}

fn next_delay(last: Duration, lived: Duration) -> Duration {
    if lived >= PROVED { FIRST_DELAY } else { (last * 2).min(LONGEST_DELAY) }
}

fn may_run(service: &Service, layout: &Layout) -> bool {
    service.gate.is_none_or(|gate| gate.file(layout).exists())
        && !service.unless.as_ref().is_some_and(|file| file.exists())
}

fn start(service: &Service, layout: &Layout) -> Result<Child> {
    let log = File::options().create(true).append(true).open(layout.log(&service.name))?;
    let line = service.command_line();
    let (program, arguments) = line.split_first().context("an empty command")?;
    let child = Command::new(program)
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .with_context(|| format!("can't start {program}"))?;
    // One that ended already is noticed at the next look.
    if let Some(process) = i32::try_from(child.id()).ok().and_then(Process::of) {
        process.note(&layout.pid_file(&service.name))?;
        eprintln!("{} started as process {}", service.name, process.pid);
    }
    Ok(child)
}

/// Asks all to end, the control plane last of all; then makes them.
fn end_all(kept: &mut [Kept], layout: &Layout) {
    let living = |kept: &[Kept]| -> Vec<Process> {
        kept.iter().filter_map(|kept| Process::in_file(&layout.pid_file(&kept.service.name))).collect()
    };
    living(kept).iter().rev().for_each(|process| process.signal(Signal::SIGTERM));
    let start = Instant::now();
    while !living(kept).is_empty() && start.elapsed() < PATIENCE {
        reap(kept);
        sleep(PAUSE);
    }
    living(kept).iter().for_each(|process| process.signal(Signal::SIGKILL));
    for service in kept {
        if let Some((child, _)) = &mut service.running {
            let _ = child.wait();
        }
        let _ = fs::remove_file(layout.pid_file(&service.service.name));
    }
}

fn reap(kept: &mut [Kept]) {
    for service in kept {
        if let Some((child, _)) = &mut service.running {
            let _ = child.try_wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::services::Gate;
    use super::*;

    #[test]
    fn the_delay_grows_to_a_bound_and_is_forgiven() {
        let short = Duration::from_secs(1);
        let mut delay = FIRST_DELAY;
        for _ in 0..10 {
            delay = next_delay(delay, short);
        }
        assert_eq!(delay, LONGEST_DELAY);
        assert_eq!(next_delay(delay, PROVED), FIRST_DELAY);
    }

    fn service(folder: &Path, command: &[&str]) -> Service {
        Service {
            name: "sample".into(),
            command: command.iter().map(ToString::to_string).collect(),
            entrance: folder.join("entrance"),
            namespace: None,
            gate: Some(Gate::Nodes),
            unless: Some(folder.join("off")),
        }
    }

    #[test]
    fn a_closed_gate_and_a_node_that_is_off_hold_a_service_back() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        fs::create_dir(layout.run()).unwrap();
        let service = service(folder.path(), &["true"]);
        assert!(!may_run(&service, &layout));
        fs::write(Gate::Nodes.file(&layout), "").unwrap();
        assert!(may_run(&service, &layout));
        fs::write(folder.path().join("off"), "").unwrap();
        assert!(!may_run(&service, &layout));
    }

    #[test]
    fn a_started_service_is_noted_and_ended() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path());
        fs::create_dir(layout.run()).unwrap();
        fs::create_dir(layout.logs()).unwrap();
        fs::write(Gate::Nodes.file(&layout), "").unwrap();
        let mut kept = [Kept::new(service(folder.path(), &["sleep", "600"]))];
        kept[0].tend(&layout).unwrap();
        let process = Process::in_file(&layout.pid_file("sample")).unwrap();
        end_all(&mut kept, &layout);
        assert!(!process.is_alive());
        assert!(!layout.pid_file("sample").exists());
    }
}
