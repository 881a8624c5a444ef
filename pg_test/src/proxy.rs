//! What lies between a client and a broker: a TCP proxy that may swallow everything, or answers only, or cut.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::broker::{Broker, Purpose, new_cluster_id, two_free_ports};
use crate::process::Lifetime;

/// What the proxy does with what it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Mode {
    Pass,
    /// Nothing arrives anywhere, and nobody is told: connections stay open.
    Swallow,
    /// Requests arrive, answers do not.
    SwallowAnswers,
}

/// A proxy on a port of its own on 127.0.0.1.
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    accepts: Option<JoinHandle<()>>,
}

struct Shared {
    broker: u16,
    mode: AtomicU8,
    ends: AtomicBool,
    /// Both ends of every connection that was made; those that are closed do no harm.
    streams: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// A proxy on `port` before the broker that listens on `broker`.
    pub fn start(port: u16, broker: u16) -> Result<Proxy> {
        let listener =
            TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("could not listen on port {port}"))?;
        let (mode, ends) = (AtomicU8::new(Mode::Pass as u8), AtomicBool::new(false));
        let shared = Arc::new(Shared { broker, mode, ends, streams: Mutex::default() });
        let accepts = thread::spawn({
            let shared = Arc::clone(&shared);
            move || shared.accept(&listener)
        });
        Ok(Proxy { port, shared, accepts: Some(accepts) })
    }

    /// What goes into `bootstrap.servers` of those who are to come through here.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Swallows everything in both directions; connections stay open, and new ones are taken.
    pub fn swallow(&self) {
        self.set(Mode::Swallow);
    }

    /// Lets requests through and swallows the answers.
    pub fn swallow_answers(&self) {
        self.set(Mode::SwallowAnswers);
    }

    /// Lets everything through again. A connection of which something was swallowed stays dead without a word, as behind a
    /// firewall that has forgotten it.
    pub fn pass(&self) {
        self.set(Mode::Pass);
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for stream in self.shared.streams().drain(..) {
            // One that is closed already is what is wanted.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn set(&self, mode: Mode) {
        self.shared.mode.store(mode as u8, Ordering::Release);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        // Wakes the thread that accepts; if that fails nobody waits there any more.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(accepts) = self.accepts.take() {
            let _ = accepts.join();
        }
        self.cut();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.ends.load(Ordering::Acquire) {
                return;
            }
            // A connection that can't be made is closed by its drop, as a broker that is away would have it.
            let _ = client.and_then(|client| self.join(client));
        }
    }

    /// Connects the client with the broker. While everything is swallowed the client is alone and does not notice.
    fn join(self: &Arc<Self>, client: TcpStream) -> std::io::Result<()> {
        client.set_nodelay(true)?;
        if self.mode() == Mode::Swallow as u8 {
            self.streams().push(client);
            return Ok(());
        }
        let broker = TcpStream::connect(("127.0.0.1", self.broker))?;
        broker.set_nodelay(true)?;
        self.streams().extend([client.try_clone()?, broker.try_clone()?]);
        let dead = Arc::new(AtomicBool::new(false));
        self.copy(client.try_clone()?, broker.try_clone()?, &[Mode::Pass, Mode::SwallowAnswers], &dead);
        self.copy(broker, client, &[Mode::Pass], &dead);
        Ok(())
    }

    /// Copies as long as the mode is one of these and nothing was swallowed.
    fn copy(
        self: &Arc<Self>,
        mut from: TcpStream,
        mut to: TcpStream,
        passing: &'static [Mode],
        dead: &Arc<AtomicBool>,
    ) {
        let (shared, dead) = (Arc::clone(self), Arc::clone(dead));
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            while let Ok(length) = from.read(&mut buffer)
                && length > 0
            {
                let mode = shared.mode();
                if !passing.iter().any(|passing| *passing as u8 == mode) {
                    dead.store(true, Ordering::Release);
                } else if (mode == Mode::SwallowAnswers as u8 || !dead.load(Ordering::Acquire))
                    && to.write_all(&buffer[..length]).is_err()
                {
                    break;
                }
            }
            // The other side learns of the end only where it would learn of anything.
            if !dead.load(Ordering::Acquire) {
                let _ = to.shutdown(Shutdown::Both);
            }
        });
    }

    fn mode(&self) -> u8 {
        self.mode.load(Ordering::Acquire)
    }

    fn streams(&self) -> MutexGuard<'_, Vec<TcpStream>> {
        // A list of streams is whole whoever panicked.
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Makes a broker in the new directory `directory` and starts it, with a second listener that clients reach through the proxy.
/// The broker's own address leads past it.
pub fn start_broker_behind_proxy(directory: &Path, lifetime: Lifetime) -> Result<(Broker, Proxy)> {
    let (ports, [behind, proxy]) = (two_free_ports()?, two_free_ports()?);
    let [port, controller] = ports;
    let further = format!(
        "\
listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{behind},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT
"
    );
    let broker = Broker::make_in(directory, Purpose::Test, lifetime, ports, &new_cluster_id(), &further, None)?;
    broker.start()?;
    Ok((broker, Proxy::start(proxy, behind)?))
}
