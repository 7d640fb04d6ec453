//! The only calls that the compiler cannot check: two about namespaces and one about
//! descriptors by number, for which no safe wrapper exists.
#![expect(unsafe_code, reason = "one ioctl, one unshare and descriptors by number, all unsafe in rustix")]

use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};
use rustix::thread::UnshareFlags;

/// `NS_GET_USERNS`: gives a new descriptor of the user namespace that owns a namespace.
struct OwningUserNamespace;

// SAFETY: the request takes no argument, writes no memory, and answers a new descriptor that nobody else owns.
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
        // SAFETY: a non-negative answer of this request is a fresh descriptor.
        Ok(unsafe { OwnedFd::from_raw_fd(out) })
    }
}

pub(crate) fn owning_user_namespace(namespace: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: see the implementation above; on a file that is no namespace the kernel answers ENOTTY.
    Ok(unsafe { rustix::ioctl::ioctl(namespace, OwningUserNamespace) }?)
}

/// Gives this process its own table of mounts. Call it with one thread only.
pub(crate) fn private_mount_table() -> io::Result<()> {
    // SAFETY: a new mount namespace shares no memory and no descriptors differently; with one thread, which is all
    // that the launcher has, no other thread is left behind in the old one.
    Ok(unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) }?)
}

/// Marks every descriptor above the standard ones to be closed when this process becomes another program. Whoever
/// started the gateway may have left descriptors open in it, and bubblewrap hands on all that it finds.
pub(crate) fn keep_inherited_descriptors_out() -> io::Result<()> {
    let names: Vec<_> =
        std::fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.file_name()).collect();
    for number in names.iter().filter_map(|name| name.to_str()?.parse::<i32>().ok()).filter(|n| *n > 2) {
        // SAFETY: the borrow ends with this call; a number that is closed by now, like that of the listing itself,
        // is answered with EBADF.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        match rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::CLOEXEC) {
            Ok(()) | Err(rustix::io::Errno::BADF) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
