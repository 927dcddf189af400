"""Worker processes under a clock and a scheduler of our own: what a schedule does follows from its seed alone.

Engine, store, sweep, heartbeat and lease rules are the real ones. Virtual are the clock, the order in which tasks, threads and
timers go on, the broker, the network between a process and its servers, and the moment at which a process dies or freezes.
"""
