//! The system calls that no program inside may make, as three seccomp filters that all apply.
//!
//! A `seccompiler` filter has one action, so there are two lists: calls that fail with EPERM, and calls that fail
//! with ENOSYS so that programs fall back: `clone3`, for which libc falls back to `clone`, whose flags can be
//! inspected, and `io_setup`, because the AIO contexts of all sandboxes share one limit of the host. Both filters
//! start with an architecture check that kills 32-bit calls. On x86-64, x32 calls pass that check with other
//! numbers, so a third filter refuses their entire range.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Len, SeccompCmpOp as Op, SeccompCondition as Condition,
    SeccompFilter, SeccompRule as Rule, TargetArch, sock_filter,
};

mod refused;

const EPERM: u32 = libc::EPERM.unsigned_abs();
const ENOSYS: u32 = libc::ENOSYS.unsigned_abs();

const TIOCSTI: u64 = libc::TIOCSTI;
const TIOCLINUX: u64 = libc::TIOCLINUX;
/// Every `CLONE_NEW*` flag of `clone`: mount, cgroup, uts, ipc, user, pid and network namespaces.
const NEW_NAMESPACES: [u64; 7] =
    [0x2_0000, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
/// UNIX, INET, INET6 and NETLINK; other families are attack surface that no agent needs.
const ALLOWED_SOCKET_FAMILIES: [u64; 4] = [1, 2, 10, 16];

/// The largest System V shared memory segment in bytes. An unmapped segment belongs to no process, so no count
/// includes it, and a namespace can have 4096 of them. Databases use far smaller ones to lock their directories.
const MAX_SHM_SEGMENT: u64 = 64 * 1024;

/// The filters as BPF programs for the kernel.
pub(crate) fn programs() -> io::Result<Vec<Vec<u8>>> {
    let refused = compile(refused_syscalls()?, EPERM)?;
    let absent = [libc::SYS_clone3, libc::SYS_io_setup].map(|nr| (nr, Vec::new()));
    let absent = compile(BTreeMap::from(absent), ENOSYS)?;
    let mut all = vec![bytes(&refused), bytes(&absent)];
    if cfg!(target_arch = "x86_64") {
        all.push(bytes(&no_x32()));
    }
    Ok(all)
}

fn compile(rules: BTreeMap<i64, Vec<Rule>>, errno: u32) -> io::Result<BpfProgram> {
    let arch = TargetArch::try_from(std::env::consts::ARCH).map_err(io::Error::other)?;
    SeccompFilter::new(rules, SeccompAction::Allow, SeccompAction::Errno(errno), arch)
        .and_then(BpfProgram::try_from)
        .map_err(io::Error::other)
}

fn refused_syscalls() -> io::Result<BTreeMap<i64, Vec<Rule>>> {
    let mut rules: BTreeMap<i64, Vec<Rule>> = refused::numbers().map(|nr| (nr, Vec::new())).collect();
    let one = |condition| Rule::new(vec![condition]).map_err(io::Error::other);
    let when = |arg, op, value| Condition::new(arg, Len::Dword, op, value).map_err(io::Error::other);
    let mut clone = Vec::new();
    for flag in NEW_NAMESPACES {
        clone.push(one(when(0, Op::MaskedEq(flag), flag)?)?);
    }
    rules.insert(libc::SYS_clone, clone);
    let ioctl = [TIOCSTI, TIOCLINUX].map(|request| one(when(1, Op::Eq, request)?));
    rules.insert(libc::SYS_ioctl, ioctl.into_iter().collect::<io::Result<_>>()?);
    let mut others = Vec::new();
    for family in ALLOWED_SOCKET_FAMILIES {
        others.push(when(0, Op::Ne, family)?);
    }
    let socket = Rule::new(others).map_err(io::Error::other)?;
    rules.insert(libc::SYS_socket, vec![socket.clone()]);
    rules.insert(libc::SYS_socketpair, vec![socket]);
    let large = Condition::new(1, Len::Qword, Op::Gt, MAX_SHM_SEGMENT).map_err(io::Error::other)?;
    rules.insert(libc::SYS_shmget, vec![one(large)?]);
    Ok(rules)
}

/// Loads the system call number and refuses everything from `__X32_SYSCALL_BIT` up.
fn no_x32() -> BpfProgram {
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        step(0x20, 0, 0, 0),
        step(0x35, 0, 1, 0x4000_0000),
        step(0x06, 0, 0, 0x0005_0000 | EPERM),
        step(0x06, 0, 0, 0x7fff_0000),
    ]
}

fn bytes(program: &[sock_filter]) -> Vec<u8> {
    let step = |s: &sock_filter| {
        let [c0, c1] = s.code.to_ne_bytes();
        let [k0, k1, k2, k3] = s.k.to_ne_bytes();
        [c0, c1, s.jt, s.jf, k0, k1, k2, k3]
    };
    program.iter().flat_map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_fit_and_start_with_the_architecture_check() {
        let programs = programs().unwrap();
        for program in &programs[..2] {
            assert_eq!(program.len() % 8, 0);
            assert!(program.len() / 8 < 4096);
            // Offset 4 of `seccomp_data` is the architecture.
            assert_eq!(program[..8], [0x20, 0, 0, 0, 4, 0, 0, 0]);
        }
        assert_eq!(programs.len(), if cfg!(target_arch = "x86_64") { 3 } else { 2 });
    }
}
