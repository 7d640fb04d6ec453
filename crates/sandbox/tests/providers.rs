//! Every provider runs the same checks.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::print_stdout, reason = "what was not tried has to be said")]

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
    let folder = tempfile::tempdir().unwrap();
    let helper = env!("CARGO_BIN_EXE_sandbox-helper").into();
    let mut config = LocalConfig::new(folder.path().join("data"), helper);
    config.uids = 280_000..=280_009;
    conforms(&LocalProvider::open(config).unwrap(), 4000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn process() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    conforms(&ProcessProvider::new(folder.path().join("data"), Insecure).unwrap(), port).await;
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
