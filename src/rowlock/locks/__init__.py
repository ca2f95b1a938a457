"""Locks that die with the process or connection. What must outlive them is a lease in the row:
see ``leases/``.
"""
