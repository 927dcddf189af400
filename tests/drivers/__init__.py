"""One suite over every way to execute runs: in process over memory and a file, embedded workers, Celery workers.

A test takes `driver` and starts runs of agents in `tests.drivers.agents`. It runs once with each driver, and what each of its
runs came to is compared with what it came to in process over memory. To add a behaviour: an agent there, whose model and tools
go by their arguments and by files (`trace`, gates) alone, and a test in a file named like what it is about.
"""
