"""For tests of this package and of its users: conformance kits for stores and leases, a virtual clock, injected crashes.

What scripts of `MockModel` and `ModelServer` are written with is here by name; the rest is in the modules.
"""

from deuz_workers.providers.script import attempts, call, calls, fails, hangs, raw_call, reply

__all__ = ["attempts", "call", "calls", "fails", "hangs", "raw_call", "reply"]
