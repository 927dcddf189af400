"""The rules of a run, pure: no I/O, no clock, no randomness. Everything that decides correctness is decided here."""
