//! A copy of a database does not publish.
//!
//! Reason: a restored dump or a clone holds the original's unsent messages, and would send them once more, with yesterday's
//! content, to the consumers of today. So a database is stamped with the server and itself when its first message is
//! enqueued. The stamp travels with every copy, where it does not fit, and until an operator calls `outbox.resume()` such a
//! copy is paused. Without a stamp nothing is published either: a dump may bring the messages before the stamp.
//!
//! A physical copy of the whole server looks like a failover and is not recognised.

use std::cell::Cell;

use pgrx::{FromDatum, pg_sys};

use super::session::{self, Session, Statement, arg};
use super::tables;

/// The stamp of this server and database.
pub fn own() -> String {
    // SAFETY: read from the control file in memory and from this process.
    unsafe { format!("{}.{}", pg_sys::GetSystemIdentifier(), pg_sys::MyDatabaseId.to_u32()) }
}

/// Whether this database may publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Permission {
    Granted,
    /// No message was enqueued here so far.
    NoStamp,
    /// An operator has paused it, for this reason.
    Paused(Option<String>),
    /// It is a copy of the database with this stamp.
    Copy(String),
}

/// The statement behind [`permission`].
pub const fn statement() -> Statement {
    Statement::new(include_str!("../../sql/statements/publishing.sql"), &[])
}

/// Looks whether this database may publish.
pub fn permission(session: &Session, statement: &Statement) -> Permission {
    let rows = statement.rows(session, &[], |row| (row.must::<String>(1), row.must::<bool>(2), row.get::<String>(3)));
    let own = own();
    if rows.is_empty() {
        return Permission::NoStamp;
    }
    if let Some((stamp, ..)) = rows.iter().find(|(stamp, paused, _)| *stamp != own && !paused) {
        return Permission::Copy(stamp.clone());
    }
    match rows.into_iter().find(|(_, paused, _)| *paused) {
        Some((_, _, reason)) => Permission::Paused(reason),
        None => Permission::Granted,
    }
}

thread_local! {
    /// The table in which a stamp that is there to stay was seen by this session.
    static SEEN_IN: Cell<pg_sys::Oid> = const { Cell::new(pg_sys::InvalidOid) };
    static INSERT: Statement =
        const { Statement::new(include_str!("../../sql/statements/insert_stamp.sql"), &[pg_sys::TEXTOID]) };
}

/// Stamps the database in the transaction of its first message; costs a look-up of the table when that was done before.
pub fn ensure() {
    let table = tables::named(c"publishing");
    if SEEN_IN.get() == table {
        return;
    }
    let (mut found, mut stays) = (false, false);
    session::each_row_now(table, |tuple, columns| {
        let mut null = false;
        found = true;
        // SAFETY: a row of the table. A stamp of this very transaction may still be rolled back.
        stays |= unsafe {
            let xmin = pg_sys::heap_getsysattr(tuple, pg_sys::MinTransactionIdAttributeNumber, columns, &mut null);
            let xmin = pg_sys::TransactionId::from_datum(xmin, null).expect("not null");
            !pg_sys::TransactionIdIsCurrentTransactionId(xmin)
        };
    });
    if stays {
        SEEN_IN.set(table);
    }
    // Another session may be about to stamp it too: that does no harm, and this one need not wait for it.
    if !found {
        // SAFETY: inside the caller's transaction.
        session::as_owner_with_path(|| unsafe {
            pg_sys::SPI_connect();
            INSERT.with(|insert| session::execute(insert.plan(), &[arg(own())], false));
            pg_sys::SPI_finish();
        });
    }
}
