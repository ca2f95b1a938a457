"""What rowlock gives to the tools that a host has already: metrics, health, fields of its logs.

The one idea: nothing here asks a database. Metrics are read, on request, from what the process
counts anyway.
"""

from __future__ import annotations
