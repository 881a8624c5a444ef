//! A descriptor that any thread, and librdkafka, may ring, and on which a relay sleeps.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// An eventfd. It stays open as long as anybody holds it.
#[derive(Debug, Clone)]
pub struct Ring(Arc<OwnedFd>);

impl Ring {
    /// A descriptor of its own, which is silent.
    ///
    /// # Errors
    /// When the process or the system has no room for another descriptor.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the descriptor that it returns is nobody else's.
        unsafe {
            let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
            if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(Self(Arc::new(OwnedFd::from_raw_fd(fd)))) }
        }
    }

    /// Rings; allowed on any thread.
    pub fn ring(&self) {
        let one = Self::RING;
        // SAFETY: writes bytes of ours. A full counter means that it is ringing already.
        let _ = unsafe { libc::write(self.fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes note of the ringing, if there is any.
    pub fn silence(&self) {
        let mut rung = [0; 8];
        // SAFETY: reads into bytes of ours; it does not block, and nothing to read is fine.
        let _ = unsafe { libc::read(self.fd(), rung.as_mut_ptr().cast(), rung.len()) };
    }

    /// The descriptor, to wait for it to become readable.
    #[must_use]
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// What is written to ring.
    pub(super) const RING: [u8; 8] = 1u64.to_ne_bytes();
}

impl AsFd for Ring {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ringing(ring: &Ring) -> bool {
        let mut poll = libc::pollfd { fd: ring.fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one struct of ours, and no waiting.
        unsafe { libc::poll(&mut poll, 1, 0) == 1 }
    }

    #[test]
    fn rings_until_it_is_silenced() {
        let ring = Ring::new().expect("a descriptor");
        assert!(!is_ringing(&ring));
        ring.ring();
        ring.clone().ring();
        assert!(is_ringing(&ring));
        ring.silence();
        assert!(!is_ringing(&ring));
        ring.silence();
    }
}
