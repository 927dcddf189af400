"""The models of one call: the one that it is meant for, then the agent's fallbacks; `core.failover` says which is next."""

from __future__ import annotations

from deuz_workers.core.failover import ModelId, chosen, failed_names, next_chosen
from deuz_workers.core.run import Run
from deuz_workers.ports.definition import AgentDefinition
from deuz_workers.ports.model import Model


def selected(agent: AgentDefinition, own: Model, run: Run) -> Model:
    """The candidate that a call goes to now. `own`: the agent's model, or that of this step."""
    if run.envelope.models is None:
        return own
    candidates = _candidates(agent, own)
    return candidates[chosen([model.name for model in candidates], run.envelope.models.failed)]


def following(agent: AgentDefinition, own: Model, run: Run, failing: Model) -> Model | None:
    """The candidate that a call goes to after `failing`; None: nobody is left."""
    if not agent.fallback_models:
        return None
    candidates = _candidates(agent, own)
    place = next_chosen([model.name for model in candidates], failed_names(run.envelope.models), failing.name)
    return None if place is None else candidates[place]


def id_of(model: Model) -> ModelId:
    return ModelId.of(model.name, getattr(model, "protocol", None))


def _candidates(agent: AgentDefinition, own: Model) -> tuple[Model, ...]:
    return (own, *(model for model in agent.fallback_models if model.name != own.name))
