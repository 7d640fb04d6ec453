//! A terminal: the end that the program does not see.

use std::io;

use rustix::fd::OwnedFd;
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::net::unix::pipe;

use crate::protocol::Size;

/// What a terminal takes for the end of input.
pub(super) const END_OF_INPUT: &[u8] = b"\x04";

pub(super) struct Terminal(OwnedFd);

impl Terminal {
    /// The terminal, and the program's end of it.
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

    /// The kernel tells the program (`SIGWINCH`).
    pub(super) fn resize(&self, size: Size) -> io::Result<()> {
        let size = Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.0, size)?)
    }

    /// It is no pipe, but it is read like one; the safe way to wait for any other file does not exist.
    pub(super) fn output(&self) -> io::Result<pipe::Receiver> {
        pipe::Receiver::from_owned_fd_unchecked(self.0.try_clone()?)
    }

    pub(super) fn input(&self) -> io::Result<pipe::Sender> {
        pipe::Sender::from_owned_fd_unchecked(self.0.try_clone()?)
    }
}
