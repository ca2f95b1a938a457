"""How a graph is put together: nodes, edges, and the checks before a run."""
