"""What a run takes place in: processes that are not, their event loop, their way to the
database, and chance from one number.
"""
