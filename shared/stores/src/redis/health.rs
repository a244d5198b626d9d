//! Judges a Redis's settings and role from what `INFO` and `CONFIG GET` say. Pure, so that each
//! sentence has a test.

use std::collections::BTreeMap;

use standfast_domain::time::{Span, Time};
use standfast_engine::ports::StoreHealth;

/// What is wrong with a Redis in cluster mode, and what to do.
pub(super) const IN_CLUSTER_MODE: &str = "runs in cluster mode, where one script cannot commit \
    to several partitions: use a primary without `cluster-enabled`";

/// The oldest Redis with all commands and guarantees used here.
const VERSION_MIN: (u32, u32) = (6, 2);
/// Percent of `maxmemory` from which writes may soon be refused.
const MEMORY_WARNING_PERCENT: u64 = 90;
/// How far Redis's clock may lag behind the latest time given before it is worth a sentence.
const CLOCK_LAG_MAX: Span = Span::from_secs(5);

/// What was found out.
pub(super) struct Findings<'a> {
    /// The text that `INFO` gave.
    pub(super) info: &'a str,
    /// The setting `appendfsync`; `None` where `CONFIG` is forbidden.
    pub(super) appendfsync: Option<String>,
    /// Redis's own clock.
    pub(super) clock: Time,
    /// The latest time given by any process.
    pub(super) latest: Time,
}

/// Turns findings into sentences.
pub(super) fn judge(findings: &Findings<'_>) -> StoreHealth {
    let info: BTreeMap<&str, &str> =
        findings.info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let mut health = StoreHealth { product: product(&info), ..StoreHealth::default() };
    judge_version(&info, &mut health);
    judge_role(&info, &mut health);
    judge_memory(&info, &mut health);
    judge_durability(&info, findings.appendfsync.as_deref(), &mut health);
    let lag = findings.latest.since(findings.clock);
    if lag > CLOCK_LAG_MAX {
        health.warnings.push(format!(
            "redis's clock is {} s behind the latest time given, and timers wait until it has \
             caught up: correct the clock of its host",
            lag.0 / 1_000
        ));
    }
    health
}

fn product(info: &BTreeMap<&str, &str>) -> String {
    match (info.get("valkey_version"), info.get("redis_version")) {
        (Some(version), _) => format!("valkey {version}"),
        (None, Some(version)) => format!("redis {version}"),
        (None, None) => "redis of unknown version".into(),
    }
}

fn judge_version(info: &BTreeMap<&str, &str>, health: &mut StoreHealth) {
    let version = info.get("redis_version").and_then(|text| {
        let mut numbers = text.split('.').map_while(|part| part.parse::<u32>().ok());
        Some((numbers.next()?, numbers.next()?))
    });
    let (major, minor) = VERSION_MIN;
    match version {
        Some(version) if version < VERSION_MIN => health
            .faults
            .push(format!("{} is too old: use Redis {major}.{minor} or newer", health.product)),
        Some(_) => {}
        None => health.warnings.push(unknown("its version", "INFO")),
    }
}

fn judge_role(info: &BTreeMap<&str, &str>, health: &mut StoreHealth) {
    match info.get("role").copied() {
        Some("master") => {}
        Some(role) => health
            .faults
            .push(format!("redis is a {role} and refuses writes: point the URL at the primary")),
        None => health.warnings.push(unknown("its role", "INFO")),
    }
    if info.get("cluster_enabled") == Some(&"1") {
        health.faults.push(format!("redis {IN_CLUSTER_MODE}"));
    }
}

fn judge_memory(info: &BTreeMap<&str, &str>, health: &mut StoreHealth) {
    match info.get("maxmemory_policy").copied() {
        Some("noeviction") => {}
        Some(policy) => health.faults.push(format!(
            "maxmemory-policy is {policy}, which removes tasks when memory runs out: run `CONFIG \
             SET maxmemory-policy noeviction` and keep it in the configuration file"
        )),
        None => health.warnings.push(unknown("maxmemory-policy", "INFO")),
    }
    let number = |name| info.get(name).and_then(|text| text.parse::<u64>().ok());
    if let (Some(used), Some(most)) = (number("used_memory"), number("maxmemory"))
        && most > 0
        && used.saturating_mul(100) / most >= MEMORY_WARNING_PERCENT
    {
        health.warnings.push(format!(
            "redis uses {used} of {most} bytes and refuses writes beyond them: raise maxmemory or \
             shorten retention"
        ));
    }
}

fn judge_durability(
    info: &BTreeMap<&str, &str>,
    appendfsync: Option<&str>,
    health: &mut StoreHealth,
) {
    match info.get("aof_enabled").copied() {
        Some("1") => {}
        Some(_) => {
            health.faults.push(
                "appendonly is off, so a restart of redis loses accepted tasks: run `CONFIG SET \
                 appendonly yes` and keep it in the configuration file"
                    .into(),
            );
            return;
        }
        None => health.warnings.push(unknown("appendonly", "INFO")),
    }
    if info.get("aof_last_write_status").is_some_and(|status| *status != "ok") {
        health.faults.push(
            "redis could not write its append-only file: look at its log and free its disk".into(),
        );
    }
    match appendfsync {
        Some("always") => health.durable = info.get("aof_enabled") == Some(&"1"),
        Some(setting) => health.warnings.push(format!(
            "appendfsync is {setting}, so a crash of redis's host can lose what was answered in \
             the last second{}: set it to always where effects must not repeat",
            if setting == "everysec" { "" } else { " or longer" }
        )),
        None => health.warnings.push(unknown("appendfsync", "CONFIG GET")),
    }
}

fn unknown(what: &str, command: &str) -> String {
    format!("{what} is unknown: allow the user of redis to run {command}, or check it by hand")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\ncluster_enabled:0\r\n\
        maxmemory:0\r\nused_memory:100\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\n\
        aof_last_write_status:ok\r\n";

    fn of(info: &str, appendfsync: Option<&str>) -> StoreHealth {
        let appendfsync = appendfsync.map(str::to_owned);
        judge(&Findings { info, appendfsync, clock: Time(0), latest: Time(0) })
    }

    #[test]
    fn a_sound_redis_has_nothing_to_say() {
        let health = of(SOUND, Some("always"));
        let wanted =
            StoreHealth { product: "redis 7.0.15".into(), durable: true, ..Default::default() };
        assert_eq!(health, wanted);
    }

    #[test]
    fn each_fault_is_one_sentence_that_says_what_to_do() {
        for (from, to, wanted) in [
            ("noeviction", "allkeys-lru", "CONFIG SET maxmemory-policy noeviction"),
            ("aof_enabled:1", "aof_enabled:0", "CONFIG SET appendonly yes"),
            ("role:master", "role:slave", "point the URL at the primary"),
            ("7.0.15", "6.0.9", "use Redis 6.2 or newer"),
            ("cluster_enabled:0", "cluster_enabled:1", "without `cluster-enabled`"),
            ("status:ok", "status:err", "free its disk"),
        ] {
            let health = of(&SOUND.replace(from, to), Some("always"));
            assert_eq!(health.faults.len(), 1, "{to}: {health:?}");
            assert!(health.faults[0].contains(wanted), "{to}: {health:?}");
            assert_eq!(health.durable, to != "aof_enabled:0", "{to}");
        }
    }

    #[test]
    fn weaker_settings_are_warnings() {
        for setting in ["everysec", "no"] {
            let health = of(SOUND, Some(setting));
            assert!(!health.durable && health.faults.is_empty());
            assert!(health.warnings[0].starts_with("appendfsync is "), "{health:?}");
        }
        let full = SOUND.replace("maxmemory:0", "maxmemory:110");
        assert!(of(&full, Some("always")).warnings[0].contains("raise maxmemory"));
    }

    #[test]
    fn what_is_hidden_is_called_unknown() {
        let health = of(SOUND, None);
        assert!(!health.durable && health.faults.is_empty());
        assert!(health.warnings[0].starts_with("appendfsync is unknown"), "{health:?}");
        assert_eq!(of("", None).warnings.len(), 5);
    }

    #[test]
    fn a_clock_that_went_back_is_named() {
        let mut findings =
            Findings { info: SOUND, appendfsync: None, clock: Time(0), latest: Time(5_000) };
        assert!(!judge(&findings).warnings.iter().any(|text| text.contains("clock")));
        findings.latest = Time(65_000);
        assert!(judge(&findings).warnings.iter().any(|text| text.contains("65 s behind")));
    }
}
