-- From a position, so that the dead rows of what was removed are passed over. xmin tells what is not flushed yet.
select id, topic, partition, key, value, headers, message_id, xmin
from outbox.message
where bucket = $1
  and id > $2
order by id
limit $3
