//! Runs the conformance checks on every provider.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]
#![expect(clippy::print_stdout, reason = "skipped checks must be reported")]

use std::sync::Arc;

use sandbox::attach::{AttachProvider, PlainHttp};
use sandbox::conformance::{Subject, run};
use sandbox::local::{LocalConfig, LocalProvider};
use sandbox::process::{Insecure, ProcessProvider};
use sandbox::{Provider, SandboxId, Spec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

fn echo(port: u16) -> impl Fn(&str) -> Spec + Send + Sync {
    let program = format!(
        "use IO::Socket::INET; $SIG{{CHLD}} = 'IGNORE'; \
         my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1:{port}', Listen => 64, ReuseAddr => 1) or die; \
         while (1) {{ my $c = $s->accept or next; if (!fork) {{ local $/; my $x = <$c>; print $c $x; exit }} close $c }}"
    );
    move |name| {
        Spec::new(SandboxId::new(name).unwrap(), vec!["/usr/bin/perl".into(), "-e".into(), program.clone()])
    }
}

async fn conforms(provider: &dyn Provider, port: u16) {
    let echo = echo(port);
    let held = run(&Subject { provider, echo: &echo, port }).await.unwrap();
    println!("{} checks held: {held:?}", held.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn local() {
    let directory = tempfile::tempdir().unwrap();
    let helper = env!("CARGO_BIN_EXE_sandbox-helper").into();
    let mut config = LocalConfig::new(directory.path().join("data"), helper);
    config.uids = 280_000..=280_009;
    conforms(&LocalProvider::open(config).unwrap(), 4000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process() {
    let directory = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    conforms(&ProcessProvider::new(directory.path().join("data"), Insecure).unwrap(), port).await;
}

/// Starts one child in its own session and one orphan, and writes their pids to files.
const FAMILY: &str = r"
    use POSIX;
    $SIG{CHLD} = 'IGNORE';
    if (!fork) { POSIX::setsid(); open F, '>', '../group.pid'; print F $$; close F; sleep 600; exit }
    if (!fork) {
        if (!fork) { POSIX::setsid(); open F, '>', '../orphan.pid'; print F $$; close F; sleep 600 }
        exit
    }
    sleep 600;
";

#[tokio::test(flavor = "multi_thread")]
async fn stopping_a_process_kills_its_detached_children() {
    let directory = tempfile::tempdir().unwrap();
    let provider = ProcessProvider::new(directory.path().join("data"), Insecure).unwrap();
    let spec = Spec::new(
        SandboxId::new("family").unwrap(),
        vec!["/usr/bin/perl".into(), "-e".into(), FAMILY.into()],
    );
    for kept in [true, false] {
        provider.ensure(&spec).await.unwrap();
        let home = directory.path().join("data/family");
        let mut pids = Vec::new();
        for name in ["group.pid", "orphan.pid"] {
            let written = async {
                while !std::fs::read_to_string(home.join(name)).is_ok_and(|text| !text.is_empty()) {
                    tokio::time::sleep(std::time::Duration::from_millis(10)).await;
                }
            };
            let deadline = std::time::Duration::from_mins(1);
            assert!(tokio::time::timeout(deadline, written).await.is_ok(), "waited in vain for {name}");
            pids.push(std::fs::read_to_string(home.join(name)).unwrap());
            std::fs::remove_file(home.join(name)).unwrap();
        }
        if kept { provider.halt(&spec.id).await } else { provider.terminate(&spec.id).await }.unwrap();
        assert_eq!(home.exists(), kept);
        for pid in pids {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
            assert!(
                stat.as_ref().map_or(true, |stat| stat.contains(") Z ")),
                "the process still runs: {stat:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn attach() {
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut text = Vec::new();
                let _ = stream.read_to_end(&mut text).await;
                let _ = stream.write_all(&text).await;
            });
        }
    });
    let url = format!("http://127.0.0.1:{port}/s/{{sessionId}}");
    conforms(&AttachProvider::new(&url, PlainHttp::LoopbackOnly).unwrap(), 1).await;
}
