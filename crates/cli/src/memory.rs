//! The allocator, and what only the start has needed.
#![expect(unsafe_code, reason = "the allocator's own calls have no safe wrapper")]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives pages that hold nothing back to the system. The allocator does it by itself only while it is asked for more, and
/// nobody asks an idle gateway.
pub(crate) fn give_back() {
    // SAFETY: it may be called on any thread at any time, and touches nothing that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
