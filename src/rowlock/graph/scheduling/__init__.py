"""How a graph runs: which node is asked next, when a run has ended, and what became of it."""
