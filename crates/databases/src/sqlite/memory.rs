//! A limit on the memory of a query. SQLite's own limits hold for the whole process, and the gateway's store uses the same
//! library, so the allocator that SQLite gets counts what the thread of a query takes.
#![expect(
    unsafe_code,
    reason = "SQLite takes its allocator, which is made of C functions, through a C function"
)]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use rusqlite::ffi;

use crate::Problem;

/// The limit of one query in MiB.
pub(super) const PER_QUERY_MIB: i64 = 64;
const PER_QUERY: i64 = PER_QUERY_MIB << 20;
/// The limit of all queries together.
const TOTAL: i64 = 256 << 20;

/// What all queries have taken.
static TAKEN: AtomicI64 = AtomicI64::new(0);

thread_local! {
    /// What the query of this thread may still take. `None` on all other threads, which have no limit.
    static LEFT: Cell<Option<i64>> = const { Cell::new(None) };
    /// Whether the last query of this thread was refused memory.
    static REFUSED: Cell<bool> = const { Cell::new(false) };
}

/// Whether the last query of this thread was refused memory.
pub(super) fn was_refused() -> bool {
    REFUSED.get()
}

/// Limits the memory of SQLite on this thread until it is dropped.
pub(super) struct Budget(PhantomData<*const ()>);

impl Budget {
    pub(super) fn new() -> Result<Self, Problem> {
        if DEFAULT.get().is_none() {
            return Err(Problem::File("the memory of SQLite cannot be limited, so it executes nothing"));
        }
        LEFT.set(Some(PER_QUERY));
        REFUSED.set(false);
        Ok(Self(PhantomData))
    }
}

impl Drop for Budget {
    fn drop(&mut self) {
        // What is not freed yet is in a cache that all connections share.
        TAKEN.fetch_sub(PER_QUERY - LEFT.take().unwrap_or(PER_QUERY), Ordering::Relaxed);
    }
}

/// Whether this thread may take so much more. To take less is always possible.
fn fits(bytes: i64) -> bool {
    let fits = |left| bytes <= left && TAKEN.load(Ordering::Relaxed) + bytes <= TOTAL;
    let fits = bytes <= 0 || LEFT.get().is_none_or(fits);
    if !fits {
        REFUSED.set(true);
    }
    fits
}

/// Counts what this thread has taken, or given back.
fn count(bytes: i64) {
    if let Some(left) = LEFT.get() {
        LEFT.set(Some(left - bytes));
        TAKEN.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The functions of SQLite's own allocator.
struct Allocator {
    malloc: unsafe extern "C" fn(c_int) -> *mut c_void,
    realloc: unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void,
    free: unsafe extern "C" fn(*mut c_void),
    size: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// Set once ours is installed, which calls it.
static DEFAULT: OnceLock<Allocator> = OnceLock::new();

/// Runs before `main`: SQLite accepts an allocator only before it is used for the first time, by whomever.
#[used]
#[unsafe(link_section = ".init_array")]
static INSTALL: extern "C" fn() = install;

extern "C" fn install() {
    let mut methods = ffi::sqlite3_mem_methods {
        xMalloc: None,
        xFree: None,
        xRealloc: None,
        xSize: None,
        xRoundup: None,
        xInit: None,
        xShutdown: None,
        pAppData: std::ptr::null_mut(),
    };
    // SAFETY: nothing else uses SQLite before `main`. The option takes a pointer to such a struct, and fills it.
    if unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, &raw mut methods) } != ffi::SQLITE_OK {
        return;
    }
    let (Some(malloc), Some(realloc)) = (methods.xMalloc, methods.xRealloc) else { return };
    let (Some(free), Some(size)) = (methods.xFree, methods.xSize) else { return };
    methods.xMalloc = Some(counting_malloc);
    methods.xRealloc = Some(counting_realloc);
    methods.xFree = Some(counting_free);
    // SAFETY: as above; SQLite copies the struct. Our functions behave like its own, because they call those.
    if unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw const methods) } == ffi::SQLITE_OK {
        DEFAULT.get_or_init(|| Allocator { malloc, realloc, free, size });
    }
}

unsafe extern "C" fn counting_malloc(bytes: c_int) -> *mut c_void {
    let Some(default) = DEFAULT.get().filter(|_| fits(bytes.into())) else { return std::ptr::null_mut() };
    // SAFETY: SQLite calls us as it would call its own function.
    let memory = unsafe { (default.malloc)(bytes) };
    if !memory.is_null() {
        // SAFETY: the allocator has just returned it.
        count(unsafe { (default.size)(memory) }.into());
    }
    memory
}

unsafe extern "C" fn counting_realloc(memory: *mut c_void, bytes: c_int) -> *mut c_void {
    let Some(default) = DEFAULT.get() else { return std::ptr::null_mut() };
    // SAFETY: SQLite passes what it got from us, and so from its own allocator, and never null.
    let before = i64::from(unsafe { (default.size)(memory) });
    if !fits(i64::from(bytes) - before) {
        return std::ptr::null_mut();
    }
    // SAFETY: as above.
    let moved = unsafe { (default.realloc)(memory, bytes) };
    if !moved.is_null() {
        // SAFETY: the allocator has just returned it.
        count(i64::from(unsafe { (default.size)(moved) }) - before);
    }
    moved
}

unsafe extern "C" fn counting_free(memory: *mut c_void) {
    let Some(default) = DEFAULT.get() else { return };
    // SAFETY: SQLite passes what it got from us, and so from its own allocator, and never null.
    count(-i64::from(unsafe { (default.size)(memory) }));
    // SAFETY: as above.
    unsafe { (default.free)(memory) }
}
