//! The global allocator, and a function that returns its unused memory to the system.
#![expect(unsafe_code, reason = "the allocator's own calls have no safe wrapper")]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns unused pages to the operating system. The allocator does so by itself only during later allocations, and an
/// idle gateway makes none.
pub(crate) fn give_back() {
    // SAFETY: `mi_collect` may be called on any thread at any time, and does not touch memory that is in use.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
