-- One acquisition round at a time in a database: rounds that overlap would plan from each other's half-done work. Nobody but
-- the owner can take this lock, and it holds up neither renewals nor acknowledgements.
lock table outbox.lease in share update exclusive mode
