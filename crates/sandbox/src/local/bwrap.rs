//! The options of bubblewrap, which define the isolation. They are passed in a memfd, not on the command line,
//! which everybody on the host can read.

use std::os::fd::RawFd;
use std::path::Path;

use super::plan::Plan;

pub(crate) const HOME: &str = "/home/user";
pub(crate) const WORKSPACE: &str = "/home/user/workspace";
/// The directory inside for programs of the host.
const PROGRAMS: &str = "/opt";

/// Directories of `/usr` that programs expect at the root.
const USR_DIRECTORIES: [&str; 6] = ["bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// What programs need of the host's `/etc`; nothing here reveals the host's users or services.
const ETC: [&str; 11] = [
    "ssl",
    "ca-certificates",
    "alternatives",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "mime.types",
    "localtime",
    "pki",
    // Without these, Chromium finds no fonts, and Debian's script that starts it fails.
    "fonts",
    "chromium.d",
];
/// Generated files in `/etc`.
pub(crate) const GENERATED: [(&str, &str); 5] = [
    ("passwd", "root:x:0:0:root:/root:/usr/sbin/nologin\nuser:x:1000:1000:user:/home/user:/bin/bash\n"),
    ("group", "root:x:0:\nuser:x:1000:\n"),
    ("hosts", "127.0.0.1 localhost sandbox\n::1 localhost\n"),
    ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("resolv.conf", "# names are resolved by the proxy\n"),
];
/// The file that bubblewrap reads last, after it has mounted everything and before PID 1 runs. It comes through a
/// pipe from the gateway, which thereby signals that it is ready for the programs inside.
pub(crate) const LAST_FILE: (&str, &str) = ("hostname", "sandbox\n");

/// File descriptor numbers that the options refer to.
pub(crate) struct DescriptorNumbers {
    pub(crate) filters: Vec<RawFd>,
    /// One for each of [`GENERATED`].
    pub(crate) generated: Vec<RawFd>,
    pub(crate) last_file: RawFd,
    pub(crate) info: RawFd,
}

/// The options, each terminated by a NUL.
pub(crate) fn options(plan: &Plan, numbers: &DescriptorNumbers) -> Vec<u8> {
    let mut list = List(Vec::new());
    list.words("--unshare-user --unshare-pid --unshare-ipc --unshare-uts --unshare-cgroup-try --unshare-net");
    list.words(
        "--uid 1000 --gid 1000 --hostname sandbox --disable-userns --new-session --as-pid-1 --cap-drop ALL",
    );
    list.words(&format!("--info-fd {}", numbers.info));
    for filter in &numbers.filters {
        list.words(&format!("--add-seccomp-fd {filter}"));
    }
    variables(&mut list, plan);
    system(&mut list, plan.rootfs.as_deref().unwrap_or(Path::new("/")));
    for ((name, _), number) in GENERATED.iter().zip(&numbers.generated) {
        list.words(&format!("--perms 0644 --file {number} /etc/{name}"));
    }
    list.words("--proc /proc --dev /dev --perms 1777 --size");
    list.words(&format!(
        "{} --tmpfs /tmp --remount-ro /dev --size 67108864 --tmpfs /dev/shm",
        plan.limits.tmp_bytes
    ));
    list.words("--size 16777216 --tmpfs /run --dir /var --symlink ../tmp /var/tmp");
    list.bind("--bind", &plan.home, HOME);
    for (name, program) in &plan.programs {
        list.bind("--ro-bind", program, &format!("{PROGRAMS}/{name}"));
    }
    list.words(&format!("--perms 0644 --file {} /etc/{}", numbers.last_file, LAST_FILE.0));
    list.words(&format!("--remount-ro / --chdir {WORKSPACE}"));
    list.0
}

fn variables(list: &mut List, plan: &Plan) {
    list.words("--clearenv");
    let usual =
        [("HOME", HOME), ("USER", "user"), ("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LANG", "C.UTF-8")];
    for (name, value) in usual {
        if !plan.env.contains_key(name) {
            list.all(&["--setenv", name, value]);
        }
    }
    for (name, value) in &plan.env {
        list.all(&["--setenv", name, value]);
    }
}

/// Mounts `/usr`, the directories at the root that belong to it, and the required part of `/etc`, all read-only.
fn system(list: &mut List, root: &Path) {
    list.bind("--ro-bind", &root.join("usr"), "/usr");
    for name in USR_DIRECTORIES {
        let path = root.join(name);
        match (std::fs::read_link(&path), path.is_dir()) {
            (Ok(target), _) => list.bind("--symlink", &target, &format!("/{name}")),
            (Err(_), true) => list.bind("--ro-bind", &path, &format!("/{name}")),
            (Err(_), false) => {}
        }
    }
    list.words("--dir /etc");
    for name in ETC {
        list.bind("--ro-bind-try", &root.join("etc").join(name), &format!("/etc/{name}"));
    }
}

struct List(Vec<u8>);

impl List {
    fn all(&mut self, words: &[&str]) {
        for word in words {
            self.0.extend_from_slice(word.as_bytes());
            self.0.push(0);
        }
    }

    fn words(&mut self, text: &str) {
        for word in text.split(' ') {
            self.all(&[word]);
        }
    }

    fn bind(&mut self, how: &str, from: &Path, to: &str) {
        use std::os::unix::ffi::OsStrExt as _;
        self.all(&[how]);
        self.0.extend_from_slice(from.as_os_str().as_bytes());
        self.0.push(0);
        self.all(&[to]);
    }
}
