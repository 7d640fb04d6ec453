//! The worker: listens, accepts peers that prove the key, and serves their requests.
//!
//! Every process in the sandbox can connect. Unauthenticated connections are therefore few and short-lived, and a new one
//! replaces the oldest; authenticated channels are not affected. Beyond [`MAX_CHANNELS`] authenticated channels, the
//! newest replaces the oldest, whose peer has most likely died without closing it.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use channel::{Key, Limits};
use clock::{Clock, Rng};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use super::dispatch::{Server, handle};
use super::launch::Launcher;
use super::roots::Roots;
use super::services::Services;
use super::{Options, StartError};

const MAX_CHANNELS: usize = 16;
const MAX_UNAUTHENTICATED: usize = 64;
const LIMITS: Limits =
    Limits { streams: 256, handshake: Duration::from_secs(3), idle: Duration::from_secs(30) };

/// Runs the worker until it receives SIGTERM.
pub(super) fn worker(key: [u8; 32], options: &Options) -> Result<u8, StartError> {
    // Where PID 1 is not a real init, the kernel does not kill the worker with it.
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|error| StartError::Step("tying the worker to its parent", error.into()))?;
    let failed = |error| StartError::Step("starting", error);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .thread_stack_size(512 * 1024)
        .enable_all()
        .build()
        .map_err(failed)?;
    runtime.block_on(async {
        let worker =
            Worker::bind(options, Key::new(key), Clock::system(), Rng::system()).await.map_err(failed)?;
        let mut asked =
            tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(failed)?;
        let server = Arc::clone(&worker.server);
        tokio::select! {
            () = worker.run() => {}
            _ = asked.recv() => server.services.stop_all().await,
        }
        Ok(0)
    })
}

/// The listening server.
pub struct Worker {
    listener: TcpListener,
    key: Key,
    server: Arc<Server>,
}

impl Worker {
    /// Binds before anything else runs, so that no other process can take the port.
    pub async fn bind(options: &Options, key: Key, clock: Clock, rng: Rng) -> io::Result<Self> {
        reset_ignored_signals()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let port = listener.local_addr()?.port();
        let roots = Arc::new(Roots::open(&options.home, &options.workspace)?);
        let launcher = Arc::new(Launcher::new(roots, options, rng.clone()));
        let services = Services::new(Arc::clone(&launcher), options.logs.clone(), clock.clone());
        let env_store = options.env_store.clone();
        let server = Arc::new(Server { launcher, services, env_store, clock, rng, port });
        Ok(Self { listener, key, server })
    }

    pub fn port(&self) -> u16 {
        self.server.port
    }

    /// Serves for ever.
    pub async fn run(self) {
        let Self { listener, key, server } = self;
        let (authenticated, mut arrivals) = mpsc::channel(MAX_UNAUTHENTICATED);
        let mut unauthenticated: VecDeque<AbortHandle> = VecDeque::new();
        let mut channels: VecDeque<AbortHandle> = VecDeque::new();
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((socket, _)) = accepted else {
                        // Most likely out of file descriptors: wait for some to be closed.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    };
                    evict_oldest(&mut unauthenticated, MAX_UNAUTHENTICATED);
                    let (key, rng, authenticated) = (key.clone(), server.rng.clone(), authenticated.clone());
                    unauthenticated.push_back(tasks.spawn(async move {
                        let _ = socket.set_nodelay(true);
                        if let Ok(accepted_channel) = channel::accept(socket, &key, LIMITS, &rng).await {
                            let _ = authenticated.send(accepted_channel).await;
                        }
                    }));
                }
                Some((incoming, driver)) = arrivals.recv() => {
                    evict_oldest(&mut channels, MAX_CHANNELS);
                    channels.push_back(tasks.spawn(serve(Arc::clone(&server), incoming, driver)));
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }
}

fn evict_oldest(tasks: &mut VecDeque<AbortHandle>, most: usize) {
    tasks.retain(|task| !task.is_finished());
    while tasks.len() >= most {
        tasks.pop_front().inspect(AbortHandle::abort);
    }
}

/// Serves one channel. Its requests notice when it ends, and then end too.
async fn serve(server: Arc<Server>, mut incoming: channel::Incoming, driver: channel::Driver<TcpStream>) {
    let taking = async {
        while let Some((request, stream)) = incoming.next().await {
            tokio::spawn(handle(Arc::clone(&server), request, stream));
        }
    };
    let _ = tokio::join!(driver.run(), taking);
}

/// Programs inherit ignored signals, and the gateway may have been started by `nohup`: then Ctrl-C would have no
/// effect in any terminal. Handlers are reset on exec, so we install handlers that do nothing.
fn reset_ignored_signals() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup()] {
        drop(signal(kind)?);
    }
    Ok(())
}
