//! Tests of the settings from an operator's point of view.

use super::*;

fn load(environment: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, ConfigErrors> {
    let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    };
    Config::load(&own(environment).into_iter().collect(), &own(flags))
}

#[test]
fn the_defaults_alone_are_a_valid_configuration() {
    let config = load(&[("HOME", "/home/ada")], &[]).unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:8787");
    assert_eq!(config.data_dir, PathBuf::from("/home/ada/.local/share/proliferate"));
    assert!(matches!(config.database, Database::Sqlite));
    assert!(config.jwt_secret.is_none() && !config.sandbox_token_compat);
}

#[test]
fn the_environment_overrides_defaults_and_flags_override_both() {
    let env = [("PROLIFERATE_LISTEN", "127.0.0.1:1111"), ("PROLIFERATE_DATA_DIR", "/a")];
    let config = load(&env, &[("PROLIFERATE_LISTEN", "127.0.0.1:2222")]).unwrap();
    assert_eq!(config.listen.port(), 2222);
    assert_eq!(config.data_dir, PathBuf::from("/a"));
}

#[test]
fn all_errors_come_at_once_with_the_name_of_the_setting() {
    let errors = load(
        &[
            ("PROLIFERATE_LISTEN", "nowhere"),
            ("DATABASE_URL", "mysql://u:hunter2@h/d"),
            ("GATEWAY_JWT_SECRET", "short-secret"),
            ("USER_SECRETS_ENCRYPTION_KEY", "zz"),
            ("S3_BUCKET", "b"),
            ("SANDBOX_PROVIDER", "cloud"),
        ],
        &[("NO_SUCH", "1")],
    )
    .unwrap_err()
    .to_string();
    for name in [
        "PROLIFERATE_LISTEN",
        "DATABASE_URL",
        "GATEWAY_JWT_SECRET",
        "USER_SECRETS_ENCRYPTION_KEY",
        "S3_BUCKET",
        "SANDBOX_PROVIDER",
        "NO_SUCH",
    ] {
        assert!(errors.contains(name), "{name} is not in: {errors}");
    }
    assert!(!errors.contains("hunter2") && !errors.contains("short-secret"), "a secret is shown: {errors}");
}

#[test]
fn a_signing_secret_needs_32_bytes_and_must_not_serve_twice() {
    assert!(load(&[("GATEWAY_JWT_SECRET", &"a".repeat(31))], &[]).is_err());
    assert!(load(&[("GATEWAY_JWT_SECRET", &"a".repeat(32))], &[]).is_ok());
    let same = "a".repeat(40);
    let errors =
        load(&[("GATEWAY_JWT_SECRET", &same), ("SERVICE_TO_SERVICE_AUTH_TOKEN", &same)], &[]).unwrap_err();
    assert!(errors.to_string().contains("must not be the same"));
}

#[test]
fn secrets_do_not_print_and_are_refused_on_the_command_line() {
    let secret = "s3cr3t-".repeat(8);
    let config = load(
        &[
            ("GATEWAY_JWT_SECRET", &secret),
            ("ANTHROPIC_API_KEY", &secret),
            ("OPENAI_API_KEY", &secret),
            ("DATABASE_URL", &format!("postgres://u:{secret}@h/d")),
        ],
        &[],
    )
    .unwrap();
    assert!(!format!("{config:?}").contains("s3cr3t"));
    let errors = load(&[], &[("ANTHROPIC_API_KEY", "x")]).unwrap_err();
    assert!(errors.to_string().contains("environment"));
}

#[test]
fn numbers_that_would_break_the_running_gateway_are_refused() {
    for (name, value) in [
        ("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "0"),
        ("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "86401"),
        ("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "18446744073709551615"),
        ("PROLIFERATE_STOP_SECONDS", "-1"),
        ("PROLIFERATE_MAX_BODY_BYTES", "0"),
        ("PROLIFERATE_MAX_CONNECTIONS", "many"),
        ("PROLIFERATE_SHARED_MEMORY_MIB", "255"),
        ("PROLIFERATE_MODEL_REQUESTS", "0"),
    ] {
        let errors = load(&[(name, value)], &[]).unwrap_err().to_string();
        assert!(errors.contains(name), "{name}={value}: {errors}");
    }
    assert!(load(&[("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", "86400")], &[]).is_ok());
}

#[test]
fn origins_are_compared_as_browsers_send_them() {
    let config = load(&[("ALLOWED_ORIGINS", "https://a.example, http://b.example:3000/")], &[]).unwrap();
    let texts: Vec<_> = config.allowed_origins.iter().map(Origin::as_str).collect();
    assert_eq!(texts, ["https://a.example", "http://b.example:3000"]);
    assert!(load(&[("ALLOWED_ORIGINS", "https://a.example/path")], &[]).is_err());
}

#[test]
fn a_url_may_hold_a_password_and_is_not_repeated() {
    for name in ["PUBLIC_URL", "ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "ALLOWED_ORIGINS"] {
        for url in [
            "https://u:hunter2@h.example",
            "ftp://hunter2@h",
            "hunter2",
            "https://hunter2:x/",
            "https://h/hunter2",
        ] {
            if let Err(errors) = load(&[(name, url)], &[]) {
                assert!(errors.to_string().contains(name), "{name} is not in: {errors}");
                assert!(!errors.to_string().contains("hunter2"), "{errors}");
            }
        }
        assert!(load(&[(name, "https://u:hunter2@h.example")], &[]).is_err(), "{name}");
    }
}

#[test]
fn settings_that_do_nothing_yet_are_refused_without_their_values() {
    for name in ["REDIS_URL", "S3_BUCKET", "S3_REGION", "S3_ENDPOINT_URL", "S3_ACCESS_KEY", "S3_SECRET_KEY"] {
        let value = (name, "redis://:hunter2@h:1");
        for refused in [load(&[value], &[]), load(&[], &[value])] {
            let errors = refused.unwrap_err().to_string();
            assert!(errors.contains(&format!("{name} is not supported yet")), "{errors}");
            assert!(errors.contains("Unset it") && !errors.contains("hunter2"), "{errors}");
            assert_eq!(errors.lines().count(), 1, "{errors}");
        }
        assert!(load(&[(name, "")], &[]).is_ok(), "an empty value is an absent one");
    }
}

#[test]
fn a_budget_needs_a_price_for_every_model() {
    let budget = ("SESSION_BUDGET_DOLLARS", "2.50");
    for prices in ["", "claude-opus=5/25"] {
        let errors = load(&[budget, ("MODEL_PRICES", prices)], &[]).unwrap_err().to_string();
        assert!(errors.contains("SESSION_BUDGET_DOLLARS") && errors.contains("MODEL_PRICES"), "{errors}");
    }
    let config = load(&[budget, ("MODEL_PRICES", "claude-opus=5/25,*=3/15")], &[]).unwrap();
    assert_eq!(config.session_budget_micros, Some(2_500_000));
}

#[test]
fn a_key_alone_means_openais_own_endpoint() {
    let chat = |environment: &[(&str, &str)]| load(environment, &[]).unwrap().chat_url().map(String::from);
    assert_eq!(chat(&[]), None);
    assert_eq!(chat(&[("OPENAI_API_KEY", "k")]).as_deref(), Some("https://api.openai.com/v1"));
    let local = [("OPENAI_BASE_URL", "http://127.0.0.1:11434/v1")];
    assert_eq!(chat(&local).as_deref(), Some("http://127.0.0.1:11434/v1"));
    assert!(load(&local, &[]).unwrap().has_provider() && !load(&[], &[]).unwrap().has_provider());
    assert!(load(&[("DEFAULT_MODEL", "two words")], &[]).is_err());
}

/// Otherwise every text that names the endpoint would be redacted.
#[test]
fn a_placeholder_for_a_providers_key_is_not_looked_for() {
    let keys = |key: &str| {
        let config = load(&[("OPENAI_API_KEY", key)], &[]).unwrap();
        config.provider_keys().map(|key| key.expose_secret().to_owned()).collect::<Vec<_>>()
    };
    for placeholder in ["ollama", "not-needed", "sk-no-key-required", "1234"] {
        assert_eq!(keys(placeholder), [""; 0], "{placeholder}");
    }
    for key in ["sk-proj-4711", "sk-the-real-key-of-the-endpoint"] {
        assert_eq!(keys(key), [key]);
    }
}
