create table unclean_end (                                 -- the newest ones in a row of a run, as evidence
    rid      uuid        not null,
    number   integer     not null,                         -- what it raised `attempts` to
    at       timestamptz not null,
    evidence text        not null,
    primary key (rid, number)
);
