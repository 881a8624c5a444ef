//! TLS, SASL, client certificates and ACLs on a broker that has them all: what gets through, what does not and why, and that a
//! reload changes over only to what works. Nowhere is a secret told.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::broker::{self, Broker};
use outbox_relay_pg_test::cluster::reload;
use outbox_relay_pg_test::consumer::Consumer;
use outbox_relay_pg_test::security::{Security, User, allow_writing, change_password};
use outbox_relay_pg_test::state;
use outbox_relay_pg_test::tokens;
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{PATIENCE, Scene, enqueue, relay_processes, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            messages_go_over_tls_and_sasl_with_secrets_from_the_file,
            wrong_password_is_told_in_plain_words_and_costs_a_line_a_minute,
            client_certificate_that_is_missing_or_expired_is_told_in_plain_words,
            topic_without_permission_waits_alone_until_it_is_granted,
            user_without_any_permission_waits_until_it_is_granted,
            password_is_changed_without_a_gap_and_a_wrong_one_changes_nothing,
            settings_without_a_broker_are_left_for_others_at_once,
            properties_file_that_cannot_be_used_keeps_the_old_client,
            messages_go_on_with_tokens_of_an_oidc_provider_that_expire,
            wrong_secret_for_the_oidc_provider_is_told_and_put_right_by_a_reload,
    ]
}

const SCRAM_256: User = User { name: "scram256", password: "secret-of-scram256", mechanism: "SCRAM-SHA-256" };
const SCRAM_512: User = User { name: "scram512", password: "secret-of-scram512", mechanism: "SCRAM-SHA-512" };
const PLAIN: User = User { name: "plain", password: "secret-of-plain", mechanism: "PLAIN" };
/// Shows a token that nobody has signed.
const OAUTH: User = User { name: "oauth", password: "secret-of-oauth", mechanism: "OAUTHBEARER" };
/// Whose password changes.
const ROTATING: User = User { name: "rotating", password: "secret-of-rotating-1", mechanism: "SCRAM-SHA-256" };
const NEW_PASSWORD: &str = "secret-of-rotating-2";
/// Who may do nothing until the test allows it.
const NOBODY: User = User { name: "nobody", password: "secret-of-nobody", mechanism: "SCRAM-SHA-256" };
/// Get a signed token for their secret.
const OIDC: User = User { name: "oidc", password: "secret-of-oidc", mechanism: "OIDC" };
const OTHER_OIDC: User = User { name: "other-oidc", password: "secret-of-other-oidc", mechanism: "OIDC" };
const WRONG_PASSWORD: &str = "secret-that-is-wrong";
/// What all passwords begin with.
const SECRET: &str = "secret-";

/// Seconds within which what was allowed must happen by itself.
const SOON: Duration = Duration::from_secs(20);

struct Secured {
    broker: Broker,
    security: Security,
}

impl Secured {
    fn sasl(&self) -> String {
        format!("127.0.0.1:{}", self.security.sasl_port)
    }

    fn tls(&self) -> String {
        format!("127.0.0.1:{}", self.security.tls_port)
    }

    fn oidc(&self) -> String {
        format!("127.0.0.1:{}", self.security.oidc_port)
    }

    /// `kafka_properties` for a user.
    fn sasl_properties(&self, user: User) -> String {
        let who = match user.mechanism {
            "OAUTHBEARER" => "enable.sasl.oauthbearer.unsecure.jwt=true".to_owned(),
            "OIDC" => format!(
                "sasl.oauthbearer.method=oidc sasl.oauthbearer.client.id={} sasl.oauthbearer.token.endpoint.url={}",
                user.name,
                self.security.tokens.url()
            ),
            _ => format!("sasl.username={}", user.name),
        };
        let mechanism = if user.mechanism == "OIDC" { "OAUTHBEARER" } else { user.mechanism };
        let authority = self.security.authority();
        format!("security.protocol=sasl_ssl sasl.mechanism={mechanism} {who} ssl.ca.location={}", authority.display())
    }

    /// The file of secrets for a user.
    fn file_of(&self, scene: &Scene, user: User) -> Result<PathBuf> {
        match user.mechanism {
            "OAUTHBEARER" => {
                let config = format!("principal={} scope={}", user.name, user.password);
                self.security.write_secrets(&file_name(scene), &[("sasl.oauthbearer.config", &config)])
            }
            _ => self.password_file(scene, user.password),
        }
    }

    fn client_secret_file(&self, scene: &Scene, secret: &str) -> Result<PathBuf> {
        self.security.write_secrets(&file_name(scene), &[("sasl.oauthbearer.client.secret", secret)])
    }

    fn password_file(&self, scene: &Scene, password: &str) -> Result<PathBuf> {
        self.security.write_secrets(&file_name(scene), &[("sasl.password", password)])
    }

    /// A topic to which a principal may write, if one is named.
    fn topic(&self, scene: &mut Scene, principal: Option<&str>) -> Result<String> {
        let topic = scene.topic_name();
        self.broker.create_topic(&topic, 1, &[])?;
        if let Some(principal) = principal {
            allow_writing(&self.broker.bootstrap(), principal, &topic)?;
        }
        Ok(topic)
    }

    fn follow(&self, topic: &str) -> Result<Consumer> {
        Consumer::follow(&self.broker.bootstrap(), &[topic])
    }
}

fn file_name(scene: &Scene) -> String {
    let directory = scene.directory().file_name().map(|name| name.to_string_lossy().into_owned());
    format!("{}.properties", directory.unwrap_or_default())
}

static SECURED: Mutex<Option<(Arc<Secured>, PathBuf)>> = Mutex::new(None);

/// One for all tests here; each has users and topics of its own.
fn secured() -> Result<Arc<Secured>> {
    let mut shared = SECURED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((secured, _)) = &*shared {
        return Ok(Arc::clone(secured));
    }
    let directory = state::directory()?.join("test").join(format!("{}-secured", std::process::id()));
    let users = [SCRAM_256, SCRAM_512, PLAIN, ROTATING, NOBODY, OIDC, OTHER_OIDC];
    let ([sasl, tls], [oidc, _]) = (broker::two_free_ports()?, broker::two_free_ports()?);
    let security = Security::create(&directory.join("security"), [sasl, tls, oidc], &users)?;
    let broker = Broker::start_secured_in(&directory.join("kafka"), &security)?;
    let secured = Arc::new(Secured { broker, security });
    *shared = Some((Arc::clone(&secured), directory));
    Ok(secured)
}

/// Ends the broker; what it leaves is kept when a test has failed.
pub fn stop_broker(failed: bool) {
    let Some((secured, directory)) = SECURED.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let stopped = secured.broker.kill().and_then(|()| if failed { Ok(()) } else { Ok(fs::remove_dir_all(directory)?) });
    if let Err(error) = stopped {
        eprintln!("could not clear away the secured broker: {error:#}");
    }
}

/// Starts the cluster with a relay that goes through one of the secured listeners.
fn start(scene: &mut Scene, bootstrap: &str, properties: &str, file: Option<&Path>) -> Result<Client> {
    let file = file.map(|file| file.display().to_string()).unwrap_or_default();
    scene.expect_complaint(SILENCE);
    scene.start_without_broker(&[
        ("outbox_relay.bootstrap_servers", bootstrap),
        ("outbox_relay.kafka_properties", properties),
        ("outbox_relay.kafka_properties_file", &file),
        // Trials and attempts are repeated so often.
        ("outbox_relay.lease_renew_interval", "2s"),
    ])
}

fn wait_for_last_error(client: &mut Client, pattern: &str) -> Result<String> {
    wait::until(format_args!("the view says {pattern:?}"), PATIENCE, || {
        let row = client.query_opt("select last_error from outbox.pg_stat_relay", &[])?;
        let error: Option<String> = row.and_then(|row| row.get(0));
        let error = error.unwrap_or_default();
        Ok(if error.contains(pattern) { Seen::Reached(error) } else { Seen::NotYet(error) })
    })
}

fn messages(client: &mut Client) -> Result<i64> {
    Ok(client.query_one("select count(*) from outbox.message", &[])?.get(0))
}

/// What the relay says once when reports stay out, and on a busy machine of a broker that takes its time.
const SILENCE: &str = "WARNING:  Kafka does not answer";

/// Lines of the server log in which a relay complains of anything else.
fn complaints(scene: &Scene) -> Result<Vec<String>> {
    let log = scene.cluster.log()?;
    let lines = log.lines_with("outbox_relay relay WARNING").filter(|line| !line.contains(SILENCE));
    Ok(lines.map(str::to_owned).collect())
}

/// No log, view or table tells a password.
fn require_no_secret(scene: &Scene, client: &mut Client) -> Result<()> {
    let log = scene.cluster.log()?;
    let told: Vec<&str> = log.lines_with(SECRET).collect();
    ensure!(told.is_empty(), "the log tells a secret: {told:?}");
    let seen: String = client
        .query_one(
            "select (select coalesce(string_agg(r::text, ' '), '') from outbox.pg_stat_relay r)
                 || (select coalesce(string_agg(b::text, ' '), '') from outbox.pg_stat_bucket b)
                 || (select coalesce(string_agg(f::text, ' '), '') from outbox.failure f)
                 || (select string_agg(s::text, ' ') from pg_settings s)
                 || (select string_agg(a::text, ' ') from pg_stat_activity a where a.pid <> pg_backend_pid())",
            &[],
        )?
        .get(0);
    ensure!(!seen.contains(SECRET), "a view tells a secret");
    Ok(())
}

fn relay_ids(client: &mut Client) -> Result<Vec<String>> {
    let rows = client.query("select relay_id from outbox.pg_stat_relay where relay_id is not null order by 1", &[])?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// Waits until another relay than `before` publishes, in the same process.
fn wait_for_change(client: &mut Client, before: &[String]) -> Result<()> {
    wait::until("the relay has changed over", PATIENCE, || {
        let now = relay_ids(client)?;
        Ok(if !now.is_empty() && now != before { Seen::Reached(()) } else { Seen::NotYet(format!("{now:?}")) })
    })
}

fn messages_go_over_tls_and_sasl_with_secrets_from_the_file(scene: &mut Scene) -> Result<()> {
    let secured = secured()?;
    let file = secured.password_file(scene, SCRAM_256.password)?;
    let users = [SCRAM_256, SCRAM_512, PLAIN, OAUTH];
    // Only the user itself may write to its topic, so what arrives there was sent by it.
    let topics: Vec<String> = users.iter().map(|user| secured.topic(scene, Some(user.name))).collect::<Result<_>>()?;
    let mut client = start(scene, &secured.sasl(), &secured.sasl_properties(SCRAM_256), Some(&file))?;
    let mut processes = Vec::new();
    for (user, topic) in users.into_iter().zip(&topics) {
        if user != SCRAM_256 {
            let before = relay_ids(&mut client)?;
            secured.file_of(scene, user)?;
            scene.cluster.set("outbox_relay.kafka_properties", &secured.sasl_properties(user))?;
            wait_for_change(&mut client, &before)?;
        }
        enqueue(&mut client, topic, "k", user.name)?;
        let records = secured.follow(topic)?.take(1, PATIENCE).with_context(|| user.mechanism)?;
        ensure!(records[0].text() == user.name, "{records:?}");
        wait_until_published(&mut client, PATIENCE)?;
        processes.push(relay_processes(&mut client)?);
    }
    ensure!(processes.iter().all(|process| *process == processes[0]), "started anew: {processes:?}");
    ensure!(complaints(scene)?.is_empty(), "{:?}", complaints(scene)?);
    require_no_secret(scene, &mut client)
}

/// How long a refused relay is watched; the client tries to log in many times meanwhile.
const WATCHED: Duration = Duration::from_secs(20);

fn wrong_password_is_told_in_plain_words_and_costs_a_line_a_minute(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    let secured = secured()?;
    let topic = secured.topic(scene, Some(SCRAM_256.name))?;
    let file = secured.password_file(scene, WRONG_PASSWORD)?;
    let mut client = start(scene, &secured.sasl(), &secured.sasl_properties(SCRAM_256), Some(&file))?;
    enqueue(&mut client, &topic, "k", "v")?;
    wait_for_last_error(&mut client, "refuses the user or the password")?;
    let since = Instant::now();
    wait::until("the relay says that it waits for the broker", PATIENCE, || {
        let state: String = client.query_one("select state from outbox.pg_stat_relay", &[])?.get(0);
        Ok(if state == "waiting for broker" { Seen::Reached(()) } else { Seen::NotYet(state) })
    })?;
    // The length is meant: lines are counted over it.
    std::thread::sleep(WATCHED.saturating_sub(since.elapsed()));
    let said = complaints(scene)?;
    scene.say(format_args!("in {WATCHED:?}: {said:#?}"));
    ensure!(said.len() == 1, "one line for one cause, not these: {said:#?}");
    let silences = scene.cluster.log()?.lines_with(SILENCE).count();
    ensure!(silences == 1, "that Kafka does not answer was said {silences} times");
    wait_for_last_error(&mut client, "refuses the user or the password")?;
    ensure!(messages(&mut client)? == 1, "the message is gone");
    ensure!(secured.follow(&topic)?.rest(PATIENCE)?.is_empty(), "the message got through");

    secured.password_file(scene, SCRAM_256.password)?;
    reload(&mut client)?;
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(secured.follow(&topic)?.rest(PATIENCE)?.len() == 1, "it did not arrive");
    require_no_secret(scene, &mut client)
}

fn client_certificate_that_is_missing_or_expired_is_told_in_plain_words(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    let secured = secured()?;
    let topic = secured.topic(scene, Some("CN=client"))?;
    let good = secured.security.certificate("client", 2)?;
    let expired = secured.security.certificate("expired", -1)?;
    let ca = format!("security.protocol=ssl ssl.ca.location={}", secured.security.authority().display());
    let with = |certificate: &Path| {
        let certificate = certificate.display();
        format!("{ca} ssl.certificate.location={certificate} ssl.key.location={certificate}")
    };

    let mut client = start(scene, &secured.tls(), &ca, None)?;
    enqueue(&mut client, &topic, "k", "v")?;
    scene.say(wait_for_last_error(&mut client, "misses the client's certificate")?);
    // Neither has a broker, so the relay changes over at once.
    scene.cluster.set("outbox_relay.kafka_properties", &with(&expired))?;
    scene.say(wait_for_last_error(&mut client, "does not trust the client's certificate: it has expired")?);
    // A certificate of the broker that is signed by somebody else.
    let foreign =
        with(&good).replace(&secured.security.authority().display().to_string(), &expired.display().to_string());
    scene.cluster.set("outbox_relay.kafka_properties", &foreign)?;
    scene.say(wait_for_last_error(&mut client, "The broker's certificate is not trusted")?);
    ensure!(messages(&mut client)? == 1, "the message is gone");

    scene.cluster.set("outbox_relay.kafka_properties", &with(&good))?;
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(secured.follow(&topic)?.rest(PATIENCE)?.len() == 1, "it did not arrive");
    scene.say(format_args!("{} complaints in all", complaints(scene)?.len()));
    Ok(())
}

fn topic_without_permission_waits_alone_until_it_is_granted(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let secured = secured()?;
    let good = secured.topic(scene, Some(SCRAM_512.name))?;
    let forbidden = secured.topic(scene, None)?;
    let file = secured.password_file(scene, SCRAM_512.password)?;
    let mut client = start(scene, &secured.sasl(), &secured.sasl_properties(SCRAM_512), Some(&file))?;
    let values: Vec<String> = (0..10).map(|number| number.to_string()).collect();
    for value in &values {
        enqueue(&mut client, &forbidden, "forbidden", value)?;
        enqueue(&mut client, &good, "good", value)?;
    }
    secured.follow(&good)?.take(values.len(), PATIENCE).context("the other topic does not flow")?;
    let error: String = wait::until("the reason is noted", PATIENCE, || {
        let row = client.query_opt("select error from outbox.failure limit 1", &[])?;
        Ok(row.map_or(Seen::NotYet("no row".into()), |row| Seen::Reached(row.get(0))))
    })?;
    ensure!(error.contains("TOPIC_AUTHORIZATION_FAILED"), "{error}");
    wait::until_true("only its messages wait", PATIENCE, || Ok(messages(&mut client)? == values.len() as i64))?;

    allow_writing(&secured.broker.bootstrap(), SCRAM_512.name, &forbidden)?;
    let since = Instant::now();
    wait_until_published(&mut client, SOON)?;
    scene.say(format_args!("{error}; published {:?} after it was granted", since.elapsed()));
    let arrived: Vec<String> = secured.follow(&forbidden)?.rest(PATIENCE)?.iter().map(|record| record.text()).collect();
    ensure!(arrived == values, "{arrived:?}");
    let said = complaints(scene)?;
    ensure!(said.len() == 1, "one line for one topic, not these: {said:#?}");
    require_no_secret(scene, &mut client)
}

fn user_without_any_permission_waits_until_it_is_granted(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:");
    let secured = secured()?;
    let topic = secured.topic(scene, None)?;
    let file = secured.password_file(scene, NOBODY.password)?;
    let mut client = start(scene, &secured.sasl(), &secured.sasl_properties(NOBODY), Some(&file))?;
    enqueue(&mut client, &topic, "k", "v")?;
    let error = wait_for_last_error(&mut client, "AUTHORIZATION_FAILED")?;
    std::thread::sleep(WATCHED);
    let said = complaints(scene)?;
    ensure!(messages(&mut client)? == 1, "the message is gone");
    allow_writing(&secured.broker.bootstrap(), NOBODY.name, &topic)?;
    let since = Instant::now();
    wait_until_published(&mut client, SOON)?;
    scene.say(format_args!("{error}; published {:?} after it was granted; said: {said:#?}", since.elapsed()));
    let clients = said.iter().filter(|line| line.contains("Kafka client reports")).count();
    ensure!(clients <= 1, "{said:#?}");
    ensure!(secured.follow(&topic)?.rest(PATIENCE)?.len() == 1, "it did not arrive");
    require_no_secret(scene, &mut client)
}

fn password_is_changed_without_a_gap_and_a_wrong_one_changes_nothing(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:  new settings are not used");
    let secured = secured()?;
    let topic = secured.topic(scene, Some(ROTATING.name))?;
    let mut consumer = secured.follow(&topic)?;
    let file = secured.password_file(scene, ROTATING.password)?;
    let mut client = start(scene, &secured.sasl(), &secured.sasl_properties(ROTATING), Some(&file))?;
    enqueue(&mut client, &topic, "k", "at first")?;
    consumer.take(1, PATIENCE)?;
    let before = relay_ids(&mut client)?;

    // First the relay is told, then the broker: until then the old password is the right one.
    secured.password_file(scene, NEW_PASSWORD)?;
    reload(&mut client)?;
    let error = wait_for_last_error(&mut client, "refuses the user or the password")?;
    for number in 0..5 {
        enqueue(&mut client, &topic, "k", &format!("meanwhile {number}"))?;
        consumer.take(1, SOON).context("the old client does not go on")?;
    }
    ensure!(relay_ids(&mut client)? == before, "the relay changed over to a wrong password");
    // Tried again and again, and told once.
    let errors = |client: &mut Client| -> Result<i64> {
        Ok(client.query_one("select sum(errors)::bigint from outbox.pg_stat_relay", &[])?.get(0))
    };
    let noted = errors(&mut client)?;
    wait::until("it was tried twice more", PATIENCE, || {
        let now = errors(&mut client)?;
        Ok(if now >= noted + 2 { Seen::Reached(()) } else { Seen::NotYet(format!("{noted} errors, now {now}")) })
    })?;
    let said = complaints(scene)?;
    ensure!(said.len() == 1, "told {} times: {said:#?}", said.len());

    change_password(&secured.broker.bootstrap(), ROTATING, NEW_PASSWORD)?;
    wait_for_change(&mut client, &before)?;
    enqueue(&mut client, &topic, "k", "at last")?;
    let records = consumer.take(1, PATIENCE)?;
    ensure!(records[0].text() == "at last", "{records:?}");
    wait_until_published(&mut client, PATIENCE)?;
    let arrived = secured.follow(&topic)?.rest(PATIENCE)?.len();
    ensure!(arrived == 7, "7 messages, {arrived} records");
    scene.say(format_args!("{error}\n{said:#?}"));
    require_no_secret(scene, &mut client)
}

fn settings_without_a_broker_are_left_for_others_at_once(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    // Nobody listens on ports 1 and 2.
    let mut client = start(scene, "127.0.0.1:1", "", None)?;
    let topic = scene.topic_name();
    enqueue(&mut client, &topic, "k", "v")?;
    wait_for_last_error(&mut client, "127.0.0.1:1")?;
    let before = relay_ids(&mut client)?;
    scene.cluster.set("outbox_relay.bootstrap_servers", "127.0.0.1:2")?;
    wait_for_change(&mut client, &before)?;
    wait_for_last_error(&mut client, "127.0.0.1:2")?;
    let said = scene.cluster.log()?.lines_with("none answers with the old ones").count();
    ensure!(said == 1, "said {said} times");
    ensure!(messages(&mut client)? == 1, "the message is gone");
    Ok(())
}

fn properties_file_that_cannot_be_used_keeps_the_old_client(scene: &mut Scene) -> Result<()> {
    scene.expect_complaint("WARNING:  new settings are not used");
    let secured = secured()?;
    let topic = secured.topic(scene, Some(SCRAM_256.name))?;
    let mut consumer = secured.follow(&topic)?;
    let file = secured.password_file(scene, SCRAM_256.password)?;
    let mut client = start(scene, &secured.sasl(), &secured.sasl_properties(SCRAM_256), Some(&file))?;
    enqueue(&mut client, &topic, "k", "v")?;
    consumer.take(1, PATIENCE)?;
    let before = relay_ids(&mut client)?;
    let name = file_name(scene);
    for (lines, complaint) in [
        (&[("sasl.password", SCRAM_256.password), ("sasl.password", WRONG_PASSWORD)][..], "is given twice"),
        (&[("acks", "secret-1")][..], "cannot be set"),
        (&[][..], "sasl.password must be set"),
    ] {
        secured.security.write_secrets(&name, lines)?;
        reload(&mut client)?;
        scene.say(wait_for_last_error(&mut client, complaint)?);
        enqueue(&mut client, &topic, "k", complaint)?;
        consumer.take(1, PATIENCE)?;
    }
    ensure!(relay_ids(&mut client)? == before, "the relay changed over");
    let said = complaints(scene)?;
    ensure!(said.len() == 3, "{said:#?}");
    require_no_secret(scene, &mut client)
}

fn messages_go_on_with_tokens_of_an_oidc_provider_that_expire(scene: &mut Scene) -> Result<()> {
    let secured = secured()?;
    let topic = secured.topic(scene, Some(OIDC.name))?;
    let mut consumer = secured.follow(&topic)?;
    let file = secured.client_secret_file(scene, OIDC.password)?;
    let mut client = start(scene, &secured.oidc(), &secured.sasl_properties(OIDC), Some(&file))?;
    enqueue(&mut client, &topic, "k", "at first")?;
    consumer.take(1, PATIENCE)?;
    let (at_first, since) = (secured.security.tokens.given_to(OIDC.name), Instant::now());
    let mut slowest = Duration::ZERO;
    let mut sent = 1;
    // By then no connection has a token left that it had at first.
    while since.elapsed() < 3 * tokens::LIFETIME {
        let before = Instant::now();
        enqueue(&mut client, &topic, "k", "later")?;
        sent += 1;
        consumer.take(1, SOON).context("a message does not arrive")?;
        slowest = slowest.max(before.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_until_published(&mut client, PATIENCE)?;
    let given = secured.security.tokens.given_to(OIDC.name);
    let reports = scene.cluster.log()?.lines_with("Kafka client reports").count();
    scene.say(format_args!(
        "{at_first} tokens at first, {given} in the end; {sent} messages, the slowest in {slowest:?}; {reports} lines of the client"
    ));
    ensure!(given >= at_first + 2, "{at_first} tokens at first, {given} in the end");
    ensure!(secured.follow(&topic)?.rest(PATIENCE)?.len() == sent, "not all arrived once");
    ensure!(complaints(scene)?.is_empty(), "{:?}", complaints(scene)?);
    require_no_secret(scene, &mut client)
}

fn wrong_secret_for_the_oidc_provider_is_told_and_put_right_by_a_reload(scene: &mut Scene) -> Result<()> {
    scene.expect_lost_broker();
    let secured = secured()?;
    let topic = secured.topic(scene, Some(OTHER_OIDC.name))?;
    let file = secured.client_secret_file(scene, WRONG_PASSWORD)?;
    let properties = secured.sasl_properties(OTHER_OIDC);
    let mut client = start(scene, &secured.oidc(), &properties, Some(&file))?;
    enqueue(&mut client, &topic, "k", "v")?;
    scene.say(wait_for_last_error(&mut client, "There is no OAUTHBEARER token to show to the broker")?);
    // The length is meant: lines are counted over it.
    std::thread::sleep(WATCHED);
    let said = complaints(scene)?;
    // The client tells it twice in different words.
    ensure!(said.len() <= 2, "two lines for one cause, not these: {said:#?}");
    ensure!(messages(&mut client)? == 1, "the message is gone");

    secured.client_secret_file(scene, OTHER_OIDC.password)?;
    reload(&mut client)?;
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(secured.follow(&topic)?.rest(PATIENCE)?.len() == 1, "it did not arrive");
    require_no_secret(scene, &mut client)
}
