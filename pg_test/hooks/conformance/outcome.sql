insert into conformance.outcome (rule, outcome) values ($1, $2)
