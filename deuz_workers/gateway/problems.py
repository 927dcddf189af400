"""Errors as `application/problem+json` (RFC 9457), with the codes that the same errors have in Python."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from deuz_workers.core.redaction import redact
from deuz_workers.errors import (
    AnswerConflictError,
    AnswerRefusedError,
    BudgetLedgerError,
    CheckpointVersionError,
    CodecError,
    ConfigurationError,
    DeuzError,
    EgressRefusedError,
    LeaseStoreUnavailableError,
    MigrationMissingError,
    ReconciliationError,
    RetryRefusedError,
    RevisionConflictError,
    RunExistsError,
    RunNotFoundError,
    SchemaTooNewError,
    ScopeMismatchError,
    StoreUnavailableError,
    SwarmConflictError,
)
from deuz_workers.gateway.principal import ForbiddenError
from deuz_workers.gateway.responses import JsonResponse

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1
MOST_DETAIL = 4_000
"""Characters: a message may repeat what the request brought."""


class RequestError(DeuzError):
    """The request cannot be served as it is."""

    code = "invalid_request"

    def __init__(self, message: str, status: int, *, code: str = "invalid_request", headers: Mapping[str, str] = {}) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.headers = headers


_STATUS: tuple[tuple[type[DeuzError], int], ...] = (
    (RunNotFoundError, 404),
    (ScopeMismatchError, 404),
    (ForbiddenError, 403),
    (EgressRefusedError, 422),
    (RunExistsError, 409),
    (SwarmConflictError, 409),
    (BudgetLedgerError, 409),
    (AnswerConflictError, 409),
    (RevisionConflictError, 409),
    (RetryRefusedError, 409),
    (CheckpointVersionError, 409),
    (ReconciliationError, 422),
    (AnswerRefusedError, 422),
    (CodecError, 422),
    (ConfigurationError, 422),
    (StoreUnavailableError, 503),
    (LeaseStoreUnavailableError, 503),
    (MigrationMissingError, 503),
    (SchemaTooNewError, 503),
)

_STATUS_OF_CODE = {"no_budget": 404, "no_hold": 404}
"""Of errors whose class stands for more."""


def status_of(error: DeuzError) -> int:
    """The HTTP status of an error: 500 for one that no request can cause."""
    if isinstance(error, RequestError):
        return error.status
    if error.code in _STATUS_OF_CODE:
        return _STATUS_OF_CODE[error.code]
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem_record(error: DeuzError) -> dict[str, Any]:
    """What a server has to say about itself stays inside: with 5xx the detail is the class' own sentence."""
    status = status_of(error)
    own = (type(error).__doc__ or "").splitlines()[0]
    return {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": error.code,
        "detail": redact(error.message[:MOST_DETAIL]) if status < 500 else own,
        "retry": error.retry,
    }


def problem(error: DeuzError) -> Response:
    """The record of `problem_record`, with the headers that belong to it."""
    body = problem_record(error)
    status: int = body["status"]
    headers = dict(error.headers) if isinstance(error, RequestError) else {}
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    if status == 401:
        headers["www-authenticate"] = 'Bearer realm="deuz"'
    return JsonResponse(body, status, headers, MEDIA_TYPE)
