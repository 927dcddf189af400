create table unclean_end (                          -- the newest ones in a row of a run, as evidence
    rid      blob    not null,
    number   integer not null,                      -- what it raised `attempts` to
    at_ms    integer not null,
    evidence text    not null,
    primary key (rid, number)
) strict, without rowid;
