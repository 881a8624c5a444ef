insert into conformance.cut default values
