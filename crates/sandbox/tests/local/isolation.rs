//! Attempts to escape from a real sandbox. All must fail.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use sandbox::Provider as _;
use tokio::net::TcpListener;

use super::support::{LISTEN, TestBed, id};

/// Attempts that need no preparation on the host: a script, and what it must not print.
const ESCAPE_ATTEMPTS: &[(&str, &str)] = &[
    ("host users", "cat /etc/shadow && echo ESCAPED"),
    ("root's home", "ls /root && echo ESCAPED"),
    (
        "host directories",
        "for d in /boot /srv /mnt /media /sys /var/lib; do ls $d 2>/dev/null && echo ESCAPED; done",
    ),
    ("other homes", "ls -A /home | grep -vx user && echo ESCAPED"),
    ("control groups", "ls /sys/fs/cgroup && echo ESCAPED"),
    ("host mounts by proc", "ls /proc/1/root/root && echo ESCAPED"),
    ("devices", "for d in kvm vda sda mem kmsg fuse; do test -e /dev/$d && echo ESCAPED; done"),
    ("writing /usr", "touch /usr/x && echo ESCAPED"),
    ("writing /", "touch /x && echo ESCAPED"),
    ("writing /dev", "touch /dev/x && echo ESCAPED"),
    ("writing /etc", "touch /etc/x && echo ESCAPED; echo x >> /etc/passwd && echo ESCAPED"),
    ("mount", "mount -t tmpfs x /tmp && echo ESCAPED"),
    ("remount", "mount -o remount,rw /usr && echo ESCAPED"),
    ("mknod", "mknod /tmp/d b 254 0 && echo ESCAPED"),
    ("new namespaces", "for kind in U m n p i u C T; do unshare -$kind true && echo ESCAPED; done"),
    (
        "namespaces of others",
        "for kind in user mnt net; do nsenter --$kind=/proc/1/ns/$kind true && echo ESCAPED; done",
    ),
    ("hostname", "hostname x && echo ESCAPED"),
    ("kernel log", "dmesg | grep -q . && echo ESCAPED"),
    ("core pattern", "(echo x > /proc/sys/kernel/core_pattern) && echo ESCAPED"),
    ("core pattern opened", "perl -e 'open(F, q(>>), q(/proc/sys/kernel/core_pattern)) && print q(ESCAPED)'"),
    ("sysrq", "(echo b > /proc/sysrq-trigger) && echo ESCAPED"),
    (
        "external network",
        "perl -MIO::Socket::INET -e 'print q(ESCAPED) if IO::Socket::INET->new(PeerAddr => q(1.1.1.1:53), Timeout => 2)'",
    ),
    (
        "metadata address",
        "perl -MIO::Socket::INET -e 'print q(ESCAPED) if IO::Socket::INET->new(PeerAddr => q(169.254.169.254:80), Timeout => 2)'",
    ),
    ("abstract sockets", "grep -q '@' /proc/net/unix && echo ESCAPED"),
    ("packet socket", "perl -e 'print q(ESCAPED) if socket(S, 17, 3, 0)'"),
    ("vsock", "perl -e 'print q(ESCAPED) if socket(S, 40, 1, 0)'"),
    (
        "terminal injection",
        "perl -e '$c = q(x); print q(ESCAPED) if ioctl(STDIN, 0x5412, $c); print q(ESCAPED) unless $!{EPERM}'",
    ),
    (
        "terminal injection with high bits",
        "perl -e '$c = q(x); syscall(16, 0, 0x7f00005412, $c); print q(ESCAPED) unless $!{EPERM}'",
    ),
    (
        "ptrace",
        "perl -e 'print q(ESCAPED) if syscall(101, 16, 1, 0, 0) == 0; print q(ESCAPED) unless $!{EPERM}'",
    ),
    (
        "clone with a namespace",
        "perl -e 'print q(ESCAPED) if syscall(56, 0x10000011, 0, 0, 0, 0) >= 0; print q(ESCAPED) unless $!{EPERM}'",
    ),
    (
        "clone3",
        "perl -e '$a = pack(q(Q8), 0x10000000, 0, 0, 0, 17, 0, 0, 0); print q(ESCAPED) if syscall(435, $a, 64) >= 0; print q(ESCAPED) unless $!{ENOSYS}'",
    ),
    (
        "x32 calls",
        "perl -e 'print q(ESCAPED) if syscall(0x40000000 + 272, 0x10000000) == 0; print q(ESCAPED) unless $!{EPERM}'",
    ),
    (
        "bpf, keyrings, io_uring",
        "perl -e 'for (321, 250, 425) { syscall($_, 0, 0, 0); print q(ESCAPED) unless $!{EPERM} }'",
    ),
    (
        "contexts of asynchronous input and output",
        "perl -e '$c = pack(q(Q), 0); print q(ESCAPED) if syscall(206, 1000, $c) == 0; print q(ESCAPED) unless $!{ENOSYS}'",
    ),
    (
        "shared memory that belongs to no process",
        "perl -e 'for (65537, 2 ** 32, 2 ** 40) { print q(ESCAPED) if defined shmget(0, $_, 0600); print q(ESCAPED) unless $!{EPERM} } \
         print q(ESCAPED: too strict) unless defined shmget(0, 65536, 0600)'",
    ),
    ("a setuid program", "su -c id root </dev/null 2>&1 | grep -q uid=0 && echo ESCAPED"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_to_escape_fails() {
    let bed = TestBed::new();
    let sandbox = bed.start("attempts").await;
    for (name, script) in ESCAPE_ATTEMPTS {
        let output = bed.run(&sandbox, &format!("{{ {script}; }} 2>&1; echo done")).await;
        assert!(output.contains("done") && !output.contains("ESCAPED"), "{name}: {output}");
    }
    println!("{} attempts to escape failed, as they must", ESCAPE_ATTEMPTS.len());
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[cfg(target_arch = "x86_64")]
#[tokio::test(flavor = "multi_thread")]
async fn system_calls_of_i386_are_killed() {
    let bed = TestBed::new();
    let sandbox = bed.start("old-calls").await;
    // 20 is getpid on i386; 159 is the exit code of a process killed by SIGSYS.
    let script = r#"printf 'int main(){int r;__asm__ volatile("int $0x80":"=a"(r):"a"(20));return r>0;}' \
        | gcc -x c - -o /tmp/a && /tmp/a; echo $?"#;
    let output = bed.run(&sandbox, script).await;
    assert!(output.contains("159"), "{output} (it needs a C compiler: apt-get install build-essential)");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_has_no_privileges_and_sees_only_its_own_processes() {
    let bed = TestBed::new();
    let sandbox = bed.start("status").await;
    let output = bed
        .run(&sandbox, "cat /proc/self/status; id; pwd; ls /proc | grep -c '^[0-9]'; cat /etc/hostname")
        .await;
    for line in ["NoNewPrivs:\t1", "Seccomp:\t2", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(output.contains(line), "{line} in {output}");
    }
    assert!(
        output.contains("uid=1000(user) gid=1000(user)") && output.contains("/home/user/workspace"),
        "{output}"
    );
    assert_eq!(output.lines().last(), Some("sandbox"), "{output}");
    // PID 1, its child, and what the child runs.
    let count: u32 = output.lines().rev().nth(1).unwrap().parse().unwrap();
    assert!(count <= 5, "{count} processes are visible");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_gateway_is_visible_inside() {
    // A descriptor that every child inherits, as a careless parent of the gateway may leave behind.
    let _left_open = rustix::io::dup(std::io::stderr()).unwrap();
    let bed = TestBed::new();
    let secret = bed.directory.path().join("secret");
    fs::write(&secret, "hunter2").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let sandbox = bed
        .start_with("inside", |spec| {
            spec.env.insert("GIVEN".into(), "yes".into());
            spec.stdin = b"the key".to_vec();
        })
        .await;
    let output = bed.run(&sandbox, &format!("cat {} 2>&1; ls /tmp", secret.display())).await;
    assert!(output.contains("No such file") && !output.contains("hunter2"), "{output}");
    // The environment and the descriptors of PID 1 contain only what was given.
    let output = bed.run(&sandbox, "tr '\\0' '\\n' < /proc/1/environ | sort").await;
    let names: Vec<_> =
        output.lines().filter_map(|line| line.split_once('=')).map(|(name, _)| name).collect();
    assert_eq!(names, ["GIVEN", "HOME", "LANG", "PATH", "PWD", "USER"], "{output}");
    let output = bed.run(&sandbox, "ls -l /proc/1/fd | grep -v total").await;
    assert!(!output.contains("memfd") && output.lines().count() == 4, "descriptors of PID 1: {output}");
    println!("descriptors of PID 1:\n{output}");
    assert_eq!(bed.run(&sandbox, "KEY").await, "the key");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn host_loopback_and_other_sandboxes_are_out_of_reach() {
    let bed = TestBed::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (one, two) = (bed.start("one").await, bed.start("two").await);
    bed.run(&two, "echo private > /home/user/file; chmod 777 /home/user /home/user/file").await;
    let connect = |port: u16| {
        format!(
            "perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(PeerAddr => q(127.0.0.1:{port}), Timeout => 2) ? q(REACHED) : $!'"
        )
    };
    let output = bed.run(&one, &connect(port)).await;
    assert!(output.contains("refused"), "{output}");
    // A socket file that everybody on the host may use.
    let socket = bed.directory.path().join("socket");
    let _socket = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o777)).unwrap();
    let output = bed
        .run(
            &one,
            &format!(
                "perl -MIO::Socket::UNIX -e 'print IO::Socket::UNIX->new(Peer => q({})) ? q(REACHED) : $!'",
                socket.display()
            ),
        )
        .await;
    assert!(output.contains("No such file"), "{output}");
    bed.run(&two, LISTEN).await;
    let output = bed.run(&one, &connect(5000)).await;
    assert!(output.contains("refused"), "{output}");
    let other = bed.directory.path().join("data/sandboxes/two/home/file");
    assert!(other.exists());
    let output = bed.run(&one, &format!("cat {} /proc/*/root/home/user/file 2>&1", other.display())).await;
    assert!(!output.contains("private"), "{output}");
    let host = std::process::id();
    let output = bed.run(&one, &format!("kill -0 {host} 2>&1; cat /proc/{host}/environ 2>&1")).await;
    assert!(output.contains("No such process") && output.contains("No such file"), "{output}");
    for name in ["one", "two"] {
        bed.provider.terminate(&id(name)).await.unwrap();
    }
}
