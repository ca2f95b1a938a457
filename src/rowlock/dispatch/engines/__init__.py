"""Engines: where accepted attempts run. In this process, in its threads, in processes beside it;
further away with an extra.
"""
