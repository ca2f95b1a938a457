"""How we talk to any database: short, shielded, bounded transactions, and what an error means.
Knows no lease.
"""
