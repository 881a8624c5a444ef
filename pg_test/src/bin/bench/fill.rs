//! The messages of a case, written into the outbox.

use anyhow::{Context, Result};
use postgres::Client;

use crate::messages::Messages;

/// Commits of its own need a procedure; a session makes it for itself, and what a commit holds.
const FUNCTIONS: &str = "
    create function pg_temp.enqueue_rows(topic text, first bigint, past bigint, keys bigint, padding bytea)
    returns void language plpgsql as $$
    begin
        perform outbox.enqueue_agg(
            topic,
            'key-' || n % keys,
            convert_to(n::text, 'UTF8') || substr(padding, length(n::text) + 1)
            order by n
        )
        from generate_series(first, past - 1) n;
    end
    $$;
    create procedure pg_temp.fill(topic text, first bigint, past bigint, keys bigint, padding bytea, a_commit bigint)
    language plpgsql as $$
    begin
        while first < past loop
            perform pg_temp.enqueue_rows(topic, first, least(first + a_commit, past), keys, padding);
            commit;
            first := first + a_commit;
        end loop;
    end
    $$";

/// A session that fills the outbox, `a_commit` messages at a time. Its commits do not wait for the disk.
pub struct Filler {
    client: Client,
    padding: Vec<u8>,
}

impl Filler {
    /// Prepares the session for messages of this kind.
    pub fn new(mut client: Client, messages: &Messages) -> Result<Filler> {
        client.batch_execute("set synchronous_commit = off").context("could not set synchronous_commit")?;
        client.batch_execute(FUNCTIONS).context("could not make what fills the outbox")?;
        Ok(Filler { client, padding: messages.padding() })
    }

    /// Enqueues the rows from `first` to `past`, without the latter.
    pub fn rows(&mut self, topic: &str, messages: &Messages, first: u64, past: u64) -> Result<()> {
        let call = "call pg_temp.fill($1, $2, $3, $4, $5, $6)";
        self.client
            .execute(
                call,
                &[
                    &topic,
                    &(first as i64),
                    &(past as i64),
                    &(messages.keys as i64),
                    &self.padding,
                    &(messages.a_commit as i64),
                ],
            )
            .with_context(|| format!("could not fill the outbox with {} messages", past - first))?;
        Ok(())
    }

    /// Enqueues all of them in a transaction that [`Self::commit`] ends.
    pub fn uncommitted(&mut self, topic: &str, messages: &Messages) -> Result<()> {
        self.client.batch_execute("begin").context("begin")?;
        let (past, keys) = (messages.count as i64, messages.keys as i64);
        self.client
            .execute("select pg_temp.enqueue_rows($1, 0, $2, $3, $4)", &[&topic, &past, &keys, &self.padding])
            .with_context(|| format!("could not enqueue {past} messages in one transaction"))?;
        Ok(())
    }

    /// Commits them.
    pub fn commit(&mut self) -> Result<()> {
        self.client.batch_execute("commit").context("could not commit")
    }
}

/// Enqueues all of them, and waits until they are safe on disk.
pub fn outbox(client: Client, topic: &str, messages: &Messages) -> Result<()> {
    let mut filler = Filler::new(client, messages)?;
    filler.rows(topic, messages, 0, messages.count)?;
    // A commit that waits for the disk waits for all before it.
    filler
        .client
        .batch_execute("set synchronous_commit = on; select pg_current_xact_id()")
        .context("could not flush what was filled")
}
