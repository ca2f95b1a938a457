"""Streams: facts that a service adds as rows, processed in numbered steps, each counted once.

A step is a cut through all inputs that is recorded before anything depends on it. After that, what
each shard has to do is fixed: any holder can do it, repeat it, and detect that it was done.

Files that decide are pure: they run no SQL, ask no clock and read no file.

Source: the design of distributed steps of Feldera, rebuilt over leased rows.
"""
