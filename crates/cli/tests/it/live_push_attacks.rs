//! Pushes that exceed what was allowed: a repository that redirects a person's push, and agents that overwrite,
//! delete, tag, or push to refs that they may not update. Git and the forge are real.

use serde_json::{Value, json};

use crate::live_forge::{Stage, ask, git};
use crate::live_push::at_work;

const FORCE_PUSH_DENIED: &str = "git.force_push denied";

impl Stage {
    fn id(&self, name: &str) -> String {
        git(&self.directory.path().join("ada/app.git"), &["rev-parse", name])
    }

    fn refs(&self) -> String {
        git(
            &self.directory.path().join("ada/app.git"),
            &["for-each-ref", "--format=%(objectname) %(refname)"],
        )
    }

    /// Tool and status of the last call, and the type of its actor.
    fn last(&self) -> (String, String) {
        let call = self.calls().pop().unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let what = text(&call["tool_versions"]["tool"]) + " " + &text(&call["status"]);
        (what, text(&call["actor"]["actor_type"]))
    }

    fn assert_refused(&self, arguments: &str, expected: &str) {
        let before = self.refs();
        let said = self.push(arguments);
        assert!(
            said.contains("remote: Denied by policy: ") && said.contains("FAILED"),
            "{arguments}: {said}"
        );
        assert_eq!(self.refs(), before, "{arguments}");
        assert_eq!(self.last(), (expected.to_owned(), "agent".to_owned()), "{arguments}");
    }

    fn accepted(&self, arguments: &str) {
        let said = self.push(arguments);
        assert!(!said.contains("FAILED"), "{arguments}: {said}");
    }
}

/// Every way we know in which a repository can make git run a program, connect elsewhere, or push something else.
const GIT_CONFIG_TRAPS: &str = r#"
mkdir -p /tmp/traps .git/hooks && cat > /tmp/traps/trap <<'TRAP'
#!/bin/sh
echo "$0 $*" >> /tmp/traps/ran
[ -n "$TRAPPED" ] && exit 0
export TRAPPED=1
unset GIT_DIR GIT_OBJECT_DIRECTORY GIT_SHALLOW_FILE
cd /home/user/workspace && git push -f "$(git config remote.origin.url)" evil:refs/heads/main
exit 0
TRAP
chmod +x /tmp/traps/trap
for hook in pre-push reference-transaction post-update push-to-checkout pre-auto-gc; do
    cp /tmp/traps/trap .git/hooks/$hook
done
mkdir -p /tmp/traps/global && cp /tmp/traps/trap /tmp/traps/global/pre-push
cp /tmp/traps/trap /tmp/traps/global/reference-transaction
git config --global core.hooksPath /tmp/traps/global
for key in core.fsmonitor core.sshCommand core.gitProxy core.askPass core.pager core.editor gpg.program sequence.editor; do
    git config $key /tmp/traps/trap
done
git config credential.helper '!/tmp/traps/trap'
git config remote.origin.push +evil:refs/heads/main
git config --add remote.origin.pushurl ext::/tmp/traps/trap
git config push.default matching
git config push.followTags true
git config push.gpgSign true
git config push.pushOption evil
git config push.recurseSubmodules on-demand
git config remote.pushDefault evil
git config remote.evil.url ext::/tmp/traps/trap
git config branch.work.merge refs/heads/main
git config branch.work.pushRemote evil
git config protocol.allow always
git config http.proxy http://127.0.0.1:9
git config url.ext::/tmp/traps/trap.pushInsteadOf "$PROLIFERATE_GATEWAY_URL/git/"
git config url.ext::/tmp/traps/trap.insteadOf "$PROLIFERATE_GATEWAY_URL"
"#;

#[test]
fn a_repository_cannot_redirect_a_persons_push() {
    let (stage, mut socket) = at_work(&[]);
    let main = stage.id("main");
    stage.shell("git checkout -q -b evil && git commit -q --amend --allow-empty -m evil");
    stage.shell("git checkout -q -b work origin/main && git commit -q --allow-empty -m change");
    let commit = stage.shell("git rev-parse work");
    stage.shell(GIT_CONFIG_TRAPS);
    let pushed = ask(&mut socket, &json!({"type": "git_push"}));
    assert_eq!(pushed["code"], "SUCCESS", "{pushed}");
    assert_eq!((stage.id("work"), stage.id("main")), (commit, main.clone()));
    assert_eq!(stage.shell("cat /tmp/traps/ran 2>/dev/null; true"), "", "a program of the repository ran");
    assert_eq!(stage.last(), ("git.push completed".to_owned(), "human".to_owned()));
    assert_eq!(stage.calls().len(), 1);

    // The push sends the named branch, whatever is checked out.
    stage.shell("git -c core.fsmonitor=false checkout -q evil 2>/dev/null; rm -f /tmp/traps/ran; true");
    let pushed = ask(&mut socket, &json!({"type": "git_push", "branchName": "work"}));
    assert_eq!(pushed["code"], "SUCCESS", "{pushed}");
    assert_eq!(stage.id("main"), main);
    for wrong in ["nowhere", "--force", "+work", "work:refs/heads/main", "refs/heads/work^"] {
        let refused = ask(&mut socket, &json!({"type": "git_push", "branchName": wrong}));
        assert_eq!(refused["code"], "UNKNOWN_ERROR", "{wrong}: {refused}");
    }
    // A person's push never overwrites: the commits at the forge have to be pulled first.
    stage.shell("git update-ref refs/heads/work refs/heads/evil 2>/dev/null; rm -f /tmp/traps/ran; true");
    let before = stage.refs();
    let behind = ask(&mut socket, &json!({"type": "git_push", "branchName": "work"}));
    assert_eq!(behind["success"], false, "{behind}");
    assert!(behind["message"].as_str().unwrap().contains("pull them first"), "{behind}");
    assert_eq!(stage.refs(), before);
    assert_eq!(stage.shell("cat /tmp/traps/ran 2>/dev/null; true"), "");
    stage.verify();
}

#[test]
fn agents_may_fast_forward_branches_and_need_an_action_mode_for_other_updates() {
    let (stage, _socket) = at_work(&[]);
    stage.shell("git checkout -q -b work && git commit -q --allow-empty -m one");
    stage.accepted("origin work");
    stage.commit("two");
    stage.accepted("origin work");
    // The forge already has the commits, so the pack contains none.
    stage.accepted("origin work:main");
    assert_eq!(stage.id("main"), stage.id("work"));
    // A merge with a branch that the forge already has.
    stage.shell(
        "git checkout -q -b other main && git commit -q --allow-empty -m other && git push -q origin other",
    );
    stage.shell(
        "git checkout -q work && git commit -q --allow-empty -m three && git merge -q --no-edit other",
    );
    stage.accepted("origin work");
    stage.accepted("origin other:refs/heads/copy && git push origin work:copy");

    stage.shell("git commit -q --amend --allow-empty -m rewritten");
    stage.assert_refused("-f origin work", FORCE_PUSH_DENIED);
    stage.assert_refused("-f origin work~2:work", FORCE_PUSH_DENIED);
    stage.assert_refused("-f origin other:work", FORCE_PUSH_DENIED);
    stage.assert_refused("origin :other", "git.delete_ref denied");
    stage.shell("git tag v1 && git tag -a -m two v2");
    stage.assert_refused("origin v1", "git.push_tag denied");
    stage.assert_refused("origin v2", "git.push_tag denied");
    stage.assert_refused("origin HEAD:refs/for/main", "git.push denied");
    stage.assert_refused("origin HEAD:refs/meta/config", "git.push denied");
    // An allowed update does not smuggle in a forbidden one.
    stage.assert_refused("-f origin HEAD:refs/heads/new work", FORCE_PUSH_DENIED);

    let machine = &stage.real.machine;
    for operation in ["git:force_push", "git:delete_ref", "git:push_tag"] {
        assert_eq!(machine.run(&["actions", "modes", "set", operation, "allow"]).code, 0, "{operation}");
    }
    let allowed = (0..100).any(|_| !stage.push("-f origin work").contains("FAILED"));
    assert!(allowed, "the action mode has no effect");
    assert_eq!(stage.last(), ("git.force_push completed".to_owned(), "agent".to_owned()));
    stage.accepted("origin v1");
    stage.accepted("origin :other");
    let said = stage.push("origin :copy v2");
    assert!(said.contains("separately") && said.contains("FAILED"), "{said}");
    stage.verify();
}

#[test]
fn a_push_that_needs_approval_passes_once_when_it_is_repeated_after_it() {
    let (stage, _socket) = at_work(&[]);
    let machine = &stage.real.machine;
    let set = machine.run(&["actions", "modes", "set", "git:force_push", "require_approval"]);
    assert_eq!(set.code, 0, "{}", set.err);
    stage.shell("git checkout -q -b work && git commit -q --allow-empty -m one");
    stage.accepted("origin work");
    let first = stage.id("work");
    stage.shell("git commit -q --amend --allow-empty -m two && git branch -q other && git commit -q --amend --allow-empty -m three");
    let request = |arguments: &str| {
        let said = stage.push(arguments);
        assert!(said.contains("requires approval") && said.contains("FAILED"), "{arguments}: {said}");
        let (_, rest) = said.split_once("/actions/invocations/").unwrap();
        rest.chars().take(36).collect::<String>()
    };
    let id = request("-f origin work");
    assert_eq!(request("-f origin work"), id, "a repeated push is the same request");
    stage.real.post(&format!("/v1/invocations/{id}/approve"), &json!({}));
    let other = request("-f origin other:work");
    assert!(other != id && stage.id("work") == first, "another commit is another request");
    stage.accepted("-f origin work");
    let second = stage.id("work");
    assert_ne!(second, first);
    let status = |id: &str| stage.real.get(&format!("/v1/invocations/{id}"))["invocation"]["status"].clone();
    assert_eq!((status(&id), status(&other)), (json!("completed"), json!("pending")));
    // The same update again needs a new approval.
    git(&stage.directory.path().join("ada/app.git"), &["update-ref", "refs/heads/work", &first]);
    assert_ne!(request("-f origin work"), id);
    assert_eq!(stage.id("work"), first);
    stage.verify();
}
