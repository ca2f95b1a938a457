"""Commands for people who run a host: ``python -m rowlock COMMAND``.

Not here: the demo, which is a program of its own (``demo/``), and how a command line is read
(``__main__.py``).
"""
