//! G1, G3 and G5 in fleets: of two, four and eight relays on eight and 64 buckets one is terminated, one crashes, and one is
//! frozen until its leases have ended and others have its buckets, and then wakes as if nothing had happened.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::load::{self, Load, Plan};
use outbox_relay_pg_test::process::{self, Signal};
use outbox_relay_pg_test::wait::{self, Seen};
use postgres::Client;

use crate::scene::{DATABASE, PATIENCE, Scene, soak, wait_until_published, wait_until_shared};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            fleet_of_2_on_8_buckets_loses_a_relay_in_each_way,
            fleet_of_2_on_64_buckets_loses_a_relay_in_each_way,
            fleet_of_4_on_8_buckets_loses_a_relay_in_each_way,
            fleet_of_4_on_64_buckets_loses_a_relay_in_each_way,
            fleet_of_8_on_8_buckets_loses_a_relay_in_each_way,
            fleet_of_8_on_64_buckets_loses_a_relay_in_each_way,
    ]
}

fn fleet_of_2_on_8_buckets_loses_a_relay_in_each_way(scene: &mut Scene) -> Result<()> {
    Fleet { relays: 2, buckets: 8 }.loses_a_relay_in_each_way(scene)
}

fn fleet_of_2_on_64_buckets_loses_a_relay_in_each_way(scene: &mut Scene) -> Result<()> {
    Fleet { relays: 2, buckets: 64 }.loses_a_relay_in_each_way(scene)
}

fn fleet_of_4_on_8_buckets_loses_a_relay_in_each_way(scene: &mut Scene) -> Result<()> {
    Fleet { relays: 4, buckets: 8 }.loses_a_relay_in_each_way(scene)
}

fn fleet_of_4_on_64_buckets_loses_a_relay_in_each_way(scene: &mut Scene) -> Result<()> {
    Fleet { relays: 4, buckets: 64 }.loses_a_relay_in_each_way(scene)
}

fn fleet_of_8_on_8_buckets_loses_a_relay_in_each_way(scene: &mut Scene) -> Result<()> {
    Fleet { relays: 8, buckets: 8 }.loses_a_relay_in_each_way(scene)
}

fn fleet_of_8_on_64_buckets_loses_a_relay_in_each_way(scene: &mut Scene) -> Result<()> {
    Fleet { relays: 8, buckets: 64 }.loses_a_relay_in_each_way(scene)
}

/// The bound for buckets to have another relay once theirs is dead or was asked to leave. A lease has at least
/// `LEASE - 2 * RENEWAL` to run, so waiting for its end would not do.
const AT_ONCE: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(3);
const RENEWAL: Duration = Duration::from_millis(500);
/// Others look once in a renewal, and the machine is busy.
const AFTER_EXPIRY: Duration = Duration::from_secs(2);

/// A relay and the buckets that it held.
struct Victim {
    pid: i32,
    relay_id: String,
    buckets: Vec<i32>,
    /// When the first of its leases ends.
    expires_at: SystemTime,
}

struct Fleet {
    relays: usize,
    buckets: i32,
}

impl Fleet {
    fn loses_a_relay_in_each_way(&self, scene: &mut Scene) -> Result<()> {
        scene.expect_complaint("FATAL:  crash wanted by a test: after_submit");
        // What the one that was frozen says when it wakes.
        scene.expect_complaint("outbox_relay relay WARNING:  lost all leases");
        scene.cluster.use_test_hooks()?;
        let mut client = scene.start(&[
            ("outbox_relay.workers", &self.relays.to_string()),
            ("outbox_relay.lease_duration", &format!("{}ms", LEASE.as_millis())),
            ("outbox_relay.lease_renew_interval", &format!("{}ms", RENEWAL.as_millis())),
        ])?;
        client.execute("insert into outbox.setting values ('bucket_count', $1)", &[&self.buckets.to_string()])?;
        let topic = scene.topic(4)?;
        self.wait_until_shared(&mut client)?;
        // Enough keys for every bucket, and pauses, or eight sessions would leave the servers no processor.
        let plan = Plan { writers: 4, orders: 300, rest: Duration::from_millis(4), ..Plan::new(DATABASE, &topic) };
        let load = Load::start(scene.cluster.address(), &plan)?;
        load.wait_for(200, PATIENCE)?;
        let in_kafka = scene.follow(&topic)?;
        wait::until_true("the fleet publishes", PATIENCE, || Ok(in_kafka.count()? >= 100))?;

        let mut said = Vec::new();
        for _ in 0..if soak() { 10 } else { 1 } {
            said.clear();
            said.push(format!("terminated {:?}", self.loses_one(&mut client, Fleet::terminated)?));
            said.push(format!("crashed {:?}", self.loses_one(&mut client, |client| crashed(scene, client))?));
            said.push(format!(
                "frozen {:?} after expiry",
                self.loses_one(&mut client, |client| frozen(client, &load))?
            ));
        }
        self.require_rest(&mut client)?;

        load.wait_for_more(200, PATIENCE)?;
        load.stop()?.check(&load::committed(&mut client)?)?;
        wait_until_published(&mut client, PATIENCE)?;
        scene.say(format_args!("others had the buckets of one {}", said.join(", ")));
        scene.compare(&mut client, &topic)?.require_at_least_once()
    }

    fn wait_until_shared(&self, client: &mut Client) -> Result<()> {
        wait_until_shared(client, self.relays, PATIENCE).map(|_| ())
    }

    /// One relay is lost and comes back; no other bucket than its own changes hands, and those twice at most.
    fn loses_one(
        &self,
        client: &mut Client,
        lose: impl FnOnce(&mut Client) -> Result<(Victim, Duration)>,
    ) -> Result<Duration> {
        let before = tokens(client)?;
        let (victim, took) = lose(client)?;
        self.wait_until_shared(client)?;
        let moves: i64 = tokens(client)?.iter().map(|(bucket, token)| token - before[bucket]).sum();
        ensure!(moves <= 2 * victim.buckets.len() as i64, "{moves} moves for {} buckets", victim.buckets.len());
        Ok(took)
    }

    fn terminated(client: &mut Client) -> Result<(Victim, Duration)> {
        let victim = victim(client)?;
        let since = Instant::now();
        client.execute("select pg_terminate_backend($1)", &[&victim.pid])?;
        let took = wait_for_others(client, &victim, since)?;
        ensure!(took < AT_ONCE, "handing over in order took {took:?}");
        Ok((victim, took))
    }

    /// Two rounds of everybody in which no lease changes hands.
    fn require_rest(&self, client: &mut Client) -> Result<()> {
        let before = tokens(client)?;
        let since: SystemTime = client.query_one("select clock_timestamp()", &[])?.get(0);
        let two_rounds = since + 2 * RENEWAL;
        wait::until("every relay has made two rounds", PATIENCE, || {
            let statement = "select count(*) from outbox.relay where stopped_at is null and last_seen > $1";
            let seen: i64 = client.query_one(statement, &[&two_rounds])?.get(0);
            Ok(if seen == self.relays as i64 { Seen::Reached(()) } else { Seen::NotYet(format!("{seen} have")) })
        })?;
        let after = tokens(client)?;
        ensure!(before == after, "leases changed hands for no reason: {before:?}, then {after:?}");
        Ok(())
    }
}

fn crashed(scene: &Scene, client: &mut Client) -> Result<(Victim, Duration)> {
    let victim = victim(client)?;
    scene.cluster.set("outbox_relay.test_crash", &format!("after_submit:{}", victim.pid))?;
    wait::until_true("the relay has crashed", PATIENCE, || Ok(!process::alive(victim.pid)))?;
    let took = wait_for_others(client, &victim, Instant::now())?;
    ensure!(took < AT_ONCE, "taking over from the dead took {took:?}");
    Ok((victim, took))
}

/// A frozen relay is not dead: its leases are its own until they end. When it wakes others have its buckets.
fn frozen(client: &mut Client, load: &Load) -> Result<(Victim, Duration)> {
    let pid = victim(client)?.pid;
    freeze_outside_of_transactions(client, pid)?;
    // Only now: it has renewed nothing since.
    let victim = victim_of(client, pid)?;
    wait_for_others(client, &victim, Instant::now())?;
    // The first to have one claimed it a lease before that ends, or renewed it since.
    let statement = "select clock_timestamp(), min(expires_at) from outbox.lease where bucket = any($1)";
    let row = client.query_one(statement, &[&victim.buckets])?;
    let (now, earliest): (SystemTime, SystemTime) = (row.get(0), row.get(1));
    let claimed = earliest - LEASE;
    ensure!(claimed >= victim.expires_at, "a lease was taken from a relay that lives, before its end");
    let took = now.duration_since(victim.expires_at).context("the lease has ended")?;
    ensure!(took < AFTER_EXPIRY, "buckets whose leases had ended had nobody for {took:?}");
    // Others publish what it had in its hands.
    load.wait_for_more(200, PATIENCE)?;
    process::send(pid, Signal::CONT)?;
    Ok((victim, took))
}

/// A process that is frozen while it holds a lock keeps all others from it, relay or not.
fn freeze_outside_of_transactions(client: &mut Client, pid: i32) -> Result<()> {
    wait::until_true("the relay is frozen outside of transactions", PATIENCE, || {
        process::send(pid, Signal::STOP)?;
        wait::until_true("the process has stopped", PATIENCE, || Ok(process::stopped(pid)))?;
        let statement = "select xact_start is null from pg_stat_activity where pid = $1";
        let free: bool = client.query_one(statement, &[&pid])?.get(0);
        if !free {
            process::send(pid, Signal::CONT)?;
        }
        Ok(free)
    })
}

/// The relay with the most buckets, and among those the first.
fn victim(client: &mut Client) -> Result<Victim> {
    let statement = "
        select r.pid
        from outbox.relay r join outbox.lease l using (relay_id)
        where r.stopped_at is null and l.expires_at > clock_timestamp()
        group by r.pid
        order by count(*) desc, r.pid
        limit 1";
    let pid = client.query_one(statement, &[]).context("no relay has a bucket")?.get(0);
    victim_of(client, pid)
}

fn victim_of(client: &mut Client, pid: i32) -> Result<Victim> {
    let statement = "
        select r.relay_id, array_agg(l.bucket order by l.bucket), min(l.expires_at)
        from outbox.relay r join outbox.lease l using (relay_id)
        where r.stopped_at is null and r.pid = $1 and l.expires_at > clock_timestamp()
        group by r.relay_id";
    let row = client.query_one(statement, &[&pid]).with_context(|| format!("relay {pid} has no bucket"))?;
    Ok(Victim { pid, relay_id: row.get(0), buckets: row.get(1), expires_at: row.get(2) })
}

/// How long after `since` other relays held all buckets that the victim had.
fn wait_for_others(client: &mut Client, victim: &Victim, since: Instant) -> Result<Duration> {
    let statement = client.prepare(
        "select count(*) from outbox.lease where bucket = any($1) and relay_id <> $2 and expires_at > clock_timestamp()",
    )?;
    let wanted = victim.buckets.len() as i64;
    wait::until(format_args!("others hold the {wanted} buckets of relay {}", victim.pid), PATIENCE, || {
        let held: i64 = client.query_one(&statement, &[&victim.buckets, &victim.relay_id])?.get(0);
        Ok(if held == wanted { Seen::Reached(since.elapsed()) } else { Seen::NotYet(format!("{held} of them")) })
    })
}

/// Grows by one whenever a bucket changes hands.
fn tokens(client: &mut Client) -> Result<BTreeMap<i32, i64>> {
    let rows = client.query("select bucket, token from outbox.lease order by bucket", &[])?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}
