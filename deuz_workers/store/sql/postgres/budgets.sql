-- Budget scopes. Reservation and settlement are parts of a commit (commit.sql, part `ledger`).

-- name: set_budget
with
changed as (
    insert into budget_scope (key, limit_tokens, limit_micros)
    values (%(key)s::text, %(tokens)s::bigint, %(micros)s::bigint)
    on conflict (key) do update set limit_tokens = excluded.limit_tokens, limit_micros = excluded.limit_micros
)
select 1 as none where false;

-- name: balance
-- The scope row and what is not folded yet, of one snapshot.
select b.limit_tokens, b.limit_micros,
       (b.spent_tokens + coalesce(sum(t.tokens) filter (where t.outcome = 'settled'), 0))::bigint as spent_tokens,
       (b.spent_micros + coalesce(sum(t.micros) filter (where t.outcome = 'settled'), 0))::bigint as spent_micros,
       (b.held_tokens - coalesce(sum(t.held_tokens), 0))::bigint as held_tokens,
       (b.held_micros - coalesce(sum(t.held_micros), 0))::bigint as held_micros,
       (b.unknown_tokens + coalesce(sum(t.held_tokens) filter (where t.outcome = 'unknown'), 0))::bigint as unknown_tokens,
       (b.unknown_micros + coalesce(sum(t.held_micros) filter (where t.outcome = 'unknown'), 0))::bigint as unknown_micros
from budget_scope b
left join settlement t on t.scope_key = b.key and not t.folded
where b.key = %(key)s::text
group by b.key;
