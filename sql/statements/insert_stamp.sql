insert into outbox.publishing (stamp) values ($1)
