"""`deuz demo`: a whole pool, a swarm over real files, a worker that dies, a person who is asked; nothing is left behind."""

from deuz_workers.cli.demo.command import demo

__all__ = ["demo"]
