"""Stock processors: the nodes that the builder makes operators of.

Each keeps to one contract: `event` moves values and calls no code of the host. What the host gave
(a function, a key, an iterable) is called in `process`, outside of the scheduler's mutex. A value
that is dropped in `event` leaves by `carriers.discard`, since its ``__del__`` is the host's as
well.
"""
