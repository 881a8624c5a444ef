//! G4: every copy of a message carries the same id, and without faults there is one copy.

use anyhow::{Result, ensure};
use libtest_mimic::Trial;
use outbox_relay_pg_test::consumer::MESSAGE_ID;
use outbox_relay_pg_test::load::{self, Load, Plan};
use uuid::Uuid;

use crate::scene::{DATABASE, PATIENCE, Scene, wait_until_published};

pub fn trials() -> Vec<Trial> {
    crate::trials![
        (Shared, Any):
            every_record_ends_with_the_message_id_that_enqueue_returned,
            forged_message_id_header_is_removed,
            without_faults_there_are_no_duplicates,
    ]
}

fn every_record_ends_with_the_message_id_that_enqueue_returned(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    let own = Uuid::new_v4();
    let mut returned = Vec::new();
    for (headers, message_id) in [
        ("null", None),
        (r#"'{"trace": "t-1"}'"#, None),
        (r#"'[["b", "2"], ["a", "1"], ["b", "3"]]'"#, None),
        ("null", Some(own)),
    ] {
        let id: Uuid = client
            .query_one(
                &format!("select outbox.enqueue($1::text, 'one key', 'v', headers => {headers}, message_id => $2)"),
                &[&topic, &message_id],
            )?
            .get(0);
        returned.push(id);
    }
    ensure!(returned[3] == own, "enqueue returned another id than it was given");

    let records = scene.follow(&topic)?.take(4, PATIENCE)?;
    for (record, id) in records.iter().zip(&returned) {
        ensure!(record.message_id()? == *id, "{record:?} should carry {id}");
    }
    let before_the_id: Vec<Vec<&str>> = records
        .iter()
        .map(|record| record.headers[..record.headers.len() - 1].iter().map(|(name, _)| name.as_str()).collect())
        .collect();
    ensure!(
        before_the_id == [vec![], vec!["trace"], vec!["b", "a", "b"], vec![]],
        "headers in another order: {before_the_id:?}"
    );
    Ok(())
}

fn forged_message_id_header_is_removed(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[])?;
    let topic = scene.topic(1)?;
    let forged = Uuid::new_v4().to_string();
    let headers = serde_json::json!([[MESSAGE_ID, forged], ["kept", "yes"], [MESSAGE_ID, null]]);
    let id: Uuid =
        client.query_one("select outbox.enqueue($1::text, 'k', 'v', headers => $2)", &[&topic, &headers])?.get(0);
    let records = scene.follow(&topic)?.take(1, PATIENCE)?;
    // Fails if there is more than one header of the name.
    ensure!(records[0].message_id()? == id, "the forged id won");
    ensure!(records[0].headers.len() == 2, "headers: {:?}", records[0].headers);
    Ok(())
}

fn without_faults_there_are_no_duplicates(scene: &mut Scene) -> Result<()> {
    let mut client = scene.start(&[("outbox_relay.workers", "2")])?;
    let topic = scene.topic(4)?;
    let plan = Plan { writers: 4, until_committed: Some(5_000), ..Plan::new(DATABASE, &topic) };
    Load::start(scene.cluster.address(), &plan)?.finish()?.check(&load::committed(&mut client)?)?;
    wait_until_published(&mut client, PATIENCE)?;
    scene.compare(&mut client, &topic)?.require_exactly_once()
}
