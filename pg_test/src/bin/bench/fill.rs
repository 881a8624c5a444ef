//! The messages of a case, written into the outbox.

use anyhow::{Context, Result};
use postgres::Client;

use crate::messages::Messages;

/// Commits of its own need a procedure; a session makes it for itself.
const PROCEDURE: &str = "
    create or replace procedure pg_temp.fill(topic text, first bigint, past bigint, keys bigint, padding bytea, a_commit bigint)
    language plpgsql as $$
    begin
        while first < past loop
            perform outbox.enqueue_agg(
                topic,
                'key-' || n % keys,
                convert_to(n::text, 'UTF8') || substr(padding, length(n::text) + 1)
                order by n
            )
            from generate_series(first, least(first + a_commit, past) - 1) n;
            commit;
            first := first + a_commit;
        end loop;
    end
    $$";

/// Enqueues all of them in a session of its own, `a_commit` at a time. Commits do not wait for the disk: the one that follows does.
pub fn outbox(client: &mut Client, topic: &str, messages: &Messages) -> Result<()> {
    rows(client, topic, messages, 0, messages.count)?;
    client.batch_execute("select pg_switch_wal()").context("could not flush what was filled")
}

/// Enqueues the rows from `first` to `past`, without the latter.
pub fn rows(client: &mut Client, topic: &str, messages: &Messages, first: u64, past: u64) -> Result<()> {
    client.batch_execute("set synchronous_commit = off").context("could not set synchronous_commit")?;
    client.batch_execute(PROCEDURE).context("could not make the procedure that fills the outbox")?;
    client
        .execute(
            "call pg_temp.fill($1, $2, $3, $4, $5, $6)",
            &[
                &topic,
                &(first as i64),
                &(past as i64),
                &(messages.keys as i64),
                &messages.padding(),
                &(messages.a_commit as i64),
            ],
        )
        .with_context(|| format!("could not fill the outbox with {} messages", past - first))?;
    Ok(())
}
