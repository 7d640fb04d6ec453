//! The master side of a pseudo-terminal.

use std::io;

use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::net::unix::pipe;

use crate::protocol::Size;

/// The character that a terminal takes for the end of input.
pub(super) const END_OF_INPUT: &[u8] = b"\x04";

pub(super) struct Terminal(OwnedFd);

impl Terminal {
    /// Opens a pseudo-terminal and returns its master and the program's end.
    pub(super) fn open(size: Size) -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let near = openpt(flags)?;
        grantpt(&near)?;
        unlockpt(&near)?;
        let far = ioctl_tiocgptpeer(&near, flags)?;
        rustix::io::ioctl_fionbio(&near, true)?;
        let terminal = Self(near);
        terminal.resize(size)?;
        Ok((terminal, far))
    }

    /// The kernel notifies the program with `SIGWINCH`.
    pub(super) fn resize(&self, size: Size) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.0, size)?)
    }

    /// A pty is not a pipe but is read like one; tokio has no safe way to poll other file descriptors.
    pub(super) fn output(&self) -> io::Result<pipe::Receiver> {
        pipe::Receiver::from_owned_fd_unchecked(self.0.try_clone()?)
    }

    pub(super) fn input(&self) -> io::Result<pipe::Sender> {
        pipe::Sender::from_owned_fd_unchecked(self.0.try_clone()?)
    }
}
