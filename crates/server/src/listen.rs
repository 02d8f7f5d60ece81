//! Listening, connections, and the way down: drain, then cut, then end.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::Version;
use futures_util::future::select_all;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tower::Service;

use crate::config::{ServeError, ServerConfig};
use crate::guests::{Guest, Guests};
use crate::kv_events::{self, Sockets};
use crate::routes::router;
use crate::shared::{Phase, Shared, reached};
use crate::socket::{Peer, StallGuard};
use crate::state;
use crate::stock::Stock;
use crate::tls::Tls;

/// For connections to write their last words once the server stops.
const LAST_WORDS: Duration = Duration::from_secs(2);
/// Pause after a failed accept, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running server, for who changes its settings.
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
    tls: Option<Arc<Tls>>,
}

impl Control {
    /// Takes over who may come in (keys, their limits, hosts, origins, strictness, the access log)
    /// from another set-up; the rest of that is not looked at. Requests in progress go on.
    ///
    /// # Errors
    /// What of the set-up makes no sense; then all stays as it is.
    pub fn change_gate(&self, config: &ServerConfig) -> Result<(), ServeError> {
        self.shared.change_gate(config)
    }

    /// Reads the certificate and its key again, from the files that this set-up names: connections
    /// that come from now on get them. A server that speaks no TLS goes on so.
    ///
    /// # Errors
    /// Which file cannot be used, and why; then all stays as it is.
    pub fn read_tls_again(&self, config: &ServerConfig) -> Result<(), ServeError> {
        match (&self.tls, &config.tls) {
            (Some(tls), Some(files)) => tls.read_again(files),
            _ => Ok(()),
        }
    }

    /// Opens the file of the audit log again, so that it can be moved away before.
    ///
    /// # Errors
    /// Why it cannot be; then lines go where they went.
    pub fn reopen_audit(&self) -> Result<(), ServeError> {
        self.shared.audit.as_ref().map_or(Ok(()), |audit| audit.reopen())
    }
}

/// Serves until SIGTERM or SIGINT, then drains; a second signal ends the draining. `listening` is
/// called with the address once requests are answered. With a loader, all models are gone in the
/// end.
///
/// # Errors
/// [`ServeError`] when it cannot start.
pub fn serve(
    config: ServerConfig,
    stock: impl Into<Stock>,
    listening: impl FnOnce(SocketAddr, Control),
) -> Result<(), ServeError> {
    let shared = Arc::new(Shared::new(config, stock.into())?);
    let tls = shared.config.tls.as_ref().map(Tls::new).transpose()?;
    let (listeners, address) = bind(&shared.config)?;
    let sockets = shared.config.kv_events.as_ref().map(Sockets::bind).transpose()?;
    let runtime = runtime()?;
    let done = runtime.block_on(async {
        let mut signals = signals::Signals::new().map_err(ServeError::Start)?;
        listening(address, Control { shared: Arc::clone(&shared), tls: tls.clone() });
        let watch = async {
            signals.next().await;
            shared.advance(Phase::Draining);
            signals.next().await;
            shared.advance(Phase::Stopping);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            done = run(listeners, Arc::clone(&shared), tls) => done,
            () = tell_cache(sockets, &shared) => Ok(()), // (it never ends)
            () = watch => Ok(()),
        }
    });
    runtime.shutdown_timeout(LAST_WORDS);
    end(&shared);
    done
}

/// Tells what is in the prompt cache, if anybody is told; never ends.
async fn tell_cache(sockets: Option<Sockets>, shared: &Shared) {
    if let (Some(sockets), Some(source)) = (sockets, &shared.cache) {
        let told = kv_events::publish(sockets, source, Arc::clone(&shared.residents)).await;
        told.unwrap_or_else(|error| tracing::error!(%error, "the prompt cache is told no more"));
    }
    std::future::pending::<()>().await;
}

/// What is left to do when nobody is answered any more.
fn end(shared: &Shared) {
    shared.residents.close();
    shared.audit.iter().for_each(|audit| audit.flush());
}

/// Serves in the background, without signals.
///
/// # Errors
/// [`ServeError`] when it cannot start.
pub fn spawn(config: ServerConfig, stock: impl Into<Stock>) -> Result<Running, ServeError> {
    let shared = Arc::new(Shared::new(config, stock.into())?);
    let tls = shared.config.tls.as_ref().map(Tls::new).transpose()?;
    let (listeners, address) = bind(&shared.config)?;
    let sockets = shared.config.kv_events.as_ref().map(Sockets::bind).transpose()?;
    let runtime = runtime()?;
    let (state, kept) = (Arc::clone(&shared), tls.clone());
    let body = move || {
        let done = runtime.block_on(async {
            tokio::select! {
                done = run(listeners, Arc::clone(&state), tls) => done,
                () = tell_cache(sockets, &state) => Ok(()), // (it never ends)
            }
        });
        runtime.shutdown_timeout(LAST_WORDS);
        end(&state);
        done
    };
    let thread = std::thread::Builder::new().name("server".into()).spawn(body);
    let thread = Some(thread.map_err(ServeError::Start)?);
    Ok(Running { address, shared, tls: kept, thread })
}

/// A server in the background; dropping it stops it at once.
pub struct Running {
    address: SocketAddr,
    shared: Arc<Shared>,
    tls: Option<Arc<Tls>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Running {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// For who changes its settings.
    pub fn control(&self) -> Control {
        Control { shared: Arc::clone(&self.shared), tls: self.tls.clone() }
    }

    /// Begins to drain, as the first signal does.
    pub fn drain(&self) {
        self.shared.advance(Phase::Draining);
    }

    /// Cuts what is in progress, as the second signal does.
    pub fn stop(&self) {
        self.shared.advance(Phase::Stopping);
    }

    /// Waits until it has ended; only after [`drain`](Running::drain) or [`stop`](Running::stop).
    ///
    /// # Errors
    /// What [`serve`] would give.
    pub fn wait(mut self) -> Result<(), ServeError> {
        self.join()
    }

    fn join(&mut self) -> Result<(), ServeError> {
        let panicked = |_| Err(ServeError::Start(std::io::Error::other("the server panicked")));
        self.thread.take().map_or(Ok(()), |thread| thread.join().unwrap_or_else(panicked))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
        if let Err(error) = self.join() {
            tracing::error!(%error, "the server did not end well");
        }
    }
}

/// Listens on all ports; the first one's address.
fn bind(config: &ServerConfig) -> Result<(Vec<StdListener>, SocketAddr), ServeError> {
    let also = config.also.iter().map(|port| SocketAddr::new(config.bind.ip(), *port));
    let listen = |bind: SocketAddr| {
        let listener = StdListener::bind(bind).and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        listener.map_err(|source| ServeError::Bind { bind, source })
    };
    let first = listen(config.bind)?;
    let address = first.local_addr().map_err(ServeError::Start)?;
    // (A port that is named twice is listened on once.)
    let also = also.filter(|bind| *bind != address).map(listen);
    let listeners = std::iter::once(Ok(first)).chain(also).collect::<Result<_, _>>()?;
    Ok((listeners, address))
}

fn runtime() -> Result<Runtime, ServeError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("http")
        .enable_all()
        .build()
        .map_err(ServeError::Start)
}

/// Answers connections until the server has drained or is stopped.
async fn run(
    listeners: Vec<StdListener>,
    shared: Arc<Shared>,
    tls: Option<Arc<Tls>>,
) -> Result<(), ServeError> {
    let listeners: Result<Vec<TcpListener>, _> =
        listeners.into_iter().map(TcpListener::from_std).collect();
    let listeners = listeners.map_err(ServeError::Start)?;
    let router = router(Arc::clone(&shared));
    let mut connections = JoinSet::new();
    let mut ended = pin!(wound_down(&shared));
    let mut time = pin!(shared.residents.keep_time());
    let batches = tokio::spawn(state::work(Arc::clone(&shared)));
    loop {
        tokio::select! {
            (stream, guest) = accept(&listeners, &shared.guests) => {
                let (shared, router, tls) = (Arc::clone(&shared), router.clone(), tls.clone());
                connections.spawn(async move { greet(stream, tls, guest, router, &shared).await });
            }
            Some(_) = connections.join_next(), if !connections.is_empty() => {}
            () = &mut time => {} // (it never ends)
            () = &mut ended => break,
        }
    }
    drop(listeners);
    batches.abort();
    let all = async { while connections.join_next().await.is_some() {} };
    if timeout(LAST_WORDS, all).await.is_err() {
        connections.shutdown().await;
    }
    Ok(())
}

/// Ends when draining has, at its timeout, or when the server is stopped.
async fn wound_down(shared: &Shared) {
    let mut phases = shared.phases();
    reached(&mut phases, Phase::Draining).await;
    let (begin, open) = (Instant::now(), shared.in_flight());
    let drain = shared.config.timeouts.drain;
    if open > 0 {
        let most = drain.as_secs_f64();
        tracing::info!("draining: {open} answers, at most {most} s; a second signal stops at once");
    }
    tokio::select! {
        () = reached(&mut phases, Phase::Stopping) => {
            tracing::warn!("stopped at once: {} answers are cut", shared.in_flight());
        }
        () = shared.admission.empty() => {
            let seconds = begin.elapsed().as_secs_f64();
            tracing::info!("drained: {open} answers ended in {seconds:.1} s");
        }
        () = tokio::time::sleep(drain) => {
            let left = shared.in_flight();
            tracing::warn!("draining took {} s: {left} answers are cut", drain.as_secs_f64());
        }
    }
    shared.advance(Phase::Stopping);
}

async fn accept(listeners: &[TcpListener], guests: &Arc<Guests>) -> (TcpStream, Arc<Guest>) {
    loop {
        guests.room().await;
        let any = select_all(listeners.iter().map(|listener| Box::pin(listener.accept())));
        match any.await.0 {
            Ok((stream, address)) => return (stream, guests.enter(address.ip())),
            Err(error) => {
                tracing::warn!(%error, "accept failed");
                guests.send_some_away(); // mostly for want of file descriptors
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A connection, once it speaks TLS where it should: as long as headers may take.
async fn greet(
    stream: TcpStream,
    tls: Option<Arc<Tls>>,
    guest: Arc<Guest>,
    router: Router,
    shared: &Shared,
) {
    let _ = stream.set_nodelay(true); // without it tokens come late, but they come
    let Some(tls) = tls else { return connection(stream, guest, router, shared).await };
    let greeted = tokio::select! {
        greeted = timeout(shared.config.timeouts.header, tls.acceptor().accept(stream)) => greeted,
        () = guest.sent_away() => return,
    };
    match greeted {
        Ok(Ok(stream)) => connection(stream, guest, router, shared).await,
        Ok(Err(error)) => tracing::debug!(%error, "a connection does not speak TLS"),
        Err(_) => tracing::debug!("a connection began no TLS in time"),
    }
}

async fn connection<S: Peer + Send + 'static>(
    stream: S,
    guest: Arc<Guest>,
    router: Router,
    shared: &Shared,
) {
    let (limits, timeouts) = (&shared.config.limits, &shared.config.timeouts);
    let io = TokioIo::new(StallGuard::new(stream, timeouts.write_stall, Arc::clone(&guest)));
    let sender = Arc::clone(&guest);
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        // At once: what comes after it is read before the answer begins.
        sender.asks(request.version() >= Version::HTTP_11);
        answer(router.clone(), Arc::clone(&sender), request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeouts.header)
        .max_headers(limits.headers)
        .max_header_size(limits.header_bytes)
        .serve_connection(io, service);
    let mut served = pin!(served);
    let mut phases = shared.phases();
    let result = tokio::select! {
        result = &mut served => result,
        () = reached(&mut phases, Phase::Stopping) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
        () = guest.sent_away() => {
            served.as_mut().graceful_shutdown();
            timeout(guest.parting(), served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Answers a request; while it is answered, nobody waits for its connection's next one.
async fn answer(
    mut router: Router,
    guest: Arc<Guest>,
    mut request: hyper::Request<Incoming>,
) -> Result<hyper::Response<Held>, Infallible> {
    if request.body().is_end_stream() {
        guest.is_whole();
        guest.is_read();
    }
    request.extensions_mut().insert(Arc::clone(&guest));
    let answer = Answering(guest);
    let response = Service::call(&mut router, request).await?;
    Ok(response.map(|body| Held { body, _answer: answer }))
}

/// A request on its way to its answer's end.
struct Answering(Arc<Guest>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.is_answered();
    }
}

/// A body that tells when it has been sent.
struct Held {
    body: Body,
    _answer: Answering,
}

impl HttpBody for Held {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// SIGTERM and SIGINT.
#[cfg(unix)]
mod signals {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    pub struct Signals {
        terminate: Signal,
        interrupt: Signal,
    }

    impl Signals {
        pub fn new() -> std::io::Result<Self> {
            let terminate = signal(SignalKind::terminate())?;
            Ok(Self { terminate, interrupt: signal(SignalKind::interrupt())? })
        }

        pub async fn next(&mut self) {
            tokio::select! {
                _ = self.terminate.recv() => {}
                _ = self.interrupt.recv() => {}
            }
        }
    }
}

/// Ctrl-C.
#[cfg(not(unix))]
mod signals {
    pub struct Signals;

    impl Signals {
        pub fn new() -> std::io::Result<Self> {
            Ok(Self)
        }

        pub async fn next(&mut self) {
            let _ = tokio::signal::ctrl_c().await; // cannot be heard: wait for the process's end
        }
    }
}
