//! The worker: listens, takes those who prove the key, and serves their requests.
//!
//! Anybody inside can connect. So those who have not proved themselves are few, have little time, and the oldest of
//! them makes room for a new one; a proven channel is not touched by any of it. Beyond [`CHANNELS`] proven ones, the
//! newest replaces the oldest: its other end has most likely died without saying so.

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

use super::beneath::Roots;
use super::dispatch::{Inside, handle};
use super::launch::Launcher;
use super::services::Services;
use super::{Options, StartError};

const CHANNELS: usize = 16;
const UNPROVEN: usize = 64;
const LIMITS: Limits =
    Limits { streams: 256, handshake: Duration::from_secs(3), idle: Duration::from_secs(30) };

/// Runs as the worker until it is told to stop.
pub(super) fn worker(key: [u8; 32], options: &Options) -> Result<u8, StartError> {
    // Where PID 1 is not really that, the kernel does not end us with it.
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
        let inside = Arc::clone(&worker.inside);
        tokio::select! {
            () = worker.run() => {}
            _ = asked.recv() => inside.services.stop_all().await,
        }
        Ok(0)
    })
}

/// The inside, listening.
pub struct Worker {
    listener: TcpListener,
    key: Key,
    inside: Arc<Inside>,
}

impl Worker {
    /// Binds first: nobody else can have the port then, since nothing else runs yet.
    pub async fn bind(options: &Options, key: Key, clock: Clock, rng: Rng) -> io::Result<Self> {
        shield_programs()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port)).await?;
        let port = listener.local_addr()?.port();
        let roots = Arc::new(Roots::open(&options.home, &options.workspace)?);
        let launcher = Arc::new(Launcher::new(roots, options, rng.clone()));
        let services = Services::new(Arc::clone(&launcher), options.logs.clone(), clock.clone());
        let env_store = options.env_store.clone();
        let inside = Arc::new(Inside { launcher, services, env_store, clock, rng, port });
        Ok(Self { listener, key, inside })
    }

    pub fn port(&self) -> u16 {
        self.inside.port
    }

    /// Serves for ever.
    pub async fn run(self) {
        let Self { listener, key, inside } = self;
        let (proven, mut arrivals) = mpsc::channel(UNPROVEN);
        let mut unproven: VecDeque<AbortHandle> = VecDeque::new();
        let mut channels: VecDeque<AbortHandle> = VecDeque::new();
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    let Ok((socket, _)) = accepted else {
                        // Out of handles, most likely: those who hold them need time to let go.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    };
                    make_room(&mut unproven, UNPROVEN);
                    let (key, rng, proven) = (key.clone(), inside.rng.clone(), proven.clone());
                    unproven.push_back(tasks.spawn(async move {
                        let _ = socket.set_nodelay(true);
                        if let Ok(shaken) = channel::accept(socket, &key, LIMITS, &rng).await {
                            let _ = proven.send(shaken).await;
                        }
                    }));
                }
                Some((incoming, driver)) = arrivals.recv() => {
                    make_room(&mut channels, CHANNELS);
                    channels.push_back(tasks.spawn(serve(Arc::clone(&inside), incoming, driver)));
                }
                Some(_) = tasks.join_next() => {}
            }
        }
    }
}

fn make_room(tasks: &mut VecDeque<AbortHandle>, most: usize) {
    tasks.retain(|task| !task.is_finished());
    while tasks.len() >= most {
        tasks.pop_front().inspect(AbortHandle::abort);
    }
}

/// One channel. Its requests outlive it only as long as they need to notice.
async fn serve(inside: Arc<Inside>, mut incoming: channel::Incoming, driver: channel::Driver<TcpStream>) {
    let taking = async {
        while let Some((request, stream)) = incoming.next().await {
            tokio::spawn(handle(Arc::clone(&inside), request, stream));
        }
    };
    let _ = tokio::join!(driver.run(), taking);
}

/// Programs inherit what their starter ignores, and a gateway may have been started by `nohup`: then Ctrl-C would stop
/// nothing in any terminal. What has a handler is not inherited, so these have one, which does nothing.
fn shield_programs() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    for kind in [SignalKind::interrupt(), SignalKind::quit(), SignalKind::hangup()] {
        drop(signal(kind)?);
    }
    Ok(())
}
