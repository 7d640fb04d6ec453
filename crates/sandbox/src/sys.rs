//! The only unsafe calls: two about namespaces and one about raw descriptor numbers, for which no safe wrapper
//! exists.
#![expect(unsafe_code, reason = "one ioctl, one unshare and descriptors by number, all unsafe in rustix")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::thread::UnshareFlags;

/// `NS_GET_USERNS`: returns a new descriptor of the user namespace that owns a namespace.
struct OwningUserNamespace;

// SAFETY: the request takes no argument, writes no memory, and returns a new descriptor that nobody else owns.
unsafe impl Ioctl for OwningUserNamespace {
    type Output = OwnedFd;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        rustix::ioctl::opcode::none(0xb7, 1)
    }

    fn as_ptr(&mut self) -> *mut rustix::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(
        out: IoctlOutput,
        _: *mut rustix::ffi::c_void,
    ) -> rustix::io::Result<Self::Output> {
        // SAFETY: a non-negative result of this request is a fresh descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

pub(crate) fn owning_user_namespace(namespace: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: see the implementation above; the kernel returns ENOTTY for a file that is not a namespace.
    Ok(unsafe { rustix::ioctl::ioctl(namespace, OwningUserNamespace) }?)
}

/// Moves this process into its own mount namespace. The process must have only one thread.
pub(crate) fn unshare_mount_namespace() -> io::Result<()> {
    // SAFETY: a new mount namespace does not change how memory or descriptors are shared; the launcher has one
    // thread, so no other thread stays behind in the old namespace.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Sets close-on-exec on all descriptors above stderr. Whoever started the gateway may have left descriptors open
/// in it, and bubblewrap passes on everything that it inherits.
pub(crate) fn close_inherited_descriptors_on_exec() -> io::Result<()> {
    let names: Vec<_> =
        std::fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.file_name()).collect();
    for number in names.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok()).filter(|n| *n > 2) {
        // SAFETY: the borrow ends with this call; for a number that is closed by now, like that of the listing
        // itself, the kernel returns EBADF.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        match rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC) {
            Ok(()) | Err(rustix::io::Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
