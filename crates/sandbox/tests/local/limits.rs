//! Resource limits: exceeding one fails or stops the sandbox, and never harms the host.

use std::path::Path;
use std::time::Duration;

use sandbox::local::Enforcement;
use sandbox::{Provider as _, SandboxId, SandboxState};

use super::support::{TestBed, host_allows_cgroups};

const MIB: u64 = 1024 * 1024;

pub(crate) async fn dies_within(bed: &TestBed, id: &SandboxId, seconds: u32) -> bool {
    for _ in 0..seconds * 20 {
        let list = bed.provider.list().await.unwrap();
        if list.iter().any(|listed| listed.id == *id && listed.state == SandboxState::Dead) {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn tmp_open_files_and_file_sizes_are_limited() {
    let bed = TestBed::new();
    let sandbox = bed
        .start_with("sizes", |spec| {
            spec.limits.tmp_bytes = 8 * MIB;
            spec.limits.files = 64;
        })
        .await;
    let output = bed.run(&sandbox, "dd if=/dev/zero of=/tmp/x bs=1M count=64 2>&1; stat -c %s /tmp/x").await;
    assert!(output.contains("No space left") && output.trim().ends_with(&(8 * MIB).to_string()), "{output}");
    let output = bed.run(&sandbox, "rm /tmp/x; dd if=/dev/zero of=/dev/shm/x bs=1M count=128 2>&1").await;
    assert!(output.contains("No space left"), "{output}");
    let open = "perl -e 'while (open(my $f, q(<), q(/dev/null))) { push @f, $f } print scalar(@f), qq( $!)'";
    let output = bed.run(&sandbox, open).await;
    let count: u32 = output.split(' ').next().unwrap().parse().unwrap();
    assert!(count < 64 && output.contains("Too many open files"), "{output}");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn fork_bomb_stays_inside() {
    let bed = TestBed::new();
    assert_eq!(bed.provider.limits_report().pids, Enforcement::Hard);
    fork_bomb(&bed).await;
}

async fn fork_bomb(bed: &TestBed) {
    let sandbox = bed.start_with("forks", |spec| spec.limits.pids = 64).await;
    let script = "perl -e '$n = 0; while (defined($p = fork)) { if (!$p) { sleep 30; exit } $n++ } print qq($n $!)'; kill -9 -1";
    let output = bed.run(&sandbox, script).await;
    let count: u32 = output.split(' ').next().unwrap().parse().unwrap();
    assert!((30..64).contains(&count) && output.contains("temporarily unavailable"), "{output}");
    println!("fork bomb: {output}");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_hog_is_killed() {
    let bed = TestBed::new();
    let hard = bed.provider.limits_report().memory == Enforcement::Hard;
    let sandbox = bed.start_with("memory", |spec| spec.limits.memory_bytes = 128 * MIB).await;
    let hog = "perl -e '$x = q(x) x 300_000_000; sleep 20; print q(SURVIVED)'; echo $?";
    let output = super::support::run(&bed.provider, &sandbox, hog).await.unwrap_or_default();
    assert!(!output.contains("SURVIVED"), "{output}");
    if hard {
        assert!(output.contains("137"), "{output}");
    } else {
        println!("soft limit: the watcher stopped the sandbox");
        assert!(dies_within(&bed, &sandbox, 5).await);
    }
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_program_gets_only_its_share_of_a_core() {
    let bed = TestBed::new();
    let hard = bed.provider.limits_report().cpu == Enforcement::Hard;
    assert_eq!(hard, host_allows_cgroups("cpu"), "the report does not match this host");
    let sandbox = bed.start_with("busy", |spec| spec.limits.cpu_millis = 200).await;
    // One second of work takes five seconds, in periods of a tenth of a second that are throttled.
    assert_eq!(bed.run(&sandbox, "perl -e '1 while (times)[0] < 1'; echo done").await, "done\n");
    let record = std::fs::read(bed.directory.path().join("data/sandboxes/busy/state.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let directory = record["group"]["Cpu"]["directory"].as_str();
    assert_eq!(directory.is_some(), hard);
    let Some(directory) = directory.map(Path::new) else { return };
    let stat = std::fs::read_to_string(directory.join("cpu.stat")).unwrap();
    let throttled = stat.lines().find_map(|line| line.strip_prefix("nr_throttled ")).unwrap();
    assert!(throttled.parse::<u32>().unwrap() >= 20, "{stat}");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn watcher_kills_a_sandbox_that_fills_the_disk() {
    let bed = TestBed::new();
    let sandbox = bed.start_with("disk", |spec| spec.limits.disk_bytes = 16 * MIB).await;
    // The kernel limits the size of one file, the watcher the total.
    let output =
        bed.run(&sandbox, "dd if=/dev/zero of=one bs=1M count=32 2>&1; stat -c %s one; rm one").await;
    assert!(output.contains(&(16 * MIB).to_string()), "{output}");
    bed.run(&sandbox, "for i in 1 2 3 4; do dd if=/dev/zero of=f$i bs=1M count=8 2>/dev/null; done").await;
    assert!(dies_within(&bed, &sandbox, 10).await, "the sandbox still runs with 32 MiB");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn watcher_counts_without_control_groups() {
    let bed = TestBed::with(|config| config.cgroups = false);
    assert_eq!(bed.provider.limits_report().memory, Enforcement::Soft);
    assert!(!bed.provider.capabilities().memory_pause);
    fork_bomb(&bed).await;
    let hog = bed.start_with("soft-memory", |spec| spec.limits.memory_bytes = 64 * MIB).await;
    bed.run(&hog, "perl -e '$x = q(x) x 150_000_000; sleep 60' >/dev/null 2>&1 &").await;
    assert!(dies_within(&bed, &hog, 10).await, "the sandbox still runs with 150 MB");
    bed.provider.terminate(&hog).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_open_files_count_as_disk_usage() {
    let bed = TestBed::new();
    let sandbox = bed.start_with("nameless", |spec| spec.limits.disk_bytes = 32 * MIB).await;
    let script = "for i in 1 2 3; do perl -e '$n = q(f) . $$; open(F, q(+>), $n) or die; unlink $n; \
        print F q(x) x 25_000_000; F->flush; sleep 600' >/dev/null 2>&1 & done; true";
    bed.run(&sandbox, script).await;
    assert!(dies_within(&bed, &sandbox, 30).await, "the sandbox still runs with 75 MB");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_mapped_files_count_as_disk_usage() {
    let bed = TestBed::new();
    let sandbox = bed.start_with("mapped", |spec| spec.limits.disk_bytes = 32 * MIB).await;
    // One after the other, so that never two of them have a name.
    let script = "for i in 1 2 3; do perl -MPOSIX -e '$n = q(f) . $$; open(W, q(>), $n); print W q(x) x 25_000_000; close W; \
        open(F, q(<:mmap), $n) or die; read(F, $b, 1); POSIX::close(fileno(F)); unlink $n; mkdir $ARGV[0]; sleep 600' /tmp/$i \
        >/dev/null 2>&1 & until [ -d /tmp/$i ]; do sleep 0.1; done; done";
    // The sandbox may be stopped before all three exist.
    let _ = super::support::run(&bed.provider, &sandbox, script).await;
    assert!(dies_within(&bed, &sandbox, 30).await, "the sandbox still runs with 75 MB");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn sandbox_cannot_take_all_terminals_of_the_host() {
    let bed = TestBed::new();
    let sandbox = bed.start("terminals").await;
    let script = "perl -e 'for (1..200) { open($f[$_], q(+<), q(/dev/ptmx)) or last } sleep 600' >/dev/null 2>&1 & true";
    bed.run(&sandbox, script).await;
    assert!(dies_within(&bed, &sandbox, 30).await, "the sandbox still runs with 200 terminals");
    bed.provider.terminate(&sandbox).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn unmapped_memory_counts_without_control_groups() {
    let bed = TestBed::with(|config| config.cgroups = false);
    let start = async |name| bed.start_with(name, |spec| spec.limits.memory_bytes = 96 * MIB).await;
    let tmp = start("in-tmp").await;
    bed.run(&tmp, "dd if=/dev/zero of=/tmp/x bs=1M count=100 2>/dev/null").await;
    let memfd = start("in-memfd").await;
    // 319 is memfd_create on x86-64; on other architectures it is 279.
    let script = "perl -MPOSIX -e '$n = q(x); $f = syscall((POSIX::uname())[4] eq q(x86_64) ? 319 : 279, $n, 0); \
        open(F, qq(>&=$f)) or die; print F q(x) x 1_000_000 for 1..120; F->flush; sleep 600' >/dev/null 2>&1 & true";
    bed.run(&memfd, script).await;
    for sandbox in [tmp, memfd] {
        assert!(dies_within(&bed, &sandbox, 30).await, "{sandbox} still runs with more than 96 MiB");
        bed.provider.terminate(&sandbox).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn socket_and_pipe_buffers_count_without_control_groups() {
    let bed = TestBed::with(|config| config.cgroups = false);
    let start = async |name| bed.start_with(name, |spec| spec.limits.memory_bytes = 96 * MIB).await;
    // In processes with 200 each, because one process has few descriptors.
    let fill = |make: &str| {
        format!(
            "perl -MSocket -MIO::Handle -e 'for (1..8) {{ next if fork; for (1..200) {{ {make} or die; $b->blocking(0); \
             push @keep, $a, $b; while (syswrite $b, q(x) x 65536) {{}} }} sleep 600 }} sleep 600' >/dev/null 2>&1 & true"
        )
    };
    // A sandbox with many sockets and little data in them must survive while the watcher stops the others.
    let honest = start("honest").await;
    let few = "mkfifo /tmp/up; perl -MSocket -e 'for (1..100) { socketpair(my $a, my $b, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or die; \
        syswrite $b, q(x); pipe(my $c, my $d); push @keep, $a, $b, $c, $d } open F, q(>), q(/tmp/up); print F q(on); close F; \
        sleep 600' >/dev/null 2>&1 & cat /tmp/up";
    assert_eq!(bed.run(&honest, few).await, "on");
    let sockets = start("in-sockets").await;
    let script = fill("socketpair($a = undef, $b = undef, AF_UNIX, SOCK_STREAM, PF_UNSPEC)");
    bed.run(&sockets, &script).await;
    let pipes = start("in-pipes").await;
    bed.run(&pipes, &fill("pipe($a = undef, $b = undef)")).await;
    for sandbox in [sockets, pipes] {
        assert!(dies_within(&bed, &sandbox, 30).await, "{sandbox} still runs with more than 96 MiB");
        bed.provider.terminate(&sandbox).await.unwrap();
    }
    assert_eq!(bed.run(&honest, "pgrep -c perl >/dev/null && echo on").await, "on\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn log_size_is_bounded() {
    let bed = TestBed::new();
    let sandbox = bed.start("log").await;
    bed.run(&sandbox, "dd if=/dev/zero bs=1M count=8 2>/dev/null >> /proc/1/fd/1 || true; true").await;
    let mut spec = super::support::spec("chatty");
    spec.init = ["/bin/sh", "-c", "head -c 20000000 /dev/zero; touch /home/user/output; sleep 600"]
        .map(String::from)
        .into();
    bed.provider.ensure(&spec).await.unwrap();
    let directory = bed.directory.path().join("data/sandboxes/chatty");
    let size = || std::fs::metadata(directory.join("log")).unwrap().len();
    while !directory.join("home/output").exists() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for _ in 0..500 {
        if size() < 8 * MIB {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(size() < 8 * MIB, "{}", size());
    for id in [&sandbox, &spec.id] {
        bed.provider.terminate(id).await.unwrap();
    }
}
