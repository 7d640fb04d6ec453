//! The numbers of the system calls that always fail with EPERM.

pub(super) fn numbers() -> impl Iterator<Item = i64> {
    REFUSED_EVERYWHERE.iter().chain(REFUSED_ON_THIS_ARCHITECTURE).copied()
}

const REFUSED_EVERYWHERE: &[i64] = &[
    libc::SYS_ptrace,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_pivot_root,
    libc::SYS_adjtimex,
    libc::SYS_chroot,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_reboot,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_init_module,
    libc::SYS_delete_module,
    libc::SYS_quotactl,
    libc::SYS_nfsservctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_clock_settime,
    libc::SYS_mbind,
    libc::SYS_set_mempolicy,
    libc::SYS_kexec_load,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_migrate_pages,
    libc::SYS_unshare,
    libc::SYS_move_pages,
    libc::SYS_perf_event_open,
    libc::SYS_fanotify_init,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_clock_adjtime,
    libc::SYS_setns,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_finit_module,
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount_setattr,
    libc::SYS_quotactl_fd,
    STATMOUNT,
    LISTMOUNT,
    OPEN_TREE_ATTR,
    KEXEC_FILE_LOAD,
];

// `libc` does not have these. Calls that Linux added since 5.1 have the same number on every architecture.
const STATMOUNT: i64 = 457;
const LISTMOUNT: i64 = 458;
const OPEN_TREE_ATTR: i64 = 467;

#[cfg(not(target_arch = "riscv64"))]
const KEXEC_FILE_LOAD: i64 = libc::SYS_kexec_file_load;
#[cfg(target_arch = "riscv64")]
const KEXEC_FILE_LOAD: i64 = 294;

#[cfg(target_arch = "x86_64")]
const REFUSED_ON_THIS_ARCHITECTURE: &[i64] =
    &[libc::SYS_uselib, libc::SYS__sysctl, libc::SYS_iopl, libc::SYS_ioperm];
#[cfg(not(target_arch = "x86_64"))]
const REFUSED_ON_THIS_ARCHITECTURE: &[i64] = &[];
