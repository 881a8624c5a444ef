-- From a position, so that the dead rows of what was removed are passed over, up to a fence if there is one. xmin tells what is not flushed yet.
select id, topic, partition, key, value, headers, message_id, xmin
from outbox.message
where bucket = $1
  and id > $2
  and id <= $3
order by id
limit $4
