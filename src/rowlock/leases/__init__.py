"""The lock written into the row, one file per verb. The only room that runs SQL writing
``lock_*`` columns.
"""
