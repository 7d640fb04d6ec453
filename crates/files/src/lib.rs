//! Files that need care: secrets, which must be complete and private, files on mounts that may hang, and files of somebody
//! hostile, in which secrets are overwritten.

mod file_work;
mod mask;
pub mod secret_file;

pub use file_work::FileWork;
pub use mask::{Find, mask};
