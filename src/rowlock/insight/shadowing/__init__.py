"""shadowing/: `process` is run beside the replicas that live, and its outcomes are compared with
theirs.
"""
