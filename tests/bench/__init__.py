"""What durability costs, measured: ``python -m tests.bench`` prints one table, ``--quick`` a coarser one in under a minute.

Every figure is of this machine and this minute. Compare columns of one table, and a table with an earlier one only through its
floor; on a busy machine take the smallest of several.

How to read it
--------------
A turn is one model call and one tool call. The model answers at once and the tool does nothing, so all of ``ms a turn`` is
overhead: claim, load, the commits, release, doorbell, and the way through the broker. Servers run with fsync on, on the disk
that the first lines name; Postgres, Valkey, workers and the bench itself share the cores.

``ms a turn, 1 run``      one run alone, at its 10th, 100th and 1,000th turn: turns 5 to 15, 75 to 125 and 900 to 1,000 of a run
                          that really has them. It ought not to grow
``turns/s, 8 runs``       eight runs at a time, once all of them are under way and until the first has ended
``commits a turn``        transactions that wrote. On a slower disk each costs a flush, so they matter more than the
                          milliseconds here
``rows B a turn``         what a turn appends: bodies of its message, receipt and journal rows, without keys and indexes
``head B``                body of the run's head, rewritten by every commit, whatever the length of the run
``WAL B a turn``          log written meanwhile, with what checkpoints add to it, less what an idle worker writes. SQLite's
                          are pages, most of which the next commit writes again
``floor``                 the same pool, set up alike, carrying out the bare minimum, see `floor_app`: one lease, one load, one
                          save of 1 KB with its outbox row, one doorbell, and none of what the product is for. A turn has
                          three commits where it has one
``reservations/s``        admissions against one budget scope: the hottest row that a tenant can have
``ms from a resume``      with ``--only resume`` and ``--only disk``: a run of 1,000 and of 2,000 turns, each with 2 KB from its
                          tool, whose process is killed in the model call after the last. From the call that resumes it, in a
                          new process that has its modules, to the call of the model; the lease of the dead has lapsed before.
                          The processor's share of it is what others on the machine do not lengthen
``room on disk``          of such a run when it has ended, as a multiple of what its tools returned: all files of a SQLite
                          database, or `pg_total_relation_size` of the tables after a plain VACUUM
"""
