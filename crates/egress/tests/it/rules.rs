//! The decisions of the rules, without a network.

use egress::{AllowReason, Denial, Mode, RuleError, Rules, Target};

fn decide(rules: &Rules, target: &str) -> Result<AllowReason, Denial> {
    rules.decide(&Target::parse(target, None).unwrap())
}

#[test]
fn open_mode_allows_every_host_on_ports_80_and_443() {
    let rules = Rules::new(Mode::Open);
    for target in ["example.com:80", "example.com:443", "8.8.8.8:443"] {
        assert_eq!(decide(&rules, target), Ok(AllowReason::Public), "{target}");
    }
    for target in ["example.com:22", "example.com:8080", "example.com:1"] {
        assert!(matches!(decide(&rules, target), Err(Denial::PortClosed(_))), "{target}");
    }
    assert_eq!(decide(&rules, "example.com:25"), Err(Denial::PortBlocked));
}

#[test]
fn allow_rule_opens_only_the_ports_it_names() {
    let rules = Rules::new(Mode::Open).allow("git.example.com:22").unwrap().allow("*:8000-8080").unwrap();
    for target in ["git.example.com:22", "git.example.com:443", "other.com:8000", "other.com:8080"] {
        assert!(decide(&rules, target).is_ok(), "{target}");
    }
    for target in ["example.com:22", "other.com:7999", "other.com:8081"] {
        assert!(decide(&rules, target).is_err(), "{target}");
    }
}

#[test]
fn allow_list_matches_complete_labels_in_any_spelling() {
    let rules = Rules::new(Mode::AllowList)
        .allow("Example.COM.")
        .and_then(|rules| rules.allow("*.wild.example"))
        .and_then(|rules| rules.allow("bücher.example"))
        .and_then(|rules| rules.allow("[2606:4700::1111]:443"))
        .unwrap();
    let allowed = [
        "example.com:443",
        "EXAMPLE.com.:80",
        "ex%61mple.com:443",
        "a.wild.example:443",
        "a.b.wild.example:80",
        "xn--bcher-kva.example:443",
        "BÜCHER.example:80",
        "[2606:4700:0::1111]:443",
    ];
    for target in allowed {
        assert!(matches!(decide(&rules, target), Ok(AllowReason::Listed(_))), "{target}");
    }
    let refused = [
        "www.example.com:443",
        "example.com:22",
        "badexample.com:443",
        "example.com.evil.net:443",
        "wild.example:443",
        "badwild.example:443",
        "8.8.8.8:443",
        "[2606:4700::1111]:80",
        "bucher.example:443",
    ];
    for target in refused {
        assert!(matches!(decide(&rules, target), Err(Denial::NotListed(_))), "{target}");
    }
}

#[test]
fn deny_overrides_every_permission() {
    let rules = Rules::new(Mode::Open)
        .allow("a.example.com")
        .and_then(|rules| rules.allow("*.example.com:8443"))
        .and_then(|rules| rules.allow_private("db.example.com:5432"))
        .and_then(|rules| rules.deny("*.example.com"))
        .and_then(|rules| rules.deny("0x08.8.8.8:443"))
        .unwrap();
    for target in ["a.example.com:443", "b.example.com:8443", "db.example.com:5432", "8.8.8.8:443"] {
        assert!(matches!(decide(&rules, target), Err(Denial::Denied(..))), "{target}");
    }
    assert!(decide(&rules, "example.com:443").is_ok());
    assert!(decide(&rules, "8.8.8.8:80").is_ok());
    let text = decide(&rules, "A.example.com:443").unwrap_err().to_string();
    assert!(text.contains("a.example.com:443") && text.contains("`*.example.com`"), "{text}");
}

#[test]
fn offline_mode_ignores_the_lists() {
    let rules = Rules::new(Mode::Offline).allow("*").unwrap().allow_private("10.0.0.5:80").unwrap();
    for target in ["example.com:443", "10.0.0.5:80", "8.8.8.8:80"] {
        assert_eq!(decide(&rules, target), Err(Denial::Offline), "{target}");
    }
}

#[test]
fn exception_applies_to_one_port_of_one_host() {
    let rules = Rules::new(Mode::AllowList).allow_private("Registry.internal:5000").unwrap();
    assert!(matches!(decide(&rules, "registry.internal:5000"), Ok(AllowReason::Private(_))));
    assert!(decide(&rules, "registry.internal:443").is_err());
    assert!(decide(&rules, "other.internal:5000").is_err());
}

#[test]
fn invalid_entries_are_refused_with_an_example() {
    let wrong = [
        "",
        "*.",
        "*.*.com",
        "a.*.com",
        "*.127.0.0.1",
        "http://a.com",
        "a.com/",
        "a.com:",
        "a.com:0",
        "a.com:99999",
        "a.com:90-80",
        "a.com:80-",
        "u@a.com",
        "a b",
        "a..com",
    ];
    for entry in wrong {
        let error = Rules::new(Mode::Open).allow(entry).unwrap_err();
        assert!(error.to_string().contains("example.com:22"), "{entry}: {error}");
        assert!(Rules::new(Mode::Open).deny(entry).is_err(), "{entry}");
    }
    for entry in ["a.com:25", "a.com:20-30"] {
        assert!(matches!(Rules::new(Mode::Open).allow(entry), Err(RuleError::PortBlocked(_))), "{entry}");
    }
    for entry in ["a.com", "*.a.com:80", "a.com:80-90", "a.com:25"] {
        assert!(Rules::new(Mode::Open).allow_private(entry).is_err(), "{entry}");
    }
    let bell = Rules::new(Mode::Open).allow("a\u{7}\r\nb").unwrap_err().to_string();
    assert!(!bell.contains(['\u{7}', '\r', '\n']));
}
