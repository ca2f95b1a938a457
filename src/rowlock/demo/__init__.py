"""A demonstration on real files: ``python -m rowlock demo`` catalogues a folder with several
replicas and kills one of them.

Start reading at ``host.py``, which is all that a host writes. ``run.py`` starts the replicas and
kills one, ``command.py`` judges the run by a second count of the files and by what a trigger in the
database noted.
"""
