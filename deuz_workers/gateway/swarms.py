"""What the gateway does with swarms. Their tasks are runs: `<swarm>/<task>`, in an address `<swarm>%2F<task>`."""

from __future__ import annotations

from pydantic import BaseModel
from starlette.responses import Response

from deuz_workers.app.swarm import Swarm, Task
from deuz_workers.gateway import bodies
from deuz_workers.gateway.operation import Call, Operation
from deuz_workers.gateway.records import Accepted, Started, SwarmRecord, swarm_record
from deuz_workers.gateway.responses import JsonResponse
from deuz_workers.gateway.runs import cancel, idempotency_key


async def start(call: Call) -> Response:
    body: bodies.StartSwarm = call.body
    tasks = [
        Task(
            task.id,
            agent=task.agent,
            reducer=task.reducer,
            prompt=task.prompt,
            depends_on=task.depends_on,
            budget=None if task.budget is None else task.budget.made(),
        )
        for task in body.tasks
    ]
    swarm = Swarm(body.name, tasks, concurrency=body.concurrency)
    handle = await call.gateway.app.aio.run_swarm(
        swarm, idempotency_key=idempotency_key(call), scope=call.scope, **body.options
    )
    started = Started(run_id=handle.run_id, scope=handle.scope)
    return JsonResponse(started.model_dump(), 202, {"location": call.gateway.address("v1", "swarms", handle.run_id)})


async def show(call: Call) -> BaseModel:
    head = await call.gateway.access.head(call.scope, call.run_id)
    snapshot = await call.gateway.app.aio.swarm_handle(call.run_id, call.scope).snapshot()
    return swarm_record(head, snapshot)


_SWARM = "/v1/swarms/{run_id}"

OPERATIONS = (
    Operation("POST", "/v1/swarms", "start_swarm", "Start a swarm", start, Started, 202, bodies.StartSwarm, is_idempotent=True),
    Operation("GET", _SWARM, "show_swarm", "Its counters and tasks", show, SwarmRecord),
    Operation("POST", f"{_SWARM}/cancel", "cancel_swarm", "Ask for its end", cancel, Accepted, 202, bodies.Cancel),
)
