-- From a position, so that the dead rows of what was removed are passed over, up to a fence if there is one. xmin tells what is
-- not flushed yet, and with ctid which version of the row it is. Rows of another database ($5 is the stamp of this one) come with its stamp, so whether to publish is asked
-- of the very snapshot that shows the rows. Without any stamp the answer is null, which is no.
select id, topic, partition, key, value, headers, message_id, xmin, ctid
from outbox.message
where bucket = $1
  and id > $2
  and id <= $3
  and (select pg_catalog.bool_and(p.stamp = $5 and p.paused_at is null) from outbox.publishing p)
order by id
limit $4
