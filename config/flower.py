"""Settings of Flower: ``celery --app deuz_workers.workers.celery_app flower --conf=config/flower.py``.

The password comes from the environment (``FLOWER_BASIC_AUTH=user:password``) and has no default: without it Flower does not
start. What Flower shows is the pool; what a run does is shown by ``deuz runs``, the gateway and the console.
"""

import os
import sys

if ":" not in os.environ.get("FLOWER_BASIC_AUTH", ""):
    sys.exit("Flower needs a password: set FLOWER_BASIC_AUTH=user:password")

# Loopback; whoever puts it elsewhere says so with --address and puts TLS before it.
address = "127.0.0.1"
port = 5555

# Watching only: no shutdown, no pool restart, no revoke, no apply. A worker is drained by SIGTERM, a run is cancelled by
# `deuz cancel`.
read_only = True

# Workers send events where they were started with [worker] events = true; Flower does not switch them on from outside, since
# workers answer questions and take no orders by remote control.
enable_events = False

# Celery tasks are steps: many, short and all alike. What is older than the newest ten thousand is in the journal.
max_tasks = 10_000
# A worker that was scaled away leaves the list after an hour.
purge_offline_workers = 3600
# Nothing is kept over a restart: the store is the record.
persistent = False


def format_task(task):
    """Run id and agent of a step; no arguments of a task of your own, and no results."""
    # Workers replace what these two say of their arguments: run id and agent, nothing else.
    if task.name not in ("deuz.step", "deuz.enqueue"):
        task.args = "(hidden)"
    task.kwargs = "(hidden)"
    task.result = None
    return task
