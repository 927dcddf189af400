-- Leases on Postgres 15 or later: one statement per verb, read committed, the database's clock.
--
-- Every statement may be sent twice, since a client sends it again when its answer got lost: `owner` is new for every claim,
-- `nonce` for every call, and a claim that comes again under its nonce is answered as it was the first time.
--
-- A statement that waited for a row's lock sees that row as it is afterwards, and everything else as it was at its start. So
-- whatever a verb decides it decides from the one row that it locked: the row that ON CONFLICT met, that FOR UPDATE returned,
-- that DELETE rechecked. Time is read after the wait, hence clock_timestamp(). Nothing that may be rechecked asks a sub-query
-- about a part that writes: Postgres refuses to run it again.
--
-- The tables are not logged. A crash of the server, a failover and a restored base backup empty all of them together, and then
-- the first call writes a new epoch. While that memory is younger than a TTL a missing row proves nothing: a living holder may
-- not have renewed yet. So nothing is claimed without force, and a renewal that carries another epoch brings its row back.

-- name: memory
-- The one row, made when there is none; of two sessions that make it one waits and gets the other's.
born as (
    insert into lease_memory (only_row)
    select true where not exists (select from lease_memory)
    on conflict (only_row) do update set only_row = true
    returning epoch, born_at
),
memory as (
    select epoch, born_at from lease_memory union all select epoch, born_at from born
),

-- name: acquire
-- Of the row that is in the way: `mine` is prolonged, a lapsed one is taken over, a held one is marked. Without a row by the
-- snapshot and with a young memory nothing is inserted, and the columns of `claim` are null.
with
-- include: memory
claim as (
    insert into lease as l (key, owner, token, until_at, mark, nonce, predecessor)
    select %(key)s::text, %(owner)s::text, nextval('lease_token'), clock_timestamp() + %(ttl)s::interval, %(mark)s::text,
           %(nonce)s::text, 'none'
    from memory m
    where %(force)s::boolean
       or clock_timestamp() - m.born_at >= %(ttl)s::interval
       or exists (select from lease where key = %(key)s::text)
    on conflict (key) do update set (owner, token, until_at, mark, nonce, predecessor, again, drain) = (
        select case when o.lapsed then excluded.owner else l.owner end,
               case when o.lapsed then nextval('lease_token') else l.token end,
               case when o.lapsed or o.mine then t.now + %(ttl)s::interval else l.until_at end,
               case when (o.lapsed or o.mine) and coalesce(substring(l.mark from '^[0-9]{1,18}')::bigint, 0)
                         <= coalesce(substring(excluded.mark from '^[0-9]{1,18}')::bigint, 0)
                    then excluded.mark else l.mark end,
               case when o.lapsed then excluded.nonce else l.nonce end,
               case when o.lapsed then 'lapsed' else l.predecessor end,
               case when o.lapsed then false else l.again or not o.mine end,
               l.drain and not o.lapsed
        from (select clock_timestamp() as now) t,
             lateral (select l.owner = excluded.owner as mine,
                             l.owner <> excluded.owner and l.until_at <= t.now as lapsed) o
    )
    returning owner, token, mark, case when nonce = %(nonce)s::text then predecessor else 'mine' end as predecessor,
              greatest(ceil(extract(epoch from until_at - clock_timestamp()) * 1000), 1)::bigint as ms_left
)
select c.owner, c.token, m.epoch, c.predecessor, c.mark, c.ms_left,
       greatest(ceil(extract(epoch from m.born_at + %(ttl)s::interval - clock_timestamp()) * 1000), 1)::bigint as ms_until_old
from memory m left join claim c on true;

-- name: renew
-- Many, each at its `place`. Rows are locked in the order of their keys, so that two calls wait and never fail.
with
-- include: memory
given as materialized (
    select *
    from unnest(%(keys)s::text[], %(owners)s::text[], %(tokens)s::bigint[], %(ttls)s::bigint[], %(marks)s::text[],
                %(epochs)s::text[])
         with ordinality as g(key, owner, token, ttl_ms, mark, epoch, place)
),
held as materialized (
    select l.key, l.drain, g.place, g.ttl_ms, g.mark
    from lease l
    join given g on g.key = l.key and g.owner = l.owner and g.token = l.token
    order by l.key
    for update of l
),
back as (
    insert into lease (key, owner, token, until_at, mark, nonce, predecessor)
    select g.key, g.owner, g.token, clock_timestamp() + g.ttl_ms * interval '1 millisecond', g.mark, '', 'none'
    from given g, memory m
    where g.epoch <> m.epoch and not exists (select from lease l where l.key = g.key)
    order by g.key
    on conflict (key) do nothing
    returning key, owner, token
),
renewed as materialized (
    select key from held union select key from back
),
cancelled as (
    delete from lease_cancel c using renewed r where c.key = r.key returning c.key
),
prolonged as (
    update lease l
    set until_at = clock_timestamp() + h.ttl_ms * interval '1 millisecond',
        mark = h.mark,
        drain = l.drain and c.key is not null
    from held h left join cancelled c on c.key = h.key
    where l.key = h.key
)
select h.key is not null or b.key is not null as renewed, m.epoch,
       case when c.key is not null then 'cancel' when h.drain then 'drain' else '' end as signal
from given g
cross join memory m
left join held h on h.place = g.place
left join back b on b.key = g.key and b.owner = g.owner and b.token = g.token
left join cancelled c on c.key = coalesce(h.key, b.key)
order by g.place;

-- name: release
-- `again` is null when nothing was given back. A lease of another memory that has no row was forgotten, and with it whether
-- somebody rang.
with
gone as (
    delete from lease where key = %(key)s::text and owner = %(owner)s::text and token = %(token)s::bigint
    returning again
)
select coalesce(
    (select again from gone),
    case when not exists (select from lease where key = %(key)s::text)
          and not exists (select from lease_memory where epoch = %(epoch)s::text)
         then true end
) as again;

-- name: signal
-- A cancel waits, a drain is for the present holder.
with
waiting as (
    insert into lease_cancel (key, at)
    select %(key)s::text, clock_timestamp() where %(kind)s::text = 'cancel'
    on conflict (key) do update set at = excluded.at
),
drained as (
    update lease set drain = true where key = %(key)s::text and %(kind)s::text = 'drain'
    returning until_at
)
select exists (
    select until_at from drained where until_at > clock_timestamp()
    union all
    select until_at from lease where key = %(key)s::text and until_at > clock_timestamp() and %(kind)s::text = 'cancel'
) as held;

-- name: peek
with
-- include: memory
found as (
    select owner, ceil(extract(epoch from until_at - clock_timestamp()) * 1000)::bigint as ms_left
    from lease where key = %(key)s::text
)
select f.ms_left, greatest(floor(extract(epoch from clock_timestamp() - m.born_at) * 1000), 0)::bigint as age_ms, f.owner
from memory m left join found f on f.ms_left > 0;

-- name: sweep
-- Lapsed leases and queued cancels are kept for a day: a claim looks at its row anyway. At most `limit` of each at a time; the
-- tables are small and read whole, since an index on the time would be written by every renewal.
with
lapsed as (
    delete from lease where key in (
        select key from lease where until_at < now() - interval '1 day' limit %(limit)s::bigint for update skip locked)
    returning key
),
expired as (
    delete from lease_cancel where key in (
        select key from lease_cancel where at < now() - interval '1 day' limit %(limit)s::bigint for update skip locked)
    returning key
)
select (select count(*) from lapsed) + (select count(*) from expired) as swept;
