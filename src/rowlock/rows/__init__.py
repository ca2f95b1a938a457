"""What rowlock asks of the host's table: columns, eligibility, updates. This room builds SQL and
never runs it.
"""
