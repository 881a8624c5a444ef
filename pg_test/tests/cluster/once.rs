//! `outbox.enqueue_once` under concurrency: one of two transactions with the same id stores the message, and both are told.

use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, anyhow, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::wait;
use postgres::Client;
use uuid::Uuid;

use crate::scene::{PATIENCE, Scene, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            second_transaction_stores_the_id_when_the_first_rolls_back,
            second_transaction_does_not_store_the_id_when_the_first_commits,
            forgetting_ids_that_have_run_out_waits_for_nobody,
            retries_of_many_writers_arrive_once,
    ]
}

fn enqueue_once(client: &mut impl postgres::GenericClient, topic: &str, id: Uuid) -> Result<bool> {
    let stored = client.query_one("select outbox.enqueue_once($1::text, 'k'::text, 'v'::text, $2)", &[&topic, &id])?;
    Ok(stored.get(0))
}

/// Calls the function in a session of its own, and returns once it waits for the other transaction.
fn blocked_call(scene: &Scene, observer: &mut Client, topic: &str, id: Uuid) -> Result<JoinHandle<Result<bool>>> {
    let mut client = scene.session()?;
    let pid: i32 = client.query_one("select pg_backend_pid()", &[])?.get(0);
    let topic = topic.to_owned();
    let call = thread::spawn(move || enqueue_once(&mut client, &topic, id));
    wait::until_true("the second call waits for the first", PATIENCE, || {
        Ok(observer.query_one("select cardinality(pg_blocking_pids($1)) > 0", &[&pid])?.get(0))
    })?;
    Ok(call)
}

fn answer(call: JoinHandle<Result<bool>>) -> Result<bool> {
    call.join().map_err(|_| anyhow!("the call panicked"))?
}

fn second_transaction_stores_the_id_when_the_first_rolls_back(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let mut observer = scene.session()?;
    let topic = scene.topic(1)?;
    let id = Uuid::new_v4();
    let mut first = client.transaction()?;
    ensure!(enqueue_once(&mut first, &topic, id)?, "the first call did not store the message");
    let second = blocked_call(scene, &mut observer, &topic, id)?;
    first.rollback()?;
    ensure!(answer(second)?, "the second call did not store what the first had rolled back");
    wait_until_published(&mut client, PATIENCE)?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    ensure!(records.len() == 1 && records[0].message_id()? == id, "arrived {records:?}");
    Ok(())
}

fn second_transaction_does_not_store_the_id_when_the_first_commits(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let mut observer = scene.session()?;
    let topic = scene.topic(1)?;
    let id = Uuid::new_v4();
    let mut first = client.transaction()?;
    ensure!(enqueue_once(&mut first, &topic, id)?, "the first call did not store the message");
    let second = blocked_call(scene, &mut observer, &topic, id)?;
    first.commit()?;
    ensure!(!answer(second)?, "both calls stored the message");
    wait_until_published(&mut client, PATIENCE)?;
    ensure!(scene.follow(&topic)?.count()? == 1, "the message arrived more than once");
    Ok(())
}

/// Removed in the middle of a transaction, an id would be locked while that transaction goes on to wait for others.
fn forgetting_ids_that_have_run_out_waits_for_nobody(scene: &mut Scene) -> Result<()> {
    const IDS: i32 = 300;
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    let run_out =
        "insert into outbox.once select gen_random_uuid(), now() - interval '2 days', now() - interval '1 day'
                   from generate_series(1, $1) returning message_id";
    let ids: Vec<Uuid> = client.query(run_out, &[&IDS])?.iter().map(|row| row.get(0)).collect();
    // Some id is locked by a transaction that goes on, and each may be stored anew while others are about to remove it.
    let mut other = scene.session()?;
    let mut holder = other.transaction()?;
    ensure!(enqueue_once(&mut holder, &topic, ids[0])?, "an id that has run out was not stored anew");
    client.batch_execute("set lock_timeout = '5s'")?;
    let mut long = client.transaction()?;
    for _ in 0..IDS {
        // As many calls as make it certain that some of them are to remove ids.
        enqueue_once(&mut long, &topic, Uuid::new_v4())?;
    }
    let mut third = scene.session()?;
    third.batch_execute("set lock_timeout = '5s'")?;
    let stored = enqueue_once(&mut third, &topic, ids[1]).context("an id was locked before the transaction's end")?;
    ensure!(stored, "an id that has run out was not stored anew");
    long.commit().context("the commit waited for a locked id")?;
    holder.commit()?;
    let left = "select count(*) from outbox.once where keep_until < now()";
    let left: i64 = third.query_one(left, &[])?.get(0);
    ensure!(left == 0, "{left} ids that have run out are left");
    third.batch_execute("truncate outbox.message")?;
    Ok(())
}

fn retries_of_many_writers_arrive_once(scene: &mut Scene) -> Result<()> {
    const WRITERS: usize = 4;
    const MESSAGES: usize = 200;
    let mut client = scene.start(&[])?;
    let topic = scene.topic(3)?;
    let ids: Vec<Uuid> = (0..MESSAGES).map(|_| Uuid::new_v4()).collect();
    let writers: Vec<JoinHandle<Result<usize>>> = (0..WRITERS)
        .map(|writer| {
            let (mut client, topic, mut ids) = (scene.session()?, topic.clone(), ids.clone());
            fastrand::Rng::with_seed(writer as u64).shuffle(&mut ids);
            Ok(thread::spawn(move || {
                ids.iter().try_fold(0, |stored, id| Ok(stored + usize::from(enqueue_once(&mut client, &topic, *id)?)))
            }))
        })
        .collect::<Result<_>>()?;
    let mut stored = 0;
    for writer in writers {
        stored += writer.join().map_err(|_| anyhow!("a writer panicked"))??;
    }
    ensure!(stored == MESSAGES, "{stored} calls stored {MESSAGES} messages");
    wait_until_published(&mut client, PATIENCE)?;
    let records = scene.follow(&topic)?.rest(PATIENCE)?;
    let mut arrived =
        records.iter().map(outbox_relay_pg_test::consumer::Record::message_id).collect::<Result<Vec<_>>>()?;
    let mut ids = ids;
    arrived.sort_unstable();
    ids.sort_unstable();
    ensure!(arrived == ids, "{} records arrived of {MESSAGES} messages", arrived.len());
    Ok(())
}
