"""The HTTP surface: runs and swarms for any front end and any language, and streams for browsers.

::

    from deuz_workers.gateway import gateway

    http = gateway(app)  # an ASGI application, for `uvicorn my_module:http` or to be mounted in one of yours
"""

from __future__ import annotations

from deuz_workers.gateway.application import gateway
from deuz_workers.gateway.bridge import ui_response
from deuz_workers.gateway.principal import Principal

__all__ = ["Principal", "gateway", "ui_response"]
