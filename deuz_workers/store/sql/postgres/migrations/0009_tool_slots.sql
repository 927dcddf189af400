alter table rate
    add column at_a_time bigint,                           -- calls of a tool that may run at a time
    drop constraint rate_is_a_limit,
    add constraint rate_is_a_limit check (calls_per_minute > 0 or tokens_per_minute > 0 or at_a_time > 0);
