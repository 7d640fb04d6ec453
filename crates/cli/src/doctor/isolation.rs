//! Checks that sandboxes isolate: starts one and tries what must be impossible inside.

use std::collections::BTreeMap;

use egress::{Mode, Rules};
use gateway::config::Engine;
use gateway::runtime::{CountingRecorder, SandboxHandle, SandboxRequest, Sandboxes, proxy_of};
use sandbox::local::{Enforcement, LimitsReport};
use sandbox::{SandboxError, SandboxId};
use sandboxd::protocol::{Exec, ExitReason};

use super::Finding;
use crate::context::Context;

const CHECK_NAME: &str = "isolation";
const TIMEOUT_MS: u64 = 10_000;

/// The probes: a description, and a script that exits with 0 inside a sandbox that isolates.
const PROBES: [(&str, &str); 10] = [
    ("an unprivileged user", "test \"$(id -u)\" = 1000"),
    ("no capabilities", "grep -q '^CapBnd:.0000000000000000$' /proc/self/status"),
    ("no new privileges", "grep -q '^NoNewPrivs:.1$' /proc/self/status"),
    ("a filter of system calls", "grep -q '^Seccomp:.2$' /proc/self/status"),
    ("no further namespaces", "! unshare -U true 2>/dev/null"),
    ("no network device", "test \"$(grep -c : /proc/net/dev)\" = 1"),
    ("no view of host files", "! ls /root /boot /sys 2>/dev/null"),
    ("no view of host processes", "test \"$(ls /proc | grep -c '^[0-9]')\" -lt 12"),
    ("a read-only system", "! touch /usr/x /etc/x /x 2>/dev/null"),
    ("a writable workspace", "touch /home/user/workspace/x"),
];

pub(super) async fn check(context: &Context) -> Vec<Finding> {
    match &context.config.sandboxes.engine {
        Engine::Local => {}
        Engine::Attach(_) => {
            return vec![Finding::good(CHECK_NAME, "agents run elsewhere: it is theirs to give")];
        }
        Engine::Process => {
            return vec![Finding::weak(
                CHECK_NAME,
                "none: SANDBOX_PROVIDER is process",
                "use SANDBOX_PROVIDER=local",
            )];
        }
    }
    // Use a temporary data dir: a check should leave nothing on the machine.
    let Ok(directory) = tempfile::tempdir() else {
        return vec![Finding::bad(CHECK_NAME, "no temporary directory", "make TMPDIR writable")];
    };
    let mut config = context.config.clone();
    config.data_dir = directory.path().to_owned();
    let sandboxes = match Sandboxes::open(&config, context.insecure, &context.rng) {
        Ok(sandboxes) => sandboxes,
        Err(error) => return vec![Finding::bad(CHECK_NAME, error.to_string(), "see docs/operations.md")],
    };
    let mut findings = vec![isolation(context, &sandboxes).await];
    findings.extend(sandboxes.limits_report().map(limits));
    findings
}

async fn isolation(context: &Context, sandboxes: &Sandboxes) -> Finding {
    let handle = match start(context, sandboxes).await {
        Ok(handle) => handle,
        Err(error) => return Finding::bad(CHECK_NAME, error.to_string(), remedy(&error)),
    };
    let mut open = Vec::new();
    for (name, script) in PROBES {
        if !holds(&handle, script).await {
            open.push(name);
        }
    }
    let ended = sandboxes.provider.terminate(&handle.id).await;
    match (open.as_slice(), ended) {
        ([], Ok(())) => {
            Finding::good(CHECK_NAME, format!("a sandbox was started; all {} probes hold", PROBES.len()))
        }
        ([], Err(error)) => Finding::bad(CHECK_NAME, error.to_string(), "see docs/operations.md"),
        (open, _) => Finding::bad(
            CHECK_NAME,
            format!("a sandbox lacks: {}", open.join(", ")),
            "run no agents here before this is understood: see docs/operations.md",
        ),
    }
}

async fn start(context: &Context, sandboxes: &Sandboxes) -> Result<SandboxHandle, SandboxError> {
    let proxy = proxy_of(Rules::new(Mode::Offline), CountingRecorder, &context.clock);
    let request = SandboxRequest {
        id: SandboxId::new("doctor")?,
        env: BTreeMap::new(),
        snapshot: None,
        proxy,
        gateway: None,
        programs: BTreeMap::new(),
    };
    sandboxes.start(request).await
}

async fn holds(handle: &SandboxHandle, script: &str) -> bool {
    let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
    let exec = Exec { argv, timeout_ms: Some(TIMEOUT_MS), ..Exec::default() };
    handle.inside.run(exec, "", 0).await.is_ok_and(|ran| ran.done.ended == ExitReason::Exit(0))
}

fn remedy(error: &SandboxError) -> &'static str {
    match error {
        SandboxError::BubblewrapMissing => "apt-get install bubblewrap",
        SandboxError::NamespacesForbidden => {
            "allow them: sysctl kernel.unprivileged_userns_clone=1 (and kernel.apparmor_restrict_unprivileged_userns=0)"
        }
        _ => "see docs/operations.md",
    }
}

fn limits(report: LimitsReport) -> Finding {
    const LIMITS_CHECK_NAME: &str = "limits";
    let all = [
        ("memory", report.memory),
        ("processes", report.pids),
        ("cpu", report.cpu),
        ("disk", report.disk),
        ("/tmp", report.tmp),
        ("open files", report.files),
    ];
    let of = |wanted: Enforcement| {
        let names: Vec<_> = all.iter().filter(|(_, held)| *held == wanted).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let kinds = [("hard", Enforcement::Hard), ("soft", Enforcement::Soft), ("none", Enforcement::None)];
    let kinds = kinds.map(|(word, strength)| (word, of(strength)));
    let present: Vec<_> = kinds.iter().filter(|(_, names)| !names.is_empty()).collect();
    let detail =
        present.iter().map(|(word, names)| format!("{word}: {names}")).collect::<Vec<_>>().join("; ");
    // Disk use is always measured, never limited by the kernel. Warn only about limits that the kernel could enforce
    // and does not.
    if report.memory == Enforcement::Hard && report.cpu == Enforcement::Hard {
        Finding::good(LIMITS_CHECK_NAME, detail)
    } else {
        Finding::weak(
            LIMITS_CHECK_NAME,
            detail,
            "run as root or in a delegated scope (systemd-run --user --scope -p Delegate=yes) for hard limits",
        )
    }
}
