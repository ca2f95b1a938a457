"""A demonstration on real files: ``python -m rowlock demo`` catalogues a folder with several replicas, and kills one of them.

Start reading at ``documents.py``: that is all that a host writes. ``replica.py`` is a host's start-up, ``play.py`` tells the story,
``history.py`` and ``verdict.py`` judge it without asking the library.
"""
