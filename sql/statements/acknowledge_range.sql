-- Half the cost of a list of ids. A row that was committed into a gap of the batch would be removed too, unpublished, and so
-- would one that was changed, or that was given the id of another since. The caller compares ids and xmin with the batch and
-- rolls back unless they are the same.
delete from outbox.message
where bucket = $1
  and id between $2 and $3
  and exists (
      select from outbox.lease l
      where l.bucket = $1 and l.relay_id = $4 and l.token = $5
  )
returning id, xmin
