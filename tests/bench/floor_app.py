"""The bare floor: what one durable step costs with nothing in it.

A Celery task that takes a lease, loads a head with its newest rows, saves one row of 1 KB together with the head under a
compare-and-set and swaps the row of an outbox in the same statement, gives the lease back and rings the next step; on a worker
set up like the product's, task events for Flower included. No model, no tool, no record, no checks: whatever a step of the
product takes beyond this is the product's own.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import psycopg
import redis
from celery import Celery

LEASE = """
if ARGV[1] == 'acquire' then
  if redis.call('SET', KEYS[1], ARGV[2], 'NX', 'PX', ARGV[3]) then return 1 end
  return 0
end
if redis.call('GET', KEYS[1]) == ARGV[2] then return redis.call('DEL', KEYS[1]) end
return 0
"""
SCHEMA = """
create table if not exists floor_head (
    id text primary key, revision bigint not null, body text not null, due_at timestamptz
) with (fillfactor = 60);
create table if not exists floor_message (id text, seq bigint, body text not null, primary key (id, seq));
create table if not exists floor_outbox (id text, revision bigint, due_at timestamptz not null, primary key (id, revision));
"""
LOAD = """
select h.revision, h.body, array(select m.body from floor_message m where m.id = h.id and m.seq > h.revision - 10)
from floor_head h where h.id = %s
"""
SAVE = """
with own as (
    update floor_head set revision = revision + 1, body = %(body)s, due_at = now()
    where id = %(id)s and revision = %(expected)s returning id, revision
), sent as (
    delete from floor_outbox o using own where o.id = own.id and o.revision = %(expected)s
), waiting as (
    insert into floor_outbox (id, revision, due_at) select id, revision, now() from own
)
insert into floor_message (id, seq, body) select id, revision, %(row)s from own returning seq
"""
BODY = "b" * 400
ROW = "r" * 1_000

app = Celery("floor", broker=os.environ.get("BENCH_BROKER_URL"))
app.conf.update(
    broker_transport_options={"ack_emulation": False},
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    worker_disable_rate_limits=True,
    worker_send_task_events=True,
)

_connections: dict[tuple[int, int], tuple[psycopg.Connection[Any], Any, Any]] = {}


def connections() -> tuple[psycopg.Connection[Any], Any, Any]:
    """Postgres, Redis and the script of this process and thread, opened at its first step."""
    here = os.getpid(), threading.get_ident()
    if here not in _connections:
        client = redis.Redis.from_url(os.environ["BENCH_REDIS_URL"])
        database = psycopg.connect(os.environ["BENCH_DATABASE_URL"], autocommit=True, prepare_threshold=0)
        _connections[here] = (database, client, client.register_script(LEASE))
    return _connections[here]


@app.task(name="floor.step")
def step(run_id: str, left: int) -> None:
    database, client, lease = connections()
    if not lease(keys=[f"floor:{run_id}"], args=["acquire", f"{run_id}:{left}", 30_000]):
        return
    row = database.execute(LOAD, [run_id]).fetchone()
    assert row is not None
    database.execute(SAVE, {"id": run_id, "expected": row[0], "body": BODY, "row": ROW}).fetchone()
    lease(keys=[f"floor:{run_id}"], args=["release", f"{run_id}:{left}"])
    if left > 1:
        app.send_task("floor.step", [run_id, left - 1])
    else:
        client.rpush("floor:done", run_id)
