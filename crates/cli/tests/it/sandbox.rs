//! Sandboxes run by hand, and attacks by a hostile program inside one on the gateway around it.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::deadline::{Lines, wait_for_end};
use crate::harness::{Ended, Machine};

fn inside(machine: &Machine, script: &str) -> Ended {
    machine.run(&["sandbox", "run", "--", "/bin/sh", "-c", script])
}

fn left_behind(machine: &Machine) -> usize {
    let directories =
        ["sandboxes/sandboxes", "sandboxes/uids"].map(|directory| machine.data_dir().join(directory));
    directories.iter().filter_map(|directory| std::fs::read_dir(directory).ok()).map(Iterator::count).sum()
}

#[test]
fn a_command_runs_inside_and_its_output_is_passed_on() {
    let machine = Machine::new();
    let ran = inside(&machine, "echo out; echo err >&2; pwd; id -u; exit 7");
    assert_eq!((ran.code, ran.out.as_str()), (7, "out\n/home/user/workspace\n1000\n"), "{}", ran.err);
    assert_eq!(ran.err, "err\n");
    let fed = machine.feed(&["sandbox", "run", "--", "tr", "a-z", "A-Z"], "hello\n");
    assert_eq!((fed.code, fed.out.as_str()), (0, "HELLO\n"), "{}", fed.err);
    assert_eq!(inside(&machine, "kill -9 $$").code, 137);
    let missing = machine.run(&["sandbox", "run", "--", "/no/such/program"]);
    assert_eq!(missing.code, 127, "as in a shell");
    assert!(missing.err.contains("error:"), "{}", missing.err);
    assert_eq!(left_behind(&machine), 0, "a sandbox was left behind");
    assert!(!machine.data_dir().join("proliferate.db").exists(), "trying a sandbox makes no database");
}

#[test]
fn sandboxes_are_listed_entered_and_removed_by_hand() {
    let machine = Machine::new();
    let mut held = Held::start(&machine);
    let listed = machine.json(&["sandbox", "ls"]);
    assert_eq!(
        (listed[0]["id"].as_str(), listed[0]["state"].as_str()),
        (Some(held.id.as_str()), Some("running"))
    );
    let looked =
        machine.run(&["sandbox", "exec", &held.id, "--", "sh", "-c", "cat file; echo two > other; exit 3"]);
    assert_eq!((looked.code, looked.out.as_str()), (3, "one\n"), "{}", looked.err);
    assert_eq!(held.ask("cat other"), "two");
    assert_eq!(machine.run(&["sandbox", "rm", "no-such"]).code, 1);
    assert_eq!(machine.run(&["sandbox", "rm", &held.id]).code, 0);
    assert_ne!(
        wait_for_end("the sandbox's program to end", &mut held.child).code(),
        Some(0),
        "the program inside outlived its sandbox"
    );
    assert_eq!(machine.json(&["sandbox", "ls"]), serde_json::json!([]));
    assert_eq!(left_behind(&machine), 0);
}

#[test]
fn a_sandbox_cannot_reach_files_of_a_running_gateway() {
    let machine = Machine::new().with("GATEWAY_JWT_SECRET", &"hunter2".repeat(6));
    let server = machine.serve();
    let (pid, data) = (server.child.id(), machine.data_dir());
    let port = server.url("").rsplit_once(':').unwrap().1.to_owned();
    let attempts = [
        format!("cat {0}/proliferate.db {0}/keys.env {0}/sandboxes.key", data.display()),
        format!("cat /proc/{pid}/environ; kill -0 {pid}"),
        format!("ls {}", data.display()),
        format!("curl -sS --noproxy '*' http://127.0.0.1:{port}/health"),
        format!("curl -sSf http://127.0.0.1:{port}/health"),
        "ls /run/* /var/run/* /tmp/* | grep -v proxy".to_owned(),
        "env | grep -i hunter2".to_owned(),
    ];
    for attempt in attempts {
        let ran = inside(&machine, &format!("{{ {attempt}; }} && echo REACHED"));
        let said = format!("{}{}", ran.out, ran.err);
        assert!(
            !said.contains("REACHED") && !said.contains("\"ok\"") && !said.contains("hunter2"),
            "{attempt}: {said}"
        );
    }
    assert_eq!(server.get("/health", "").0, 200, "the gateway is unharmed");
}

#[test]
fn the_proxy_reaches_only_permitted_hosts() {
    let open = Origin::start("here you are");
    let hidden = Origin::start("SECRET");
    let redirect = Origin::redirecting(&format!("http://127.0.0.1:{}/", hidden.port));
    let allowed = format!("127.0.0.1:{},127.0.0.1:{}", open.port, redirect.port);
    let machine = Machine::new().with("EGRESS_ALLOWED_HOSTS", &allowed);
    let curl = |url: &str| inside(&machine, &format!("curl -sS -L --proxy $HTTP_PROXY --noproxy '' '{url}'"));
    assert_eq!(curl(&format!("http://127.0.0.1:{}/", open.port)).out, "here you are");
    let port = hidden.port;
    for url in [
        format!("http://127.0.0.1:{port}/"),
        format!("http://127.0.0.1:{}/", redirect.port),
        format!("http://2130706433:{port}/"),
        format!("http://0x7f.1:{port}/"),
        format!("http://0177.0.0.1:{port}/"),
        format!("http://[::ffff:127.0.0.1]:{port}/"),
        format!("http://[::1]:{port}/"),
        format!("http://localhost:{port}/"),
        format!("http://LOCALHOST.:{port}/"),
        format!("http://0.0.0.0:{port}/"),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        "http://2852039166/".to_owned(),
        "http://[fd00:ec2::254]/".to_owned(),
        "http://metadata.google.internal/".to_owned(),
    ] {
        let ran = curl(&url);
        assert!(!ran.out.contains("SECRET") && !ran.out.contains("here you are"), "{url}: {}", ran.out);
    }
    let offline = machine.run(&["sandbox", "run", "--offline", "--", "curl", "-sS", "http://example.com/"]);
    assert!(offline.out.contains("offline"), "{}{}", offline.out, offline.err);
    let raw = inside(&machine, "bash -c 'cat < /dev/tcp/1.1.1.1/80'");
    assert!(raw.code != 0 && raw.err.contains("unreachable"), "{}{}", raw.out, raw.err);
}

#[test]
fn egress_of_a_manual_sandbox_is_recorded_and_summed_up() {
    let open = Origin::start("here you are");
    let host = format!("127.0.0.1:{}", open.port);
    let machine = Machine::new().with("EGRESS_ALLOWED_HOSTS", &host);
    let curl = "curl -s --proxy $HTTP_PROXY --noproxy '' -o /dev/null";
    let script = format!("{curl} http://{host}/; {curl} http://{host}/; {curl} http://10.0.0.1/; exit 3");
    let ran = inside(&machine, &script);
    assert_eq!((ran.code, ran.out.as_str()), (3, ""), "{}", ran.err);
    let rows: Vec<Vec<_>> = ran.err.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["HOST", "VERDICT", "CONNECTIONS", "UP", "DOWN"], "{}", ran.err);
    assert_eq!(rows[1], ["10.0.0.1", "refused", "1", "0", "0"], "{}", ran.err);
    assert_eq!((&rows[2][..3], rows.len()), (&["127.0.0.1", "allowed", "2"][..], 3), "{}", ran.err);
    let file = std::fs::read_to_string(machine.data_dir().join("egress-by-hand.jsonl")).unwrap();
    let kept: Vec<serde_json::Value> = file.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(kept.len(), 3, "{file}");
    let sum = |name: &str| kept.iter().map(|line| line[name].as_u64().unwrap()).sum::<u64>().to_string();
    assert_eq!((rows[2][3], rows[2][4]), (sum("bytesUp").as_str(), sum("bytesDown").as_str()), "{file}");
    assert_eq!((&kept[0]["host"], &kept[0]["port"]), (&"127.0.0.1".into(), &open.port.into()), "{file}");
    assert_eq!((&kept[0]["outcome"], &kept[2]["outcome"]), (&"complete".into(), &"refused".into()), "{file}");
    let json = machine.run(&["sandbox", "run", "--json", "--offline", "--", "curl", "-s", "http://x.test/"]);
    let told: serde_json::Value = serde_json::from_str(json.err.trim()).unwrap();
    assert_eq!((&told[0]["host"], &told[0]["verdict"]), (&"x.test".into(), &"refused".into()), "{told}");
    assert!(!machine.data_dir().join("proliferate.db").exists());
}

#[test]
fn programs_in_a_sandbox_cannot_control_its_supervisor() {
    let machine = Machine::new();
    let mut held = Held::start(&machine);
    // A program inside cannot take over our ports, and garbage sent to them changes nothing.
    let taken = held.ask(
        "perl -MIO::Socket::INET -e 'for (3128, 4097) { print q(TAKEN) if IO::Socket::INET->new(LocalAddr => \"127.0.0.1:$_\", \
         Listen => 1, ReuseAddr => 1, ReusePort => 1) } print q(end)'",
    );
    assert_eq!(taken, "end");
    let flood = held.ask(
        "perl -MIO::Socket::INET -e 'for (1 .. 400) { my $s = IO::Socket::INET->new(PeerAddr => q(127.0.0.1:4097)) or next; \
         push @all, $s; print $s (q(x) x 5000) } print scalar(@all) > 10 ? q(flooded) : q(refused)'",
    );
    assert_eq!(flood, "flooded");
    let proxied = held.ask(
        "perl -MIO::Socket::INET -e 'for (1 .. 400) { my $s = IO::Socket::INET->new(PeerAddr => q(127.0.0.1:3128)) or next; \
         push @all, $s; print $s \"\\0\" x 100 } print q(end)'",
    );
    assert_eq!(proxied, "end");
    let traced =
        held.ask("cat /proc/1/environ /proc/1/mem /proc/2/environ 2>&1 | tr '\\0' ' ' | grep -vc denied");
    assert_eq!(traced, "0", "something of the supervisor could be read");
    assert_eq!(machine.run(&["sandbox", "exec", &held.id, "--", "cat", "file"]).out, "one\n");
    // The supervisor runs as the same user, so a program can kill it. That ends the sandbox, and nobody can
    // impersonate it.
    let killed = machine.run(&["sandbox", "exec", &held.id, "--", "kill", "-9", "2"]);
    assert_eq!(killed.code, 1, "{}{}", killed.out, killed.err);
    assert_ne!(wait_for_end("the sandbox's program to end", &mut held.child).code(), Some(0));
    assert_eq!(left_behind(&machine), 0);
}

#[test]
fn a_provider_without_isolation_needs_a_flag() {
    let machine = Machine::new().with("SANDBOX_PROVIDER", "process");
    let refused = machine.run(&["sandbox", "run", "--", "true"]);
    assert_eq!(refused.code, 2);
    assert!(refused.err.contains("--insecure-sandbox"), "{}", refused.err);
    let started = machine.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(started.code, 2, "{}", started.err);
    let ran =
        machine.run(&["--insecure-sandbox", "sandbox", "run", "--", "sh", "-c", "echo $HTTP_PROXY; pwd"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("no isolation"), "{}", ran.err);
    assert!(ran.out.starts_with("http://127.0.0.1:") && ran.out.contains("workspace"), "{}", ran.out);
}

#[test]
fn missing_requirements_are_named_with_their_remedy() {
    let machine = Machine::new().with("PATH", "/nonexistent");
    let ran = machine.run(&["sandbox", "run", "--", "true"]);
    assert_eq!(ran.code, 3);
    assert!(ran.err.contains("install the package `bubblewrap`"), "{}", ran.err);
    assert_eq!(left_behind(&machine), 0);
    let none = Machine::new().with("SANDBOX_ROOTFS", "/nonexistent").run(&["sandbox", "run", "--", "true"]);
    assert_eq!(none.code, 2);
    assert!(none.err.contains("usr"), "{}", none.err);
    // A root file system in which nothing can run: the sandbox never becomes ready.
    let empty = Machine::new();
    std::fs::create_dir_all(empty.file("rootfs/usr")).unwrap();
    let rootfs = empty.file("rootfs").display().to_string();
    let empty = empty.with("SANDBOX_ROOTFS", &rootfs);
    let ran = empty.run(&["sandbox", "run", "--", "true"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("did not start") || ran.err.contains("exited immediately"), "{}", ran.err);
    assert_eq!(left_behind(&empty), 0);
}

#[test]
fn a_sandbox_that_never_becomes_ready_is_given_up_and_removed() {
    let machine = Machine::new();
    let bin = machine.file("bin").display().to_string();
    // A fake `bwrap` that runs `sleep` instead of the supervisor, so nothing ever answers. Another process writes it:
    // if this one did, a child forked by a concurrent test could hold it open for writing, and executing it would
    // fail.
    let write = r#"mkdir -m 755 "$1"; chmod 711 "$1/.."; cat > "$1/bwrap"; chmod 755 "$1/bwrap""#;
    let mut written =
        Command::new("sh").args(["-c", write, "sh", &bin]).stdin(Stdio::piped()).spawn().unwrap();
    let body = "#!/bin/sh\nexec /usr/bin/bwrap --args \"$2\" -- /bin/sleep 1000\n";
    written.stdin.take().unwrap().write_all(body.as_bytes()).unwrap();
    assert!(written.wait().unwrap().success());
    let machine = machine.with("PATH", &format!("{bin}:/usr/bin:/bin"));
    let ran = machine.run(&["sandbox", "run", "--", "true"]);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("not ready in time (its supervisor)"), "{}", ran.err);
    assert_eq!(left_behind(&machine), 0);
}

/// Runs in a user namespace that allows no nested ones, which simulates a host that forbids them.
#[test]
fn a_host_that_forbids_namespaces_is_reported_and_nothing_runs() {
    let mut unshare = vec!["unshare", "--map-current-user", "--keep-caps", "--", "sh", "-c"];
    let directory = tempfile::tempdir().unwrap();
    let owner = USER.parse().ok();
    let become_user = [format!("--reuid={USER}"), format!("--regid={USER}")];
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(directory.path(), owner, owner).unwrap();
        unshare.splice(0..0, ["setpriv", &become_user[0], &become_user[1], "--clear-groups", "--"]);
    }
    // Drop the privileges that were needed to forbid namespaces.
    let script = r#"echo 0 > /proc/sys/user/max_user_namespaces || { echo skipped; exit; }
        exec setpriv --ambient-caps=-all --inh-caps=-all -- "$@""#;
    let machine = Machine::new();
    let told = |arguments: &[&str]| {
        let mut command = machine.command(arguments);
        let program = command.get_program().to_owned();
        command = Command::new(unshare[0]);
        command.args(&unshare[1..]).args([script, "sh"]).arg(program).args(arguments);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/bin").env("HOME", directory.path());
        let ran = command.env("PROLIFERATE_DATA_DIR", directory.path().join("data")).output().unwrap();
        let said = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (ran.status.code(), said)
    };
    let (code, said) = told(&["sandbox", "run", "--", "echo", "RAN"]);
    if said.contains("skipped") {
        return;
    }
    assert_eq!(code, Some(3), "{said}");
    assert!(said.contains("this host forbids user namespaces") && !said.contains("RAN"), "{said}");
    let (code, said) = told(&["doctor"]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("✗ isolation") && said.contains("→ allow them: sysctl"), "{said}");
    assert_eq!(std::fs::read_dir(directory.path().join("data/sandboxes/sandboxes")).unwrap().count(), 0);
}

const USER: &str = "61235";

#[test]
fn an_unprivileged_user_can_run_sandboxes_too() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let owner = USER.parse().ok();
    std::os::unix::fs::chown(directory.path(), owner, owner).unwrap();
    let mut command = Command::new("setpriv");
    command.args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups", "--"]);
    command.arg(std::env::current_exe().unwrap()).args([
        "sandbox::",
        "--skip",
        "unprivileged_user",
        "--test-threads=2",
    ]);
    let ran = command.env("TMPDIR", directory.path()).output().unwrap();
    let said = [ran.stdout, ran.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(ran.status.success() && said.contains(" 10 passed"), "{said}");
}

/// A sandbox kept alive by a shell that runs scripts on request.
struct Held {
    child: Child,
    id: String,
    said: Lines,
}

impl Held {
    fn start(machine: &Machine) -> Self {
        let mut command = machine.command(&["sandbox", "run", "--", "/bin/sh"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let said = Lines::of(child.stdout.take().unwrap());
        let mut held = Self { child, id: String::new(), said };
        assert_eq!(held.ask("echo one > file; echo ready"), "ready");
        machine.json(&["sandbox", "ls"])[0]["id"].as_str().unwrap().clone_into(&mut held.id);
        held
    }

    /// Runs a script in the sandbox and returns the first line that it prints.
    fn ask(&mut self, script: &str) -> String {
        writeln!(self.child.stdin.as_mut().unwrap(), "{script}; echo").unwrap();
        loop {
            let line = self.said.next().unwrap_or_else(|| panic!("the sandbox ended at: {script}"));
            if !line.trim().is_empty() {
                return line.trim().to_owned();
            }
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A minimal web server.
struct Origin {
    port: u16,
}

impl Origin {
    fn start(body: &'static str) -> Self {
        Self::answering(format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        ))
    }

    fn redirecting(to: &str) -> Self {
        Self::answering(format!(
            "HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ))
    }

    fn answering(answer: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let _ = answer_one(stream, &answer);
            }
        });
        Self { port }
    }
}

fn answer_one(mut stream: TcpStream, answer: &str) -> std::io::Result<()> {
    let mut head = [0; 4096];
    let _ = stream.read(&mut head)?;
    stream.write_all(answer.as_bytes())
}
