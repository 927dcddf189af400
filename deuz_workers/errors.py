"""Every error that deuz_workers raises or stores.

::

    DeuzError
    ├── ConfigurationError            something the caller wrote is wrong; nothing was written
    │   ├── UnknownAgentError
    │   ├── UnsupportedPoolError
    │   ├── UnsupportedStoreError     the store does not have what the call needs: `backend`, `feature`
    │   ├── RunFileError              a file that should hold a run is altered or none of ours
    │   ├── ForkRefusedError          the run cannot be forked from that turn
    │   ├── RetryRefusedError         a failed run whose cause does not pass by waiting; also a TypeError
    │   ├── ReconciliationError       also a TypeError: words that fit no interrupted call; `part` says where
    │   └── ServerUnavailableError    an embedded server could not be found or started
    ├── StoreError
    │   ├── StoreUnavailableError     (retry later) nobody knows more than the message says
    │   │   ├── AdmissionFailedError  a model call was not sent, since nobody answered whether it may be
    │   │   ├── StoreRefusedError     (never) account, database name or path are wrong
    │   │   └── StoreContendedError   others had the rows for all of the time; nothing was written
    │   ├── MigrationMissingError
    │   ├── SchemaTooNewError
    │   ├── CheckpointVersionError    code ``checkpoint_version_unsupported``
    │   ├── RevisionConflictError     code ``revision_conflict``
    │   ├── RunExistsError
    │   ├── RunNotFoundError
    │   ├── RunNotEndedError          (retry later) only what has ended can be treated so; `status` says how it stands
    │   ├── AnswerRefusedError        an answer does not fit what waits; `part` says where, nothing was written
    │   ├── AnswerConflictError       the item was answered before; `winner` is that answer
    │   └── ScopeMismatchError
    ├── AgentRunLeaseError            code ``lease_held`` or ``lease_lost``
    ├── LeaseStoreUnavailableError    (retry later)
    ├── CodecError                    a value cannot be stored, or stored text cannot be read
    ├── ModelError                    see its subclasses; carries ``retry_after_ms`` and ``billed``
    │   ├── ModelUnavailableError     (retry later) connection refused or cut, 5xx, overloaded
    │   │   ├── ModelBreakerOpenError    the call was not sent: too many before it failed
    │   │   ├── LedgerContendedError     the call was not sent: its reservation could not be saved
    │   │   └── ModelStreamBrokenError   the reply broke off; also a ModelResponseError
    │   ├── ModelTimeoutError         (retry later)
    │   ├── ModelRateLimitedError     (retry later)
    │   ├── ModelAuthenticationError
    │   ├── ModelRequestError         the request is wrong: 400, 404, 413, 422
    │   │   ├── ModelNotFoundError       the provider does not serve that model
    │   └── ModelResponseError        (retry later) the reply does not follow the protocol
    ├── McpUnavailableError           (retry later) a tool server cannot be reached
    ├── ToolError                     what a tool raises to tell the model that the call failed
    │   ├── ToolArgumentsError        the model's arguments are no JSON or miss the schema
    │   ├── UnknownToolError          the model named a tool that the agent does not have
    │   ├── ToolContextError          the application's context for the tool misses its schema
    │   └── ToolResultError           the tool returned what cannot be stored or shown
    ├── MemoryReplyError              (retry later) a memory LLM did not answer as it was asked
    ├── OutputError                   an answer of the model does not have the output type of the run
    ├── HookError                     a guardrail, prepare_step or stop condition raised, or returned what means nothing
    ├── RunContextError               (retry later) the application could not make what tools and hooks of the run need
    ├── ExecutionPolicyError          code ``deadline_exceeded``, ``tool_not_allowed``, ``model_not_allowed`` ...
    │   └── BudgetLedgerError         code ``budget_exceeded``, ``missing_reservation``, ``window_mismatch`` ...
    ├── RunFailedError                ``handle.result()`` was asked for the output of a run that has none
    ├── ResultTimeoutError            (retry now) the run goes on; only the waiting ended
    ├── SwarmDefinitionError          cycle, repeated id, missing dependency, unknown binding
    ├── SwarmConflictError
    ├── SwarmTaskTimeout
    ├── SpawnRefusedError             tasks that a task asked for cannot be; none of them was created
    ├── LoopDiedError                 (retry now) user code ended the event loop that a synchronous function waited for
    ├── EnqueueRefusedError           the door for messages is shut, or the message is wrong
    └── EgressRefusedError            a URL that came from data leads where nothing of ours goes

    Interruption (BaseException)      not an error of the user's code, so ``except Exception`` lets it pass
    ├── RunCancelled
    ├── DeadlinePassed
    └── LeaseLost

    SimulatedDeath (BaseException)    of the testing kit: the process has ended, and nothing catches it

Each class says with :attr:`DeuzError.retry` whether the same call can succeed later. All of them survive ``pickle`` and
:func:`as_record`, which is what the store and the wire carry.
"""

from __future__ import annotations

from typing import ClassVar, Literal

Retry = Literal["never", "later", "now"]
Scalar = str | int | float | bool | None


class DeuzError(Exception):
    """Something went wrong in deuz_workers."""

    code: str = "error"
    retry: ClassVar[Retry] = "never"

    def __init__(self, message: str | None = None, *, code: str | None = None, **fields: Scalar) -> None:
        """`message` names the value and the way out; `fields` are scalars for programs, kept in :attr:`fields`."""
        text = message if message is not None else (type(self).__doc__ or type(self).__name__).splitlines()[0]
        super().__init__(text)
        self.message = text
        if code is not None:
            self.code = code
        self.fields: dict[str, Scalar] = fields

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle by message, code and fields, so that subclasses need no `__init__` of their own."""
        return (_rebuild, (type(self), self.message, self.code, self.fields))


def _rebuild(cls: type[DeuzError], message: str, code: str, fields: dict[str, Scalar]) -> DeuzError:
    return cls(message, code=code, **fields)


class ConfigurationError(DeuzError):
    """The configuration is wrong."""

    code = "configuration"


class ReconciliationError(ConfigurationError, TypeError):
    """What was said about interrupted calls does not fit them; nothing was written."""

    code = "reconciliation"


class UnknownAgentError(ConfigurationError):
    """No agent of that name is registered."""

    code = "unknown_agent"


class UnsupportedPoolError(ConfigurationError):
    """This worker pool cannot run agent steps."""

    code = "unsupported_pool"


class UnsupportedStoreError(ConfigurationError):
    """The store does not have what the call needs; nothing of it was asked. `backend` and `feature` say which."""

    code = "unsupported_store"


class ServerUnavailableError(ConfigurationError):
    """An embedded server could not be found or started."""

    code = "server_unavailable"


class RetryRefusedError(ConfigurationError, TypeError):
    """The run failed for a lasting cause, so that the same call would fail again."""

    code = "not_transient"


class RunFileError(ConfigurationError):
    """The file does not hold a run as it was exported."""

    code = "run_file"


class ForkRefusedError(ConfigurationError):
    """The run cannot be forked from that turn."""

    code = "fork_refused"


class StoreError(DeuzError):
    """The store refused."""

    code = "store"


class StoreUnavailableError(StoreError):
    """The store cannot be reached."""

    code = "store_unavailable"
    retry = "later"


class StoreContendedError(StoreUnavailableError):
    """The database gave up on the operation each time, by deadlocks or serialization failures; nothing was written."""

    code = "store_contended"


class AdmissionFailedError(StoreUnavailableError):
    """The store cannot be reached for the commit that would have let a model call be sent; the call was not sent."""

    code = "admission_failed"


class StoreRefusedError(StoreUnavailableError):
    """The store cannot be used as it is set: waiting does not help."""

    code = "store_refused"
    retry = "never"


class MigrationMissingError(StoreError):
    """The database schema is older than this package; run `deuz db migrate`."""

    code = "migration_missing"


class SchemaTooNewError(StoreError):
    """The database schema is newer than this package; upgrade deuz_workers."""

    code = "schema_too_new"


class CheckpointVersionError(StoreError):
    """The stored record has a version that this package cannot read; upgrade deuz_workers."""

    code = "checkpoint_version_unsupported"


class RevisionConflictError(StoreError):
    """Somebody else wrote this run first."""

    code = "revision_conflict"
    retry = "now"


class RunExistsError(StoreError):
    """A run of that id exists already."""

    code = "run_exists"


class RunNotFoundError(StoreError):
    """There is no such run."""

    code = "run_not_found"


class RunNotEndedError(StoreError):
    """The run, or one below it, has not ended."""

    code = "run_not_ended"
    retry = "later"


class AnswerRefusedError(StoreError):
    """The answer does not fit what the run waits for."""

    code = "answer_refused"


class AnswerConflictError(StoreError):
    """The item was answered before, and that answer stays."""

    code = "already_answered"

    @property
    def winner(self) -> dict[str, Scalar]:
        """Of the answer that stays: `approved`, and `reason`, `by` or `is_error` where it has them."""
        return {name: self.fields[name] for name in ("approved", "reason", "by", "is_error") if name in self.fields}


class ScopeMismatchError(StoreError):
    """Native checkpoint version, identity, or scope mismatch."""

    code = "scope_mismatch"


class AgentRunLeaseError(DeuzError):
    """Another executor holds the lease of this run."""

    code = "lease_held"
    retry = "later"


class LeaseStoreUnavailableError(DeuzError):
    """The lease store cannot be reached."""

    code = "lease_store_unavailable"
    retry = "later"


class CodecError(DeuzError):
    """The value cannot be stored."""

    code = "codec"


Billed = Literal["no", "unknown"]


class ModelError(DeuzError):
    """A model call failed."""

    code = "model"
    billed: Billed = "unknown"
    """`no`: the provider rejected the call before doing any work, so its reservation is released."""
    retry_after_ms: int | None = None
    """What the provider asked for, in milliseconds."""
    after_content: bool = False
    """Some of the answer had arrived: text, a thought, or part of a call. Set by clients that show no text of it."""

    def __init__(
        self,
        message: str | None = None,
        *,
        code: str | None = None,
        billed: Billed | None = None,
        retry_after_ms: int | None = None,
        after_content: bool = False,
        **fields: Scalar,
    ) -> None:
        super().__init__(message, code=code, **fields)
        self.after_content = after_content
        if billed is not None:
            self.billed = billed
        if retry_after_ms is not None:
            self.retry_after_ms = retry_after_ms

    def __reduce__(self) -> tuple[object, ...]:
        known = (self.message, self.code, self.billed, self.retry_after_ms, self.fields, self.after_content)
        return (_rebuild_model, (type(self), *known))


def _rebuild_model(
    cls: type[ModelError],
    message: str,
    code: str,
    billed: Billed,
    retry_after_ms: int | None,
    fields: dict[str, Scalar],
    after_content: bool = False,
) -> ModelError:
    return cls(message, code=code, billed=billed, retry_after_ms=retry_after_ms, after_content=after_content, **fields)


class ModelUnavailableError(ModelError):
    """The model provider cannot be reached or is overloaded."""

    code = "model_unavailable"
    retry = "later"


class ModelTimeoutError(ModelError):
    """The model call took too long."""

    code = "model_timeout"
    retry = "later"


class ModelRateLimitedError(ModelError):
    """The model provider asks for fewer calls."""

    code = "model_rate_limited"
    retry = "later"
    billed = "no"


class ModelAuthenticationError(ModelError):
    """The model provider refused the key; check the API key and the base URL."""

    code = "model_authentication"
    billed = "no"


class ModelRequestError(ModelError):
    """The model provider refused the request."""

    code = "model_request"
    billed = "no"


class ModelNotFoundError(ModelRequestError):
    """The model provider does not serve this model; check its name and the base URL."""

    code = "model_not_found"


class ModelContextOverflowError(ModelRequestError):
    """The request is longer than what the model takes; compact the history."""

    code = "model_context_overflow"


class ModelResponseError(ModelError):
    """The reply of the model provider does not follow its protocol."""

    code = "model_response"
    retry = "later"


class MemoryReplyError(DeuzError):
    """A memory LLM did not answer as it was asked."""

    code = "memory_reply"
    retry = "later"


class ModelBreakerOpenError(ModelUnavailableError):
    """The call was not sent, since too many before it failed."""

    code = "breaker_open"
    billed = "no"


class LedgerContendedError(ModelUnavailableError):
    """The call was not sent, since its reservation could not be saved: others had the rows of its budget."""

    code = "ledger_contended"
    billed = "no"


class ModelStreamBrokenError(ModelUnavailableError, ModelResponseError):
    """The reply of the model provider broke off."""

    code = "model_stream_broken"


class McpUnavailableError(DeuzError):
    """A tool server cannot be reached."""

    code = "mcp_unavailable"
    retry: ClassVar[Retry] = "later"


class ToolError(DeuzError):
    """The tool call failed."""

    code = "tool"


class ToolArgumentsError(ToolError):
    """The arguments of the tool call are not valid."""

    code = "tool_arguments"


class UnknownToolError(ToolError):
    """The agent has no tool of that name."""

    code = "unknown_tool"


class ToolResultError(ToolError):
    """The tool returned a value that cannot be stored."""

    code = "tool_result"


class ToolContextError(ToolError):
    """The context of the tool is not valid."""

    code = "tool_context"


class OutputError(DeuzError):
    """The answer does not have the output type of the run."""

    code = "output"


class HookError(DeuzError):
    """A hook of the agent failed."""

    code = "hook"


class RunContextError(DeuzError):
    """The context of the run could not be made."""

    code = "run_context"
    retry = "later"


class ExecutionPolicyError(DeuzError):
    """The policy of the run forbids it."""

    code = "execution_policy"


class BudgetLedgerError(ExecutionPolicyError):
    """A budget does not admit it; nothing was reserved."""

    code = "budget_exceeded"


class RunFailedError(DeuzError):
    """The run has no output."""

    code = "run_failed"


class ResultTimeoutError(DeuzError):
    """The run has not ended in the given time; it goes on."""

    code = "result_timeout"
    retry = "now"


class SwarmDefinitionError(ConfigurationError):
    """The swarm is not a valid graph."""

    code = "swarm_definition"


class SwarmConflictError(StoreError):
    """The swarm exists already or was changed by somebody else."""

    code = "swarm_conflict"


class SwarmTaskTimeout(DeuzError):
    """The task of the swarm took longer than its limit."""

    code = "swarm_task_timeout"


class SpawnRefusedError(DeuzError):
    """Tasks that a task asked for cannot be; none of them was created."""

    code = "spawn_refused"


class LoopDiedError(DeuzError):
    """User code ended the event loop; what is saved is saved, and the next call starts another loop."""

    code = "loop_died"
    retry = "now"


class EnqueueRefusedError(DeuzError):
    """The message was refused."""

    code = "enqueue_refused"


class EgressRefusedError(DeuzError):
    """The address is not one that data may lead to."""

    code = "egress_refused"


class Interruption(BaseException):
    """Ends the work in hand without being an error of the user's code."""


class RunCancelled(Interruption):
    """Somebody cancelled the run."""


class DeadlinePassed(Interruption):
    """The deadline of the run or the limit of the call has passed."""


class LeaseLost(Interruption):
    """Another executor holds the run now; nothing more may be written."""


class SimulatedDeath(BaseException):
    """Stands for the end of the process in the testing kit: no `except` of ours or of a tool's survives it."""


def as_record(error: BaseException) -> dict[str, Scalar]:
    """The error as plain data: `name`, `message`, `code` where it has one, then its scalar fields.

    Of an error that is not ours only the class name and its text are kept: no traceback, no values of variables.
    """
    if isinstance(error, DeuzError):
        return {"name": type(error).__name__, "message": error.message, "code": error.code, **error.fields}
    return {"name": type(error).__name__, "message": str(error)}
