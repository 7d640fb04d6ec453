//! System call numbers by architecture, because `seccompiler` accepts only numbers.

pub(super) use arch::{CLONE, CLONE3, IO_SETUP, IOCTL, REFUSED, SHMGET, SOCKET, SOCKETPAIR};

#[cfg(target_arch = "x86_64")]
mod arch {
    pub(crate) const CLONE: i64 = 56;
    pub(crate) const CLONE3: i64 = 435;
    pub(crate) const IOCTL: i64 = 16;
    pub(crate) const IO_SETUP: i64 = 206;
    pub(crate) const SHMGET: i64 = 29;
    pub(crate) const SOCKET: i64 = 41;
    pub(crate) const SOCKETPAIR: i64 = 53;
    #[rustfmt::skip]
    pub(crate) const REFUSED: &[i64] = &[
        101, // ptrace
        103, // syslog
        134, // uselib
        153, // vhangup
        155, // pivot_root
        156, // _sysctl
        159, // adjtimex
        161, // chroot
        163, // acct
        164, // settimeofday
        165, // mount
        166, // umount2
        167, // swapon
        168, // swapoff
        169, // reboot
        170, // sethostname
        171, // setdomainname
        172, // iopl
        173, // ioperm
        174, // create_module
        175, // init_module
        176, // delete_module
        177, // get_kernel_syms
        178, // query_module
        179, // quotactl
        180, // nfsservctl
        212, // lookup_dcookie
        227, // clock_settime
        237, // mbind
        238, // set_mempolicy
        246, // kexec_load
        248, // add_key
        249, // request_key
        250, // keyctl
        256, // migrate_pages
        272, // unshare
        279, // move_pages
        298, // perf_event_open
        300, // fanotify_init
        303, // name_to_handle_at
        304, // open_by_handle_at
        305, // clock_adjtime
        308, // setns
        310, // process_vm_readv
        311, // process_vm_writev
        312, // kcmp
        313, // finit_module
        320, // kexec_file_load
        321, // bpf
        323, // userfaultfd
        425, // io_uring_setup
        426, // io_uring_enter
        427, // io_uring_register
        428, // open_tree
        429, // move_mount
        430, // fsopen
        431, // fsconfig
        432, // fsmount
        433, // fspick
        438, // pidfd_getfd
        442, // mount_setattr
        443, // quotactl_fd
        457, // statmount
        458, // listmount
        467, // open_tree_attr
    ];
}

#[cfg(target_arch = "aarch64")]
mod arch {
    pub(crate) const CLONE: i64 = 220;
    pub(crate) const CLONE3: i64 = 435;
    pub(crate) const IOCTL: i64 = 29;
    pub(crate) const IO_SETUP: i64 = 0;
    pub(crate) const SHMGET: i64 = 194;
    pub(crate) const SOCKET: i64 = 198;
    pub(crate) const SOCKETPAIR: i64 = 199;
    #[rustfmt::skip]
    pub(crate) const REFUSED: &[i64] = &[
        18, // lookup_dcookie
        39, // umount2
        40, // mount
        41, // pivot_root
        42, // nfsservctl
        51, // chroot
        58, // vhangup
        60, // quotactl
        89, // acct
        97, // unshare
        104, // kexec_load
        105, // init_module
        106, // delete_module
        112, // clock_settime
        116, // syslog
        117, // ptrace
        142, // reboot
        161, // sethostname
        162, // setdomainname
        170, // settimeofday
        171, // adjtimex
        217, // add_key
        218, // request_key
        219, // keyctl
        224, // swapon
        225, // swapoff
        235, // mbind
        237, // set_mempolicy
        238, // migrate_pages
        239, // move_pages
        241, // perf_event_open
        262, // fanotify_init
        264, // name_to_handle_at
        265, // open_by_handle_at
        266, // clock_adjtime
        268, // setns
        270, // process_vm_readv
        271, // process_vm_writev
        272, // kcmp
        273, // finit_module
        280, // bpf
        282, // userfaultfd
        294, // kexec_file_load
        425, // io_uring_setup
        426, // io_uring_enter
        427, // io_uring_register
        428, // open_tree
        429, // move_mount
        430, // fsopen
        431, // fsconfig
        432, // fsmount
        433, // fspick
        438, // pidfd_getfd
        442, // mount_setattr
        443, // quotactl_fd
        457, // statmount
        458, // listmount
        467, // open_tree_attr
    ];
}

#[cfg(target_arch = "riscv64")]
mod arch {
    pub(crate) const CLONE: i64 = 220;
    pub(crate) const CLONE3: i64 = 435;
    pub(crate) const IOCTL: i64 = 29;
    pub(crate) const IO_SETUP: i64 = 0;
    pub(crate) const SHMGET: i64 = 194;
    pub(crate) const SOCKET: i64 = 198;
    pub(crate) const SOCKETPAIR: i64 = 199;
    #[rustfmt::skip]
    pub(crate) const REFUSED: &[i64] = &[
        18, // lookup_dcookie
        39, // umount2
        40, // mount
        41, // pivot_root
        42, // nfsservctl
        51, // chroot
        58, // vhangup
        60, // quotactl
        89, // acct
        97, // unshare
        104, // kexec_load
        105, // init_module
        106, // delete_module
        112, // clock_settime
        116, // syslog
        117, // ptrace
        142, // reboot
        161, // sethostname
        162, // setdomainname
        170, // settimeofday
        171, // adjtimex
        217, // add_key
        218, // request_key
        219, // keyctl
        224, // swapon
        225, // swapoff
        235, // mbind
        237, // set_mempolicy
        238, // migrate_pages
        239, // move_pages
        241, // perf_event_open
        262, // fanotify_init
        264, // name_to_handle_at
        265, // open_by_handle_at
        266, // clock_adjtime
        268, // setns
        270, // process_vm_readv
        271, // process_vm_writev
        272, // kcmp
        273, // finit_module
        280, // bpf
        282, // userfaultfd
        294, // kexec_file_load
        425, // io_uring_setup
        426, // io_uring_enter
        427, // io_uring_register
        428, // open_tree
        429, // move_mount
        430, // fsopen
        431, // fsconfig
        432, // fsmount
        433, // fspick
        438, // pidfd_getfd
        442, // mount_setattr
        443, // quotactl_fd
        457, // statmount
        458, // listmount
        467, // open_tree_attr
    ];
}
