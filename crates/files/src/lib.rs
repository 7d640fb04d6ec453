//! Files that need care: secrets, which must be complete and private, and files on mounts that may hang.

mod file_work;
pub mod secret_file;

pub use file_work::FileWork;
