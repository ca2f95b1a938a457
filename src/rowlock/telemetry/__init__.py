"""What the tools that a host has already are told: metrics, health, fields of its logs.

The one idea: nothing here asks a database. Metrics are read from what the process counts anyway,
when somebody asks for them.
"""

from __future__ import annotations
