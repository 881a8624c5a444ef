-- In one snapshot: the count of new messages, and the earlier ones that may still have messages.
select outbox.bucket_count(), c.fence_id, c.bucket_count
from (values (1)) v
left join outbox.bucket_change c on true
order by c.fence_id
